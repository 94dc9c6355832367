"""The parts that heads which draft from the target's hidden states have in common."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from lab.models.model_shape import ModelShape

HEADS = {"eagle3": "an EAGLE-3 head", "dflash": "a DFlash head", "dspark": "a DSpark head"}
"""Each kind of head, in words."""


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """A head's shape.

    Attributes:
        layer: transformers' configuration of its decoder layers.
        draft_vocab_size: tokens that it can propose.
        target_hidden_size: width of the target's hidden states.
        target_layers: it gets the hidden states that enter these layers of the target; the number of its layers: those
            that leave the last.
    """

    layer: PreTrainedConfig
    draft_vocab_size: int
    target_hidden_size: int
    target_layers: tuple[int, ...]


class StateHead(nn.Module):
    """A head over the target's embeddings; ``fuse`` takes in the target's hidden states.

    Attributes:
        kind: its name among the drafters.
        name: that of the target and its own.
        most_tokens: that it can draft in a round. None: any number.
        d2t: [draft_vocab_size] int64; the target's id of draft token i is i + d2t[i].
    """

    kind: str
    most_tokens: int | None = None
    kv_sources = MappingProxyType({})
    experts = expert_counter = other_attention = None

    def __init__(
        self,
        config: HeadConfig,
        embed_tokens: nn.Embedding,
        name: str,
        fc: nn.Module | None = None,
        rotary: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.config, self.name, layer = config, name, config.layer
        shape = ModelShape.from_config(layer)
        self.layers, self.kv_heads, self.query_groups = shape.layers, shape.kv_heads, shape.query_groups
        self.head_dim, self.kv_vectors = shape.head_dim, shape.kv_vectors
        self.embed_tokens = embed_tokens
        self.fc = fc or nn.Linear(self.states_width, layer.hidden_size, bias=False)
        self.rotary = rotary or LlamaRotaryEmbedding(layer)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))

    # -- its sizes, by LanguageModel's names ------------------------------------------------

    @property
    def windows(self) -> tuple[None, ...]:
        return (None,) * self.layers

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def layer_devices(self) -> list[torch.device]:
        return [self.device] * self.layers

    @property
    def vocabulary(self) -> int:
        """The target's."""
        return self.embed_tokens.num_embeddings

    @property
    def states_width(self) -> int:
        """Numbers of the target's hidden states for each token."""
        return len(self.config.target_layers) * self.config.target_hidden_size

    @property
    def decoder(self) -> nn.Module:
        """Its decoder layer or layers."""
        raise NotImplementedError

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of its layers; ``fc`` is computed only for tokens that the target has read."""
        return sum(weight.numel() for weight in self.decoder.parameters() if weight.ndim == 2)

    @property
    def head_weights(self) -> int:
        return self.lm_head.weight.numel()

    @property
    def head_bytes(self) -> int:
        return self.lm_head.weight.nbytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a pass over draft tokens reads."""
        return sum(weight.nbytes for part in (self.decoder, self.norm, self.lm_head) for weight in part.parameters())

    # -- what it computes --------------------------------------------------------------------

    @property
    def target_ids(self) -> torch.Tensor:
        """[draft_vocab_size] int64, the target's id of each draft token."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """The target's hidden states [.., layers x H_target], layer after layer -> [.., H], what the head takes in."""
        return self.fc(states)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[.., H] -> [.., draft_vocab_size]."""
        return self.lm_head(self.norm(hidden))
