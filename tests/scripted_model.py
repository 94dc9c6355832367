"""Models without weights, for tests of everything but the arithmetic of a forward pass."""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace
from typing import ClassVar

import torch

from lab.kv_cache.attention_metadata import StepPlan
from lab.models.language_model import Taps


class ScriptedModel:
    """Stands in for ``lab.models.language_model.LanguageModel``; a Markov chain, so its distribution is known
    exactly."""

    layers, kv_heads, head_dim, kv_vectors, query_groups, context_length = 1, 1, 1, 2, 1, 64
    kv_sources: ClassVar = {}
    device, dtype, rounded = torch.device("cpu"), torch.float32, False
    layer_devices = (device,)
    weight_bytes, head_bytes, layer_weights, head_weights, uncounted = 0, 0, 0, 0, False
    experts, expert_counter, other_attention, windows = None, None, None, [None]
    compiled, compile_failure, notes, recurrent = False, None, (), None

    def __init__(self, table: torch.Tensor, name: str = "scripted") -> None:
        """``table``: [vocabulary, vocabulary] float32, logits of the next token by the last."""
        self.name = name
        self.table = table
        self.vocabulary = table.shape[1]
        self.heads: dict[str, ScriptedHead] = {}
        config = SimpleNamespace(model_type="scripted")
        self.model = SimpleNamespace(generation_config=None, config=config, modules=lambda: iter(()))

    def identity(self) -> int:
        return id(self.table)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        plan: StepPlan,
        keep: torch.Tensor,
        taps: Taps | None = None,
    ) -> torch.Tensor:
        self.show(token_ids, positions, taps)
        return self.table[token_ids[keep]]

    @staticmethod
    def show(token_ids: torch.Tensor, positions: torch.Tensor, taps: Taps | None) -> None:
        """As hidden states for ``ScriptedHead``, each token and its position."""
        if taps:
            taps.states.copy_(torch.stack([token_ids, positions], dim=-1))


class RememberingModel(ScriptedModel):
    """Its next token depends on every token before it, as read from the cache, and on nothing else.

    As a key it stores the token, as a value the position: a slot that was lost, overwritten or never
    written changes its output, and a slot of another position is noticed at once.
    """

    def __init__(self, vocabulary: int, words: int, *, salt: int = 0, context_length: int = 64) -> None:
        """It uses tokens 0 to ``words`` - 1 of the vocabulary; models with another salt sometimes choose others."""
        super().__init__(torch.full((words, vocabulary), -torch.inf), "remembering")
        law = torch.randn(words, words, generator=torch.Generator().manual_seed(0))
        self.table[:, :words] = law
        self.salt = salt
        self.context_length = context_length

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        plan: StepPlan,
        keep: torch.Tensor,
        taps: Taps | None = None,
    ) -> torch.Tensor:
        self.show(token_ids, positions, taps)
        tokens, places = token_ids[:, None, None].float(), positions[:, None, None].float()
        if plan.storage is not None:
            plan.storage.layers[0].write(plan.write, tokens, places)
        rows = torch.empty(len(token_ids), dtype=torch.long)
        for group in plan.groups:
            seen, at = (tokens[group.rows], places[group.rows])
            if plan.storage is not None:
                seen, at = plan.storage.layers[0].read(group.read)
            seen, at = seen.view(group.sequences, -1), at.view(group.sequences, -1)
            for sequence, own in enumerate(positions[group.rows].view(group.sequences, -1).tolist()):
                end = max(own) + 1
                assert at[sequence, :end].tolist() == list(range(end))
                states = [*accumulate(seen[sequence, :end].tolist(), remembered, initial=0)]
                start = group.rows.start + sequence * len(own)
                rows[start : start + len(own)] = torch.tensor([self._row(states[last + 1]) for last in own])
        return self.table[rows[keep]]

    def _row(self, state: int) -> int:
        return (state + self.salt * (state % 3 == 0)) % self.table.shape[0]


