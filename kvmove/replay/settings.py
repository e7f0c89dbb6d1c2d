"""What is simulated: the modelled LLM with its times, the sizes of the caches, and the replica that really moves."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from kvmove import schema
from kvmove.errors import RecordError
from kvmove.replay.trace import BLOCK_TOKENS

SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000
MIN_RATE, MAX_RATE = 1e-3, 1e3  # beyond these a trace is all idle, or all at once
PAGE_UNIT_BYTES = 128  # a replica page is whole rows of 64 bf16 values


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The modelled LLM on one GPU: what its tokens weigh, and how long things take. All times are simulated.

    The defaults are like Llama 3 70B in bf16 at tensor parallel 8 on one H200: 80 layers x 2 x 1 KV head x 128 x 2
    bytes. They are stated assumptions, not measurements of your engine.
    """

    kv_bytes_per_token: int = 40 << 10
    link_bytes_per_second: int = 50 * 10**9
    prefill_tokens_per_second: int = 28_000
    max_batched_tokens: int = 8_192  # of a step; longer prompts are computed in chunks
    step_overhead_ns: int = 15_000_000  # of every step, however few tokens it has: reading the weights
    copy_latency_ns: int = 20_000  # of every load, however small
    async_steps: int = 2  # after the one that submits an async load, its request can run

    def __post_init__(self) -> None:
        _require_positive(self, "model")

    def copy_time_ns(self, num_bytes: int) -> int:
        """`copy_latency + bytes / link`: a load or store of so many bytes on an idle link."""
        return self.copy_latency_ns + _quotient_up(num_bytes * SECOND_NS, self.link_bytes_per_second)

    def compute_time_ns(self, tokens: int) -> int:
        """`tokens / prefill rate`: what computing these tokens adds to a step."""
        return _quotient_up(tokens * SECOND_NS, self.prefill_tokens_per_second)

    def step_time_ns(self, tokens: int, sync_bytes: int = 0) -> int:
        """`overhead + tokens / prefill rate`, after the copy of the step's sync loads, for which everybody waits."""
        waited_ns = self.copy_time_ns(sync_bytes) if sync_bytes else 0
        return waited_ns + self.step_overhead_ns + self.compute_time_ns(tokens)

    def usual_step_ns(self, usual_ns: int, latest_ns: int) -> int:
        """`3/4 x usual + 1/4 x latest`: an estimate of the next step's time, averaged over about four steps."""
        return (3 * usual_ns + latest_ns) // 4

    def async_delay_ns(self, step_time_ns: int) -> int:
        """`async_steps x step time`: what an async load costs its request beyond the copy."""
        return self.async_steps * step_time_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a replay depends on besides the trace and the policy.

    Raises:
        RecordError: a value is out of range.
    """

    model: Model = field(default_factory=Model)
    block_tokens: int = BLOCK_TOKENS
    rate: float = 1.0  # of arrivals: 0.5 stretches the trace to twice its time
    num_slots: int = 4_096  # 80 GiB of the default model's KV on one GPU
    num_host_blocks: int = 12_288  # 240 GiB for each GPU
    budget_bytes: int | None = None  # modelled bytes a step; None: what the policy says
    max_deferrals: int = 16
    replica_layers: int = 2  # K and V are pages of their own
    replica_page_bytes: int = 1_024

    def __post_init__(self) -> None:
        _require_positive(self, "replay")
        if not MIN_RATE <= self.rate <= MAX_RATE:  # NaN is in no range
            raise RecordError(f"replay: rate is {self.rate}; {MIN_RATE:g} to {MAX_RATE:g} is possible")
        if self.replica_page_bytes % PAGE_UNIT_BYTES:
            raise RecordError(
                f"replay: replica_page_bytes is {self.replica_page_bytes}; a multiple of {PAGE_UNIT_BYTES} is needed"
            )
        if self.model.kv_bytes_per_token > schema.MAX_BYTES_PER_TOKEN:
            raise RecordError(
                f"replay: kv_bytes_per_token {self.model.kv_bytes_per_token} is more than {schema.MAX_BYTES_PER_TOKEN}"
            )
        cache_bytes = self.num_slots * self.block_bytes
        if cache_bytes > schema.MAX_BYTES:
            raise RecordError(f"replay: {self.num_slots} slots of {self.block_bytes} bytes are more than any GPU has")

    @property
    def block_bytes(self) -> int:
        """Modelled bytes of a block on one GPU: what policies see."""
        return self.block_tokens * self.model.kv_bytes_per_token

    @property
    def replica_pages(self) -> int:
        """Pages of a block in the replica."""
        return 2 * self.replica_layers

    @property
    def replica_block_bytes(self) -> int:
        """Bytes that really move for a block."""
        return self.replica_pages * self.replica_page_bytes


def _quotient_up(dividend: int, divisor: int) -> int:
    """Estimates round up to whole nanoseconds."""
    return -(-dividend // divisor)


def _require_positive(record: Model | Settings, what: str) -> None:
    for f in fields(record):
        value = getattr(record, f.name)
        low = 0 if f.name in ("budget_bytes", "max_deferrals", "step_overhead_ns", "copy_latency_ns") else 1
        if isinstance(value, Model) or f.name == "rate" or (value is None and f.name == "budget_bytes"):
            continue
        if type(value) is not int or value < low:
            raise RecordError(f"{what}: {f.name} is {value!r}; an int of at least {low} is needed")
        if value > schema.MAX_BYTES:
            raise RecordError(f"{what}: {f.name} is {value}; at most {schema.MAX_BYTES} is possible")
