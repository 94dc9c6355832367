"""A model's config.json, read; or, in a sentence, why it cannot be."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from lab.config import in_short
from lab.pair.folder import HOLDS, ModelLoadError
from lab.pair.shape import refuse_odd_numbers


def read_config(where: str | Path, name: str, **how: Any) -> PreTrainedConfig:
    """The configuration in a folder or of a hub id. Never runs code that comes with a model.

    Args:
        how: for transformers, as ``token``.

    Raises:
        ModelLoadError: a folder without one that can be read, or a model that transformers itself does not have.
        UnsupportedModelError: a number in it cannot be one of a model.
        Exception: of a library's: whatever else is wrong with a hub id.
    """
    folder = os.path.isdir(where)
    if folder and not os.path.isfile(os.path.join(where, "config.json")):
        raise ModelLoadError(f"There is no config.json in {name}. {HOLDS}")
    try:
        return AutoConfig.from_pretrained(where, trust_remote_code=False, **how)
    except Exception as error:  # what is wrong with a file from anywhere comes as errors of any kind
        given: Any = None
        with suppress(Exception):  # it came, or there is nothing to be told of it
            given, _ = PreTrainedConfig.get_config_dict(where, **how | {"local_files_only": True})
        if given == {} and not folder:  # what transformers makes of a file that is not there
            raise ModelLoadError(f"There is no config.json in {name}. {HOLDS}") from error
        if isinstance(given, dict):
            _refuse_foreign(given, name)
            refuse_odd_numbers(given)
        if not folder:
            raise
        raise ModelLoadError(f"{name} has no config.json that can be read. ({in_short(error)})") from error


def _refuse_foreign(given: dict[str, Any], name: str) -> None:
    """Raises ModelLoadError: it names no architecture, or none that transformers has."""
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
            "Fetch it "
            "again, or choose another model."
        )
    raise ModelLoadError(
        f"The config.json of {name} gives the model type {kind[:80]!r}, which this version of transformers "
        f"({transformers.__version__}) does not know. Choose a model of a type that it knows, like llama or qwen3."
    )
