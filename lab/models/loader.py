"""From a name to a model: the embedded pair, a local folder, or a hub id."""

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils.quantization_config import QuantizationConfigMixin

from lab.errors import ConfigError, LabError
from lab.models.checkpoint_files import (
    ModelLoadError,
    adapter_files,
    explain_load_error,
    hub_refusal,
    read_config,
    refuse_absent_weights,
    refuse_other_formats,
    refuse_outside_files,
    refuse_pointers,
    unavailable,
    weight_files,
)
from lab.models.devices import DeviceMap, multiplies_bfloat16, refuse_incomplete
from lab.models.language_model import LanguageModel
from lab.models.load_progress import current_loading
from lab.models.meta_model import parameters, refuse_misfit, refuse_short_files, without_weights
from lab.models.model_shape import ModelShape
from lab.models.mtp_head import is_mtp_weight, load_mtp_head
from lab.models.numerical_check import refuse_disagreement
from lab.models.quantization import quantization_method, refuse_quantized
from lab.models.support import refuse_unsupported

WEIGHTS = Path(__file__).parent / "weights"
EMBEDDED_HEADS = "eagle3", "dflash", "dspark"
EMBEDDED_DRAFTS = {"matched": "draft", "mismatched": "mismatched"}
"""Name of an embedded draft -> its folder. The matched one was distilled from the
target; the mismatched one has the same shape and learnt from program code."""


def resolve_dtype(dtype: str, *devices: str) -> torch.dtype:
    """The torch dtype of a name; "auto" is bfloat16 on GPUs, float16 if one is too old for that, float32 on a CPU.

    In float32, verifying several tokens and decoding one round so nearly alike that every token can be compared.

    Raises:
        ConfigError: not the name of a floating-point dtype.
    """
    if dtype == "auto":
        if not devices[0].startswith("cuda"):
            return torch.float32
        return torch.bfloat16 if all(map(multiplies_bfloat16, devices)) else torch.float16
    found = getattr(torch, str(dtype), None)
    if found not in (torch.float32, torch.bfloat16, torch.float16):
        raise ConfigError(f"dtype must be 'auto', 'float32', 'bfloat16' or 'float16', not {dtype!r}.")
    return found


def refuse_absent(where: str | Path) -> None:
    """Raises ModelLoadError for what is neither a folder nor, if it is a ``str``, a hub id; before the hub is asked."""
    if os.path.isdir(where):
        return
    name = str(where)
    name = repr(name if len(name) <= 200 else f"{name[:40]}…{name[-160:]}")  # a path's end says most
    if os.path.exists(where):
        refuse_other_formats(Path(where), name)
        raise ModelLoadError(f"{name} is a file. Name the folder that it lies in.")
    try:
        validate_repo_id(where)
    except HFValidationError:
        if page := re.match(r"https?://[^/]+/([\w.-]+/[\w.-]+)", str(where)):
            raise ModelLoadError(f"{name} is the address of a page. Write it as {page[1]}.") from None
        raise ModelLoadError(
            f"There is no folder {name} here. Name one with config.json and safetensors, or a hub id, which is "
            "owner/name, like Qwen/Qwen3-8B."
        ) from None


