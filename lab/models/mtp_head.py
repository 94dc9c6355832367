"""The MTP head: a decoder layer that comes in the target's own checkpoint and foretells the token after the next.

Multi-token prediction: DeepSeek-V3 (2412.19437), section 2.2. The layer is of the target's own kind, over the last
hidden state of token t, after the target's final norm, and the embedding of token t + 1. Where the target has not been
yet, the head's own output, normed, stands for the hidden state: one head drafts any number of tokens so, as in vLLM.

The layer and the names of its weights are transformers' (``MtpModel``): those of DeepSeek V3 and GLM 4.5, which number
it after the target's layers, and of Qwen3.5 and Qwen3-Next, which put it under ``mtp``. MiMo's (2505.07608) are added.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from safetensors import safe_open
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.modeling_layers import MtpModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from lab.kv_cache.attention import NAME
from lab.models.devices import is_dispatched
from lab.models.experts import ExpertCounter, Experts, experts_of
from lab.models.latent_attention import read_latents
from lab.models.model_shape import windows_of
from lab.models.own_attention import own_attention
from lab.models.state_head import HeadConfig, StateHead
from lab.util.messages import error_summary

COUNTS = "num_mtp_layers", "num_nextn_predict_layers", "mtp_num_hidden_layers"
"""Names of the number of a model's MTP layers."""

MIMO_NAMES = {
    "mtp_layers.": "layers.",
    "token_layernorm.": "enorm.",
    "hidden_layernorm.": "hnorm.",
    "final_layernorm.": "post_norm.",
}


class MiMoConfig(Qwen2Config):
    """Qwen2's configuration, with ``num_nextn_predict_layers`` MTP layers, whose input is the hidden state first."""

    model_type = "mimo"
    mtp_hidden_states_first = True


class MiMoForCausalLM(Qwen2ForCausalLM):
    """Qwen2's model, which is MiMo's without its MTP layers."""

    config_class = MiMoConfig


AutoConfig.register("mimo", MiMoConfig, exist_ok=True)
AutoModelForCausalLM.register(MiMoConfig, MiMoForCausalLM, exist_ok=True)


class MTPLayers(MtpModel):
    """A target's first MTP layer beside the target's embeddings, output head and rotary angles."""

    @classmethod
    def of(cls, model: PreTrainedModel, *, weights: bool = True) -> MTPLayers:
        """The layer from the model's checkpoint; without its ``weights`` a random one."""
        target = copy.copy(model)  # whose configuration is to say what transformers asks of one
        target.config = copy.deepcopy(model.config)
        text = target.config.get_text_config(decoder=True)
        text.num_mtp_layers = 1
        for kinds, kind in (("layer_types", "full_attention"), ("mlp_layer_types", "sparse")):
            if getattr(text, kinds, None) is not None and getattr(text, f"mtp_{kinds}", None) is None:
                setattr(text, f"mtp_{kinds}", [kind])
        found = cls.from_pretrained(target, device_map={"": model.device}) if weights else cls(target, 1)
        found.set_attn_implementation(NAME)
        read_latents(found, (NAME,))
        return found.eval()

    @staticmethod
    def get_mtp_weights_regex(main_model: PreTrainedModel) -> re.Pattern:
        layers = main_model.config.get_text_config(decoder=True).num_hidden_layers
        return re.compile(rf"^model\.layers\.{layers}\.|^mtp\.|^model\.mtp_layers\.0\.")


register_checkpoint_conversion_mapping(
    MTPLayers.__name__,
    [
        *(WeightRenaming(old, new) for old, new in MIMO_NAMES.items()),
        *get_checkpoint_conversion_mapping(MtpModel.__name__),
    ],
    overwrite=True,
)


