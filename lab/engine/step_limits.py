"""Limits of an engine: those of a step's size shrink after a step that ran out of memory."""

import time
from collections.abc import Sequence as Several

import torch

from lab.config import MOST_PROPOSED, require_whole
from lab.engine.sequence import Sequence
from lab.errors import ConfigError
from lab.models.language_model import LanguageModel

LEAST_BATCHED_TOKENS = 1 + MOST_PROPOSED
"""Fewest tokens that a step may be limited to: a whole round of a sequence."""
TRY_AGAIN_SECONDS = 60
"""How often at most a core that is never idle tries again what there was no memory for."""
LARGEST_LIMIT = 2**53
"""Largest value of the limits below: every program can count that far."""
BATCHED_TOKENS = {"cuda": 8192, "cpu": 512}
"""Most tokens in a step by default: a prompt's chunk of this size takes a fraction of a second."""
SMALL_GPU, SMALL_GPU_TOKENS = 40e9, 2048
"""On a GPU with less memory, in bytes, a step has no more tokens than these by default: a chunk of 8,192 takes almost a
gigabyte in a model of eight billion weights."""
FEWEST_CPU_TOKENS = 64
CPU_STEP_FLOPS = 4e10
"""FLOPs of a step on a CPU by default: where a model has many weights, a step with fewer tokens. A request that is
stopped, and all others in the batch, wait for the end of a step."""


def batched_tokens(target: LanguageModel) -> int:
    most = BATCHED_TOKENS.get(target.device.type, BATCHED_TOKENS["cpu"])
    if target.device.type == "cuda" and torch.cuda.get_device_properties(target.device).total_memory < SMALL_GPU:
        return SMALL_GPU_TOKENS
    if target.device.type == "cpu":
        while most > FEWEST_CPU_TOKENS and 2 * target.layer_weights * most > CPU_STEP_FLOPS:
            most //= 2
    return most


def refuse_limits(max_num_seqs: int, max_num_batched_tokens: int | None, kv_bytes: int | None) -> None:
    """Raises ConfigError for a limit of ``Engine`` that is no whole number from 1 to ``LARGEST_LIMIT``, or fewer tokens
    than one round of speculation needs."""
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens, "kv_bytes": kv_bytes}
    for name, limit in limits.items():
        if limit is not None:
            require_whole(name, limit, 1, LARGEST_LIMIT)
    if max_num_batched_tokens is not None and max_num_batched_tokens < LEAST_BATCHED_TOKENS:
        raise ConfigError(
            f"max_num_batched_tokens={max_num_batched_tokens} is too few: a step holds a whole round of a sequence, up "
            f"to {LEAST_BATCHED_TOKENS} tokens."
        )


class StepLimits:
    """The most sequences and tokens in a step.

    If several sequences ran out of memory, half as many may run until all of the older half are done. A single one
    reads its text in chunks of half the tokens; no step has more until ``grow``, since what did not fit once will
    hardly fit the next time.

    Attributes:
        max_num_seqs: most sequences now.
        max_num_batched_tokens: most tokens of all sequences now, draft tokens included.
    """

    def __init__(self, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.max_num_seqs = self._wished_seqs = max_num_seqs
        self.max_num_batched_tokens = self._wished_tokens = max_num_batched_tokens
        self._tried = time.monotonic()
        self._oom_cohort: list[Sequence] = []  # while one of them runs, fewer may run

    def update(self, running: Several[Sequence]) -> None:
        """Allow as many sequences as at first, once none of those that ran out of memory is left."""
        if not any(sequence in running for sequence in self._oom_cohort):
            self.max_num_seqs, self._oom_cohort = self._wished_seqs, []

    def can_shrink(self, running: Several[Sequence], cached: bool) -> bool:
        """True if the next step can be smaller: several run, or one reads a text in a cache."""
        return len(running) > 1 or self._solo_chunk(running, cached) > LEAST_BATCHED_TOKENS

    def shrink(self, running: Several[Sequence], cached: bool) -> None:
        """Make the next step smaller, if it can be. The caller preempts those for whom there is no more room."""
        if len(running) > 1:
            self.max_num_seqs = len(running) // 2
            self._oom_cohort = list(running[: self.max_num_seqs])
        elif (chunk := self._solo_chunk(running, cached)) > LEAST_BATCHED_TOKENS:
            self.max_num_batched_tokens = max(LEAST_BATCHED_TOKENS, chunk // 2)

    @property
    def retry_is_due(self) -> bool:
        return time.monotonic() - self._tried >= TRY_AGAIN_SECONDS

    def grow(self) -> None:
        """Double the tokens of a step, up to the first limit: there may be memory now. If not, that costs a failed
        step."""
        self._tried = time.monotonic()
        self.max_num_batched_tokens = min(self._wished_tokens, 2 * self.max_num_batched_tokens)

    def _solo_chunk(self, running: Several[Sequence], cached: bool) -> int:
        """Tokens of its text that a sequence running alone computes in a step; 0 if it cannot do so in parts."""
        return min(running[0].outstanding, self.max_num_batched_tokens) if cached and len(running) == 1 else 0
