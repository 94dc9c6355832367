"""The engine: requests come in, pools take turns, events go out.

``stream`` and ``submit`` hand a request over; whoever waits for an event drives the
engine, a step at a time, for everybody. Or a thread of its own does (``serving``).
Either way a step belongs to one pool, and all of that pool's sequences share it.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

import torch
from transformers import PreTrainedTokenizerBase

from lab.config import ConfigError, EngineConfig, LabError, PromptError, SamplingParams
from lab.decode.pool import Pool, explain
from lab.decode.request import Request
from lab.decode.sequence import Sequence
from lab.decode.text import TextStream
from lab.decode.window import Window
from lab.kv.blocks import Occupancy
from lab.kv.cache import Budget, PoolSetting
from lab.kv.prefix import Prefix
from lab.pair.models import LanguageModel
from lab.trace.events import CacheDropped, Event, FellBack, RunStarted
from lab.trace.recorder import Recorder, Run

log = logging.getLogger(__name__)

BATCHED_TOKENS = {"cuda": 8192, "cpu": 512}
"""Default budget of a step: a prompt's chunk of this size takes a fraction of a second."""


class Engine:
    """A target model, perhaps a draft, and the caches they share.

    Any method may be called from any thread.

    Args:
        max_num_seqs: most sequences in one step.
        max_num_batched_tokens: most tokens in one step, proposals included; longer prompts come in chunks.
            None: 8,192 on a GPU, 512 on a CPU.
        kv_bytes: memory for all caches together. None: 90% of what a GPU has free, 25% of it on a CPU.

    Raises:
        ConfigError: a limit below what one round of speculation needs.
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
    ) -> None:
        tokens = max_num_batched_tokens or BATCHED_TOKENS.get(target.device.type, BATCHED_TOKENS["cpu"])
        if max_num_seqs < 1 or tokens < 33:
            raise ConfigError(
                f"max_num_seqs={max_num_seqs} and max_num_batched_tokens={tokens} are too few: a step holds at least "
                "one sequence, and a round of it up to 33 tokens."
            )
        self.target = target
        self.draft = draft
        self.tokenizer = tokenizer
        self._limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": tokens}
        self._budget = Budget(target, draft, kv_bytes)
        self._pools: dict[PoolSetting, Pool] = {}  # the one that waited longest first
        self._inbox: deque[Sequence] = deque()
        self._unplaced: list[Sequence] = []
        self._identity = self._weights_identity()
        self._order = itertools.count()
        self._encoding = threading.Lock()
        self._turn = threading.Condition()
        self._driven = False  # whether some thread is stepping the engine
        eos = target.model.generation_config.eos_token_id if target.model.generation_config else None
        eos = tokenizer.eos_token_id if eos is None else eos
        self._eos = frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos])

    # -- what the engine is ------------------------------------------------------------------

    @property
    def device(self) -> str:
        return str(self.target.device)

    @property
    def dtype(self) -> str:
        return str(self.target.dtype).removeprefix("torch.")

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and output together."""
        return self.target.context_length

    def default_num_blocks(self, config: EngineConfig) -> int:
        """Blocks of a pool whose num_blocks is None: at most 8 full contexts, or what fits. 0 without a cache."""
        return self._budget.setting(replace(config, num_blocks=None)).num_blocks

    def occupancy(self) -> Occupancy:
        """Blocks of all pools by state."""
        pools = [pool.cache.blocks.occupancy() for pool in list(self._pools.values()) if pool.cache]
        return Occupancy(*(sum(state) for state in zip(*pools, strict=True))) if pools else Occupancy(0, 0, 0)

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
        sequence = self._sequence(prompt, config, sampling, cancelled=cancelled)

        def events() -> Iterator[Event]:
            self._enqueue(sequence)
            yield from Request(self, sequence)

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
        sequence = self._sequence(prompt, config, sampling)
        self._enqueue(sequence)
        return Request(self, sequence)

    def submit_continuations(
        self,
        prompt: str,
        count: int,
        config: EngineConfig | None = None,
        sampling: SamplingParams | None = None,
    ) -> list[Request]:
        """``count`` continuations of one prompt, with seeds from ``sampling.seed`` upwards.

        With paged blocks the prompt is computed once: the others take its full blocks as they are and
        copy a partly filled one when they write to it. Errors: see ``submit``.
        """
        sampling = _seeded(sampling or SamplingParams())
        leader, requests = None, []
        for i in range(count):
            seeded = replace(sampling, seed=(sampling.seed + i) % 2**63)
            sequence = self._sequence(prompt, config, seeded)
            sequence.leader, leader = leader, leader or sequence
            requests.append((sequence, Request(self, sequence)))
        for sequence, _ in requests:
            self._enqueue(sequence)
        return [request for _, request in requests]

    # -- driving -----------------------------------------------------------------------------

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Step the engine in a thread of its own for as long as the context lasts."""
        stop = threading.Event()

        def loop() -> None:
            with self._turn:
                self._turn.wait_for(lambda: not self._driven)
                self._driven = True
            while not stop.is_set():
                worked = self.step()
                with self._turn:
                    self._turn.notify_all()
                    if not worked:
                        self._turn.wait_for(lambda: stop.is_set() or self._inbox or self._waiting_for_attention())
            with self._turn:
                self._driven = False
                self._turn.notify_all()

        thread = threading.Thread(target=loop, name="decode-lab-engine", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            self.wake()
            thread.join()

    def advance(self, sequence: Sequence) -> None:
        """Return when ``sequence`` has an event: by another thread's step, or by one made here."""
        with self._turn:
            self._turn.wait_for(lambda: not self._driven or sequence.recorder.pending)
            if sequence.recorder.pending:
                return
            self._driven = True
        try:
            if not self.step() and not sequence.recorder.pending:
                raise RuntimeError("nobody works on this request: it belongs to another engine, or was dropped")
        finally:
            with self._turn:
                self._driven = False
                self._turn.notify_all()

    def abandon(self, sequence: Sequence) -> None:
        """Nobody reads this sequence's events any more: end it, here and now if no other thread is at work."""
        sequence.cancelled.set()
        self.wake()
        with self._turn:
            if self._driven:
                return  # whoever drives will see it before the next step
            self._driven = True
        try:
            self._take_in()
        finally:
            with self._turn:
                self._driven = False
                self._turn.notify_all()

    def wake(self) -> None:
        """Let a background loop look whether there is something to do."""
        with self._turn:
            self._turn.notify_all()

    def _waiting_for_attention(self) -> bool:
        return any(len(pool.scheduler) for pool in self._pools.values()) or bool(self._unplaced)

    def step(self) -> bool:
        """One step of the pool that has waited longest. False if there is nothing to do."""
        self._take_in()
        pool = next((pool for pool in self._pools.values() if len(pool.scheduler)), None)
        if pool is None:
            return False
        self._pools[pool.setting] = self._pools.pop(pool.setting)
        try:
            pool.step()
        except Exception as error:
            if not isinstance(error, LabError):
                log.exception("a step failed")
            pool.failed += [(sequence, error) for sequence in pool.scheduler.running]
        failed, pool.failed = dict(pool.failed), []
        for sequence, error in failed.items():
            pool.scheduler.remove(sequence)
            self._go_on_without(sequence, pool.setting, error)
        return True

    def _go_on_without(self, sequence: Sequence, setting: PoolSetting, error: Exception) -> None:
        """A sequence failed in a pool: from quantised storage it moves to plain storage, from there nowhere."""
        if setting.kv_dtype == "auto":
            sequence.finish("error", explain(error))
            return
        sequence.recorder.emit(FellBack, part="kv_format", reason=explain(error))
        sequence.config = replace(sequence.config, kv_dtype="auto", num_blocks=None)
        self._unplaced.append(sequence)

    # -- placing -----------------------------------------------------------------------------

    def _take_in(self) -> None:
        """Put what has come into pools, and take out what has been cancelled."""
        if self._inbox:
            self._drop_stale_caches()
        while self._inbox:
            self._unplaced.append(self._inbox.popleft())
        for pool in self._pools.values():
            pool.reap()
        still: list[Sequence] = []
        for sequence in self._unplaced:
            if sequence.cancelled.is_set():
                if not sequence.recorder.began:
                    self._start(sequence)
                sequence.finish("cancelled")
            elif not self._place(sequence):
                still.append(sequence)
        self._unplaced = still

    def _place(self, sequence: Sequence) -> bool:
        """Give a sequence to its pool, making it if there is memory. False: it has to wait."""
        if sequence.oracle:
            if not sequence.oracle.finished:
                return False
            if not sequence.recorder.began:
                self._start(sequence)  # the clock of a synthetic run does not count its preparation
        try:
            setting = self._budget.setting(sequence.config)
            self._refuse_misfit(sequence, setting)  # it may have fallen back to a format that needs more memory
            if setting not in self._pools:
                if not self._make_room(setting):
                    return False
                self._pools[setting] = Pool(
                    setting, self.target, self.draft, self.tokenizer, self._budget, **self._limits
                )
            self._pools[setting].add(sequence)
        except Exception as error:
            sequence.finish("error", explain(error))
        return True

    def _make_room(self, setting: PoolSetting) -> bool:
        """Give idle pools back: those with nothing cached, and others as far as the memory is needed."""
        idle = [pool for pool in self._pools.values() if not len(pool.scheduler)]
        for pool in sorted(idle, key=lambda pool: bool(pool.cache and pool.cache.blocks.cached_blocks())):
            useless = not (pool.cache and pool.cache.blocks.cached_blocks())
            if useless or self._bytes_in_use() + self._budget.pool_bytes(setting) > self._budget.limit:
                del self._pools[pool.setting]
        fits = self._bytes_in_use() + self._budget.pool_bytes(setting) <= self._budget.limit
        return fits or not self._pools  # an only pool of one block may be more than the budget

    def _bytes_in_use(self) -> int:
        return sum(self._budget.pool_bytes(setting) for setting in self._pools)

    def _drop_stale_caches(self) -> None:
        """Keys and values that other weights computed are worth nothing: compute everything again."""
        identity = self._weights_identity()
        if identity == self._identity:
            return
        self._identity = identity
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            for sequence in (*pool.scheduler.running, *pool.scheduler.waiting):
                sequence.release()
                sequence.root = self._root(sequence.config)
                sequence.recorder.emit(CacheDropped, reason="The weights, their dtype or an adapter have changed.")
                self._unplaced.append(sequence)

    def _weights_identity(self) -> tuple[int, ...]:
        return tuple(model.identity() for model in (self.target, self.draft) if model)

    # -- admitting ---------------------------------------------------------------------------

    def _sequence(
        self,
        prompt: str,
        config: EngineConfig | None,
        sampling: SamplingParams | None,
        *,
        cancelled: threading.Event | None = None,
    ) -> Sequence:
        config, sampling = config or EngineConfig(), _seeded(sampling or SamplingParams())
        self._refuse_drafter(config)
        tokens = self._encode(prompt)
        if len(tokens) >= self.context_length:
            raise PromptError(
                f"The prompt has {len(tokens):,} tokens; {self.target.name} holds "
                f"{self.context_length:,}, prompt and output together. Shorten the prompt."
            )
        sequence = Sequence(
            prompt=prompt,
            order=next(self._order),
            tokens=tokens,
            prompt_length=len(tokens),
            end=min(len(tokens) + sampling.max_tokens, self.context_length),
            config=config,
            sampling=sampling,
            text=TextStream(self.tokenizer, tokens, sampling.stop),
            recorder=Recorder(),
            eos=self._eos,
            window=Window(config.num_speculative_tokens, config.adaptive_window),
            root=self._root(config),
            cancelled=cancelled or threading.Event(),
        )
        self._refuse_misfit(sequence, self._budget.setting(config))
        return sequence

    def _root(self, config: EngineConfig) -> Prefix:
        """With a draft model a block holds its keys and values too: such blocks are found by such requests."""
        return Prefix.root((self._identity, config.speculative == "draft"))

    def _enqueue(self, sequence: Sequence) -> None:
        if sequence.config.speculative == "synthetic":
            plain = replace(sequence.config, speculative="off")
            sequence.oracle = self._sequence(sequence.prompt, plain, sequence.sampling, cancelled=sequence.cancelled)
            self._inbox.append(sequence.oracle)
        else:
            self._start(sequence)
        self._inbox.append(sequence)
        self.wake()

    def _start(self, sequence: Sequence) -> None:
        config, pieces = sequence.config, TextStream(self.tokenizer)
        if self.target.device.type == "cuda" and not self._waiting_for_attention():
            torch.cuda.reset_peak_memory_stats(self.target.device)
        sequence.recorder.emit(
            RunStarted,
            prompt=sequence.prompt,
            prompt_token_ids=tuple(sequence.tokens),
            prompt_pieces=tuple(pieces.push(token) for token in sequence.tokens),
            config=asdict(config),
            sampling=asdict(sequence.sampling) | {"stop": list(sequence.sampling.stop)},
            target=self.target.name,
            draft=self.draft.name if config.speculative == "draft" else None,
            device=self.device,
            dtype=self.dtype,
            num_blocks=self._budget.setting(config).num_blocks,
            block_bytes=config.block_size * self._budget.token_bytes(config),
        )

    def _encode(self, prompt: str) -> list[int]:
        if not isinstance(prompt, str):
            raise PromptError(f"The prompt is a string, not {type(prompt).__name__}.")
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError(
                f"The prompt is not valid text: half a character (a lone surrogate) stands at {error.start}."
            ) from error
        with self._encoding:  # tokenizers are not made for several threads
            tokens = self.tokenizer(prompt)["input_ids"] if prompt else []
        if not tokens:
            raise PromptError("The prompt is empty. Write at least one word to go on from.")
        return tokens

    def _refuse_drafter(self, config: EngineConfig) -> None:
        if config.speculative == "draft" and self.draft is None:
            raise ConfigError(
                f"speculative='draft' needs a draft model, and {self.target.name} was loaded without one. "
                "Load one with load_engine(draft=...), or choose another drafter."
            )
        if config.speculative == "early_exit" and not 0 < self.target.early_layers(config.early_exit_layer) < (
            self.target.layers
        ):
            raise ConfigError(
                f"early_exit_layer={config.early_exit_layer} is not an exit: {self.target.name} has "
                f"{self.target.layers} layers. Choose from 1 to {self.target.layers - 1}."
            )

    def _refuse_misfit(self, sequence: Sequence, setting: PoolSetting) -> None:
        needed = -(-sequence.end // setting.block_size)
        if setting.num_blocks and needed > setting.num_blocks:
            raise PromptError(
                f"{sequence.end:,} tokens (a prompt of {sequence.prompt_length:,} and the output) need {needed:,} "
                f"cache blocks of {setting.block_size}; the pool has {setting.num_blocks:,}. Raise num_blocks, or "
                "lower max_tokens."
            )


def _seeded(sampling: SamplingParams) -> SamplingParams:
    """A seed that was picked is recorded like one that was given."""
    return sampling if sampling.seed is not None else replace(sampling, seed=secrets.randbits(31))
