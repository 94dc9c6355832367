"""A load served in virtual time by the lab's own scheduler and block pool, with no model.

Simulated: a step takes the time in which the roofline allows its bytes and operations (``lab.trace.roofline``,
``lab.engine.pass_cost``), and a draw with a stated rate accepts each draft token. Real: who is admitted, chunked,
preempted and found in the prefix cache (``lab.engine.scheduler``, ``lab.kv_cache``).
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from lab.config import EngineConfig, SamplingParams
from lab.engine.adaptive_window import AdaptiveWindow
from lab.engine.pass_cost import PassCostModel, Span
from lab.engine.scheduler import ScheduledSequence, Scheduler
from lab.engine.sequence import DraftState, Prompt, Sequence
from lab.engine.step_limits import StepLimits
from lab.kv_cache.block_pool import BlockPool
from lab.kv_cache.prefix_cache import Prefix
from lab.memory.capacity import Deployment
from lab.trace.events import Preempted
from lab.trace.roofline import Bound, Limits


@dataclass(frozen=True, kw_only=True)
class Load:
    """Users who come at random (a Poisson process), and talk for some turns.

    Attributes:
        users, rate: how many, and how many of them begin per second. A rate of 0: all begin together.
        turns, pause_s: requests of each user, and the time from an answer to the next request, which repeats all of the
            conversation so far.
        shared: tokens with which every conversation begins.
        prompt, output: the least and the most tokens that a request adds, and gets; drawn evenly.
    """

    users: int
    rate: float
    turns: int = 1
    pause_s: float = 0.0
    shared: int = 0
    prompt: tuple[int, int]
    output: tuple[int, int]

    @property
    def longest(self) -> int:
        """The most tokens that a conversation can have."""
        return self.shared + self.turns * (self.prompt[1] + self.output[1])


@dataclass(slots=True)
class SimulatedRequest:
    """Milliseconds of one request. ``came``: at each step that gave tokens, when and how many. ``cached``: prompt
    tokens found in the prefix cache. ``wait``: what kept it in the queue, most recently."""

    user: int
    turn: int
    arrived: float
    prompt: int
    admitted: float = 0.0
    cached: int = 0
    wait: str = ""
    came: list[tuple[float, int]] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        return self.came[0][0] - self.arrived

    @property
    def tpot(self) -> float:
        """Time per output token after the first: draft tokens that are accepted come several at once."""
        later = sum(count for _, count in self.came[1:])
        return (self.came[-1][0] - self.came[0][0]) / max(1, later)


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One step: when it ended, its milliseconds, tokens by kind, sequences, GB read, and the nearer limit."""

    ended: float
    ms: float
    drafting_ms: float
    prefill: int
    drafted: int
    running: int
    waiting: int
    gigabytes: float
    bound: Bound


@dataclass(slots=True)
class Simulated:
    """The outcome of ``simulate``. ``left``: blocks still in use at the end; any would be a leak."""

    requests: list[SimulatedRequest]
    steps: list[SimulatedStep]
    preempted: int
    left: int


class Clockwork:
    """The scheduler, and what a step costs. ``limits``: the device's rates. ``acceptance``: of each draft token."""

    def __init__(
        self, deployment: Deployment, draft: Deployment | None, config: EngineConfig, limits: Limits,
        max_num_seqs: int, max_num_batched_tokens: int, acceptance: float, seed: int,
    ) -> None:  # fmt: skip
        self.config, self.limits, self.acceptance = config, limits, acceptance
        self.pool = BlockPool(deployment.num_blocks, config.block_size)
        self.scheduler = Scheduler(
            self.pool, lambda source, destination: None, self._window, StepLimits(max_num_seqs, max_num_batched_tokens)
        )
        self.draw = random.Random(seed)
        self.root = Prefix.root("simulated")
        own = draft.token_bytes if draft else 0
        self.target = cost_model(deployment, deployment.token_bytes - own)
        self.draft = cost_model(draft, own) if draft else None

    def _window(self, sequence: Sequence, running: int) -> int:
        off = self.config.speculative == "off"
        return 0 if off else min(self.config.num_speculative_tokens, sequence.end - len(sequence.tokens) - 1)

    def milliseconds(self, scheduled: Several[ScheduledSequence]) -> tuple[float, float, float, Bound]:
        """Of a step: all, and drafting alone; then the gigabytes that the target reads, and its nearer limit."""
        spans, heads, rounds = [], [], defaultdict(list)
        for one in scheduled:
            start = one.sequence.computed
            stop = start + one.num_tokens
            spans.append(Span(start, stop + one.num_draft_tokens, one.num_draft_tokens + 1 if one.complete else 0))
            heads.append(Span(start, stop, int(one.num_draft_tokens > 0)))
            for i in range(1, one.num_draft_tokens):
                rounds[i].append(Span(stop + i - 1, stop + i, 1))
        work = self.target.of(spans)
        drafting = 0.0
        if self.draft:
            drafting = sum(self.limits.least_ms(self.draft.of(batch)) for batch in (heads, *rounds.values()))
        return self.limits.least_ms(work) + drafting, drafting, work.bytes / 1e9, self.limits.nearer(work)

    def commit(self, one: ScheduledSequence) -> int:
        """Give a sequence the tokens of its step, and roll its cache back to what was accepted. Returns how many."""
        sequence, count = one.sequence, 0
        if one.complete:
            accepted = next((i for i in range(one.num_draft_tokens) if self.draw.random() >= self.acceptance), None)
            count = 1 + (one.num_draft_tokens if accepted is None else accepted)
            sequence.tokens += [-(sequence.seq_id << 20) - len(sequence.tokens) - i for i in range(1, count + 1)]
            sequence.keep(len(sequence.tokens) - 1)
        else:
            sequence.keep(sequence.computed + one.num_tokens)
        sequence.draft.num_computed = sequence.computed
        if sequence.shares_prefixes:
            sequence.table.cache_full_blocks(sequence.tokens, sequence.computed, self.root, 0)
        return count


