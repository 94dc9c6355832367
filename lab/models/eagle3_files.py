"""Reads an EAGLE-3 head in either of its two dialects, and refuses one that was made for another target.

Raw (SafeAILab/EAGLE, SpecForge, AngelSlim): a flat configuration, the layer's weights under ``midlayer``, often in a
pickle. Speculators (vLLM): the layer's configuration in ``transformer_layer_config``, its weights under ``layers.0``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from safetensors.torch import load_file
from transformers import LlamaConfig, Qwen3Config

from lab.errors import LabError, UnsupportedModelError
from lab.kv_cache.attention import NAME
from lab.models.checkpoint_files import ModelLoadError, explain_load_error, refuse_pointers, unavailable
from lab.models.eagle3_head import Eagle3Head, HeadConfig, usual_layers
from lab.models.language_model import LanguageModel
from lab.models.model_shape import ModelShape, refuse_too_many

NEWEST_SPECULATORS = 0, 9
"""The newest version of the speculators format that was looked at."""
WEIGHTS = "model.safetensors", "pytorch_model.bin"
LAYERS: dict[str, type[LlamaConfig] | type[Qwen3Config]] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
NOT_READ = "t2d", "verifier_norm.weight", "verifier_lm_head.weight"
"""Tensors that follow from others, or are the target's."""


def load_head(where: str | Path, target: LanguageModel, *, name: str) -> Eagle3Head:
    """A head from a folder or a hub id, in the target's dtype and on its device. Runs no code that comes with it.

    Raises:
        ModelLoadError: nothing readable there, or weights that do not fit its configuration.
        UnsupportedModelError: it is no EAGLE-3 head of a known version, or was made for another target.
    """
    config_file = _file(where, "config.json")
    if config_file is None:
        raise ModelLoadError(f"There is no config.json in {name}. An EAGLE-3 head has one beside its weights.")
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
        raise ModelLoadError(f"There are no weights in {name}. An EAGLE-3 head has {' or '.join(WEIGHTS)}.")
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
    more = given if nested else given | (given.get("eagle_config") or {})
    _refuse_other_format(given, nested, flat, name)
    kind = LAYERS[flat.get("model_type", "llama")]
    layer = kind.from_dict({key: value for key, value in flat.items() if key != "layer_types"})  # often the target's
    layer._attn_implementation = NAME
    ModelShape.from_config(layer)  # refuses impossible sizes before anything is built
    own, hidden = target.model.config.get_text_config(decoder=True), layer.hidden_size
    config = HeadConfig(
        layer=layer,
        draft_vocab_size=given.get("draft_vocab_size") or layer.vocab_size,
        target_hidden_size=given.get("target_hidden_size") or hidden,
        target_layers=tuple(more.get("eagle_aux_hidden_state_layer_ids") or usual_layers(target.layers)),
        norm_before_residual=bool(more.get("norm_before_residual")),
        norm_before_fc=bool(more.get("norm_before_fc")),
        fc_norm=bool(more.get("fc_norm")),
        norm_output=bool(more.get("norm_output")),
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


def _refuse_other_format(given: dict[str, Any], nested: bool, flat: dict[str, Any], name: str) -> None:
    kind = given["speculators_model_type"] if nested else "".join(given.get("architectures") or [])
    if "eagle3" not in str(kind).lower():
        raise UnsupportedModelError(f"{name} is no EAGLE-3 head, but {str(kind)[:80]!r}. Choose an EAGLE-3 head.")
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
    if flat.get("num_hidden_layers", 1) != 1:
        raise UnsupportedModelError(
            f"{name} has {flat['num_hidden_layers']} layers, and an EAGLE-3 head that drafts one token after another "
            "has one. Choose such a head."
        )


def _refuse_misfit(name: str, target: LanguageModel, its: str, targets: str) -> None:
    raise UnsupportedModelError(
        f"{name} was made for a target with {its}, and {target.name} {targets}. Choose a head that was trained for "
        f"{target.name}."
    )


def _build(config: HeadConfig, weights: dict[str, torch.Tensor], target: LanguageModel, name: str) -> Eagle3Head:
    weights = {key.replace("layers.0.", "midlayer.", 1): each for key, each in weights.items() if key not in NOT_READ}
    embeddings = target.model.get_input_embeddings()
    own = weights.pop("embed_tokens.weight", None)
    if own is not None:
        embeddings = torch.nn.Embedding.from_pretrained(own)
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
    with torch.device("meta"):
        head = Eagle3Head(config, torch.nn.Embedding(1, 1), name)
    head.embed_tokens = torch.nn.Identity()
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
    head = Eagle3Head(config, embeddings, name)
    head.load_state_dict(weights, strict=False)
    ids = head.target_ids
    if ids.min() < 0 or ids.max() >= config.layer.vocab_size or len(ids.unique()) < len(ids):
        raise ModelLoadError(
            f"{name} could not be loaded: its d2t gives tokens twice, or none of the target's. Its files are damaged: "
            "fetch them again."
        )
    return head.to(target.device, target.dtype).eval().requires_grad_(False)


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
