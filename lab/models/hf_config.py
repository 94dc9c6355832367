"""A model's config.json, or the reason in a sentence why it cannot be read."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from lab.errors import UnsupportedModelError
from lab.models.checkpoint_files import FOLDER_CONTENTS, ModelLoadError
from lab.models.model_shape import refuse_odd_numbers, refuse_too_many
from lab.util.messages import error_summary


def read_config(where: str | Path, name: str, **how: Any) -> PreTrainedConfig:
    """The configuration of a folder or a hub id. Never runs code that comes with a model.

    Args:
        how: passed on to transformers, such as ``token``.

    Raises:
        ModelLoadError: no config.json that can be read, or an architecture that transformers itself does not have.
        UnsupportedModelError: a number in it that no model can have.
        Exception: whatever else is wrong with a hub id, as a library raised it.
    """
    folder = os.path.isdir(where)
    if folder and not os.path.isfile(os.path.join(where, "config.json")):
        raise ModelLoadError(f"There is no config.json in {name}. {FOLDER_CONTENTS}")
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
            raise ModelLoadError(f"There is no config.json in {name}. {FOLDER_CONTENTS}") from error
        if isinstance(given, dict):
            _refuse_foreign(given, name)
            refuse_odd_numbers(given)
        if not folder:
            raise
        raise ModelLoadError(f"{name} has no config.json that can be read. ({error_summary(error)})") from error


def _refuse_foreign(given: dict[str, Any], name: str) -> None:
    """Raises ModelLoadError if it names no architecture, or one that transformers does not have."""
    kind, own = given.get("model_type"), given.get("auto_map")
    if isinstance(kind, str) and kind in CONFIG_MAPPING:
        return
    if isinstance(own, dict) and "AutoConfig" in own:
        raise ModelLoadError(
            f"{name} brings code of its own for its architecture, which is never run here. Choose a model of an "
            "architecture that transformers has, like llama or qwen3."
        )
    if not isinstance(kind, str):
        raise ModelLoadError(
            f"The config.json of {name} gives no model_type, which names the architecture, like llama or qwen3. "
            "Fetch it again, or choose another model."
        )
    raise ModelLoadError(
        f"The config.json of {name} gives the model type {kind[:80]!r}, which this version of transformers "
        f"({transformers.__version__}) does not know. Choose a model of a type that it knows, like llama or qwen3."
    )
