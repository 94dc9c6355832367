"""Reads a head in either of two dialects, and refuses one that was made for another target.

Raw (EAGLE-3: SafeAILab/EAGLE, SpecForge, AngelSlim; DFlash: z-lab, SpecForge): a flat configuration. An EAGLE-3 head's
layer is under ``midlayer``, often in a pickle; DFlash numbers the target's layers by what leaves them, one less than by
what enters them. Speculators (vLLM): their configuration in ``transformer_layer_config``, weights under ``layers``.
"""

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from safetensors.torch import load_file
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from lab.errors import LabError, UnsupportedModelError
from lab.kv_cache.attention import NAME
from lab.models.checkpoint_files import ModelLoadError, explain_load_error, refuse_pointers, unavailable
from lab.models.dflash_head import DFlashConfig, DFlashHead
from lab.models.dspark_head import DSparkConfig, DSparkHead
from lab.models.eagle3_head import Eagle3Config, Eagle3Head, usual_layers
from lab.models.language_model import LanguageModel
from lab.models.model_shape import ModelShape, refuse_too_many
from lab.models.state_head import HEADS, HeadConfig, StateHead

NEWEST_SPECULATORS = 0, 9
"""The newest version of the speculators format that was looked at."""
WEIGHTS = "model.safetensors", "pytorch_model.bin"
LAYERS: dict[str, type[LlamaConfig] | type[Qwen3Config]] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
CONFIDENCE = "confidence_head.proj.weight", "confidence_head.proj.bias"
NOT_READ = "t2d", "verifier_norm.weight", "verifier_lm_head.weight", *CONFIDENCE
"""Tensors that follow from others, are the target's, or foretell acceptance, which is measured here."""


def load_head(where: str | Path, target: LanguageModel, *, name: str) -> StateHead:
    """A head from a folder or a hub id, in the target's dtype and on its device. Runs no code that comes with it.

    Raises:
        ModelLoadError: nothing readable there, or weights that do not fit its configuration.
        UnsupportedModelError: it is no head of a known kind and version, or was made for another target.
    """
    config_file = _file(where, "config.json")
    if config_file is None:
        raise ModelLoadError(f"There is no config.json in {name}. A head has one beside its weights.")
    try:
        given = json.loads(config_file.read_bytes())
        refuse_too_many(given)
        config = read_head_config(given, target, name)
    except LabError:
        raise
    except Exception as error:  # a file from anywhere can cause errors of any kind
        raise ModelLoadError(f"The config.json of {name} cannot be read. Fetch the head again. ({error})") from error
    files = [file for file in (_file(where, kind) for kind in WEIGHTS) if file]
    if not files:
        raise ModelLoadError(f"There are no weights in {name}. A head has {' or '.join(WEIGHTS)}.")
    try:
        weights = _read(files[0])
    except Exception as error:
        refuse_pointers(files, name)
        raise ModelLoadError(f"{name} could not be loaded: {explain_load_error(error, None)}") from error
    return _build(config, weights, target, name)


def read_head_config(given: dict[str, Any], target: LanguageModel, name: str) -> HeadConfig:
    """A head's config.json, read. Raises UnsupportedModelError, as ``load_head``."""
    nested = "speculators_model_type" in given
    flat = given["transformer_layer_config"] if nested else given
    kind = _kind(given, nested, flat, name)
    # Layer types are often the target's; those of a DFlash head were looked at.
    layer = LAYERS[flat.get("model_type", "llama")].from_dict({k: v for k, v in flat.items() if k != "layer_types"})
    layer._attn_implementation = NAME
    ModelShape.from_config(layer)  # refuses impossible sizes before anything is built
    read = {"eagle3": _eagle3, "dflash": _dflash, "dspark": _dspark}[kind]
    config = read(given, nested, target, name)(
        layer=layer,
        draft_vocab_size=given.get("draft_vocab_size") or layer.vocab_size,
        target_hidden_size=given.get("target_hidden_size") or layer.hidden_size,
    )
    own = target.model.config.get_text_config(decoder=True)
    if target.own_attention or getattr(own, "altup_num_inputs", 1) > 1:
        raise UnsupportedModelError(
            f"{name} reads the hidden states between the target's layers, and those of {target.name} are not at hand "
            "here: it has its own attention, or several states a token. Choose a draft model for it, or n-gram lookup."
        )
    for what, its, targets in (
        ("hidden states of size", config.target_hidden_size, own.hidden_size),
        ("a vocabulary of", layer.vocab_size, own.vocab_size),
    ):
        if its != targets:
            _refuse_misfit(name, target, f"{what} {its:,}", f"has {targets:,}")
    if not all(isinstance(one, int) and 0 <= one < target.layers for one in config.target_layers):
        wanted = ", ".join(map(str, config.target_layers))
        _refuse_misfit(name, target, f"hidden states that enter layers {wanted}", f"has {target.layers} layers")
    return config


