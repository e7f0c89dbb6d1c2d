"""The pytest plugin: policy files as tests (`--kvpol`) and which rules a run exercised (`--kvpol-cov`).

pytest imports this in every run where kvmove is installed. So nothing but pytest is imported before it is asked for,
and a run that asks for nothing has no hook but the options.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kvmove.testing.coverage import RuleCoverage

_COVERAGE = pytest.StashKey["RuleCoverage"]()
_SENT = "kvmove_rule_coverage"  # what a worker of pytest-xdist sends when it ends


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, each with a setting of the same name."""
    group = parser.getgroup("kvpol", "policies of kvmove")
    group.addoption("--kvpol", action="store_true", help="Collect *.kvpol files: check, layout, proof, examples.")
    group.addoption("--kvpol-strict", action="store_true", help="Check policies as `kvmove check --strict` does.")
    group.addoption("--kvpol-cov", action="store_true", help="Report which rules decided anything during the run.")
    group.addoption(
        "--kvpol-cov-fail-under", type=float, metavar="PERCENT", help="Fail when fewer rules than that decided."
    )
    parser.addini("kvpol", "collect *.kvpol files, as --kvpol does", type="bool", default=False)
    parser.addini("kvpol_strict", "check policies strictly, as --kvpol-strict does", type="bool", default=False)
    parser.addini("kvpol_cov", "report rule coverage, as --kvpol-cov does", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register what was asked for."""
    if _asked(config, "kvpol"):
        config.pluginmanager.register(_Collector(), "kvmove-policies")
    under = config.getoption("--kvpol-cov-fail-under")
    if under is not None and not 0 <= under <= 100:
        raise pytest.UsageError(f"--kvpol-cov-fail-under is {under:g}; a percentage from 0 to 100 is needed")
    if _asked(config, "kvpol_cov") or under is not None:
        from kvmove.testing.coverage import RuleCoverage

        coverage = config.stash[_COVERAGE] = RuleCoverage()
        coverage.start()
        config.pluginmanager.register(_Coverage(coverage, under), "kvmove-rule-coverage")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop counting: another run in this process starts anew."""
    coverage = config.stash.get(_COVERAGE, None)
    if coverage is not None:
        coverage.stop()


def _asked(config: pytest.Config, name: str) -> bool:
    return bool(config.getoption(f"--{name.replace('_', '-')}") or config.getini(name))


class _Collector:
    """Makes items of policy files."""

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        if file_path.suffix != ".kvpol" or not file_path.is_file():
            return None
        from kvmove.testing.items import PolicyFileItems

        coverage = parent.config.stash.get(_COVERAGE, None)
        made: pytest.Collector = PolicyFileItems.from_parent(parent, path=file_path)
        assert isinstance(made, PolicyFileItems)
        made.strict, made.coverage = _asked(parent.config, "kvpol_strict"), coverage
        return made


class _Coverage:
    """Reports at the end of the run, and collects what workers of pytest-xdist counted."""

    def __init__(self, coverage: RuleCoverage, under: float | None) -> None:
        self.coverage, self.under = coverage, under

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_SENT] = self.coverage.as_plain()
        elif self._is_under() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self.coverage.add_plain(getattr(node, "workeroutput", {}).get(_SENT, []))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("policy rule coverage")
        for line in self.coverage.lines():
            terminalreporter.write_line(line)
        if self._is_under():
            message = f"FAIL: {self.coverage.percent:.0f}% of the rules decided, {self.under:g}% are required"
            terminalreporter.write_line(message, red=True)

    def _is_under(self) -> bool:
        return self.under is not None and self.coverage.percent < self.under
