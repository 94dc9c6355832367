"""The MTP head: a decoder layer that comes in the target's own checkpoint and foretells the token after the next.

Multi-token prediction: DeepSeek-V3 (2412.19437), section 2.2; the weights are laid out as in MiMo (2505.07608), whose
model is Qwen2's with ``model.mtp_layers.N`` beside its layers. The pair at position t is the target's last hidden state
of token t, after its final norm, and the embedding of token t + 1. Where the target has not been yet, the head's own
output stands for the hidden state. One head drafts any number of tokens so, as in vLLM.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm

from lab.kv_cache.attention import NAME
from lab.models.devices import is_dispatched
from lab.models.state_head import HeadConfig, StateHead


class MiMoConfig(Qwen2Config):
    """Qwen2's configuration, with ``num_nextn_predict_layers`` MTP heads."""

    model_type = "mimo"


class MTPLayer(Qwen2DecoderLayer):
    """A layer of Qwen2 over hidden state and embedding, normed and fused."""

    def __init__(self, config: MiMoConfig) -> None:
        config = copy.deepcopy(config)
        config.num_hidden_layers, config.layer_types, config._attn_implementation = 1, ["full_attention"], NAME
        super().__init__(config, layer_idx=0)
        norms = (Qwen2RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(3))
        self.token_layernorm, self.hidden_layernorm, self.final_layernorm = norms
        self.input_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)

    def forward(self, embeddings: torch.Tensor, hidden: torch.Tensor, **how: object) -> torch.Tensor:
        both = torch.cat([self.hidden_layernorm(hidden), self.token_layernorm(embeddings)], dim=-1)
        return super().forward(self.input_proj(both), **how)


class MiMoForCausalLM(Qwen2ForCausalLM):
    """Qwen2's model as it is read, with the MTP layers among its weights; ``take_head`` takes them out."""

    config_class = MiMoConfig

    def __init__(self, config: MiMoConfig) -> None:
        super().__init__(config)
        count = getattr(config, "num_nextn_predict_layers", 0)
        self.model.mtp_layers = nn.ModuleList(MTPLayer(config) for _ in range(count))
        self.post_init()

    def drop_absent(self, missing: set[str]) -> None:
        """Go without MTP layers if all of their weights are ``missing``, as in a checkpoint that was saved without."""
        own = {name for name in self.state_dict() if name.startswith("model.mtp_layers.")}
        if own <= missing:
            missing -= own
            self.model.mtp_layers = nn.ModuleList()


AutoConfig.register("mimo", MiMoConfig, exist_ok=True)
AutoModelForCausalLM.register(MiMoConfig, MiMoForCausalLM, exist_ok=True)


class MTPHead(StateHead):
    """The head, over the target's embeddings, final norm and output head. ``model``: a target with MTP layers, of which
    the first drafts."""

    kind = "mtp"

    def __init__(self, model: MiMoForCausalLM, name: str) -> None:
        body, layer = model.model, model.model.mtp_layers[0]
        config = HeadConfig(
            layer=layer.self_attn.config,
            draft_vocab_size=model.config.vocab_size,
            target_hidden_size=model.config.hidden_size,
            target_layers=(len(body.layers),),
        )
        super().__init__(config, body.embed_tokens, name, body.norm)
        self.midlayer, self.norm, self.lm_head = layer, layer.final_layernorm, model.lm_head

    @property
    def decoder(self) -> nn.Module:
        return self.midlayer

    def forward(
        self, token_ids: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, **how: object
    ) -> torch.Tensor:
        """One pass over pairs, as ``Eagle3Head.forward``."""
        angles = self.rotary(hidden, positions)
        return self.midlayer(self.embed_tokens(token_ids), hidden, position_embeddings=angles, **how)

    def fed_back(self, hidden: torch.Tensor) -> torch.Tensor:
        """Stand-in for the target's hidden states in the next step. [.., H] -> [.., H]."""
        return self.norm(hidden)


def take_head(model: MiMoForCausalLM, name: str) -> tuple[MTPHead | None, tuple[str, ...]]:
    """Take a model's MTP layers out of it. Returns its head, if it has one that can be computed, and a sentence if some
    are not used."""
    head, notes, count = None, (), len(model.model.mtp_layers)
    if count and is_dispatched(model):
        notes = (f"{name} goes without its MTP head: its weights are in several places.",)
    elif count:
        head = MTPHead(model, name).to(model.device).eval().requires_grad_(False)
        if count > 1:
            notes = (f"{name} has {count} MTP heads: the first drafts, and reads its own output.",)
    del model.model.mtp_layers
    return head, notes
