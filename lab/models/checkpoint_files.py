"""Files of a model, in a folder or on a hub: its configuration, what files may be instead, and why they cannot be had.

The hub is asked once. Left to itself, transformers asks six times and logs each attempt.
"""

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import transformers
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from lab.errors import LabError, UnsupportedModelError
from lab.models import mtp_head  # noqa: F401 -- tells transformers of MiMo
from lab.models.devices import BUILDS
from lab.models.model_shape import refuse_odd_numbers, refuse_too_many
from lab.models.quantization import quantization_method
from lab.util.device_memory import is_out_of_memory
from lab.util.messages import error_summary

FOLDER_CONTENTS = "A model's folder holds config.json, its weights as safetensors, and tokenizer.json."
TOKENIZERS = ("tokenizer.*", "vocab.*", "merges.txt", "*.model", "*.tiktoken", "tekken.json")
"""Files that transformers can build a tokenizer from; tokenizer_config.json alone is not enough."""
ADAPTER_CONFIG = "adapter_config.json"
"""peft's, beside an adapter's weights."""
POINTER = b"version https://git-lfs"
"""How a Git LFS pointer begins (git-lfs, docs/spec.md)."""
HUB_TIMEOUT_SECONDS = 4.0
"""Seconds to wait for the hub's answer. It is asked once."""
MAX_CONFIG_BYTES = 1 << 20
"""Of a config.json: visitors name models, and theirs is fetched, kept and read whole. Most have a few thousand."""
LOG_IN = "log in here with `hf auth login`, or set HF_TOKEN"


class ModelLoadError(LabError):
    """A model that cannot be found or read."""


def weight_files(where: str | Path) -> list[Path]:
    """Files that weights may be read from: safetensors if there are any. A hub id has none."""
    return _files(where, "*.safetensors") or _files(where, "*.bin")


def tokenizer_files(where: str | Path) -> list[Path]:
    """Files that a tokenizer may be read from. A hub id has none."""
    return [path for pattern in TOKENIZERS for path in _files(where, pattern)]


def _files(where: str | Path, pattern: str) -> list[Path]:
    return sorted(path for path in Path(where).glob(pattern) if os.path.isfile(path))


def refuse_pointers(files: Iterable[Path], name: str) -> None:
    """Raises ModelLoadError for the first Git LFS pointer: a clone made without Git LFS has a few lines of text in the
    place of each large file."""
    for path in files:
        with suppress(OSError), path.open("rb") as file:  # an unreadable file is reported by whoever has to read it
            if file.read(len(POINTER)) == POINTER:
                raise ModelLoadError(
                    f"{name} could not be loaded: its {path.name} is a Git LFS pointer, which stands for the file "
                    "itself. Run `git lfs pull` in the folder, or download the file again."
                )


def refuse_other_formats(where: Path, name: str) -> None:
    """Raises ModelLoadError for a GGUF file, and for a folder with GGUF files or an adapter in place of a model."""
    if where.is_file() or (where / "config.json").is_file():
        files = [where] if where.is_file() else []
    else:
        if (where / ADAPTER_CONFIG).is_file():
            base = adapter_base(where) or "its base"
            raise ModelLoadError(
                f"{name} is an adapter (LoRA) for {base}, not a model. Give {base}, or merge the two with peft's "
                "merge_and_unload(), save what that returns, and give its folder."
            )
        files = sorted(where.iterdir())
    if any(file.suffix.lower() == ".gguf" for file in files):
        raise ModelLoadError(
            f"{name} is in GGUF, which llama.cpp reads and the lab does not. Give the model that it was made from: a "
            "folder with config.json and safetensors, or a hub id."
        )


def adapter_base(where: Path) -> str | None:
    """The model that an adapter's configuration names; None: it names none that can be read."""
    with suppress(OSError, ValueError, RecursionError, TypeError, KeyError):
        return str(json.loads((where / ADAPTER_CONFIG).read_bytes())["base_model_name_or_path"] or "")[:200] or None
    return None


def adapter_files(where: str | Path) -> list[Path]:
    """Files of an adapter that lie in a model's folder."""
    return _files(where, "adapter_*.*")


def refuse_outside_files(where: str | Path, name: str) -> None:
    """Raises ModelLoadError for a folder whose weights, by its own index, lie outside it: transformers would read
    whatever file a stranger's model names (CVE-2026-75104)."""
    for index in _files(where, "*.index.json"):
        for file in sorted(_listed(index) or ()):
            if Path(file).anchor or Path(os.path.normpath(file)).parts[:1] == ("..",):
                raise ModelLoadError(
                    f"{name} could not be loaded: its {index.name} lists a file outside the folder, {file[:200]!r}. "
                    "Choose a copy of the model that is complete in itself."
                )


