"""What needs no vLLM of its scheduler's side: options, sizes, estimates, steps, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvmove.errors import PolicyError, Refused
from kvmove.integrations.vllm import require_supported_version
from kvmove.integrations.vllm.estimates import Estimates
from kvmove.integrations.vllm.hit_sizes import Group, HitSizes
from kvmove.integrations.vllm.options import Options
from kvmove.integrations.vllm.step_decisions import Answer, Engine, StepDecisions
from kvmove.records import Action

FULL = HitSizes((Group(16, 1000),), 16, cuttable=True)


@pytest.mark.parametrize("version", ["0.33.0", "0.33.0+cpu", "0.33.2", "0.33.1.post1"])
def test_the_supported_versions_are_taken(version: str) -> None:
    """Releases of one minor version, however they were built."""
    require_supported_version(version)


@pytest.mark.parametrize("version", ["0.32.9", "0.34.0", "1.33.0", "0.33.1rc1", "0.33.1.dev3+g1", "0.330.0", None])
def test_any_other_version_is_refused_with_what_is_supported(version: str | None) -> None:
    """The message says what to install."""
    with pytest.raises(Refused, match=r"works with vLLM 0\.33\.x.*pip install vllm==0\.33\.0"):
        require_supported_version(version)


def test_the_package_can_be_imported_without_vllm_and_says_what_it_needs() -> None:
    """Importing costs no vLLM and no torch; taking a class that needs vLLM is a clear error where there is none."""
    code = """if True:
        import sys
        sys.modules["vllm"] = None
        from importlib import metadata
        known = metadata.version
        def version(name):
            if name == "vllm":
                raise metadata.PackageNotFoundError(name)
            return known(name)
        metadata.version = version
        import kvmove.integrations.vllm as package
        from kvmove.integrations.vllm import step_decisions
        assert "torch" not in sys.modules
        for name in ("KVMoveConnector", "KVMoveOffloadingSpec"):
            try:
                getattr(package, name)
            except package.supported.Refused as error:
                assert "vLLM is not installed" in str(error), error
            else:
                raise SystemExit(f"{name} was not refused")
        try:
            package.Connector
        except AttributeError:
            pass
    """
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_options_are_those_of_the_extra_configuration() -> None:
    """What is left out has a default; vLLM's own options are passed over."""
    assert Options.read({"cpu_bytes_to_use": 1, "eviction_policy": "arc"}) == Options()
    extra = {"policy": "split", "policy_params": {"queue": 3}, "policy_watch": True, "sync_load_budget_bytes": 7}
    assert Options.read({**extra, "policy_max_deferrals": 0}) == Options("split", {"queue": 3}, True, 7, 0)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"policy": ""}, "a policy's file or the name"),
        ({"policy": 3}, "policy is 3"),
        ({"policy_params": ["a"]}, "an object such as"),
        ({"policy_params": {"a": 1.5}}, "policy_params is"),
        ({"policy_watch": "yes"}, "true or false"),
        ({"sync_load_budget_bytes": -1}, "sync_load_budget_bytes is -1; an int from 0"),
        ({"sync_load_budget_bytes": "64MiB"}, "sync_load_budget_bytes is '64MiB'"),
        ({"policy_max_deferrals": True}, "policy_max_deferrals is True"),
        ({"policy_param": {}}, "did you mean `policy_params`"),
        ({"policy_file": "a"}, "has no policy_file"),
    ],
)
def test_options_that_cannot_be_used_are_refused_by_name(extra: dict[str, Any], message: str) -> None:
    """An engine does not start with a typing mistake in its policy's options."""
    with pytest.raises(Refused, match=message):
        Options.read(extra)


@pytest.mark.parametrize(
    ("group", "cached", "end", "blocks"),
    [
        (Group(16, 1), 0, 64, 4),
        (Group(16, 1), 32, 65, 3),  # a partial tail is loaded as a block
        (Group(16, 1), 33, 64, 1),  # a block that is cached in part is not loaded over
        (Group(16, 1, window_tokens=39), 0, 64, 3),  # tokens 25 to 63 can be read
        (Group(16, 1, window_tokens=39), 0, 63, 3),
        (Group(16, 1, window_tokens=39), 48, 64, 1),
        (Group(16, 1, window_tokens=1), 0, 160, 1),  # a recurrent state
        (Group(16, 1, attention_chunk_tokens=64), 0, 80, 1),
        (Group(16, 1, attention_chunk_tokens=64), 0, 64, 0),  # the next token begins a chunk and reads nothing
    ],
)
def test_a_group_loads_the_blocks_that_can_still_be_read(group: Group, cached: int, end: int, blocks: int) -> None:
    """Counted by hand."""
    assert group.blocks_to_load(cached, end) == blocks


def test_a_hit_is_cut_where_chunks_end() -> None:
    """Cuts are ends of host chunks, counted in blocks behind what is cached; a hit with a window has none."""
    assert HitSizes((Group(16, 1),), 48, cuttable=True).cuts(32, 192) == (1, 4, 7)
    assert HitSizes((Group(16, 1),), 16, cuttable=True).cuts(0, 32) == (1,)
    assert HitSizes((Group(16, 1), Group(16, 1, 39)), 16, cuttable=False).cuts(0, 192) == ()