class MTPHead(StateHead):
    """The head, over the target's embeddings, final norm and output head."""

    kind = "mtp"

    def __init__(self, model: PreTrainedModel, layers: MTPLayers, name: str) -> None:
        body, (layer, *_) = model.get_decoder(), layers.layers
        config = HeadConfig(
            layer=layers.config.get_text_config(decoder=True),
            draft_vocab_size=model.get_input_embeddings().num_embeddings,
            target_hidden_size=model.config.get_text_config(decoder=True).hidden_size,
            target_layers=(len(body.layers),),
        )
        super().__init__(config, layers.embed_tokens, name, body.norm, layers.rotary_emb)
        self.layer, self.lm_head, self.norm = layer, layers.shared_head, nn.Identity()
        self.experts: Experts | None = experts_of(layers)
        self.expert_counter = ExpertCounter(layer) if self.experts else None

    @property
    def decoder(self) -> nn.Module:
        return self.layer

    @property
    def layer_weights(self) -> int:
        return super().layer_weights + (self.experts.weights_per_token if self.experts else 0)

    def forward(self, token_ids: Tensor, hidden: Tensor, positions: Tensor, **how: object) -> Tensor:
        """One pass over pairs, as ``Eagle3Head.forward``; what comes out is normed."""
        if self.expert_counter:
            self.expert_counter.begin()
        angles = self.rotary(hidden, positions)
        found = self.layer(
            self.embed_tokens(token_ids),
            hidden,
            position_embeddings=angles,
            attention_mask=None,
            position_ids=positions,
            cache=None,
            **how,
        )
        if self.expert_counter:
            self.expert_counter.end()
        return found

    def fed_back(self, hidden: Tensor) -> Tensor:
        """Stand-in for the target's hidden states in the next step. [.., H] -> [.., H]."""
        return hidden


def mtp_layers(config: PreTrainedConfig) -> int:
    """The number of MTP layers that a configuration gives; its checkpoint may go without."""
    text = config.get_text_config(decoder=True)
    found = (getattr(text, name, None) for name in COUNTS)
    return next((count for count in found if isinstance(count, int)), 0)


def is_mtp_weight(name: str, model: PreTrainedModel) -> bool:
    """True for a weight of a checkpoint that belongs to an MTP layer."""
    numbered, layers = re.match(r"model\.layers\.(\d+)\.", name), model.config.get_text_config(decoder=True)
    after = numbered and 0 <= int(numbered[1]) - layers.num_hidden_layers < mtp_layers(model.config)
    return bool(after) or name.startswith(("mtp.", "model.mtp_layers."))


def load_mtp_head(model: PreTrainedModel, where: str | Path, name: str) -> tuple[MTPHead | None, tuple[str, ...]]:
    """The head in a model's checkpoint, if it has one that can be computed; and a sentence on what is not used."""
    count = mtp_layers(model.config)
    pattern = MTPLayers.get_mtp_weights_regex(model)
    if not count or not any(pattern.match(weight) for weight in _weights(where)):
        return None, ()
    if why := _obstacle(model):
        return None, (f"{name} goes without its MTP head: {why}.",)
    try:
        layers = MTPLayers.of(model)
    except Exception as error:  # of many kinds, from files of any kind; the target itself is whole
        return None, (f"{name} goes without its MTP head, which could not be loaded: {error_summary(error)}",)
    if windows_of(layers.config) != [None] or layers.layers[0].post_norm is None:
        return None, (f"{name} goes without its MTP head: its attention is not full attention.",)
    head = MTPHead(model, layers, name).eval().requires_grad_(False)
    more = f"{name} has {count} MTP heads: the first drafts, and reads its own output."
    return head, (more,) if count > 1 else ()


def _obstacle(model: PreTrainedModel) -> str | None:
    """Why a model's MTP head is not used, in a clause."""
    if own_attention(model.config, type(model)):
        return "the model keeps its own attention"
    if is_dispatched(model):
        return "its weights are in several places"
    if getattr(model.config, "quantization_config", None):
        return "its weights are quantised"
    if getattr(model.config.get_text_config(decoder=True), "mtp_use_dedicated_embeddings", False):
        return "it has embeddings of its own"
    return None


def _weights(where: str | Path) -> Iterable[str]:
    """Names of the weights in a checkpoint that has been loaded, from a folder or a hub id."""
    for file in (SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME):
        folder = os.path.isdir(where)
        path = Path(where, file) if folder else try_to_load_from_cache(str(where), file)
        if not isinstance(path, (str, Path)) or not os.path.isfile(path):
            continue
        if file == SAFE_WEIGHTS_INDEX_NAME:
            return json.loads(Path(path).read_bytes())["weight_map"]
        with safe_open(path, framework="pt") as opened:
            return list(opened.keys())
    return ()
