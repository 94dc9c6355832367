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
from tests.refused import WEIGHTS, words


def bytes_in(name: str, what: bytes) -> Callable[[Path], object]:
    return lambda where: (where / name).write_bytes(what)


def truncated(where: Path) -> None:
    (where / WEIGHTS).write_bytes((where / WEIGHTS).read_bytes()[:1000])


def pickled(where: Path) -> None:
    """Weights as a pickle, which would run a command if it were loaded."""

    class Command:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(where / "ran"),)

    (where / WEIGHTS).unlink()
    (where / "pytorch_model.bin").write_bytes(pickle.dumps(Command()) + bytes(10**6))


def indexed(text: str) -> Callable[[Path], None]:
    def damage(where: Path) -> None:
        (where / WEIGHTS).unlink()
        (where / f"{WEIGHTS}.index.json").write_text(text, "utf-8")

    return damage


def listed_elsewhere(where: Path) -> None:
    (where / WEIGHTS).unlink()
    index = {"metadata": {}, "weight_map": {"a": "../../../../etc/passwd"}}
    (where / f"{WEIGHTS}.index.json").write_text(json.dumps(index), "utf-8")


def panicking(where: Path) -> None:
    """A panic in the tokenizer's Rust code is not raised as an Exception."""
    told = json.loads((where / "tokenizer.json").read_text("utf-8"))
    told["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": ""}
    (where / "tokenizer.json").write_text(json.dumps(told), "utf-8")


DAMAGE = {
    "truncated": truncated,
    "empty": bytes_in(WEIGHTS, b""),
    "garbage": bytes_in(WEIGHTS, bytes(range(256)) * 40),
    "pickled": pickled,
    "no weights": lambda where: (where / WEIGHTS).unlink(),
    "index, a list": indexed("[]"),
    "index, without files": indexed("{}"),
    "index, its files a list": indexed('{"weight_map": ["a"]}'),
    "index, deep": indexed("[" * 100_000),
    "index, elsewhere": listed_elsewhere,
    "config, null": bytes_in("config.json", b"null"),
    "config, a list": bytes_in("config.json", b"[]"),
    "config, deep": bytes_in("config.json", b"[" * 100_000),
    "config, bytes": bytes_in("config.json", b"\xff\xfe"),
    "generation_config, a list": bytes_in("generation_config.json", b"[1]"),
    "generation_config, its end": bytes_in("generation_config.json", b'{"eos_token_id": {}}'),
    "generation_config, one of its ends": bytes_in("generation_config.json", b'{"eos_token_id": [1, "a"]}'),
    "tokenizer_config, its length": bytes_in("tokenizer_config.json", b'{"model_max_length": "a"}'),
    "tokenizer_config, a list": bytes_in("tokenizer_config.json", b"[]"),
    "tokenizer_config, deep": bytes_in("tokenizer_config.json", b"[" * 100_000),
    "tokenizer, nothing": bytes_in("tokenizer.json", b"{}"),
    "tokenizer, a list": bytes_in("tokenizer.json", b"[]"),
    "tokenizer, bytes": bytes_in("tokenizer.json", b"\xff\x00"),
    "tokenizer, a panic": panicking,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_files_are_reported_in_one_line(folder, damage: Callable[[Path], None]) -> None:
    where = folder()
    damage(where)
    said = words(where)
    assert any(f in said for f in ("could not be loaded", "no tokenizer that can be read", "no config.json that can"))
    assert not (where / "ran").exists()


@pytest.mark.parametrize("way", ["{}/", "../", "part/../../"])
def test_an_index_that_lists_files_outside_its_folder_is_refused(folder, tmp_path: Path, way: str) -> None:
    """Also where they are weights that fit (CVE-2026-75104)."""
    where, elsewhere = folder(), tmp_path / "elsewhere.safetensors"
    kept = where / "kept.safetensors"
    (where / WEIGHTS).rename(kept)
    index = where / f"{WEIGHTS}.index.json"
    names = load_file(kept)

    def list_as(file: str) -> None:
        index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, file)}), "utf-8")

    list_as(kept.name)
    (where / "a.index.json").write_text("[]", "utf-8")  # another program's
    load_engine(where, device="cpu")
    shutil.copy(kept, elsewhere)
    (where / "part").mkdir()
    list_as(way.format(tmp_path) + elsewhere.name)
    assert "elsewhere.safetensors'" in (said := words(where))
    assert f"its {index.name} lists a file outside the folder" in said


def test_a_pickle_is_refused_without_the_advice_to_load_it(folder) -> None:
    where = folder()
    pickled(where)
    said = words(where)
    assert "Choose a copy of the model with safetensors" in said
    assert "weights_only" not in said


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 16000000000\n"


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_a_git_lfs_pointer_is_told_from_a_damaged_file(folder, name: str) -> None:
    where = folder()
    (where / name).write_bytes(POINTER)
    said = words(where)
    assert f"its {name} is a Git LFS pointer" in said
    assert "git lfs pull" in said


def test_a_git_lfs_pointer_of_weights_in_an_older_format_is_told_too(folder) -> None:
    where = folder()
    (where / WEIGHTS).unlink()
    (where / "pytorch_model.bin").write_bytes(POINTER)
    assert "its pytorch_model.bin is a Git LFS pointer" in words(where)


def test_one_git_lfs_pointer_among_downloaded_files_is_found(folder) -> None:
    where = folder()
    (where / WEIGHTS).rename(where / "model-00001-of-00002.safetensors")
    (where / "model-00002-of-00002.safetensors").write_bytes(POINTER)
    weights = load_file(where / "model-00001-of-00002.safetensors")
    index = {
        "metadata": {},
        "weight_map": {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(weights)},
    }
    (where / f"{WEIGHTS}.index.json").write_text(json.dumps(index), "utf-8")
    assert "its model-00002-of-00002.safetensors is a Git LFS pointer" in words(where)
