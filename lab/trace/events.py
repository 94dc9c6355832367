"""Events of an engine, one per fact. Everything that is drawn or measured is read from these.

A run is a list of events: ``RunStarted`` with the request, ``Admitted`` when it joins the batch, then for each step its
proposals, verdicts, commits and block changes, closed by one ``StepTimed``, and at the end ``Finished``. A step is one
pass of the target, which other sequences may share. ``step`` counts the steps that this sequence had a part in, from 0.

p is the target's probability of a token and q the draft's, both after temperature, top-k and top-p, as in Leviathan et
al. (2211.17192). Under greedy decoding nothing is drawn: p and q are then the plain softmax probabilities, for display
only, u is None, and a draft token is accepted if it is the target's most likely token. The rule by which drawn verdicts
are made is ``config["rejection_sample_method"]`` of ``RunStarted`` (files of earlier versions lack it: "standard").
"""

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Part = Literal["drafter", "kv_format", "kernel", "cuda_graph", "compile", "full_pool"]
"""What can fail without ending a run."""

Shortage = Literal["blocks", "memory"]
"""What there was too little of: blocks in the pool, or the device's memory for a step."""

Origin = Literal["plain", "accepted", "recovered", "bonus"]
"""Where a token comes from: plain decoding (or prefill), an accepted proposal, the
replacement of a rejected one, or the target's own token after a fully accepted round."""

StopReason = Literal["length", "eos", "stop", "cancelled", "error"]
StepKind = Literal["prefill", "decode", "verify"]


