"""The DSpark head: DFlash's block in one pass, and then one token after another, each with regard to the one before.

"DSpark" (2607.05147) adds a Markov head to DFlash: a table of pairs of tokens, of low rank, whose row for the token
before is added to a draft token's logits. That takes one small product a token, in place of a pass. The published
heads' confidence head, which foretells acceptance, is not read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from lab.models.dflash_head import DFlashConfig, DFlashHead


@dataclass(frozen=True, kw_only=True)
class DSparkConfig(DFlashConfig):
    """A DSpark head's shape.

    Attributes:
        markov_rank: of the table of pairs.
        sample_from_anchor: the newest token's own place drafts the token after it, and each mask the next one;
            otherwise each mask drafts the token that it stands for.
    """

    markov_rank: int
    sample_from_anchor: bool = True


class MarkovHead(nn.Module):
    """The table, as a product of two matrices: a row of the first for each of the target's tokens."""

    def __init__(self, vocabulary: int, draft_vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocabulary, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)

    def forward(self, previous: torch.Tensor) -> torch.Tensor:
        """Token ids [..] -> what is added to the logits of the token after each, [.., draft_vocab_size]."""
        return self.markov_w2(self.markov_w1(previous))


class DSparkHead(DFlashHead):
    """The head, over the target's embeddings and, unless it has a smaller one of its own, the target's output head."""

    kind = "dspark"
    one_by_one = True

    def __init__(
        self, config: DSparkConfig, embed_tokens: nn.Embedding, lm_head: nn.Linear | None = None, name: str = "dspark"
    ) -> None:
        super().__init__(config, embed_tokens, lm_head, name)
        self.markov_head = MarkovHead(config.layer.vocab_size, config.draft_vocab_size, config.markov_rank)
        self.most_tokens = config.block_size - (not config.sample_from_anchor)

    @property
    def head_weights(self) -> int:
        return super().head_weights + self.markov_head.markov_w2.weight.numel()

    @property
    def head_bytes(self) -> int:
        return super().head_bytes + self.markov_head.markov_w2.weight.nbytes

    @property
    def weight_bytes(self) -> int:
        return super().weight_bytes + self.markov_head.markov_w2.weight.nbytes

    def block(self, newest: torch.Tensor, count: int) -> torch.Tensor:
        return super().block(newest, count - self.config.sample_from_anchor)

    def after(self, logits: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        return logits + self.markov_head(previous).to(logits.dtype)
