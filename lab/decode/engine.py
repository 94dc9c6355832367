"""The engine: requests come in, pools take turns, events go out.

``stream`` and ``submit`` hand a request over; whoever waits for an event drives the
engine, a step at a time, for everybody. A step belongs to one pool, and all of that
pool's sequences share it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from transformers import PreTrainedTokenizerBase

from lab.config import MOST_PROPOSED, SEEDS, ConfigError, EngineConfig, SamplingParams, require_whole
from lab.decode.backends import Backends, KernelChoice
from lab.decode.intake import Intake
from lab.decode.pool import Pool
from lab.decode.pools import Pools
from lab.decode.request import Request
from lab.decode.sequence import Sequence
from lab.decode.warming import capture_ahead
from lab.kv.blocks import Occupancy
from lab.kv.cache import Budget, PoolSetting
from lab.pair.models import LanguageModel
from lab.trace.events import Event
from lab.trace.recorder import Run, Watch

MOST = 2**53
"""Of the limits below: what every program can count to."""
BATCHED_TOKENS = {"cuda": 8192, "cpu": 512}
"""Default budget of a step: a prompt's chunk of this size takes a fraction of a second."""


class Engine:
    """A target model, perhaps a draft, and the caches they share.

    Any method may be called from any thread.

    Args:
        max_num_seqs: most sequences in one step.
        max_num_batched_tokens: most tokens in one step, proposals included; longer prompts come in chunks. Without a
            cache, where a step computes a whole text, one sequence may take more. None: 8,192 on a GPU, 512 on a CPU.
        kv_bytes: memory for all caches together, but for a block at least. None: 90% of what a GPU has free, 25% of it
            on a CPU.
        kernels: who writes and reads the caches. "triton": kernels on a GPU, "c": a step in C on a CPU
            (``lab.native``; made ready here, in a few seconds the first time), "reference": torch. "auto": Triton on a
            GPU if it is installed and the GPU's compute capability is 8.0 or more, C on a CPU. Where they fail, the
            reference goes on (``FellBack``).
        fuse_layers: with Triton's kernels, compute layers like a Llama's in few launches (``lab.fused``). False: as
            transformers does, to see what that is worth.
        watch: told of every event of every sequence, in the order in which they happen, by the thread that makes
            it; the engine waits for its return. If it raises, that is logged, and everything goes on.

    Attributes:
        target, draft: the models, as a request with ``kernels="auto"`` has them computed.
        kernels: by which it has them computed.
        cuda_graphs: whether its steps can be captured. Where capturing fails, kernels are launched singly
            (``FellBack``); where compiling does, layers go on as they are.

    Raises:
        ConfigError: a limit below what one round of speculation needs, or kernels where they cannot run.
    """

    def __init__(
        self,
        target: LanguageModel,
        tokenizer: PreTrainedTokenizerBase,
        draft: LanguageModel | None = None,
        *,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int | None = None,
        kv_bytes: int | None = None,
        kernels: KernelChoice = "auto",
        fuse_layers: bool = True,
        watch: Watch | None = None,
    ) -> None:
        tokens = max_num_batched_tokens
        if tokens is None:
            tokens = BATCHED_TOKENS.get(target.device.type, BATCHED_TOKENS["cpu"])
        for name, limit in ("max_num_seqs", max_num_seqs), ("max_num_batched_tokens", tokens), ("kv_bytes", kv_bytes):
            if limit is not None:
                require_whole(name, limit, 1, MOST)
        if tokens < 1 + MOST_PROPOSED:
            raise ConfigError(
                f"max_num_batched_tokens={tokens} is too few: a step holds a whole round of a sequence, up to "
                f"{1 + MOST_PROPOSED} tokens."
            )
        self._backends = backends = Backends(target, draft, kernels, fuse_layers=fuse_layers)
        self.target, self.draft, self.tokenizer = backends.target, backends.draft, tokenizer
        self.kernels, self.cuda_graphs = backends.kernels, backends.cuda_graphs
        self._budget = Budget(self.target, self.draft, kv_bytes)
        self._intake = Intake(backends, tokenizer, self._budget, watch=watch)

        def make(setting: PoolSetting) -> Pool:
            limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": tokens}
            how = {"kernels": backends.by_triton(setting), "cuda_graphs": backends.captures(setting)}
            return Pool(setting, *backends.models(setting), tokenizer, self._budget, **limits, **how)

        self._pools = Pools(make, self._intake.announce, self._budget, backends.weights_identity)
        self._inbox: deque[Sequence] = deque()
        self._turn = threading.Condition()
        self._driven = False  # whether some thread is stepping the engine
        self._abandoned = False  # whether a sequence was abandoned meanwhile

    # -- what the engine is ------------------------------------------------------------------

    @property
    def device(self) -> str:
        return str(self.target.device)

    @property
    def dtype(self) -> str:
        return self.target.dtype_name

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and output together."""
        return self.target.context_length

    def models(self, config: EngineConfig) -> tuple[LanguageModel, LanguageModel | None]:
        """Target and draft as such a request has them computed."""
        return self._backends.models(config)

    def default_num_blocks(self, config: EngineConfig) -> int:
        """Blocks of a pool whose num_blocks is None: at most 8 full contexts, or what fits. 0 without a cache."""
        return self._budget.setting(replace(config, num_blocks=None)).num_blocks

    def token_bytes(self, config: EngineConfig) -> int:
        """Bytes of cache that a token takes: all layers, keys, values and scales, and the draft's where it drafts."""
        return self._budget.token_bytes(config)

    def occupancy(self) -> Occupancy:
        """Blocks of all pools by state."""
        pools = [pool.cache.blocks.occupancy() for pool in self._pools if pool.cache]
        return Occupancy(*(sum(state) for state in zip(*pools, strict=True))) if pools else Occupancy(0, 0, 0)

    def queue(self) -> tuple[int, int]:
        """Sequences that are computed, and those that wait for room."""
        pools = list(self._pools)
        unplaced = sum(sequence.ready for sequence in (*self._pools.unplaced, *self._inbox))
        waiting = sum(len(pool.scheduler.waiting) for pool in pools) + unplaced
        return sum(len(pool.scheduler.running) for pool in pools), waiting

    def ahead(self, cancelled: threading.Event) -> int | None:
        """Sequences that get room before the one that ``cancelled`` would end; None: it has room, or is not here."""
        unplaced = [one for one in self._pools.unplaced if one.ready]  # with no pool yet
        for queue in (unplaced, *([*pool.scheduler.waiting] for pool in self._pools)):
            for place, sequence in enumerate(queue):
                if sequence.cancelled is cancelled:
                    return place
        return None

    @property
    def capturing(self) -> str | None:
        """The step that is becoming a CUDA graph now, for whoever waits for it."""
        graphs = (pool.cache.graphs for pool in self._pools if pool.cache and pool.cache.graphs)
        return next((captured.capturing for captured in graphs if captured.capturing), None)

    # -- asking ------------------------------------------------------------------------------

    def generate(self, prompt: str, config: EngineConfig | None = None, sampling: SamplingParams | None = None) -> Run:
        """Decode ``prompt`` to the end. Errors: see ``submit``."""
        return Run(self.stream(prompt, config, sampling))

    def stream(
        self,
        prompt: str,
        config: EngineConfig | None = None,
        sampling: SamplingParams | None = None,
        *,
        cancelled: threading.Event | None = None,
    ) -> Iterator[Event]:
        """Decode ``prompt``, yielding events as they come; the request begins with the first one asked for.

        Setting ``cancelled`` ends it after the step under way. Errors: see ``submit``.
        """
        begin = self.prepare(prompt, config, sampling, cancelled=cancelled)

        def events() -> Iterator[Event]:
            (request,) = begin()
            yield from request

        return events()

    def submit(
        self,
        prompt: str,
        config: EngineConfig | None = None,
        sampling: SamplingParams | None = None,
    ) -> Request:
        """Hand a request over; it joins the batch of those with the same pool settings.

        A failure later on ends it with ``Finished(reason="error")``, or is got round (``FellBack``).

        Raises:
            PromptError: the prompt is empty, not valid text, or can never fit.
            ConfigError: speculation without a draft model, more layers to exit from than there are, or
                more blocks than memory holds.
        """
        return self.prepare(prompt, config, sampling)()[0]

    def submit_continuations(
        self,
        prompt: str,
        count: int,
        config: EngineConfig | None = None,
        sampling: SamplingParams | None = None,
    ) -> list[Request]:
        """``count`` continuations of one prompt, with seeds from ``sampling.seed`` upwards. See ``prepare``."""
        return self.prepare(prompt, config, sampling, continuations=count)()

    def prepare(
        self,
        prompt: str,
        config: EngineConfig | None = None,
        sampling: SamplingParams | None = None,
        *,
        continuations: int = 1,
        cancelled: threading.Event | None = None,
    ) -> Callable[[], list[Request]]:
        """Check a request now, and hand it over when what is returned is called.

        Args:
            continuations: so many requests for one prompt, with seeds from ``sampling.seed`` upwards. With paged blocks
                the prompt is computed once: the others take its blocks as they are, and copy a partly filled one when
                they write to it.
            cancelled: setting it ends them all after the step under way.

        Raises: what ``submit`` raises.
        """
        require_whole("continuations", continuations, 1, MOST)
        first = self._intake.sequence(prompt, config, sampling, cancelled)
        seeds = [(first.sampling.seed + i) % SEEDS for i in range(1, continuations)]
        others = [
            self._intake.sequence(prompt, config, replace(first.sampling, seed=seed), cancelled) for seed in seeds
        ]
        for other in others:
            other.leader = first

        def begin() -> list[Request]:
            self._enqueue((first, *others))
            return [Request(self, sequence) for sequence in (first, *others)]

        return begin

    # -- driving -----------------------------------------------------------------------------

    def warm_up(
        self,
        config: EngineConfig,
        *,
        sequences: int = 1,
        longest: int | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Capture the CUDA graphs that requests like ``config`` need; else each is captured when it is first met.

        Args:
            sequences: as many of them at once.
            longest: tokens of a sequence, prompt and output. None: the whole context.
            report: told what is captured, before it is.

        Raises:
            ConfigError: more blocks than memory holds.
        """
        if not self._backends.captures(config):
            return
        with self._turn:
            self._turn.wait_for(lambda: not self._driven)
            self._driven = True
        with self._driving():
            pool = self._pools.pool_for(config)
            if pool and pool.cache:
                longest = longest or self.context_length
                capture_ahead(pool.cache, *self.models(config), config, sequences, longest, report)

    def advance(self, sequence: Sequence) -> None:
        """Return when ``sequence`` has an event or is over: by another thread's step, or by one made here."""

        def served() -> bool:
            return sequence.recorder.pending or sequence.finished

        with self._turn:
            self._turn.wait_for(lambda: not self._driven or served())
            if served():
                return
            self._driven = True
        with self._driving():
            if not self.step() and not served():
                raise RuntimeError("nobody works on this request: it belongs to another engine, or was dropped")

    def abandon(self, sequence: Sequence) -> None:
        """Nobody reads this sequence's events any more: end it, here and now if no other thread is at work."""
        sequence.cancelled.set()
        with self._turn:
            if self._driven:
                self._abandoned = True  # for whoever drives, and who may not go on to another step
                return
            self._driven = True
        with self._driving():
            self._take_in()

    @contextmanager
    def _driving(self) -> Iterator[None]:
        """For the thread that has set ``_driven``: let go of it in the end."""
        try:
            yield
        finally:
            try:
                while not self._let_go():
                    self._take_in()
            except BaseException:
                self._let_go(anyway=True)  # else nobody could ever drive again
                raise

    def _let_go(self, *, anyway: bool = False) -> bool:
        """No longer drive; False if there is still something to take out, unless ``anyway``."""
        with self._turn:
            if self._abandoned and not anyway:
                self._abandoned = False
                return False
            self._driven = False
            self._turn.notify_all()
            return True

    def step(self) -> bool:
        """One step of one pool, with all of its sequences. False if there is nothing to do.

        For a caller who drives the engine alone; ``Request`` calls it by itself.
        """
        self._take_in()
        return self._pools.step()

    def _take_in(self) -> None:
        """Put what has come into pools, and take out what has been cancelled."""
        if self._inbox and self._pools.drop_if_stale():
            self._backends.prepare()
        while self._inbox:
            self._pools.unplaced.append(self._inbox.popleft())
        self._pools.reap()
        self._pools.place()

    def _enqueue(self, sequences: Iterable[Sequence]) -> None:
        if self.target.device.type == "cuda" and not self._pools.busy:
            for device in {self.target.device, *self.target.layer_devices}:
                torch.cuda.reset_peak_memory_stats(device)
        for sequence in sequences:
            if not sequence.oracle:
                self._intake.announce(sequence)
        for sequence in sequences:  # now that none of them can fail
            self._inbox.extend((sequence.oracle, sequence) if sequence.oracle else (sequence,))