EVENT_TYPES: "dict[str, type[Event]]" = {}
"""The classes of events, by ``kind``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """``t_ms``: milliseconds since the run began. ``kind``: the class's name in files, such as "run_started"."""

    kind: ClassVar[str]
    t_ms: float

    def __init_subclass__(cls) -> None:
        cls.kind = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        if not cls.__name__.endswith("Event"):  # a base of some
            EVENT_TYPES[cls.kind] = cls  # twice: ``slots`` makes the class anew


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The request as the engine understood it. ``sampling["seed"]`` is always set.

    Attributes:
        prompt_pieces: the prompt cut where its tokens end. A token that ends inside a character has an empty piece.
        dtype: that of steps after the prompt, which may be read in another (``EngineConfig.prefill_attention``).
        block_bytes: bytes of one cache block with scales and the draft model's share; 0 without a cache.
        read_bytes_per_second, flops_per_second: the device's peak rates for steps after the prompt, as measured
            (``lab.engine.device_limits``). None: not measured, or the models' work cannot be counted.
        memory_bytes_per_second: the first from memory alone, where the weights may lie in a processor's own cache.
        cuda_graphs: steps of few tokens are captured and replayed.
        compiled: the layers went through torch.compile.
        prompt_given_as_ids: the prompt was token ids or a chat, and ``prompt`` is what its tokens say.
        messages, thinking: of a chat (``lab.models.chat_template.Chat``).
        special_positions: the prompt's special tokens, by position; their pieces are their names.
        notes: sentences on what was done with the model's files, the prompt or the stops.
        hardware: the accelerator's name, or the processor and its cores. "": not known (files of earlier versions).
        group_windows: of each KV cache group, whose layers are in blocks of their own, the positions that a token sees;
            None: all. Empty: blocks hold all layers.
        state_bytes: bytes of the recurrent layers' state, which a sequence has beside its blocks, however long it is.
    """

    prompt: str
    prompt_token_ids: tuple[int, ...]
    prompt_pieces: tuple[str, ...]
    config: dict[str, Any]
    sampling: dict[str, Any]
    target: str
    draft: str | None
    device: str
    dtype: str
    num_blocks: int
    block_bytes: int
    read_bytes_per_second: float | None
    flops_per_second: float | None
    cuda_graphs: bool
    compiled: bool
    prompt_given_as_ids: bool = False
    special_positions: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    hardware: str = ""
    memory_bytes_per_second: float | None = None
    messages: tuple[dict[str, Any], ...] = ()
    thinking: bool | None = None
    group_windows: tuple[int | None, ...] = ()
    state_bytes: int = 0

    @property
    def accelerator(self) -> str:
        """The accelerator's name, if it is known; otherwise the device's ("cpu")."""
        return self.hardware if self.hardware and self.device != "cpu" else self.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted(Event):
    """The sequence has joined the batch, for the first time or again after a preemption.

    Attributes:
        owner: the sequence's number in block events.
        running, waiting: sequences that share the pool now, this one included, and those that do not yet.
        cached_tokens: tokens that need not be computed: their blocks were found by prefix, or belong to another
            continuation of the same prompt.
        live_blocks, cached_blocks: the pool just before.
    """

    owner: int
    running: int
    waiting: int
    cached_tokens: int
    live_blocks: tuple[int, ...]
    cached_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted(Event):
    """The pool ran out of blocks, or a step out of memory (``cause``): the sequence gave up the blocks of its
    ``tokens`` and waits. Those that are not found in the cache when it goes on are computed again."""

    tokens: int
    cause: Shortage = "blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class FellBack(Event):
    """A ``part`` failed and the run goes on without it: with plain decoding, the model's own dtype in the cache, the
    reference kernel, kernels launched one by one, uncompiled layers, or fewer blocks. ``reason`` is a sentence."""

    part: Part
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDropped(Event):
    """The cache's contents came from other weights, another dtype or adapter: all of it is computed again."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowChanged(Event):
    """From ``step`` on, ``gamma`` tokens are proposed per round (0: none).

    Attributes:
        acceptance: the probability that a draft token is accepted, as estimated from recent rounds.
        draft_ms: the measured time per draft token. None: not measured yet.
        verify_ms: that of a target pass over ``gamma`` + 1 tokens of each sequence in the batch (without a cache:
            over its text and ``gamma`` more). None: only passes of one size were timed, and ``gamma`` is a trial.
    """

    step: int
    gamma: int
    acceptance: float
    draft_ms: float | None
    verify_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled(Event):
    """The prompt's ``tokens`` have been read: all but ``cached_tokens`` of them computed.

    Of a sequence that was admitted several times before, the fewest that it found.
    """

    tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent(Event):
    """A fact about a token at ``position`` of a round, from 0."""

    step: int
    position: int
    token_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed(TokenEvent):
    """The drafter proposes a token. One that comes from no distribution has q = 1: prompt lookup's, a synthetic
    drafter's, or the likeliest token of a draft whose ``draft_sample_method`` is greedy."""

    text: str
    q: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified(TokenEvent):
    """The target's verdict on a proposal: accepted if u < p / q (greedy: if it is the most likely token).

    A synthetic drafter's proposal is accepted if it is the target's own token; u is None.
    Proposals after the first rejected one are never verified: they have no event.

    Block verification decides on all proposals at once. ``product`` is the running min(1, product x p / q), and those
    up to the last one with u < ``threshold`` are accepted. Typical acceptance accepts one with p > ``threshold``;
    u is None. It is lossy: ``total_variation`` is that between p and the distribution of the token that it puts here,
    over the draws of draft and target: q where p > threshold, and otherwise p.
    """

    p: float
    q: float
    u: float | None
    accepted: bool
    threshold: float | None = None
    product: float | None = None
    total_variation: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Distributions(Event):
    """The distributions behind the verdict at ``position``, in a run that asked for them (``SamplingParams.logprobs``).

    It has p and q of the proposal (first) and of the most likely tokens under p and under q. If the proposal was
    rejected and its replacement drawn, it also has those of the replacement and of the most likely tokens under
    ``residual``, the normalised max(p - q, 0) that it was drawn from; in block verification max(product x p - q, 0),
    with the product before it, and in typical acceptance p. ``residual`` is None where nothing was drawn from it
    (accepted; greedy; a synthetic drafter), q where the drafter has none (a synthetic one).

    ``overlap`` is the sum of min(p, q) over all tokens: the probability that a proposal drawn here is accepted
    (Leviathan et al., 2211.17192, theorem 3.5). None where no verdict was drawn, and in files that lack it.
    """

    step: int
    position: int
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    p: tuple[float, ...]
    q: tuple[float, ...] | None
    residual: tuple[float, ...] | None
    overlap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(TokenEvent):
    """The token in place of the rejected proposal at ``position``: drawn from the residual (see ``Distributions``), or
    the target's own where proposals are compared with that (greedily, or without a q)."""

    text: str
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bonus(TokenEvent):
    """All proposals were accepted: one more token, from the target's own distribution."""

    text: str
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    """Tokens that are now part of the output, oldest first, and the text they add.

    ``pieces`` has one string per token; joined they are ``text``. A character whose bytes span several tokens is in the
    piece of the last of them. Text that may be the beginning of a stop string comes with a later commit.
    ``probabilities`` are p.

    In a run that asked for them (``SamplingParams.top_tokens``) ``top_token_ids``, ``top_texts`` and ``top_p`` have
    the target's likeliest tokens at each position, the likeliest first, and ``entropies`` its distribution's, in nats.
    """

    step: int
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    pieces: tuple[str, ...]
    probabilities: tuple[float, ...]
    text: str
    top_token_ids: tuple[tuple[int, ...], ...] = ()
    top_texts: tuple[tuple[str, ...], ...] = ()
    top_p: tuple[tuple[float, ...], ...] = ()
    entropies: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEvent(Event):
    """``block`` of the pool is entry ``index`` of the block table of sequence ``owner``; of that of its KV cache group
    ``group``, if the target's layers are of several kinds."""

    block: int
    owner: int
    index: int
    group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAllocated(BlockEvent):
    """The block joins the table. ``fill`` of its slots already hold tokens of the sequence: none, in one just taken."""

    fill: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShared(BlockEvent):
    """As ``BlockAllocated``, but the block already holds the sequence's tokens: they were found by their prefix, or
    belong to another sequence that begins alike. ``references`` tables share it now."""

    fill: int
    references: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopied(BlockEvent):
    """As ``BlockAllocated``, but ``fill`` slots were copied from ``source``, a block of another sequence that begins
    alike and goes on differently (copy on write)."""

    fill: int
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStored(BlockEvent):
    """The block is full: from now on its prefix can be found by others, and it is never written to again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEvicted(Event):
    """``block`` was cached and is needed: its prefix can no longer be found. It goes into a table next
    (``BlockAllocated``, ``BlockCopied``); if memory runs out over the copy, it is free."""

    block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFreed(BlockEvent):
    """The block leaves the table; ``fill`` of its slots still held tokens in use (0: nothing but rejected ones).
    ``references`` other sequences still share it; if none does, it is free, or ``cached`` if its prefix can be found.
    ``slid_out``: no later token sees its tokens, in layers with a sliding window.
    """

    fill: int
    references: int
    cached: bool
    slid_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentRolledBack(Event):
    """The state of the recurrent layers had taken in rejected draft tokens, and went back to what it was before
    ``position``.

    Attributes:
        discarded: tokens that it had taken in from there on.
        method: a state was kept after each draft token ("snapshots"), or the accepted tokens were computed again
            ("recompute"), in the recurrent layers alone: ``recomputed`` of them.
        ms: time it took now.
        snapshots_ms, recompute_ms: what a round takes in these layers with either method, measured at its first
            verification of so many tokens.
        state_bytes: bytes of one state, in all layers.
    """

    position: int
    discarded: int
    method: Literal["snapshots", "recompute"]
    recomputed: int
    ms: float
    snapshots_ms: float | None
    recompute_ms: float | None
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimed(Event):
    """Closes a step. Times in milliseconds, of the whole batch; they add up to ``total_ms``.

    ``draft_ms``: the draft's passes (its prefill too), or a lookup's search. ``verify_ms``: the target's pass. Both
    include packing and launching on the host. ``sample_ms``: probabilities, draws and verdicts. ``rest_ms``: everything
    else. ``batch_sequences`` shared the pass, with ``batch_tokens`` between them; ``target_tokens`` are those of this
    sequence. ``draft_bytes``, ``draft_flops``, ``verify_bytes`` and ``verify_flops``: what those passes had to move and
    to compute (``lab.engine.pass_cost``). ``kv_tokens``: tokens whose keys and values are kept. The ``kv_`` bytes are
    those of the cache: reserved while the step was computed, proposals included, and used by the tokens that are kept.
    ``memory_bytes``: CUDA's peak since the engine was last idle; on a CPU the resident size of the process.
    """

    step: int
    step_kind: StepKind
    target_tokens: int
    batch_sequences: int
    batch_tokens: int
    draft_ms: float
    verify_ms: float
    sample_ms: float
    rest_ms: float
    total_ms: float
    draft_bytes: int
    draft_flops: int
    verify_bytes: int
    verify_flops: int
    kv_tokens: int
    kv_reserved_bytes: int
    kv_used_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """The run is over. ``text`` is what had been held back until now (half a stop string, or a character whose last
    bytes never came). ``message`` says what went wrong if ``reason`` is "error"; otherwise it is empty."""

    reason: StopReason
    text: str
    message: str
