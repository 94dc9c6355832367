"""The engine: one step after another, each one forward of the target.

A step takes a sequence's tokens that are not computed yet (the whole prompt at
first, one token afterwards), lets a drafter add proposals, computes them all in
one pass, judges, commits, and rolls the cache back to what was kept. Prefill,
plain decoding and verification are the same step with other numbers.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import psutil
import torch
from transformers import PreTrainedTokenizerBase

from lab.config import ConfigError, EngineConfig, LabError, PromptError, SamplingParams
from lab.decode.acceptance import judge_greedy, judge_sampled
from lab.decode.clock import StepClock
from lab.decode.drafters import DraftModel, Proposals
from lab.decode.forward import NewTokens, forward
from lab.decode.sampling import distribution
from lab.decode.sequence import Sequence
from lab.decode.text import TextStream, token_text
from lab.kv.blocks import BlockPool, BlockTable, Occupancy
from lab.kv.storage import KVStorage, bytes_per_token
from lab.pair.models import LanguageModel
from lab.trace.events import (
    Bonus,
    Committed,
    Event,
    Finished,
    Judged,
    Prefilled,
    Proposed,
    Recovered,
    RunStarted,
    StepTimed,
)
from lab.trace.recorder import Recorder, Run

log = logging.getLogger(__name__)

# Share of the free memory a pool may take when num_blocks is None, and the most it is ever
# useful to take while a pool serves a handful of sequences: so many full contexts.
MEMORY_SHARE = {"cuda": 0.9, "cpu": 0.25}
FULL_CONTEXTS = 8


@dataclass(frozen=True)
class Cache:
    """A pool of blocks and what its slots hold: the target's keys and values, and the draft's."""

    blocks: BlockPool
    target: KVStorage
    draft: KVStorage | None


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
        self._caches: dict[tuple, Cache] = {}
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

    def block_bytes(self, config: EngineConfig) -> int:
        """Bytes of one cache block: all layers, keys, values and scales, the draft's too. 0 without a cache."""
        return config.block_size * self._token_bytes(config)

    def default_num_blocks(self, config: EngineConfig) -> int:
        """Blocks a pool gets when num_blocks is None: a share of the free memory, at most 8 full contexts."""
        device = self.target.device
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
        fitting = int(free * MEMORY_SHARE.get(device.type, 0.25)) // max(1, self.block_bytes(config))
        return max(1, min(fitting, FULL_CONTEXTS * -(-self.context_length // config.block_size)))

    def occupancy(self) -> Occupancy:
        """Blocks of all pools by state."""
        counts = [cache.blocks.occupancy() for cache in self._caches.values()]
        return Occupancy(*(sum(column) for column in zip(*counts, strict=True))) if counts else Occupancy(0, 0, 0)

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
            ConfigError: speculation without a draft model.
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
        num_blocks = 0
        if config.kv_cache:
            num_blocks = config.num_blocks or self.default_num_blocks(config)
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
        self._refuse_misfit(sequence, num_blocks)
        return self._run(sequence, prompt, num_blocks, cancelled or threading.Event())

    def _run(self, sequence: Sequence, prompt: str, num_blocks: int, cancelled: threading.Event) -> Iterator[Event]:
        recorder, message = sequence.recorder, ""
        try:
            try:
                with self._lock:
                    cache = self._start(sequence, prompt, num_blocks)
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

    def _start(self, sequence: Sequence, prompt: str, num_blocks: int) -> Cache | None:
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
            sampling=asdict(sequence.sampling),
            target=self.target.name,
            draft=self.draft.name if config.speculative == "draft" else None,
            device=self.device,
            dtype=self.dtype,
            num_blocks=num_blocks,
            block_bytes=self.block_bytes(config),
        )
        if not config.kv_cache:
            return None
        cache = self._cache(config, num_blocks)
        sequence.table = BlockTable(cache.blocks, next(self._owners), recorder.emit, paged=config.paged)
        if not config.paged:
            sequence.table.reserve(sequence.end)
        return cache

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
        outcome = _judge(logits, proposals, sequence.sampling, u)
        clock.mark("sample")

        if prefill:
            recorder.emit(Prefilled, tokens=known)
        self._commit(sequence, outcome, u)
        sequence.keep(len(sequence.tokens) - 1)  # the newest token is computed by the next step

        parts, total = clock.read()
        kv_bytes = self._token_bytes(sequence.config)
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

    def _commit(self, sequence: Sequence, outcome: Outcome, u: torch.Tensor | None) -> None:
        """Turn a step's outcome into tokens, text and events. Tokens after a stop are dropped."""
        emit, step = sequence.recorder.emit, sequence.step
        window = len(outcome.proposed)
        for i, (token, q) in enumerate(zip(outcome.proposed, outcome.q, strict=True)):
            emit(Proposed, step=step, position=i, token_id=token, text=self._token_text(token), q=q)
        for i in range(min(outcome.accepted + 1, window)):
            emit(
                Judged,
                step=step,
                position=i,
                token_id=outcome.proposed[i],
                p=outcome.p[i],
                q=outcome.q[i],
                u=None if u is None else u[i].item(),
                accepted=i < outcome.accepted,
            )
        origin = "plain"
        if window:
            all_kept = outcome.accepted == window
            origin = "bonus" if all_kept else "recovered"
            emit(
                Bonus if all_kept else Recovered,
                step=step,
                position=outcome.accepted,
                token_id=outcome.next_token,
                text=self._token_text(outcome.next_token),
                p=outcome.p_next,
            )
        tokens = [*outcome.proposed[: outcome.accepted], outcome.next_token]
        pieces = []
        for token in tokens:
            pieces.append(sequence.append(token))
            if sequence.reason:
                break
        kept = len(pieces)
        emit(
            Committed,
            step=step,
            token_ids=tuple(tokens[:kept]),
            origins=(*["accepted"] * outcome.accepted, origin)[:kept],
            pieces=tuple(pieces),
            probabilities=(*outcome.p[: outcome.accepted], outcome.p_next)[:kept],
            text="".join(pieces),
        )

    # -- helpers -----------------------------------------------------------------------------

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

    def _refuse_misfit(self, sequence: Sequence, num_blocks: int) -> None:
        if sequence.prompt_length >= self.context_length:
            raise PromptError(
                f"The prompt has {sequence.prompt_length:,} tokens; {self.target.name} holds "
                f"{self.context_length:,}, prompt and output together. Shorten the prompt."
            )
        size = sequence.config.block_size
        needed = -(-sequence.end // size)
        if sequence.config.kv_cache and needed > num_blocks:
            raise PromptError(
                f"{sequence.end:,} tokens (a prompt of {sequence.prompt_length:,} and the output) need {needed:,} "
                f"cache blocks of {size}; the pool has {num_blocks:,}. Raise num_blocks, or lower max_tokens."
            )

    def _token_bytes(self, config: EngineConfig) -> int:
        if not config.kv_cache:
            return 0
        models = [self.target] + ([self.draft] if config.speculative == "draft" else [])
        return sum(
            bytes_per_token(config.kv_dtype, layers=m.layers, kv_heads=m.kv_heads, head_dim=m.head_dim, dtype=m.dtype)
            for m in models
        )

    def _cache(self, config: EngineConfig, num_blocks: int) -> Cache:
        """The cache for these settings; another one that nobody uses any more is given back first."""
        key = (config.kv_dtype, config.block_size, num_blocks, config.speculative)
        if key not in self._caches:
            self._caches = {k: cache for k, cache in self._caches.items() if cache.blocks.occupancy().live}
            slots = num_blocks * config.block_size
            draft = self.draft if config.speculative == "draft" else None
            self._caches[key] = Cache(
                BlockPool(num_blocks, config.block_size),
                _storage(self.target, config, slots),
                _storage(draft, config, slots) if draft else None,
            )
        return self._caches[key]

    def _token_text(self, token_id: int) -> str:
        return token_text(self.tokenizer, token_id)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step's result on the host. ``p`` and ``q`` are of the proposed tokens, ``p_next`` of the token after."""

    proposed: list[int]
    p: list[float]
    q: list[float]
    accepted: int
    next_token: int
    p_next: float


def _judge(
    logits: torch.Tensor, proposals: Proposals | None, sampling: SamplingParams, u: torch.Tensor | None
) -> Outcome:
    """Judge on the device, then bring everything the host needs over in one copy.

    Args:
        logits: [g + 1, vocabulary] float32, the target's.
        u: [g + 1] float64 on the CPU, one for each verdict and one for the token after. None: greedy.
    """
    p = distribution(logits, sampling)
    if proposals is None:
        proposals = Proposals(torch.empty(0, dtype=torch.long, device=p.device), p[:0])
    tokens, q = proposals
    if u is None:
        accepted, next_token = judge_greedy(logits, tokens)
    else:
        u = u.to(p.device)
        accepted, next_token = judge_sampled(p, q, tokens, u[:-1], u[-1])
    p_proposed = p[:-1].gather(-1, tokens[:, None])[:, 0]
    q_proposed = q.gather(-1, tokens[:, None])[:, 0]
    p_next = p[accepted, next_token]
    # float64 holds every token id exactly.
    packed = torch.cat([tokens, p_proposed, q_proposed, accepted[None], next_token[None], p_next[None]]).double()
    numbers = packed.tolist()
    g = len(tokens)
    if not all(0 <= number < float("inf") for number in numbers):
        raise LabError("The model's output is not finite. Try dtype='float32', or other weights.")
    return Outcome(
        proposed=[int(token) for token in numbers[:g]],
        p=numbers[g : 2 * g],
        q=numbers[2 * g : 3 * g],
        accepted=int(numbers[3 * g]),
        next_token=int(numbers[3 * g + 1]),
        p_next=numbers[3 * g + 2],
    )


def _storage(model: LanguageModel, config: EngineConfig, slots: int) -> KVStorage:
    return KVStorage(
        config.kv_dtype,
        slots,
        layers=model.layers,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        dtype=model.dtype,
        device=model.device,
    )


def _memory(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else psutil.Process().memory_info().rss


def _explain(error: Exception) -> str:
    if isinstance(error, LabError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "The device ran out of memory. Use fewer blocks, a shorter prompt or a smaller model."
    return f"The engine failed in this step ({type(error).__name__}: {error})."
