"""What pytest runs of a policy file: its check, its layout, its proof and its examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from kvmove.errors import PolicyError
from kvmove.kvpol.analyse import analyse
from kvmove.kvpol.examples import examples_path, load_examples, run_examples
from kvmove.kvpol.format import format_text
from kvmove.kvpol.library import read_file
from kvmove.kvpol.policy import Policy
from kvmove.kvpol.render import render_all

if TYPE_CHECKING:
    from kvmove.kvpol.examples import Example
    from kvmove.testing.coverage import RuleCoverage


class _Failed(Exception):
    """What is wrong, as text; no traceback is worth showing."""


class PolicyFileItems(pytest.File):
    """A `.kvpol` file. A file with mistakes fails its `check` alone: what follows from them is not reported."""

    strict = False
    coverage: RuleCoverage | None = None

    def collect(self) -> Iterator[pytest.Item]:
        """`check`, `fmt`, `prove`, and one for each example of the file beside it."""
        yield self._item("check", self._check)
        yield self._item("fmt", self._fmt)
        yield self._item("prove", self._prove)
        path = examples_path(self.path)
        if not path.exists():
            return
        try:
            examples = load_examples(path)
        except PolicyError as e:
            problem = str(e)
            yield self._item("examples", lambda: _fail(problem))
            return
        for example in examples:
            yield self._item(f"example: {example.name}", partial(self._example, example))

    def _item(self, name: str, run: Callable[[], None]) -> pytest.Item:
        item = _PolicyItem.from_parent(self, name=name)
        item.run = run
        return item

    def policy(self) -> Policy:
        """The policy, for what can only be asked of one without mistakes."""
        try:
            policy = Policy.load(self.path)
        except PolicyError:
            pytest.skip("the policy has mistakes, see its `check`")
        if self.coverage is not None:
            self.coverage.know(policy)
        return policy

    def _check(self) -> None:
        source = read_file(self.path)
        analysis = analyse(source, strict=self.strict)
        failing = [f for f in analysis.findings if f.is_error or self.strict]
        if failing:
            _fail(render_all(failing, source))
        self.policy()

    def _fmt(self) -> None:
        from difflib import unified_diff

        self.policy()
        text = read_file(self.path).text
        formatted = format_text(text, name=str(self.path))
        if formatted != text:
            changes = unified_diff(text.splitlines(), formatted.splitlines(), "as it is", "formatted", lineterm="")
            _fail("\n".join([f"run `kvmove fmt {self.path}`:", *changes]))

    def _prove(self) -> None:
        if find_spec("z3") is None:
            pytest.skip("proofs need z3: pip install 'kvmove[prove]'")
        policy = self.policy()
        from kvmove.kvpol.proof import Status, prove

        report = prove(policy)
        if report.status is Status.PROVED:
            return
        findings = [f for f in report.findings if f.is_error] or report.findings
        text = render_all(findings, policy.analysis.source)
        if report.status is Status.UNKNOWN:
            pytest.skip(f"not everything was answered in time\n{text}")
        _fail(text)

    def _example(self, example: Example) -> None:
        policy = self.policy()
        (result,) = run_examples(policy, (example,)).results
        if self.coverage is not None:
            counts = self.coverage.know(policy)
            counts.update(decision.trace.rule.index for decision in result.decisions)
        if not result.passed:
            _fail("\n".join(result.problems))


class _PolicyItem(pytest.Item):
    run: Callable[[], None]

    def runtest(self) -> None:
        self.run()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, _Failed | PolicyError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, None, self.name


def _fail(text: str) -> None:
    raise _Failed(text)