def test_estimates_are_unknown_until_measured_and_follow_what_is() -> None:
    """Rates of what was measured, rounded up."""
    estimates = Estimates()
    assert estimates.load_time_ns(5) is estimates.recompute_time_ns(5) is estimates.step_time_ns() is None
    assert estimates.async_delay_ns() is None
    estimates.copied(1000, 500)
    assert estimates.load_time_ns(3) == 2
    estimates.stepped(0, 10)  # nothing ran
    estimates.stepped(8, 1000)  # too small to say what a prefill takes
    assert estimates.step_time_ns() == 1000
    assert estimates.recompute_time_ns(100) is None
    estimates.stepped(1000, 9000)
    assert estimates.recompute_time_ns(100) == 900
    assert 1000 < (estimates.step_time_ns() or 0) < 9000
    estimates.parked(1000, 2500)
    assert estimates.async_delay_ns() == 2000
    for _ in range(100):
        estimates.copied(1000, 5000)
    assert 4900 < (estimates.load_time_ns(1000) or 0) <= 5000


class _Asker:
    """A `StepDecisions` with a policy from text and a clock of its own."""

    def __init__(self, tmp_path: Path, text: str, sizes: HitSizes = FULL, **options: Any) -> None:
        path = tmp_path / "p.kvpol"
        path.write_text(text)
        self.now_ns = 0
        self.decisions = StepDecisions(Options(str(path), **options), sizes, lambda: self.now_ns)

    def ask(self, request: str, tokens: int = 64, prompt: int = 100, **engine: int) -> Answer:
        """Ask about a hit behind nothing."""
        return self.decisions.ask(
            request, cached_tokens=0, hit_tokens=tokens, prompt_tokens=prompt, priority=0, deadline_left_ns=None,
            engine=lambda: Engine(**engine),
        )  # fmt: skip


def test_a_reservation_ends_with_the_step_or_when_the_engine_gives_up(tmp_path: Path) -> None:
    """What was not admitted is there for the next request; what was is not until the next step."""
    asker = _Asker(tmp_path, "sync if bytes <= budget_remaining", sync_load_budget_bytes=5000)
    assert asker.ask("a") == Answer(64, True, 4000)
    assert asker.decisions.give_up() == "a"
    assert asker.ask("b") == Answer(64, True, 4000)
    asker.decisions.admitted("b", loads=True)
    assert asker.decisions.give_up() is None
    assert asker.ask("c") == Answer(64, False, 4000)
    plan = asker.decisions.end_step()
    assert plan is not None
    assert [(d.request, d.action) for d in plan.decisions] == [("b", Action.SYNC)]
    assert asker.decisions.end_step() is None  # no question, no step
    assert asker.ask("c") == Answer(64, True, 4000)


def test_a_load_that_the_engine_leaves_out_is_refunded(tmp_path: Path) -> None:
    """vLLM may take a hit of its own instead, and allocate with nothing to load."""
    asker = _Asker(tmp_path, "sync if bytes <= budget_remaining", sync_load_budget_bytes=4000)
    asker.ask("a")
    asker.decisions.admitted("a", loads=False)
    assert asker.ask("b").is_sync


def test_the_engine_is_asked_for_its_state_once_a_step(tmp_path: Path) -> None:
    """Policies see the state with which the step began."""
    asker = _Asker(tmp_path, "sync if waiting > 3 and free_slots < 9 and inflight_bytes == 5B")
    assert asker.ask("a", waiting=4, free_slots=8, inflight_bytes=5).is_sync
    asker.decisions.admitted("a", loads=True)
    assert asker.ask("b", waiting=0).is_sync
    asker.decisions.end_step()
    assert not asker.ask("c", waiting=0).is_sync


def test_waiting_counts_from_the_first_question_until_slots_are_found(tmp_path: Path) -> None:
    """`waited` and `deferrals` begin anew when a request that ran is preempted and asked about again."""
    asker = _Asker(tmp_path, "defer if waited < 10ns\nsync if deferrals == 2")
    assert asker.ask("a").tokens is None
    asker.decisions.end_step()
    asker.now_ns = 9
    assert asker.ask("a").tokens is None
    asker.decisions.end_step()
    asker.now_ns = 10
    assert asker.ask("a").is_sync
    asker.decisions.admitted("a", loads=True)
    asker.decisions.end_step()
    assert asker.ask("a").tokens is None
    asker.decisions.forget("a")


def test_a_hit_beyond_what_policies_are_checked_for_loads_asynchronously(tmp_path: Path) -> None:
    """An absurd size is no reason for an engine to stop; it is reported once."""
    asker = _Asker(tmp_path, "sync", HitSizes((Group(16, 1 << 40),), 16, cuttable=True))
    assert asker.ask("a") == Answer(64, False, 4 << 40)
    assert asker.ask("b") == Answer(64, False, 4 << 40)
    asker.decisions.end_step()


def test_a_shipped_policy_cannot_be_followed_and_a_missing_one_is_an_error() -> None:
    """A file that nobody edits has nothing to follow."""
    with pytest.raises(Refused, match="save it under a path of yours"):
        StepDecisions(Options("budgeted", policy_watch=True), FULL)
    with pytest.raises(PolicyError, match="no policy"):
        StepDecisions(Options("bugdeted"), FULL)
