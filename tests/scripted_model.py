"""A model with no weights: its next-token logits are a table, by the last token."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from lab.kv.attention import StepPlan


class ScriptedModel:
    """Stands in for ``lab.pair.models.LanguageModel``; a Markov chain, so its law is known exactly."""

    layers, kv_heads, head_dim, query_groups, context_length = 1, 1, 1, 1, 64
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, table: torch.Tensor, name: str = "scripted") -> None:
        """``table``: [vocabulary, vocabulary] float32, logits of the next token by the last."""
        self.name = name
        self.table = table
        self.vocabulary = table.shape[1]
        self.model = SimpleNamespace(generation_config=None)

    def identity(self) -> int:
        return id(self.table)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, plan: StepPlan, keep: torch.Tensor
    ) -> torch.Tensor:
        return self.table[token_ids[keep]]
