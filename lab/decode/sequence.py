"""One request while it is being decoded."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lab.config import EngineConfig, SamplingParams
from lab.decode.text import TextStream
from lab.kv.blocks import BlockTable
from lab.trace.events import StopReason
from lab.trace.recorder import Recorder


@dataclass(slots=True)
class Sequence:
    """The state of a request between steps.

    Attributes:
        tokens: prompt and output, oldest first.
        end: the length at which it stops, by max_tokens or the model's context.
        table: its cache blocks; ``table.length`` tokens have the target's keys and
            values. None without a cache.
        draft_length: tokens that have the draft's keys and values, in the same slots.
        random: its own generator: its draws depend on its seed alone.
    """

    tokens: list[int]
    prompt_length: int
    end: int
    config: EngineConfig
    sampling: SamplingParams
    text: TextStream
    recorder: Recorder
    random: torch.Generator
    eos: frozenset[int]
    table: BlockTable | None = None
    draft_length: int = 0
    step: int = 0
    reason: StopReason | None = None

    @property
    def computed(self) -> int:
        """Tokens the target need not compute again."""
        return self.table.length if self.table else 0

    def uniforms(self, count: int) -> torch.Tensor:
        """The next ``count`` uniform draws, [count] float64 on the CPU."""
        return torch.rand(count, generator=self.random, dtype=torch.float64)

    def append(self, token_id: int) -> str:
        """Add a token to the output and return the text it adds; sets ``reason`` if it is the last."""
        self.tokens.append(token_id)
        piece = self.text.push(token_id)
        if token_id in self.eos and not self.sampling.ignore_eos:
            self.reason = "eos"
        elif self.text.stopped:
            self.reason = "stop"
        elif len(self.tokens) >= self.end:
            self.reason = "length"
        return piece

    def keep(self, length: int) -> None:
        """Only the first ``length`` tokens' keys and values are wanted: rolling back is moving a number."""
        if self.table:
            self.table.roll_back(length)
            self.draft_length = min(self.draft_length, length)
