"""A vLLM server's /metrics page, and what happened between two readings of it.

Prometheus counters only grow, and restart from zero when the server restarts; gauges give the current state. Names are
those of vLLM 0.32 and 0.33.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, repeat

from prometheus_client.parser import text_string_to_metric_families

from lab.errors import LabError

KV_USAGE = "vllm:kv_cache_usage_perc"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
PREEMPTIONS = "vllm:num_preemptions_total"
GENERATED = "vllm:generation_tokens_total"
QUERIED = "vllm:prefix_cache_queries_total"
HITS = "vllm:prefix_cache_hits_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
CACHE = "vllm:cache_config_info"
STARTED = "process_start_time_seconds"

GAUGES = (KV_USAGE, RUNNING, WAITING)
COUNTERS = (PREEMPTIONS, GENERATED, QUERIED, HITS, DRAFTS, DRAFTED, ACCEPTED)
MAX_VALUE = 2.0**63
"""No such counter is ever larger: a larger number does not come from vLLM, and sums of such would not be finite."""
MAX_POSITIONS = 32
"""A round's later positions are left out: the lab's own gamma ends there."""
METRIC_LINE = re.compile(
    rf"^[ \t]*(?:{'|'.join((*GAUGES, *COUNTERS, ACCEPTED_AT, CACHE, STARTED))})(?=[\s{{]).*", re.MULTILINE
)
"""A line that matters here. The parser, whose time is quadratic in a line's length, is given no others."""
MAX_LINE, MAX_PAGE = 8 * 2**10, 2**19
"""Characters of such a line, and of all of them together: those of one engine have some 3,000."""
NOT_VLLM = (
    "What came is not Prometheus text with vLLM's metrics (whose names begin with vllm:). Give the address of a vLLM "
    "server that was not started with --disable-log-stats."
)

NO_VALUES_YET = (
    "It has vLLM's metrics (whose names begin with vllm:), and no value of any so far: a lab's come with its first run."
)


class MetricsError(LabError):
    """A page that is not a vLLM server's metrics."""


@dataclass(frozen=True)
class ServerMetrics:
    """The values of the page at one time.

    Attributes:
        at: when it was read, in seconds of a monotonic clock.
        values: by metric; the sum over several engines and models, for ``KV_USAGE`` (0 to 1) the mean.
        accepted_at: drafted tokens accepted so far, by position in their round.
        started: when the server began, in seconds since 1970, if it says so.
        block_size, num_blocks: token slots of a cache block, and blocks of all engines, if it says so.
    """

    at: float
    values: Mapping[str, float]
    accepted_at: tuple[float, ...] = ()
    started: float | None = None
    block_size: int | None = None
    num_blocks: int | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in (*GAUGES, *COUNTERS) if name not in self.values)


@dataclass(frozen=True)
class Rates:
    """Rates between two readings. None if the server does not say, or if there was nothing to take a share of.

    Attributes:
        restarted: the server began anew between them, or another one answered. What happened is then not known.
        tokens_per_second: generated, over all requests.
        prefix_hit_share: share of the prompt tokens looked up in the prefix cache that were found there.
        mean_acceptance_length: 1 + accepted / drafts: tokens that a round yields.
        draft_acceptance_rate: accepted / drafted tokens.
        acceptance_by_position: accepted at a position / drafts.
    """

    restarted: bool
    tokens_per_second: float | None
    prefix_hit_share: float | None
    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_by_position: tuple[float, ...]


def parse(page: str, at: float) -> ServerMetrics:
    """Read a page of Prometheus text that was fetched at ``at`` seconds. Numbers that no such metric can have
    (negative, not finite, beyond ``MAX_VALUE``) are left out. Raises MetricsError: not such text, none of vLLM's
    metrics or no value of any, or more than any vLLM has."""
    lines = METRIC_LINE.findall(page)
    if max(map(len, lines), default=0) > MAX_LINE or sum(map(len, lines)) > MAX_PAGE:
        raise MetricsError(
            f"These metrics have lines of over {MAX_LINE:,} characters, or {MAX_PAGE:,} in all: no vLLM's have."
        )
    found: dict[str, list[float]] = {}
    accepted: dict[int, float] = {}
    started: float | None = None
    block_size: int | None = None
    num_blocks = 0
    try:
        for family in text_string_to_metric_families("\n".join(lines)):
            for sample in family.samples:
                if not 0 <= sample.value <= MAX_VALUE:
                    continue
                if sample.name in GAUGES or sample.name in COUNTERS:
                    found.setdefault(sample.name, []).append(sample.value)
                elif sample.name == ACCEPTED_AT:
                    position = _whole(sample.labels.get("position", ""))
                    if position is not None and position < MAX_POSITIONS:
                        accepted[position] = accepted.get(position, 0.0) + sample.value
                elif sample.name == STARTED:
                    started = sample.value
                elif sample.name == CACHE:
                    size, blocks = (_whole(sample.labels.get(name, "")) for name in ("block_size", "num_gpu_blocks"))
                    block_size, num_blocks = size or block_size, num_blocks + (blocks or 0)
    except Exception as error:  # on a malformed page the parser may raise anything
        raise MetricsError(NOT_VLLM) from error
    if not found:
        raise MetricsError(NO_VALUES_YET if "\n# TYPE vllm:" in f"\n{page}" else NOT_VLLM)
    values = {name: math.fsum(some) for name, some in found.items()}
    if KV_USAGE in found:
        values[KV_USAGE] = min(1.0, values[KV_USAGE] / len(found[KV_USAGE]))
    by_position = tuple(accepted.get(position, 0.0) for position in range(max(accepted, default=-1) + 1))
    return ServerMetrics(at, values, by_position, started, block_size, num_blocks or None)


def rates(before: ServerMetrics, after: ServerMetrics) -> Rates:
    """The rates between two readings of one server. Raises ValueError if ``after`` is not later than ``before``."""
    seconds = after.at - before.at
    if seconds <= 0:
        raise ValueError(f"the second reading is later than the first, not {seconds} s")
    both_say = before.started is not None and after.started is not None
    restarted = (both_say and before.started != after.started) or _fell(before, after)
    # A new server's counters count from its own start, which may be long ago where several answer at one address.
    both = [] if restarted else [name for name in COUNTERS if name in after.values and name in before.values]
    grown = {name: after.values[name] - before.values[name] for name in both}
    at = [late - early for late, early in zip(after.accepted_at, chain(before.accepted_at, repeat(0.0)), strict=False)]
    drafts, accepted = grown.get(DRAFTS), grown.get(ACCEPTED)
    length = _share(accepted, drafts)
    return Rates(
        restarted=restarted,
        tokens_per_second=_share(grown.get(GENERATED), seconds),
        prefix_hit_share=_share(grown.get(HITS), grown.get(QUERIED)),
        mean_acceptance_length=None if length is None else 1 + length,
        draft_acceptance_rate=_share(accepted, grown.get(DRAFTED)),
        acceptance_by_position=tuple(count / drafts for count in at) if drafts else (),
    )


def _fell(before: ServerMetrics, after: ServerMetrics) -> bool:
    """True if any counter is smaller than before: then the counters are others, whether the server says so or not."""
    both = [name for name in COUNTERS if name in before.values and name in after.values]
    pairs = [(before.values[name], after.values[name]) for name in both]
    pairs += zip(before.accepted_at, after.accepted_at, strict=False)
    return any(late < early for early, late in pairs)


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= 9 else None
