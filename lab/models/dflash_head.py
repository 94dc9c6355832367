"""The DFlash head: a few decoder layers that draft a whole block of tokens in one pass.

"DFlash: Block Diffusion for Flash Speculative Decoding" (2602.06036). The block is the newest token and a mask for each
token to draft. In every layer it attends to itself, in both directions, and to the text so far, whose keys and values
are made from the target's hidden states alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, apply_rotary_pos_emb
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from lab.models.state_head import HeadConfig, StateHead

DECODERS = {"llama": LlamaDecoderLayer, "qwen3": Qwen3DecoderLayer}


@dataclass(frozen=True, kw_only=True)
class DFlashConfig(HeadConfig):
    """A DFlash head's shape.

    Attributes:
        block_size: of the block that it was trained with, the newest token included.
        mask_token_id: stands for a token that is to be drafted.
    """

    block_size: int
    mask_token_id: int


class DFlashHead(StateHead):
    """The head, over the target's embeddings and, unless it has a smaller one of its own, the target's output head."""

    kind = "dflash"
    one_by_one = False
    """True if a draft token's logits depend on the draft token before it (``after``)."""

    def __init__(
        self, config: DFlashConfig, embed_tokens: nn.Embedding, lm_head: nn.Linear | None = None, name: str = "dflash"
    ) -> None:
        super().__init__(config, embed_tokens, name)
        layer = config.layer
        self.hidden_norm = LlamaRMSNorm(layer.hidden_size, layer.rms_norm_eps)
        kind = DECODERS[layer.model_type]
        self.blocks = nn.ModuleList(kind(layer, layer_idx=i) for i in range(layer.num_hidden_layers))
        self.norm = LlamaRMSNorm(layer.hidden_size, layer.rms_norm_eps)
        self.lm_head = lm_head or nn.Linear(layer.hidden_size, config.draft_vocab_size, bias=False)
        self.most_tokens = config.block_size - 1

    @property
    def decoder(self) -> nn.Module:
        return self.blocks

    @property
    def text_weights(self) -> list[torch.Tensor]:
        """The matrices that the text's keys and values are made with."""
        own = [projection.weight for b in self.blocks for projection in (b.self_attn.k_proj, b.self_attn.v_proj)]
        return [self.fc.weight, *own]

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        return self.hidden_norm(self.fc(states))

    def keys_and_values(self, hidden: torch.Tensor, positions: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each layer's keys and values of the text, [.., count, kv_heads, head_dim] each.

        Args:
            hidden: [.., count, H], fused.
            positions: [.., count].
        """
        cosine, sine = self.rotary(hidden, positions)
        found = []
        for block in self.blocks:
            attention = block.self_attn
            key, value = (
                project(hidden).unflatten(-1, (-1, self.head_dim)) for project in (attention.k_proj, attention.v_proj)
            )
            key = attention.k_norm(key) if hasattr(attention, "k_norm") else key
            key, _ = apply_rotary_pos_emb(key, key[..., :1, :], cosine, sine, unsqueeze_dim=-2)
            found.append((key, value))
        return found

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, **how: object) -> torch.Tensor:
        """One pass over blocks.

        Args:
            token_ids, positions: [rows, count].
            how: for the attention function of ``config.layer``.

        Returns:
            [rows, count, H], for ``logits``.
        """
        hidden = self.embed_tokens(token_ids)
        angles = self.rotary(hidden, positions)
        for block in self.blocks:
            hidden = block(hidden, attention_mask=None, position_embeddings=angles, **how)
        return hidden

    def after(self, logits: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Logits of draft tokens, [.., draft_vocab_size], once the tokens before them, [..], are known."""
        return logits

    def block(self, newest: torch.Tensor, count: int) -> torch.Tensor:
        """[..] token ids -> what drafts ``count`` tokens: each, followed by as many masks. [.., 1 + count]."""
        masks = newest.new_full((count,), self.config.mask_token_id).expand(*newest.shape, count)
        return torch.cat([newest[..., None], masks], dim=-1)