def load_model(
    where: str | Path,
    *,
    name: str,
    place: str | DeviceMap,
    dtype: torch.dtype,
    quantization: QuantizationConfigMixin | None = None,
    rounded: bool = False,
    packed: Callable[[PreTrainedConfig, int], int] | None = None,
) -> LanguageModel:
    """Load a model from a folder or a hub id. Never runs code that comes with a model.

    Reports its progress and can be cancelled (``lab.models.load_progress``).

    Args:
        place: a device, or accelerate's ``device_map``.
        rounded: see ``LanguageModel``.
        packed: how many of a configuration's parameters the back end will copy into bfloat16. None: it copies none.
        quantization: how its linear layers are to store their weights. None: as they were saved.

    Raises:
        ModelLoadError: nothing readable there, other weights than the configuration's, or more than fit the device.
        UnsupportedModelError: the engine would decode it wrongly (``lab.models.support``,
            ``lab.models.numerical_check``), or its configuration describes no possible model.
        ConfigError: the weights are quantised already, or the map leaves some of them out.
        LoadingCancelled: see ``lab.models.load_progress``.
    """
    refuse_absent(where)
    refuse_outside_files(where, name)
    loading, config = current_loading(), None
    reason = None if os.path.isdir(where) else hub_refusal(str(where))
    local = {"local_files_only": reason is not None}  # otherwise the local cache may have it
    try:
        config = read_config(where, name, **local)
        refuse_unsupported(config, name)
        ModelShape.from_config(config)  # refuses impossible sizes before anything is built
        if quantization is not None:
            refuse_quantized(config, name)
        embedded = Path(where).parent == WEIGHTS  # complete, and small
        if loading or isinstance(place, dict) or not embedded:
            empty = without_weights(config)
        if not embedded:
            refuse_short_files(empty, where, name)
            if quantization is None:
                refuse_misfit(empty, name, place, dtype, packed(config, parameters(empty)) if packed else 0)
        if isinstance(place, dict):
            refuse_incomplete(place, empty, name)
        if loading:
            loading.begin(name, empty, dtype.itemsize)
        with _unreported():
            model, loaded = AutoModelForCausalLM.from_pretrained(
                where,
                config=config,
                dtype=dtype,
                device_map=place,
                quantization_config=quantization,
                tqdm_class=loading and loading.bar(),
                ignore_mismatched_sizes=True,  # refused below, all of them together
                output_loading_info=True,
                trust_remote_code=False,
                **local,
            )
        refuse_other_weights(model, loaded, name)
        refuse_odd_end(model, name)
        with _unreported():
            head, notes = load_mtp_head(model, where, name)
        found = LanguageModel(model, name, rounded=rounded)
        found.notes += notes
        if head:
            found.heads["mtp"] = head
        if (beside := adapter_files(where)) and not getattr(model, "_hf_peft_config_loaded", False):
            found.notes += (
                f"The adapter in the folder of {name} ({beside[-1].name}) is left out: these are the base model's "
                "tokens. To have its own, merge it into the model with peft's merge_and_unload().",
            )
        if not embedded:
            refuse_disagreement(found)
    except LabError:
        raise
    except Exception as error:  # files from anywhere can cause errors of any kind
        if loading:
            loading.check()  # a cancelled download ends in an error of transformers' own
        refuse_pointers(weight_files(where), name)
        if reason and (config is None or isinstance(error, OSError)):  # OSError: a file is missing
            raise unavailable(str(where), reason) from error
        if not reason and config and not os.path.isdir(where):
            refuse_absent_weights(str(where), name, error)
        raise ModelLoadError(f"{name} could not be loaded: {explain_load_error(error, config)}") from error
    return found


@contextmanager
def _unreported() -> Iterator[None]:
    """Silence transformers' tables of weights that do not fit: they call that possibly fine, but here it is refused."""

    def quiet(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    log = logging.getLogger("transformers.modeling_utils")
    log.addFilter(quiet)
    try:
        yield
    finally:
        log.removeFilter(quiet)


def refuse_other_weights(model: PreTrainedModel, loaded: Mapping[str, Iterable[Any]], name: str) -> None:
    """Raises ModelLoadError if transformers had to make up some of a model's weights, or left some of its layers'.

    Unused weights outside the layers are ignored: another head, or the rest of a larger model. So are masks and
    tables that older versions saved, and the extra tensors of quantised weights.

    Args:
        loaded: transformers' ``missing_keys``, ``mismatched_keys`` and ``unexpected_keys``. Tied weights and computed
            buffers are in none of them.
    """
    weights = set(model.state_dict())
    stacks = {_stack(weight) for weight in weights} - {None}
    faults = [f"{weight!r} is missing" for weight in sorted(loaded["missing_keys"])]
    for weight, found, wanted in sorted(loaded["mismatched_keys"]):
        faults.append(f"{weight!r} has the shape {list(found)} and not {list(wanted)}")
    if not getattr(model.config, "quantization_config", None):
        for weight in sorted(loaded["unexpected_keys"]):
            used = weight.endswith(".weight") or re.sub(r"\.bias$", ".weight", weight) in weights
            if used and _stack(weight) in stacks and not is_mtp_weight(weight, model):
                faults.append(f"{weight[:80]!r} does not belong there")
    if faults:
        more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
        if method := quantization_method(model.config):
            raise ModelLoadError(
                f"{name} could not be loaded: its weights are quantised ({method}), in a form that is not known here "
                f"({faults[0]}{more}). Choose the model's unquantised weights."
            )
        raise ModelLoadError(
            f"{name} could not be loaded: its weights are not those of the {type(model).__name__} that its config.json "
            f"describes: {'; '.join(faults[:3])}{more}. Its files are incomplete, or one of them is another model's: "
            "fetch them again."
        )


def refuse_odd_end(model: PreTrainedModel, name: str) -> None:
    """Raises ModelLoadError if ``eos_token_id`` is neither a token id nor a list of them."""
    end = getattr(model.generation_config, "eos_token_id", None)
    if not all(token is None or isinstance(token, int) for token in (end if isinstance(end, list) else [end])):
        raise ModelLoadError(
            f"{name} could not be loaded: it gives {str(end)[:80]!r} as eos_token_id, which must be a token's "
            "number, or a list of such numbers. Fix its generation_config.json, or fetch it again."
        )


def _stack(weight: str) -> str | None:
    """The list of layers that a weight belongs to: "model.layers" for "model.layers.0.mlp.up_proj.weight"."""
    found = re.match(r"(.+?)\.\d+\.", weight)
    return found and found[1]
