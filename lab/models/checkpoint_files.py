"""What a model's folder holds, and what may lie there instead."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lab.errors import LabError

HOLDS = "A model's folder holds config.json, its weights as safetensors, and tokenizer.json."
TOKENIZERS = ("tokenizer.*", "vocab.*", "merges.txt", "*.model", "*.tiktoken", "tekken.json")
"""Files that transformers can build a tokenizer from; tokenizer_config.json alone is not enough."""
POINTER = b"version https://git-lfs"
"""How a Git LFS pointer begins (git-lfs, docs/spec.md)."""


class ModelLoadError(LabError):
    """A model that cannot be found or read."""


def weight_files(where: str | Path) -> list[Path]:
    """Files that weights may be read from: safetensors if there are any. A hub id has none."""
    return _files(where, "*.safetensors") or _files(where, "*.bin")


def tokenizer_files(where: str | Path) -> list[Path]:
    """Files that a tokenizer may be read from. A hub id has none."""
    return [path for pattern in TOKENIZERS for path in _files(where, pattern)]


def refuse_pointers(files: Iterable[Path], name: str) -> None:
    """Refuse Git LFS pointers: a clone made without Git LFS has a few lines of text in place of each large file.

    Raises:
        ModelLoadError: names the first such file.
    """
    for path in files:
        with suppress(OSError), path.open("rb") as file:  # an unreadable file is reported by whoever has to read it
            if file.read(len(POINTER)) == POINTER:
                raise ModelLoadError(
                    f"{name} could not be loaded: its {path.name} is a Git LFS pointer, which stands for the file "
                    "itself. Run `git lfs pull` in the folder, or download the file again."
                )


def refuse_outside_files(where: str | Path, name: str) -> None:
    """Refuse a folder whose weights, by its own index, lie outside it: transformers would read whatever file a
    stranger's model names (CVE-2026-75104).

    Raises:
        ModelLoadError: names the first such file.
    """
    for index in _files(where, "*.index.json"):
        try:
            listed = {str(file) for file in json.loads(index.read_bytes())["weight_map"].values()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # no index; whoever needs one says so
        for file in sorted(listed):
            if Path(file).anchor or Path(os.path.normpath(file)).parts[:1] == ("..",):
                raise ModelLoadError(
                    f"{name} could not be loaded: its {index.name} lists a file outside the folder, {file[:200]!r}. "
                    "Choose a copy of the model that is complete in itself."
                )


def _files(where: str | Path, pattern: str) -> list[Path]:
    return sorted(path for path in Path(where).glob(pattern) if os.path.isfile(path))
