"""What a model's folder holds, and what lies there in its place."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lab.config import LabError

HOLDS = "A model's folder holds config.json, its weights as safetensors, and tokenizer.json."
TOKENIZERS = ("tokenizer.*", "vocab.*", "merges.txt", "*.model", "*.tiktoken", "tekken.json")
"""Names of the files that transformers makes a tokenizer of; tokenizer_config.json alone is none."""
POINTER = b"version https://git-lfs"
"""How a Git LFS pointer begins (git-lfs, docs/spec.md)."""


class ModelLoadError(LabError):
    """A model that cannot be found or read."""


def weight_files(where: str | Path) -> list[Path]:
    """Those that weights may be read from: safetensors where there are some. None of a hub id."""
    return _files(where, "*.safetensors") or _files(where, "*.bin")


def tokenizer_files(where: str | Path) -> list[Path]:
    """Those that a tokenizer may be read from. None of a hub id."""
    return [path for pattern in TOKENIZERS for path in _files(where, pattern)]


def refuse_pointers(files: Iterable[Path], name: str) -> None:
    """A repository that is cloned without Git LFS has a few lines where its large files belong.

    Raises:
        ModelLoadError: with the first such file.
    """
    for path in files:
        with suppress(OSError), path.open("rb") as file:  # what cannot be read is told by who has to read it
            if file.read(len(POINTER)) == POINTER:
                raise ModelLoadError(
                    f"{name} could not be loaded: its {path.name} is a Git LFS pointer, which stands for the file "
                    "itself. Run `git lfs pull` in the folder, or download the file again."
                )


def _files(where: str | Path, pattern: str) -> list[Path]:
    return sorted(path for path in Path(where).glob(pattern) if os.path.isfile(path))
