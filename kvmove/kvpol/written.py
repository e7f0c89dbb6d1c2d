"""An expression as text on one line, with no parentheses but those that it needs."""

from __future__ import annotations

from kvmove.kvpol import tree

_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _NEGATE, _ATOM = range(8)  # how tightly each kind binds


def written(expr: tree.Expr) -> str:
    """The text of `expr`: parsing it gives the same tree."""
    return _written(expr)[0]


def _written(expr: tree.Expr) -> tuple[str, int]:  # noqa: PLR0911 - one return for each kind
    match expr:
        case tree.Quantity(text=text):
            return text, _ATOM
        case tree.Boolean(value=value):
            return ("true" if value else "false"), _ATOM
        case tree.Name(name=name):
            return name, _ATOM
        case tree.Call(function=function, arguments=arguments):
            return f"{function.text}({', '.join(written(a) for a in arguments)})", _ATOM
        case tree.Negate(operand=operand):
            return f"-{_at_least(operand, _NEGATE)}", _NEGATE
        case tree.Not(item=item):
            return f"not {_at_least(item, _NOT)}", _NOT
        case tree.SumOf(operands=operands, operators=operators):
            return _chain(operands, operators, _PRODUCT), _SUM
        case tree.ProductOf(operands=operands, operators=operators):
            return _chain(operands, operators, _NEGATE), _PRODUCT
        case tree.Compare(operands=operands, operators=operators):
            return _chain(operands, operators, _SUM), _COMPARE
        case tree.AllOf(items=items):
            return " and ".join(_at_least(item, _NOT) for item in items), _AND
        case tree.AnyOf(items=items):
            return " or ".join(_at_least(item, _AND) for item in items), _OR


def _chain(operands: tuple[tree.Expr, ...], operators: tuple[tree.Word, ...], tightness: int) -> str:
    parts = [_at_least(operands[0], tightness)]
    for operator, operand in zip(operators, operands[1:], strict=True):
        parts += [operator.text, _at_least(operand, tightness)]
    return " ".join(parts)


def _at_least(expr: tree.Expr, tightness: int) -> str:
    text, binds = _written(expr)
    return text if binds >= tightness else f"({text})"