def _listed(index: Path) -> set[str] | None:
    """Files of weights that an index lists. None: it is no index, and the reader that needs one refuses it."""
    try:
        return {str(file) for file in json.loads(index.read_bytes())["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


# -- configurations ------------------------------------------------------------------------------


def read_config(where: str | Path, name: str, **how: Any) -> PreTrainedConfig:
    """The configuration of a folder or a hub id. Never runs code that comes with a model.

    Args:
        how: passed on to transformers, such as ``token``.

    Raises:
        ModelLoadError: no config.json that can be read, or an architecture that transformers itself does not have.
        UnsupportedModelError: a number in it that no model can have.
        Exception: whatever else is wrong with a hub id, as a library raised it.
    """
    folder, absent = os.path.isdir(where), ModelLoadError(f"There is no config.json in {name}. {FOLDER_CONTENTS}")
    if folder:
        refuse_other_formats(Path(where), name)
    if folder and not os.path.isfile(os.path.join(where, "config.json")):
        raise absent
    try:
        given, _ = PreTrainedConfig.get_config_dict(where, **how)
        refuse_too_many(given)  # transformers makes lists of that length
        return AutoConfig.from_pretrained(where, trust_remote_code=False, **how | {"local_files_only": True})
    except UnsupportedModelError:
        raise
    except Exception as error:  # a file from anywhere can cause errors of any kind
        given: Any = None
        with suppress(Exception):  # if it was not fetched, there is nothing to inspect
            given, _ = PreTrainedConfig.get_config_dict(where, **how | {"local_files_only": True})
        if given == {} and not folder:  # what transformers returns for a missing file
            raise absent from error
        if isinstance(given, dict):
            if reason := _foreign(given):
                raise ModelLoadError(f"{name} {reason}") from error
            refuse_odd_numbers(given)
        if not folder:
            raise
        raise ModelLoadError(f"{name} has no config.json that can be read. ({error_summary(error)})") from error


def _foreign(given: dict[str, Any]) -> str | None:
    """Why transformers cannot build a model of this architecture; None if it can."""
    kind, own = given.get("model_type"), given.get("auto_map")
    if isinstance(kind, str) and kind in CONFIG_MAPPING:
        return None
    if isinstance(own, dict) and "AutoConfig" in own:
        return (
            "brings code of its own for its architecture, which is never run here. Choose a model of an architecture "
            "that transformers has, like llama or qwen3."
        )
    if not isinstance(kind, str):
        return (
            "has a config.json with no model_type, which names the architecture, like llama or qwen3. Fetch it again, "
            "or choose another model."
        )
    return (
        f"has the model type {kind[:80]!r}, which this version of transformers ({transformers.__version__}) does not "
        "know. Choose a model of a type that it knows, like llama or qwen3."
    )


# -- hubs ----------------------------------------------------------------------------------------


def hub_refusal(hub: str, token: bool | None = None, file: str = "config.json") -> Exception | None:
    """Why the hub does not give out this file of a model. None: it does.

    Raises:
        HfHubHTTPError: it refuses an anonymous request (``token`` False).
        ModelLoadError: it is a configuration, and too large for one.
    """
    try:
        found = get_hf_file_metadata(hf_hub_url(hub, file), token=token, timeout=HUB_TIMEOUT_SECONDS)
    except HfHubHTTPError as error:
        if token is False:  # refused: the copy that this machine's owner has cached is not for everybody
            raise
        return error
    except Exception as error:  # from any library underneath: there was no answer
        return error
    if file == "config.json" and (found.size or 0) > MAX_CONFIG_BYTES:
        raise ModelLoadError(
            f"The config.json of {hub} has {found.size:,} bytes; at most {MAX_CONFIG_BYTES:,} are read. Choose another "
            "model."
        )
    return None


def refuse_absent_weights(hub: str, name: str, error: Exception) -> None:
    """Check that a model's weights are in the local cache, after ``error`` when they were to be fetched and read.

    transformers reports a hub's refusal as a model without weights, and a broken connection as a model that cannot be
    loaded. Xet, which stores the hub's large files, has servers of its own.

    Raises:
        ModelLoadError: the hub refuses them or does not answer, they did not arrive, or the disk is full.
    """
    if has_weights(hub):  # the hub has nothing to do with it
        return
    for file in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME):
        if (reason := hub_refusal(hub, file=file)) is None:
            raise ModelLoadError(f"{name} could not be loaded: its weights {_not_arrived(error)}")
        if not isinstance(reason, EntryNotFoundError):
            status = reason.response.status_code if isinstance(reason, HfHubHTTPError) else None
            answer = f"answered {status}" if status else "gave no answer"
            advice = f"If you have access to it, {LOG_IN}." if status in (401, 403) else "Load it again in a minute."
            raise ModelLoadError(
                f"{name} could not be loaded: the hub {answer} when asked for its weights. {advice} "
                f"({error_summary(reason)})"
            )


def _not_arrived(error: Exception) -> str:
    origin = error_summary(error.__cause__ or error.__context__ or error)  # transformers' own errors say little
    if re.search("No space left|not enough space", origin):
        return (
            "do not fit on this disk. Free some space, or start the lab with HF_HOME set to a folder on another disk. "
            f"({origin})"
        )
    return (
        "did not arrive. Load it again; files that came whole are kept. Behind a firewall, setting "
        "HF_HUB_DISABLE_XET=1 may help: the hub's large files have servers of their own, and are then fetched another "
        f"way. ({origin})"
    )


def has_weights(hub: str) -> bool:
    """True if a hub's model has all its weights in the local cache."""
    return any(_cached(hub, file) for file in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME))