class ScriptedHead:
    """Stands in for ``lab.models.eagle3_head.Eagle3Head``; what it proposes depends on the last token alone.

    Its keys are tokens and its values positions, as the hidden states that it reads and gives are: an assertion fails
    if it reads a token with the states of another than the one before, or finds another in the cache.
    """

    layers, kv_heads, head_dim, kv_vectors, query_groups, states_width = 1, 1, 1, 2, 1, 2
    kv_sources: ClassVar = {}
    device, dtype = torch.device("cpu"), torch.float32
    layer_devices = (device,)
    weight_bytes, head_bytes, layer_weights, head_weights, experts, expert_counter = 0, 0, 0, 0, None, None
    other_attention, windows = None, [None]
    most_tokens = None
    config = SimpleNamespace(target_layers=(0,), target_hidden_size=2)
    fc, text_weights = SimpleNamespace(weight=torch.empty(0)), []

    def __init__(self, table: torch.Tensor, vocabulary: int) -> None:
        """``table``: [vocabulary, draft tokens] float32, logits of the next token by the last."""
        self.table, self.vocabulary = table, vocabulary
        self.target_ids = torch.arange(table.shape[1])

    def __call__(
        self, token_ids: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, plan: StepPlan
    ) -> torch.Tensor:
        cached = plan.storage is not None
        places = positions[0].float() + (not cached)
        rows = torch.stack([token_ids[0].float(), places], dim=-1)
        assert hidden[0, :, 1].tolist() == (places - 1).tolist()
        if cached:
            plan.storage.layers[0].write(plan.write, *(row[:, None, None] for row in rows.unbind(-1)))
        for group in plan.groups:
            seen, at = rows[group.rows].unbind(-1)
            if cached:
                seen, at = (some.view(-1) for some in plan.storage.layers[0].read(group.read))
            seen, at = seen.view(group.sequences, -1), at.view(group.sequences, -1)
            before, own = (some[group.rows].view(group.sequences, -1).tolist() for some in (hidden[0, :, 0], places))
            for sequence, (its, last) in enumerate(zip(own, before, strict=True)):
                end = int(max(its))  # from the second token on: the first is never read
                assert at[sequence, :end].tolist() == list(range(1, end + 1))
                found = [seen[sequence, int(place) - 2].item() for place in its if place > 1]
                assert found == last[len(last) - len(found) :]
        return rows[None]

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        return states

    fed_back = fuse

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.table[hidden[..., 0].long()]


class ScriptedBlockHead(ScriptedHead):
    """Stands in for ``lab.models.dflash_head.DFlashHead``; what it proposes at each place depends on the newest token.

    Its keys are the text's tokens, and less than 0 for those of a block: an assertion fails if one of these is left
    where the text's should be.
    """

    most_tokens, one_by_one = 5, False

    def keys_and_values(self, hidden: torch.Tensor, positions: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        assert hidden[:, 1].tolist() == positions.tolist()
        return [(hidden[:, :1, None], hidden[:, 1:, None])]

    def block(self, newest: torch.Tensor, count: int) -> torch.Tensor:
        return torch.cat([newest[None], newest.new_zeros(count)])

    def __call__(self, token_ids: torch.Tensor, positions: torch.Tensor, plan: StepPlan) -> torch.Tensor:
        keys, places = -1 - token_ids[0, :, None, None].float(), positions[0, :, None, None].float()
        plan.storage.layers[0].write(plan.write, keys, places)
        rows = torch.empty_like(positions)
        for group in plan.groups:
            seen, at = (some.view(group.sequences, -1) for some in plan.storage.layers[0].read(group.read))
            own = positions[0, group.rows].view(group.sequences, -1)
            for sequence, (first, *_, last) in enumerate(own.tolist()):
                assert at[sequence, : last + 1].tolist() == list(range(last + 1))
                assert [key >= 0 for key in seen[sequence].tolist()][: last + 1] == [i < first for i in range(last + 1)]
            newest = token_ids[0, group.rows].view(group.sequences, -1)[:, :1]
            rows[0, group.rows] = ((newest + own - own[:, :1]) % self.table.shape[1]).flatten()
        return rows[..., None]


class ScriptedMarkovHead(ScriptedBlockHead):
    """Stands in for ``lab.models.dspark_head.DSparkHead``: what it proposes depends on the token before as well."""

    one_by_one = True

    def after(self, logits: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        return torch.stack([row.roll(int(token)) for row, token in zip(logits, previous, strict=True)])


def remembered(state: int, token: float) -> int:
    """The state after all tokens so far and ``token``: a hash of them."""
    return (state * 31 + int(token) + 7) % 1_000_003
