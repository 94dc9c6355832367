"""Folders of models to load, and the refusal of one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import ModelLoadError, load_engine
from tests import tiny_models

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per architecture, written by save_pretrained."""
    root = tmp_path_factory.mktemp("models")
    for architecture in tiny_models.CONFIGS:
        tiny_models.random_model(architecture, num_hidden_layers=3).save_pretrained(root / architecture)
        tiny_models.tokenizer().save_pretrained(root / architecture)
    return root


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copies one of the saved folders, with changed settings in its config.json."""

    def copied(architecture: str = "llama", **settings: object) -> Path:
        where = tmp_path / "model"
        shutil.copytree(saved / architecture, where)
        if settings:
            config = json.loads((where / "config.json").read_text("utf-8"))
            (where / "config.json").write_text(json.dumps(config | settings), "utf-8")
        return where

    return copied


def refusal(where: Path, **how: object) -> str:
    """The message, of one line, with which a model is refused."""
    with pytest.raises(ModelLoadError) as refused:
        load_engine(where, device="cpu", **how)
    assert "\n" not in str(refused.value)
    return str(refused.value)