def _cached(hub: str, file: str) -> bool:
    """True if a file is in the local cache and, if it is an index of several, so are those (or it is damaged)."""
    path = try_to_load_from_cache(hub, file)
    if not isinstance(path, str) or file != SAFE_WEIGHTS_INDEX_NAME:
        return isinstance(path, str)
    return all(isinstance(try_to_load_from_cache(hub, part), str) for part in _listed(Path(path)) or ())


def unavailable(hub: str, reason: Exception | None = None) -> ModelLoadError:
    """The error for a model that is not in the local cache either. ``reason``: see ``hub_refusal``, if it is public."""
    said = {
        # A subclass of the next.
        GatedRepoError: f"{hub} is given only to those who have asked for it. Accept its conditions on its hub page, "
        f"then {LOG_IN}.",
        RepositoryNotFoundError: f"The hub has no model {hub}, or shows it only to some. Check the spelling, which is "
        f"owner/name; for a private model {LOG_IN}.",
        EntryNotFoundError: f"There is no config.json in {hub}. {FOLDER_CONTENTS} Adapters (LoRA) and GGUF files are "
        "not read: name the model that they belong to.",
        object: f"The hub did not give the configuration of {hub}. Check the name (owner/name, as Qwen/Qwen3-8B) and "
        "your connection. Gated models and models with code of their own are not supported. A local folder with "
        "config.json and safetensors works too.",
    }
    return ModelLoadError(next(sentence for kind, sentence in said.items() if isinstance(reason, kind)))


def abandon_downloads() -> None:
    """End the downloads from Xet storage: its threads, which are not Python's, go on when those that wait for them have
    stopped. Where huggingface_hub cannot do that, they go on to the end."""
    with suppress(ImportError):
        from huggingface_hub.utils._xet import abort_xet_session

        abort_xet_session()


def explain_load_error(error: Exception, config: PreTrainedConfig | None) -> str:
    """The sentence after "could not be loaded:". ``config``: the model's, if it could be read."""
    text, method = str(error), config and quantization_method(config)
    if isinstance(error, UnpicklingError):  # torch's own message advises running it
        return (
            "its weights are a Python pickle that is damaged or holds more than tensors; nothing of it was run. Choose "
            "a copy of the model with safetensors."
        )
    if is_out_of_memory(error):
        return "the device ran out of memory. Choose a smaller model or dtype."
    # transformers lists the names it looked for. Other errors (a full disk, a broken connection) name a file, too.
    if "file named" in text and "model.safetensors" in text:
        return (
            "it has no weights as safetensors. (A GGUF file is llama.cpp's.) Choose a copy of the model that has them."
        )
    if "no kernel image" in text:
        said = (
            "this build of PyTorch, or a library beside it, has no kernels for the GPU. Choose another device, or "
            f"'cpu'; or install a build that has them: {BUILDS}."
        )
    elif method and isinstance(error, ImportError):
        said = (
            f"its weights are quantised ({method}), and a library that they need is not installed. Install it, or "
            "choose the model's unquantised weights."
        )
    elif method and isinstance(error, (ValueError, RuntimeError)):  # damaged files raise errors of other kinds
        said = (
            f"its weights are quantised ({method}), which cannot be used here. Choose the model's unquantised weights."
        )
    else:
        said = (
            "give a folder with config.json and safetensors, or a hub id of a causal language model; if it is one, its "
            "files are damaged or incomplete: fetch them again."
        )
    return f"{said} ({error_summary(error)})"