def _eagle3(given: dict[str, Any], nested: bool, target: LanguageModel, name: str) -> Callable[..., Eagle3Config]:
    more = given if nested else given | (given.get("eagle_config") or {})
    norms = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    layers = tuple(more.get("eagle_aux_hidden_state_layer_ids") or usual_layers(target.layers))
    return partial(Eagle3Config, target_layers=layers, **{norm: bool(more.get(norm)) for norm in norms})


def _dflash(given: dict[str, Any], nested: bool, target: LanguageModel, name: str) -> Callable[..., DFlashConfig]:
    more = given if nested else given.get("dflash_config") or {}
    layers = more.get("aux_hidden_state_layer_ids" if nested else "target_layer_ids")
    mask, size = more.get("mask_token_id"), given.get("block_size")
    for field, value in (("the layers of the target", layers), ("mask_token_id", mask), ("block_size", size)):
        if value is None:
            raise UnsupportedModelError(
                f"The config.json of {name} does not name {field}, without which a DFlash head cannot draft. Choose a "
                "head that does, or fetch it again."
            )
    if not (isinstance(size, int) and size > 1 and isinstance(mask, int) and 0 <= mask < target.vocabulary):
        raise UnsupportedModelError(
            f"{name} has blocks of {str(size)[:40]} and the mask token {str(mask)[:40]}. A block has two tokens or "
            f"more, and the mask is one of the target's {target.vocabulary:,} tokens."
        )
    layers = tuple(one if nested else one + 1 for one in layers)
    return partial(DFlashConfig, target_layers=layers, block_size=size, mask_token_id=mask)


def _dspark(given: dict[str, Any], nested: bool, target: LanguageModel, name: str) -> Callable[..., DSparkConfig]:
    more = given | (given.get("dflash_config") or {})
    rank, kind = more.get("markov_rank", 256), more.get("markov_head_type", "vanilla")
    if kind != "vanilla" or not (isinstance(rank, int) and rank > 0):
        raise UnsupportedModelError(
            f"{name} has a Markov head of the type {str(kind)[:40]!r} and rank {str(rank)[:40]}, and only 'vanilla' "
            "ones of rank 1 or more are computed here. Choose a DSpark head with such a one."
        )
    block = _dflash(given, nested, target, name).keywords
    return partial(
        DSparkConfig, **block, markov_rank=rank, sample_from_anchor=bool(more.get("sample_from_anchor", True))
    )


def _kind(given: dict[str, Any], nested: bool, flat: dict[str, Any], name: str) -> str:
    said = str(given["speculators_model_type"] if nested else "".join(given.get("architectures") or []))
    found = re.search(r"eagle3|dspark|dflash(?!2)", said.lower())
    if not found:
        heads = " or ".join(HEADS.values())
        raise UnsupportedModelError(f"{name} is no {heads[3:]}, but {said[:80]!r}. Choose {heads}.")
    kind, words = found[0], HEADS[found[0]]
    version = str(given.get("speculators_version", "0"))
    if nested and tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) > NEWEST_SPECULATORS:
        known = ".".join(map(str, NEWEST_SPECULATORS))
        raise UnsupportedModelError(
            f"{name} is of version {version[:40]} of the speculators format, and {known} is the newest that is read "
            "here. Choose a head that was saved by an older version, or a newer lab."
        )
    if flat.get("model_type", "llama") not in LAYERS:
        raise UnsupportedModelError(
            f"{name} has a layer of the kind {str(flat['model_type'])[:80]!r}. Choose a head whose layer is a "
            f"{' or a '.join(LAYERS)} layer."
        )
    if kind == "eagle3" and flat.get("num_hidden_layers", 1) != 1:
        raise UnsupportedModelError(
            f"{name} has {flat['num_hidden_layers']} layers, and an EAGLE-3 head that drafts one token after another "
            "has one. Choose such a head."
        )
    if kind != "eagle3" and (other := _other_block(given, flat, kind)):
        raise UnsupportedModelError(f"{name} {other}, which is not computed here. Choose {words} without that.")
    return kind


