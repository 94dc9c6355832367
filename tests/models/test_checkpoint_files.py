"""Files that are damaged, lie elsewhere or stand for others are named in one line, and nothing of them is run."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from lab import load_engine
from tests.models.conftest import WEIGHTS, refusal

INDEX = f"{WEIGHTS}.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 16000000000\n"


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda where: (where / name).write_bytes(content)


def index(content: bytes) -> Callable[[Path], object]:
    return lambda where: ((where / WEIGHTS).unlink(), (where / INDEX).write_bytes(content))


def in_place_of_weights(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda where: ((where / WEIGHTS).unlink(), (where / name).write_bytes(content))


class Command:
    """A pickle that would run a command if it were loaded."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ("ran",)


def panic(where: Path) -> None:
    """A panic in the tokenizer's Rust code is not raised as an Exception."""
    settings = json.loads((where / "tokenizer.json").read_text("utf-8"))
    settings["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": ""}
    (where / "tokenizer.json").write_text(json.dumps(settings), "utf-8")


LOADED, TOKENIZER, CONFIG = "could not be loaded", "no tokenizer that can be read", "no config.json that can be read"
DEEP = b"[" * 100_000
ELSEWHERE = json.dumps({"metadata": {}, "weight_map": {"a": "../../../../etc/passwd"}}).encode()
DAMAGE = {
    "truncated": (lambda where: os.truncate(where / WEIGHTS, 1000), LOADED),
    "empty": (write(WEIGHTS, b""), LOADED),
    "pickled": (in_place_of_weights("pytorch_model.bin", pickle.dumps(Command()) + bytes(10**6)), "safetensors"),
    "no weights": (lambda where: (where / WEIGHTS).unlink(), LOADED),
    "index, a list": (index(b"[]"), LOADED),
    "index, deep": (index(DEEP), LOADED),
    "index, elsewhere": (index(ELSEWHERE), "outside the folder"),
    "config, a list": (write("config.json", b"[]"), CONFIG),
    "config, deep": (write("config.json", DEEP), CONFIG),
    "generation_config, a list": (write("generation_config.json", b"[1]"), LOADED),
    "generation_config, its end": (write("generation_config.json", b'{"eos_token_id": {}}'), "eos_token_id"),
    "tokenizer_config, its length": (write("tokenizer_config.json", b'{"model_max_length": "a"}'), TOKENIZER),
    "tokenizer, nothing": (write("tokenizer.json", b"{}"), TOKENIZER),
    "tokenizer, a panic": (panic, TOKENIZER),
    "pointer, weights": (write(WEIGHTS, POINTER), "git lfs pull"),
    "pointer, tokenizer": (write("tokenizer.json", POINTER), "git lfs pull"),
}


@pytest.mark.parametrize(("damage", "word"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_files_are_reported_in_one_line(folder, monkeypatch, damage: Callable, word: str) -> None:
    where = folder()
    damage(where)
    monkeypatch.chdir(where)
    message = refusal(where)
    assert word in message
    assert "weights_only" not in message, "the advice to run a pickle"
    assert not (where / "ran").exists()


@pytest.mark.parametrize("way", ["{}/", "part/../../"])
def test_an_index_that_lists_files_outside_its_folder_is_refused(folder, tmp_path: Path, way: str) -> None:
    """Also where they are weights that fit (CVE-2026-75104)."""
    where, elsewhere = folder(), tmp_path / "elsewhere.safetensors"
    inside = where / "inside.safetensors"
    (where / WEIGHTS).rename(inside)
    names = load_file(inside)

    def list_as(file: str) -> None:
        (where / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, file)}), "utf-8")

    list_as(inside.name)
    (where / "a.index.json").write_text("[]", "utf-8")  # another program's
    load_engine(where, device="cpu")
    shutil.copy(inside, elsewhere)
    (where / "part").mkdir()
    list_as(way.format(tmp_path) + elsewhere.name)
    message = refusal(where)
    assert "elsewhere.safetensors'" in message
    assert "outside the folder" in message


def test_one_git_lfs_pointer_among_downloaded_files_is_found(folder) -> None:
    where = folder()
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    (where / WEIGHTS).rename(where / files[0])
    (where / files[1]).write_bytes(POINTER)
    weights = {name: files[i % 2] for i, name in enumerate(load_file(where / files[0]))}
    (where / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weights}), "utf-8")
    assert f"its {files[1]} is a Git LFS pointer" in refusal(where)
