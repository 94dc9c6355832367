"""The EAGLE-3 head: one decoder layer that drafts from the target's own hidden states.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test" (2503.01840).
The pair at position t is the target's hidden states of token t and the embedding of token t + 1; from it the head
foretells token t + 2. Where the target has not been yet, the head's own output stands for the hidden states.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3MLP

from lab.models.state_head import HeadConfig, StateHead

PARTS = {"llama": (LlamaAttention, LlamaMLP), "qwen3": (Qwen3Attention, Qwen3MLP)}
"""Of the decoder layers that a head may have, by their model type."""


def usual_layers(layers: int) -> tuple[int, ...]:
    """The layers whose inputs a head gets where its configuration names none: 2, the middle, and the third from last
    (SafeAILab/EAGLE and its followers)."""
    return 2, layers // 2, layers - 3


@dataclass(frozen=True, kw_only=True)
class Eagle3Config(HeadConfig):
    """An EAGLE-3 head's shape and its dialect.

    Attributes:
        norm_before_residual: the residual stream begins with the normed hidden states.
        norm_before_fc: the hidden states are normed together before they are fused.
        fc_norm: they are normed one by one.
        norm_output: what is fed back is normed first (EAGLE-3.1).
    """

    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


class HeadLayer(nn.Module):
    """A Llama's decoder layer whose attention reads embedding and hidden states side by side, [.., 2 H]."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        layer, self.norm_before_residual = config.layer, config.norm_before_residual
        hidden, eps = layer.hidden_size, layer.rms_norm_eps
        self.input_layernorm = LlamaRMSNorm(hidden, eps)
        self.hidden_norm = LlamaRMSNorm(hidden, eps)
        attention, mlp = PARTS[layer.model_type]
        self.self_attn = attention(layer, layer_idx=0)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            setattr(self.self_attn, name, nn.Linear(2 * hidden, narrow.out_features, bias=narrow.bias is not None))
        self.post_attention_layernorm = LlamaRMSNorm(hidden, eps)
        self.mlp = mlp(layer)

    def forward(
        self, embeddings: torch.Tensor, hidden: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], **how: object
    ) -> torch.Tensor:
        normed = self.hidden_norm(hidden)
        both = torch.cat([self.input_layernorm(embeddings), normed], dim=-1)
        attended, _ = self.self_attn(both, position_embeddings=angles, attention_mask=None, **how)
        hidden = (normed if self.norm_before_residual else hidden) + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Head(StateHead):
    """The head, over the target's embeddings."""

    kind = "eagle3"

    def __init__(self, config: Eagle3Config, embed_tokens: nn.Embedding, name: str = "eagle3") -> None:
        super().__init__(config, embed_tokens, name)
        layer, fused = config.layer, self.fc.in_features
        self.input_norm = LlamaRMSNorm(fused, layer.rms_norm_eps) if config.norm_before_fc else None
        each = [LlamaRMSNorm(config.target_hidden_size, layer.rms_norm_eps) for _ in config.target_layers]
        self.fc_norm = nn.ModuleList(each) if config.fc_norm else None
        self.midlayer = HeadLayer(config)
        self.norm = LlamaRMSNorm(layer.hidden_size, layer.rms_norm_eps)
        self.lm_head = nn.Linear(layer.hidden_size, config.draft_vocab_size, bias=False)

    @property
    def decoder(self) -> nn.Module:
        return self.midlayer

    def normed(self, states: torch.Tensor) -> torch.Tensor:
        """The target's hidden states as they are fused: normed or not, as the head was trained."""
        if self.fc_norm is not None:
            parts = states.split(self.config.target_hidden_size, dim=-1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return states if self.input_norm is None else self.input_norm(states)

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        return self.fc(self.normed(states))

    def forward(
        self, token_ids: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, **how: object
    ) -> torch.Tensor:
        """One pass over pairs.

        Args:
            token_ids: [rows, count], the token after each position.
            hidden: [rows, count, H], fused or fed back.
            positions: [rows, count].
            how: for the attention function of ``config.layer``.

        Returns:
            [rows, count, H], for ``logits`` and ``fed_back``.
        """
        embeddings = self.embed_tokens(token_ids)
        return self.midlayer(embeddings, hidden, self.rotary(hidden, positions), **how)

    def fed_back(self, hidden: torch.Tensor) -> torch.Tensor:
        """Stand-in for the target's hidden states in the next step. [.., H] -> [.., H]."""
        return self.norm(hidden) if self.config.norm_output else hidden
