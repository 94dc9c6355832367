"""Models whose memory can be computed: well-known ones are bundled, any other is read from its configuration."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import AutoConfig, PreTrainedConfig

from lab.backends.cpu.native_model import packed_parameters
from lab.errors import LabError, UnsupportedModelError
from lab.memory.capacity import Deployment
from lab.memory.catalogue import OWN, PUBLISHED
from lab.models.checkpoint_files import hub_refusal, read_config, unavailable
from lab.models.experts import experts_per_token
from lab.models.loader import WEIGHTS, ModelLoadError
from lab.models.meta_model import parameters, without_weights
from lab.models.model_shape import ModelShape, attends
from lab.models.own_attention import uneven_slots
from lab.models.recurrent_layers import recurrent_layers
from lab.models.support import unsupported_cache
from lab.util.messages import counted, error_summary


@dataclass(frozen=True)
class ModelInfo:
    """A model's numbers. ``source``: where they are from; ``hub``: its hub id; ``packed``: the ``parameters`` that a
    step in C copies (``packed_parameters``); ``state_bytes``: of a sequence's recurrent state; ``experts``: as
    ``experts_per_token``."""

    name: str
    shape: ModelShape
    parameters: int
    source: str
    hub: str | None = None
    packed: int = 0
    state_bytes: int = 0
    experts: tuple[int, int] | None = None


@functools.cache
def known_models() -> dict[str, ModelInfo]:
    """The bundled models by key, the lab's own pair last. Nothing is fetched, no weights are read."""
    models = {}
    for key, entry in PUBLISHED.items():
        config, numbers, hub = published_config(entry["config"]), entry["parameters"], entry["source"]
        shape, packed = ModelShape.from_config(config), packed_parameters(config, numbers)
        state, source = entry.get("state_bytes", 0), f"{entry.get('read', 'config.json')} of {hub}"
        more = packed, state, experts_per_token(config)
        models[key] = ModelInfo(entry["name"], shape, numbers, source, hub, *more)
    for key, title in OWN.items():
        folder = key.removeprefix("stories-")
        config = AutoConfig.from_pretrained(WEIGHTS / folder, trust_remote_code=False)
        shape, numbers = ModelShape.from_config(config), count_parameters(config)
        source, packed = f"its own config.json, lab/models/weights/{folder}", packed_parameters(config, numbers)
        models[key] = ModelInfo(f"This lab's {title}", shape, numbers, source, packed=packed)
    return models


def published_config(entry: dict) -> PreTrainedConfig:
    return AutoConfig.for_model(**entry)


def find_model(where: str | Path, *, open_to_all: bool = False) -> ModelInfo:
    """A model from nothing but its configuration, in a folder (a ``Path``) or of a hub id (a ``str``). Code that comes
    with a model is never run, and weights are neither fetched nor read.

    Args:
        open_to_all: ask the hub anonymously, because whoever asks need not be the owner of this machine's token.

    Raises:
        ModelLoadError: not a hub id, or no readable configuration there.
        UnsupportedModelError: its cache is something else than keys and values by position, and recurrent states.
    """
    token = False if open_to_all else None
    if isinstance(where, str):
        refuse_other_than_hub_id(where)
    name = where.resolve().name if isinstance(where, Path) else where
    reason = None
    try:
        reason = hub_refusal(where, token) if isinstance(where, str) else None
        config = read_config(where, str(where), token=token, local_files_only=reason is not None)
        other, uneven = unsupported_cache(config), uneven_slots(config)
        shape = None if other else ModelShape.from_config(config)
        if other or (uneven and not shape.full_attention):
            raise UnsupportedModelError(
                f"The memory of {name} cannot be computed here: {other or f'its attention {uneven}'}. Keys and values "
                "by position are computed, and recurrent states beside them, as Llama, Gemma 4, Qwen3.5 and GPT-2 keep "
                "them."
            )
        empty = without_weights(config)
        recurrent = recurrent_layers(empty)
        if recurrent and not attends(config):
            raise UnsupportedModelError(
                f"{name} keeps no keys and values, so that it needs no cache in blocks: a sequence has a state of "
                f"{recurrent.state_bytes:,} bytes, however long it is. Choose a model with attention."
            )
    except LabError:
        raise
    except Exception as error:  # a file from anywhere can cause errors of any kind
        if isinstance(where, Path):
            raise ModelLoadError(f"{where} has no config.json that can be read. ({error_summary(error)})") from error
        raise unavailable(where, reason) from error
    hub = where if isinstance(where, str) else None
    numbers, state = parameters(empty), recurrent.state_bytes if recurrent else 0
    more = packed_parameters(config, numbers), state, experts_per_token(config)
    return ModelInfo(name, shape, numbers, f"config.json of {name}", hub, *more)


def count_parameters(config: PreTrainedConfig) -> int:
    """Parameters of the model that transformers builds from a configuration, tied ones once. It takes no memory. Raises
    UnsupportedModelError if that is no causal language model."""
    return parameters(without_weights(config))


def refuse_other_than_hub_id(where: str) -> None:
    """Raises ModelLoadError for anything but a hub id: otherwise a text field could read the server's folders."""
    try:
        validate_repo_id(where)
    except HFValidationError:
        reason = "it must be owner/name, like Qwen/Qwen3-8B, in letters, digits, '-', '_' and '.'"
    else:
        if not Path(where).exists():
            return
        reason = "there is a file or folder of that name here, but only the hub is asked"
    raise ModelLoadError(f"{where[:80]!r} cannot be used as a hub id: {reason}.")


def kept_by_layers(model: ModelInfo, size: Callable[[int], str]) -> Iterator[str]:
    """Sentences on what layers keep and read where not all have full attention and all weights. ``size`` formats bytes
    for display."""
    windows, layers = model.shape.kv_layers, model.shape.layers
    for window in filter(None, windows):
        yield (
            f"{windows[window]} of {layers} layers need {counted(window, 'token')} at most: blocks that slid out of "
            "the window are freed."
        )
    if model.state_bytes:
        yield (
            f"{sum(windows.values())} of {layers} layers keep keys and values. The recurrent ones keep a state, "
            f"{size(model.state_bytes)} a sequence however long it is."
        )
    if model.shape.shared:
        yield f"{len(model.shape.shared)} of {layers} layers read the keys and values of an earlier one, and keep none."
    if model.experts:
        yield "All {1} experts of a layer are in memory, and a token is computed by {0} of them.".format(*model.experts)


def deployment_notices(model: ModelInfo, chosen: Deployment, size: Callable[[int], str]) -> Iterator[str]:
    """Warnings about a deployment's figures, in sentences; mostly none. ``size`` formats bytes for display."""
    longest, context = chosen.lengths.longest, model.shape.context_length
    full = chosen.cache_bytes <= 0
    if full:
        yield (
            f"The weights do not fit: they take {size(chosen.weight_bytes)}, and {size(chosen.usable_bytes)} are not "
            "reserved. Choose weights of fewer bits, a smaller model or a larger GPU."
        )
    if longest > context:
        yield f"{model.name} was made for {context:,} positions; the longest sequence here has {longest:,}."
    if not full and not chosen.sequences("contiguous"):
        yield f"Not one sequence of {counted(longest, 'token')} fits into what is left for the cache."