def _other_block(given: dict[str, Any], flat: dict[str, Any], kind: str) -> str | None:
    """The part of a newer head of DFlash's family that its first version has not."""
    more = given | (given.get("dflash_config") or {})
    if more.get("use_swa") or "sliding_attention" in (flat.get("layer_types") or ()):
        return "has layers with a sliding window"
    if more.get("causal") or more.get("is_causal"):
        return "has blocks whose tokens see only those before them"
    anchored = kind == "dflash" and more.get("sample_from_anchor")
    if more.get("projector_type", kind) != kind or more.get("shift_label") or anchored:
        return "corrects its draft tokens by those before them, or drafts from the newest token"
    if more.get("attention_sink_bias") or more.get("is_neox_style") is False:
        return "has attention sinks, or rotates neighbouring numbers"
    return None


def _refuse_misfit(name: str, target: LanguageModel, its: str, targets: str) -> None:
    raise UnsupportedModelError(
        f"{name} was made for a target with {its}, and {target.name} {targets}. Choose a head that was trained for "
        f"{target.name}."
    )


def _build(config: HeadConfig, weights: dict[str, torch.Tensor], target: LanguageModel, name: str) -> StateHead:
    eagle3 = isinstance(config, Eagle3Config)
    own = ("layers.0.", "midlayer.") if eagle3 else ("layers.", "blocks.")
    weights = {key.replace(*own, 1): each for key, each in weights.items() if key not in NOT_READ}
    embeddings, output = target.model.get_input_embeddings(), None
    if (table := weights.pop("embed_tokens.weight", None)) is not None:
        embeddings = torch.nn.Embedding.from_pretrained(table)
    if not eagle3 and config.draft_vocab_size == config.layer.vocab_size:
        output = target.model.get_output_embeddings()
        weights.pop("lm_head.weight", None)
    if embeddings.embedding_dim != config.layer.hidden_size:
        raise ModelLoadError(
            f"{name} is {config.layer.hidden_size:,} wide and its target {embeddings.embedding_dim:,}, and it has no "
            "embeddings of its own. Its files are incomplete: fetch them again."
        )
    if "d2t" not in weights:
        if config.draft_vocab_size != config.layer.vocab_size:
            raise ModelLoadError(
                f"{name} has no d2t, which says what its {config.draft_vocab_size:,} draft tokens are among the "
                f"target's {config.layer.vocab_size:,}. Its files are incomplete: fetch them again."
            )
        weights["d2t"] = torch.zeros(config.draft_vocab_size, dtype=torch.long)

    def made(embeddings: torch.nn.Module, output: torch.nn.Module | None) -> StateHead:
        if eagle3:
            return Eagle3Head(config, embeddings, name)
        kind = DSparkHead if isinstance(config, DSparkConfig) else DFlashHead
        return kind(config, embeddings, output, name)

    with torch.device("meta"):
        head = made(torch.nn.Identity(), output and torch.nn.Identity())
    wanted = {key: tensor.shape for key, tensor in head.state_dict().items()}
    faults = [f"{key!r} is missing" for key in wanted if key not in weights]
    faults += [f"{key[:80]!r} does not belong there" for key in weights if key not in wanted]
    faults += [
        f"{key!r} has the shape {list(weights[key].shape)} and not {list(shape)}"
        for key, shape in wanted.items()
        if key in weights and weights[key].shape != shape
    ]
    if faults:
        more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise ModelLoadError(
            f"{name} could not be loaded: its weights are not those that its config.json describes: "
            f"{'; '.join(faults[:3])}{more}. Its files are incomplete, or another head's: fetch them again."
        )
    head = made(embeddings, output)
    head.load_state_dict(weights, strict=False)
    ids = head.target_ids
    if ids.min() < 0 or ids.max() >= config.layer.vocab_size or len(ids.unique()) < len(ids):
        raise ModelLoadError(
            f"{name} could not be loaded: its d2t gives tokens twice, or none of the target's. Its files are damaged: "
            "fetch them again."
        )
    head.to(target.dtype).rotary = LlamaRotaryEmbedding(config.layer)  # whose frequencies stay in float32
    return head.to(target.device).eval().requires_grad_(False)


def _read(file: Path) -> dict[str, torch.Tensor]:
    if file.suffix == ".safetensors":
        return load_file(file)
    return torch.load(file, map_location="cpu", weights_only=True)  # a pickle that could run code is refused


def _file(where: str | Path, name: str) -> Path | None:
    if os.path.isdir(where):
        path = Path(where) / name
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(str(where), name))
    except EntryNotFoundError:
        return None
    except Exception as error:
        raise unavailable(str(where), error) from error