def cost_model(deployment: Deployment, token_bytes: int) -> PassCostModel:
    """Counts the passes of a model of which there is only the shape, in 16 bits."""
    shape, head = deployment.shape, deployment.shape.vocabulary * deployment.shape.hidden_size
    layers = deployment.parameters - shape.tables
    model: Any = SimpleNamespace(
        layer_weights=layers, head_weights=head, head_bytes=2 * head, weight_bytes=2 * (layers + head),
        expert_counter=None, experts=None, windows=(None,) * shape.layers, layers=shape.layers,
        kv_heads=shape.kv_heads, query_groups=shape.heads // shape.kv_heads, head_dim=shape.head_dim,
        kv_sources={},
    )  # fmt: skip
    storage: Any = SimpleNamespace(slot_bytes=lambda layers: token_bytes)
    return PassCostModel(SimpleNamespace(model=model, reads_packed_weights=False), storage)


def simulate(
    clockwork: Clockwork, load: Load, seed: int = 0, watch: Callable[[float], None] = lambda share: None
) -> Simulated:
    """Serve all of a load; time passes only in steps and where nothing is left to do. The pool has to hold the longest
    conversation. ``watch`` is told, before each step, the share of requests that have ended."""
    draw, scheduler = random.Random(seed), clockwork.scheduler
    found = Simulated([], [], 0, 0)
    requests: dict[int, SimulatedRequest] = {}
    arrivals: list[tuple[float, int, int, list[int]]] = []
    at = 0.0
    for user in range(load.users):
        at += 1000 * draw.expovariate(load.rate) if load.rate else 0.0
        arrivals.append((at, user, 0, list(range(load.shared))))
    sizes = [[(draw.randint(*load.prompt), draw.randint(*load.output)) for _ in range(load.turns)] for _ in arrivals]
    now = 0.0

    def emit(event: type, **fields: Any) -> None:
        found.preempted += event is Preempted

    def begin(at: float, user: int, turn: int, history: list[int]) -> None:
        more, output = sizes[user][turn]
        number = len(found.requests)
        fresh = ((1 + number) << 30) + len(history)
        tokens = [*history, *range(fresh, fresh + more)]
        prompt = Prompt(text="", pieces=(), length=len(tokens), sampling=SamplingParams(max_tokens=output, seed=0))
        text: Any = None  # nothing is decoded
        recorder: Any = SimpleNamespace(emit=emit)
        sequence = Sequence(
            prompt, number, tokens, len(tokens) + output, clockwork.config, text, recorder,
            DraftState(AdaptiveWindow(clockwork.config.num_speculative_tokens, adaptive=False)),
            prefix_root=clockwork.root,
        )  # fmt: skip
        requests[number] = SimulatedRequest(user, turn, at, len(tokens))
        found.requests.append(requests[number])
        scheduler.add(sequence)

    while arrivals or len(scheduler):
        if not len(scheduler):
            now = max(now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now:
            begin(*heapq.heappop(arrivals))
        watch((len(found.requests) - len(scheduler)) / (load.users * load.turns))
        began, preempted = now, found.preempted
        scheduled = scheduler.schedule()
        ms, drafting, gigabytes, bound = clockwork.milliseconds(scheduled)
        now += ms
        prefill = sum(one.num_tokens for one in scheduled if one.num_tokens > 1 or not one.sequence.generated)
        drafted = sum(one.num_draft_tokens for one in scheduled)
        waiting = len(scheduler.waiting)
        found.steps.append(
            SimulatedStep(now, ms, drafting, prefill, drafted, len(scheduled), waiting, gigabytes, bound)
        )
        why = "seqs" if not scheduler.may_admit else "tokens" if found.preempted == preempted else "blocks"
        if why == "tokens" and sum(one.num_tokens + one.num_draft_tokens for one in scheduled) < (
            scheduler.limits.max_num_batched_tokens
        ):
            why = "blocks"
        for sequence in scheduler.waiting:
            requests[sequence.seq_id].wait = why
        for one in scheduled:
            sequence, request = one.sequence, requests[one.sequence.seq_id]
            if not request.admitted and not request.came:
                request.admitted, request.cached = began, sequence.computed
            if count := clockwork.commit(one):
                request.came.append((now, count))
            if len(sequence.tokens) >= sequence.end:
                history = sequence.tokens
                scheduler.remove(sequence)
                if request.turn + 1 < load.turns:
                    heapq.heappush(arrivals, (now + 1000 * load.pause_s, request.user, request.turn + 1, history))
    found.left = clockwork.pool.occupancy().live
    return found
