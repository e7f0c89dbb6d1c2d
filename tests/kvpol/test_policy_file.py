"""A policy that is loaded from a file again: what takes the place of what, and that no step sees two policies."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvmove import Hit, Policy, PolicyError, PolicyFile, Refused, StepScheduler
from kvmove.kvpol import admission
from kvmove.kvpol.admission import Demands

GOOD, OTHER = "sync if bytes <= budget_remaining\nasync\n", "async\n"
BAD = "sync if bites <= budget_remaining\n"
FALSE_ASSERT = "sync if bytes <= 2MiB\nasync\nassert sync implies bytes <= 1MiB\n"
DEAD_RULE = "sync if bytes <= 2MiB\nsync if bytes <= 1MiB\nasync\n"
BEYOND_BUDGET = "sync if bytes <= 2MiB\nasync\n"


def hit(request: str) -> Hit:
    return Hit(request=request, bytes=1, tokens=1, blocks=1, prompt_tokens=2, cached_tokens=0, compute_tokens=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "live.kvpol"
    path.write_text(GOOD)
    return path


def test_reload_swaps_a_good_file_and_keeps_the_last_good_one_of_a_bad(path: Path) -> None:
    """`status` tells both."""
    file = PolicyFile(path, watch=False)
    first = file.current
    assert not file.reload()
    path.write_text(OTHER)
    assert file.reload()
    good = file.status()
    assert (good.reloads, good.refusals, good.last_error, good.watching) == (1, 0, None, False)
    assert good.hash == file.current.hash != first.hash
    path.write_text(BAD)
    assert not file.reload()
    bad = file.status()
    assert (bad.hash, bad.loaded_at, bad.reloads, bad.refusals) == (good.hash, good.loaded_at, 1, 1)
    assert bad.last_error is not None
    assert "bites" in bad.last_error
    assert bad.last_error_at is not None
    assert file.is_broken
    path.write_text(OTHER)
    assert not file.reload()
    assert (file.status().last_error, file.status().refusals, file.is_broken) == (None, 1, False)


@pytest.mark.parametrize("data", [b"\0\1\2", b"\xff\xfe", b"# " + b"x" * (65 << 10), None])
def test_what_is_no_policy_keeps_the_last_good_one(path: Path, data: bytes | None) -> None:
    """Binary, not UTF-8, over 64 KiB, a folder in its place."""
    file = PolicyFile(path, watch=False)
    before = file.current
    path.unlink()
    assert not file.reload()
    assert "no such file" in str(file.status().last_error)
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)
    assert not file.reload()
    assert file.current is before
    assert file.status().last_error


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# sync if bytes <= budget_remaining\n", 'policy "x"\nparam p: bytes = 1B\n']
)
def test_a_file_without_a_rule_keeps_the_last_good_one(path: Path, text: str) -> None:
    """Empty, or only comments and definitions: `Policy.parse` takes it, and here it is a file that was emptied."""
    file = PolicyFile(path, watch=False)
    before = file.current
    path.write_text(text)
    assert not file.reload()
    assert file.current is before
    assert "no rule" in str(file.status().last_error)
    with pytest.raises(PolicyError, match="write `async`"):
        PolicyFile(path, watch=False)


@pytest.mark.parametrize("cut", range(1, len(GOOD)))
def test_a_file_that_was_cut_within_a_line_keeps_the_last_good_one(path: Path, cut: int) -> None:
    """Whether or not what is left is a policy by itself."""
    file = PolicyFile(path, watch=False)
    before = file.current
    path.write_text(GOOD[:cut])
    file.reload()
    is_whole_line = GOOD[:cut].endswith("\n")
    assert (file.current is before) is not is_whole_line
    assert (file.status().last_error is None) is is_whole_line


def test_a_last_line_without_an_end_is_taken_where_it_was_so_before(path: Path) -> None:
    """Some write their files so."""
    path.write_text(GOOD.removesuffix("\n"))
    file = PolicyFile(path, watch=False)
    path.write_text(OTHER.removesuffix("\n"))
    assert file.reload()


def test_a_bad_file_at_the_start_raises(path: Path) -> None:
    """There is no earlier policy to keep."""
    path.write_text(BAD)
    with pytest.raises(PolicyError, match="bites"):
        PolicyFile(path)
    path.unlink()
    with pytest.raises(PolicyError, match="no such file"):
        PolicyFile(path)
    with pytest.raises(PolicyError, match="is no path"):
        PolicyFile("a\0b", watch=False)


def test_strict_refuses_what_strict_checking_fails_on(path: Path) -> None:
    """Here the last rule is not written."""
    path.write_text("sync if bytes <= budget_remaining\n")
    PolicyFile(path, watch=False)
    with pytest.raises(PolicyError):
        PolicyFile(path, watch=False, check_strict=True)


@pytest.mark.parametrize(("text", "code"), [(FALSE_ASSERT, "KV401"), (DEAD_RULE, "KV402")])
def test_prove_refuses_what_is_not_so(path: Path, text: str, code: str) -> None:
    """A false assert and a rule that can never decide; notes alone are no reason, and without `prove` both are used."""
    pytest.importorskip("z3")
    file = PolicyFile(path, watch=False, prove=True)
    path.write_text(BEYOND_BUDGET)
    assert file.reload()
    before = file.current
    path.write_text(text)
    assert not file.reload()
    assert file.current is before
    assert code in str(file.status().last_error)
    assert "KV404" not in str(file.status().last_error)
    with pytest.raises(PolicyError, match=code):
        PolicyFile(path, watch=False, prove=True)
    PolicyFile(path, watch=False)


def test_prove_refuses_what_stays_unknown(path: Path) -> None:
    """Whether a sum of two cubes is a cube took people three centuries; a policy that asks is not used."""
    pytest.importorskip("z3")
    file = PolicyFile(path, watch=False, prove=True, prove_timeout_s=0.2)
    cubes = " + ".join(f"{name} * {name} * {name}" for name in ("blocks", "running"))
    path.write_text(f"sync if running > 0 and waiting > 0 and {cubes} == waiting * waiting * waiting\nasync\n")
    assert not file.reload()
    assert "KV405" in str(file.status().last_error)


def test_prove_proves_with_the_operators_values(path: Path) -> None:
    """An assert can hold for the file's value of a param and not for the operator's."""
    pytest.importorskip("z3")
    path.write_text("param small: bytes = 1MiB\nsync if bytes <= small\nasync\nassert sync implies bytes <= 1MiB\n")
    PolicyFile(path, watch=False, prove=True)
    with pytest.raises(PolicyError, match="KV401"):
        PolicyFile(path, {"small": "2MiB"}, watch=False, prove=True)


def test_without_z3_the_extra_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is loaded."""
    monkeypatch.setattr(admission, "find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"kvmove\[prove\]"):
        PolicyFile(path, watch=False, prove=True)
    PolicyFile(path, watch=False)


def test_params_hold_for_every_version(path: Path) -> None:
    """An operator's value outlives the file's edits, and a version that it does not fit is refused."""
    file = PolicyFile(path, {"budget": "3MiB"}, watch=False)
    path.write_text(OTHER)
    assert file.reload()
    assert file.current.budget_bytes == 3 << 20
    path.write_text("param small: bytes = 1MiB\nsync if bytes <= small\nasync\n")
    file = PolicyFile(path, {"small": "3MiB"}, watch=False)
    path.write_text(GOOD)
    assert not file.reload()
    assert "no param `small`" in str(file.status().last_error)


def test_a_bug_of_ours_keeps_the_last_good_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the log with its traceback, and in `status`."""
    file = PolicyFile(path, watch=False)
    before = file.current

    def fail(*args: object) -> Policy:
        raise ZeroDivisionError("planted")

    path.write_text(OTHER)
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(Demands, "policy_of", fail)
        assert not file.reload()
    assert file.current is before
    assert "planted" in str(file.status().last_error)
    assert "report it" in caplog.text
    assert file.reload()


def test_one_mistake_is_logged_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However often it is read; another one is logged again."""
    file = PolicyFile(path, watch=False)
    with caplog.at_level(logging.ERROR):
        for text in (BAD, BAD, "sync if bytes <= 1ms\n"):
            path.write_text(text)
            file.reload()
    assert len(caplog.records) == 2
    assert file.status().refusals == 3


@pytest.mark.parametrize("wrong", [{"debounce_ms": 0}, {"debounce_ms": 1.5}, {"prove_timeout_s": 0.0}])
def test_arguments_out_of_range_are_refused(path: Path, wrong: dict[str, float]) -> None:
    """The message names the value."""
    with pytest.raises(Refused, match=str(next(iter(wrong.values())))):
        PolicyFile(path, watch=False, **wrong)  # type: ignore[arg-type]


def test_status_and_the_policy_do_not_wait_for_a_load(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof may take seconds; the engine asks meanwhile, and so do a second poll and a metrics thread."""
    file = PolicyFile(path, watch=False)
    first = file.current
    is_loading, may_end = threading.Event(), threading.Event()
    policy_of = Demands.policy_of

    def slow(*args: object) -> Policy:
        is_loading.set()
        assert may_end.wait(10)
        return policy_of(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Demands, "policy_of", slow)
    path.write_text(OTHER)
    thread = threading.Thread(target=file.reload)
    thread.start()
    assert is_loading.wait(10)
    scheduler = StepScheduler(first)
    assert file.apply_to(scheduler, first) is file.current is first
    assert file.status().hash == first.hash
    assert not file.is_broken
    assert not file.poll()
    may_end.set()
    thread.join()
    assert file.status().reloads == 1


def test_a_scheduler_takes_a_new_policy_between_two_steps(path: Path) -> None:
    """Not within one; by itself from a file, and from `apply_to` where it is told."""
    file = PolicyFile(path, watch=False)
    follows, is_told = StepScheduler(file), StepScheduler(file.current)
    first, applied = file.current, file.current
    for scheduler in (follows, is_told):
        scheduler.begin_step()
    path.write_text(OTHER)
    assert file.reload()
    for scheduler in (follows, is_told):
        assert scheduler.decide(hit("r")).policy_hash == first.hash
    applied = file.apply_to(is_told, applied)
    assert applied is file.current
    for scheduler in (follows, is_told):
        scheduler.begin_step()
        assert scheduler.decide(hit("r")).policy_hash == file.current.hash != first.hash


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads take turns as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
def test_a_storm_of_reloads_never_mixes_two_policies_in_a_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 swaps on one thread while another makes 100,000 decisions; each text is parsed only once, for time."""
    texts = [GOOD, OTHER]
    parsed = {text.encode(): Policy.parse(text) for text in texts}
    monkeypatch.setattr(Demands, "policy_of", lambda self, path, version, before: parsed[version.data])
    file = PolicyFile(path, watch=False)
    done = threading.Event()
    swaps = 0

    def storm() -> None:
        nonlocal swaps
        while swaps < 1000:
            path.write_text(texts[swaps % 2 == 0])
            swaps += file.reload()
        done.set()

    thread = threading.Thread(target=storm)
    scheduler = StepScheduler(file)
    hits = [hit(f"r{i}") for i in range(50)]
    decisions, seen = 0, set()
    thread.start()
    while decisions < 100_000 or not done.is_set():
        scheduler.begin_step()
        hashes = {scheduler.decide(h).policy_hash for h in hits}
        scheduler.abort_step()
        assert len(hashes) == 1
        seen |= hashes
        decisions += len(hits)
    thread.join()
    assert file.status().reloads == swaps == 1000
    assert len(seen) == 2
