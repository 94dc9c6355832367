"""The engine: one step after another, each one forward of the target.

A step takes a sequence's tokens that are not computed yet (the whole prompt at
first, one token afterwards), lets a drafter add proposals, computes them all in
one pass, judges, commits, and rolls the cache back to what was kept. Prefill,
plain decoding and verification are the same step with other numbers.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace

import psutil
import torch
from transformers import PreTrainedTokenizerBase

from lab.config import ConfigError, EngineConfig, LabError, PromptError, SamplingParams
from lab.decode.clock import StepClock
from lab.decode.drafters import DraftModel
from lab.decode.forward import NewTokens, forward
from lab.decode.outcome import commit, judge
from lab.decode.sequence import Sequence
from lab.decode.text import TextStream, token_text
from lab.kv.blocks import BlockTable, Occupancy
from lab.kv.cache import Cache, Caches
from lab.pair.models import LanguageModel
from lab.trace.events import Event, Finished, Prefilled, RunStarted, StepTimed
from lab.trace.recorder import Recorder, Run

log = logging.getLogger(__name__)


class Engine:
    """A target model, perhaps a draft, and the cache they share.

    ``stream`` may be called from several threads: the runs take turns, step by step.
    """

    def __init__(
        self, target: LanguageModel, tokenizer: PreTrainedTokenizerBase, draft: LanguageModel | None = None
    ) -> None:
        self.target = target
        self.draft = draft
        self.tokenizer = tokenizer
        self._caches = Caches(target, draft)
        self._owners = itertools.count()
        self._lock = threading.Lock()
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
        """Blocks of a cache whose num_blocks is None: see ``Caches``."""
        return self._caches.default_num_blocks(config)

    def occupancy(self) -> Occupancy:
        """Cache blocks by state."""
        return self._caches.occupancy()

    # -- running -----------------------------------------------------------------------------

    def generate(self, prompt: str, config: EngineConfig | None = None, sampling: SamplingParams | None = None) -> Run:
        """Decode ``prompt`` to the end. Errors: see ``stream``."""
        return Run(self.stream(prompt, config, sampling))

    def stream(
        self,
        prompt: str,
        config: EngineConfig | None = None,
        sampling: SamplingParams | None = None,
        *,
        cancelled: threading.Event | None = None,
    ) -> Iterator[Event]:
        """Decode ``prompt``, yielding the events of each step as it ends.

        Setting ``cancelled`` ends the run after the step under way, with its blocks given
        back and a ``Finished`` event; closing the iterator does so without the event.
        A failure in mid-run ends it with ``Finished(reason="error")``.

        Raises:
            PromptError: the prompt is empty, not valid text, or does not fit.
            ConfigError: speculation without a draft model, or more blocks than memory holds.
        """
        config = config or EngineConfig()
        sampling = sampling or SamplingParams()
        if config.speculative == "draft" and self.draft is None:
            raise ConfigError(
                f"speculative='draft' needs a draft model, and {self.target.name} was loaded without one. "
                "Load one with load_engine(draft=...), or set speculative='off'."
            )
        if sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbits(31))
        prompt_ids = self._encode(prompt)
        with self._lock:
            cache = self._caches.get(config) if config.kv_cache else None
        sequence = Sequence(
            tokens=prompt_ids,
            prompt_length=len(prompt_ids),
            end=min(len(prompt_ids) + sampling.max_tokens, self.context_length),
            config=config,
            sampling=sampling,
            text=TextStream(self.tokenizer, prompt_ids, sampling.stop),
            recorder=Recorder(),
            random=torch.Generator().manual_seed(sampling.seed),
            eos=self._eos,
        )
        self._refuse_misfit(sequence, cache)
        return self._run(sequence, prompt, cache, cancelled or threading.Event())

    def _run(self, sequence: Sequence, prompt: str, cache: Cache | None, cancelled: threading.Event) -> Iterator[Event]:
        recorder, message = sequence.recorder, ""
        try:
            try:
                with self._lock:
                    self._start(sequence, prompt, cache)
                yield from recorder.drain()
                while sequence.reason is None:
                    if cancelled.is_set():
                        sequence.reason = "cancelled"
                        break
                    with self._lock:
                        self._step(sequence, cache)
                    yield from recorder.drain()
            except Exception as error:
                sequence.reason, message = "error", _explain(error)
                if not isinstance(error, LabError):
                    log.exception("a run failed")
        finally:
            # Also when the caller closes this generator, or its last reference goes.
            if sequence.table:
                with self._lock:
                    sequence.table.release()
        recorder.emit(Finished, reason=sequence.reason, text=sequence.text.flush(), message=message)
        yield from recorder.drain()

    # -- one step ----------------------------------------------------------------------------

    def _start(self, sequence: Sequence, prompt: str, cache: Cache | None) -> None:
        config, recorder = sequence.config, sequence.recorder
        if self.target.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.target.device)
        pieces = TextStream(self.tokenizer)
        recorder.emit(
            RunStarted,
            prompt=prompt,
            prompt_token_ids=tuple(sequence.tokens),
            prompt_pieces=tuple(pieces.push(token) for token in sequence.tokens),
            config=asdict(config),
            sampling=asdict(sequence.sampling) | {"stop": list(sequence.sampling.stop)},
            target=self.target.name,
            draft=self.draft.name if config.speculative == "draft" else None,
            device=self.device,
            dtype=self.dtype,
            num_blocks=cache.blocks.num_blocks if cache else 0,
            block_bytes=config.block_size * self._caches.token_bytes(config),
        )
        if cache:
            sequence.table = BlockTable(cache.blocks, next(self._owners), recorder.emit, paged=config.paged)
            if not config.paged:
                sequence.table.reserve(sequence.end)

    @torch.inference_mode()
    def _step(self, sequence: Sequence, cache: Cache | None) -> None:
        device, recorder = self.target.device, sequence.recorder
        clock = StepClock(device)
        known = len(sequence.tokens)
        prefill = sequence.step == 0
        window = 0 if prefill else self._window(sequence)
        if sequence.table:
            sequence.table.reserve(known + window)

        proposals = None
        if window:
            proposals = DraftModel(self.draft, cache.draft if cache else None).propose(sequence, window)
            clock.mark("draft")

        new = torch.tensor(sequence.tokens[sequence.computed :], device=device)
        if proposals:
            new = torch.cat([new, proposals.tokens])
        batch = [NewTokens(new, sequence.computed, sequence.table, keep=window + 1)]
        logits = forward(self.target, batch, cache.target if cache else None)
        clock.mark("verify")

        u = None if sequence.sampling.greedy else sequence.uniforms(window + 1)
        outcome = judge(logits, proposals, sequence.sampling, u)
        clock.mark("sample")

        if prefill:
            recorder.emit(Prefilled, tokens=known)
        commit(sequence, outcome, lambda token: token_text(self.tokenizer, token))
        sequence.keep(len(sequence.tokens) - 1)  # the newest token is computed by the next step

        parts, total = clock.read()
        kv_bytes = self._caches.token_bytes(sequence.config)
        recorder.emit(
            StepTimed,
            step=sequence.step,
            step_kind="prefill" if prefill else "verify" if window else "decode",
            target_tokens=len(new),
            draft_ms=parts["draft"],
            verify_ms=parts["verify"],
            sample_ms=parts["sample"],
            rest_ms=max(0.0, total - sum(parts.values())),
            total_ms=max(total, sum(parts.values())),
            kv_tokens=sequence.computed,
            kv_reserved_bytes=sequence.table.capacity * kv_bytes if sequence.table else 0,
            kv_used_bytes=sequence.computed * kv_bytes,
            memory_bytes=_memory(device),
        )
        sequence.step += 1

    def _window(self, sequence: Sequence) -> int:
        """Tokens to propose: gamma, but never past the sequence's end or the draft's context.

        A round of g proposals yields up to g + 1 tokens.
        """
        if sequence.config.speculative == "off":
            return 0
        known = len(sequence.tokens)
        room = min(sequence.end - known - 1, self.draft.context_length - known)
        return max(0, min(sequence.config.num_speculative_tokens, room))

    # -- admitting ---------------------------------------------------------------------------

    def _encode(self, prompt: str) -> list[int]:
        if not isinstance(prompt, str):
            raise PromptError(f"The prompt is a string, not {type(prompt).__name__}.")
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError(
                f"The prompt is not valid text: half a character (a lone surrogate) stands at {error.start}."
            ) from error
        tokens = self.tokenizer(prompt)["input_ids"] if prompt else []
        if not tokens:
            raise PromptError("The prompt is empty. Write at least one word to go on from.")
        return tokens

    def _refuse_misfit(self, sequence: Sequence, cache: Cache | None) -> None:
        if sequence.prompt_length >= self.context_length:
            raise PromptError(
                f"The prompt has {sequence.prompt_length:,} tokens; {self.target.name} holds "
                f"{self.context_length:,}, prompt and output together. Shorten the prompt."
            )
        if cache is None:
            return
        size, num_blocks = cache.blocks.block_size, cache.blocks.num_blocks
        needed = -(-sequence.end // size)
        if needed > num_blocks:
            raise PromptError(
                f"{sequence.end:,} tokens (a prompt of {sequence.prompt_length:,} and the output) need {needed:,} "
                f"cache blocks of {size}; the pool has {num_blocks:,}. Raise num_blocks, or lower max_tokens."
            )


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _process(os.getpid()).memory_info().rss


@functools.cache
def _process(pid: int) -> psutil.Process:
    """Looking a process up takes milliseconds, so it is kept; by its id, for a forked worker is another one."""
    return psutil.Process(pid)


def _explain(error: Exception) -> str:
    if isinstance(error, LabError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "The device ran out of memory. Use fewer blocks, a shorter prompt or a smaller model."
    return f"The engine failed in this step ({type(error).__name__}: {error})."
