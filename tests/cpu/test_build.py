"""From step.c to a function: it is compiled once and kept, and torch takes over where it cannot be."""

from __future__ import annotations

import shlex
import stat
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from lab import ConfigError, SamplingParams
from lab.backends.cpu import build
from lab.backends.cpu.native_model import NativeModel, native_step
from lab.load import new_engine
from lab.models.language_model import LanguageModel
from lab.trace.events import FellBack
from lab.util import machine_info as machine
from tests import tiny_models
from tests.cpu.test_native import LLAMA, engines, exact

pytestmark = pytest.mark.slow


def write_compiler(path: Path, script: str) -> str:
    """A program for ``CC`` that runs ``script``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """The folder of compiled steps, empty, with nothing loaded yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build.library.cache_clear()
    yield tmp_path / "cache" / "decode-lab"
    build.library.cache_clear()


@pytest.fixture
def instant(monkeypatch, tmp_path) -> str:
    """A compiler that puts out the step in use, at once."""
    script = 'while [ "$1" != -o ]; do shift; done; cp {} "$2"'
    compiler = write_compiler(tmp_path / "compiler", script.format(shlex.quote(build.library()._name)))
    monkeypatch.setenv("CC", compiler)
    return compiler


@pytest.fixture
def made(instant, kept) -> Path:
    """The compiled step, in the folder and not loaded."""
    build.library()
    build.library.cache_clear()
    (made,) = kept.iterdir()
    whole = made.read_bytes()
    made.unlink()  # still loaded: its numbers must not change
    made.write_bytes(whole)
    return made


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("compiler", ["no-such-compiler", "false", "true", "cc 'unclosed"])
def test_without_a_compiler_torch_computes_and_the_run_says_so(monkeypatch, compiler):
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(ConfigError, match="kernels='c' cannot compute"):
        engines()
    pair = LanguageModel(exact(LLAMA), "target"), tiny_models.tokenizer()
    reference, engine = new_engine(*pair, kernels="reference"), new_engine(*pair)
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    runs = [engine.generate("The king", sampling=sampling) for _ in range(2)]
    assert runs[0].token_ids == reference.generate("The king", sampling=sampling).token_ids
    for run in runs:
        (event,) = [event for event in run.events if isinstance(event, FellBack)]
        assert event.part == "kernel"
        assert compiler in event.reason


def test_cc_may_have_arguments_or_be_a_path_with_spaces_and_backslashes(monkeypatch, instant, kept, tmp_path):
    for path in ("Program Files/cc.exe", r"a\b/LLVM\clang.exe"):
        monkeypatch.setenv("CC", compiler := write_compiler(tmp_path / path, "false"))
        assert build._compiler() == [compiler]
    script = f'test "$1" = --odd && shift && exec {instant} "$@"'
    monkeypatch.setenv("CC", f"{write_compiler(tmp_path / 'picky', script)} --odd")
    assert build.library()
    assert len(list(kept.iterdir())) == 1


def test_an_operating_system_error_does_not_stop_an_engine(monkeypatch, kept):
    """A full disk, say, is reported like a failure of the compiler."""
    monkeypatch.setattr(build.tempfile, "TemporaryDirectory", Mock(side_effect=OSError(28, "No space left on device")))
    engine = new_engine(LanguageModel(exact(LLAMA), "target"), tiny_models.tokenizer())
    assert "No space left on device" in native_step(engine.target).failure


def test_packing_a_model_is_retried_after_a_failure(monkeypatch):
    model = LanguageModel(exact(LLAMA), "target")
    with monkeypatch.context() as patch:
        patch.setattr(NativeModel, "_layer", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            native_step(model).prepare(model)
    native_step(model).prepare(model)
    assert native_step(model).model


@pytest.mark.parametrize("damage", ["none", "empty", "zeros at its end"])
def test_only_a_damaged_step_is_compiled_again(made, damage):
    """As a power failure may leave it: loading it could crash the process."""
    whole, written = made.read_bytes(), made.stat().st_mtime_ns
    half = len(whole) // 2
    if damage != "none":
        made.write_bytes(b"" if damage == "empty" else whole[:half] + bytes(half))
    assert build.library()
    (after,) = made.parent.iterdir()
    assert after.read_bytes() == whole
    assert (after.stat().st_mtime_ns == written) == (damage == "none")


def test_a_step_that_cannot_be_loaded_is_compiled_again(monkeypatch, made):
    """Such as one built with another C library, in a home directory that two systems share."""
    load = Mock(side_effect=[OSError("version `GLIBC_2.38' not found"), Mock()])
    monkeypatch.setattr(build.ctypes, "CDLL", load)
    build.library()
    assert [call.args[0] for call in load.call_args_list] == [str(made)] * 2


def test_another_processor_gets_a_step_of_its_own_in_a_folder_only_its_owner_writes_to(monkeypatch, made):
    """On a processor without some of the step's instructions, the first of them would crash the process."""
    made.parent.chmod(0o777)
    monkeypatch.setattr(build, "instructions", lambda: "fpu sse sse2")
    build.library()
    assert len(list(made.parent.iterdir())) == 2
    assert sys.platform == "win32" or stat.S_IMODE(made.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("line", ["flags\t\t: fpu avx2", "Features\t: fp asimd", None])
def test_instructions_are_those_the_system_lists_if_any(monkeypatch, line):
    listed = Mock(side_effect=FileNotFoundError if line is None else None)
    listed.return_value = f"processor\t: 0\nmodel name\t: AMD EPYC\n{line}\n\n"
    monkeypatch.setattr(machine.Path, "read_text", listed)
    assert machine.instructions() == (line.split(": ")[1] if line else "")
    assert machine.processor_name() == "AMD EPYC" if line else machine.processor_name()


@pytest.mark.usefixtures("instant")
@pytest.mark.parametrize("home", ["none", "not to be written to"])
def test_without_a_home_the_step_is_compiled_in_a_temporary_folder(monkeypatch, tmp_path, home):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "file").touch()
    no_home = RuntimeError("Could not determine home directory.") if home == "none" else None
    # Root could write to any folder.
    monkeypatch.setattr(build.Path, "home", Mock(side_effect=no_home, return_value=tmp_path / "file"))
    with build._folder() as folder:
        assert folder.parent == tmp_path / "temporary"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    build.library.cache_clear()
    try:
        assert build.library().forward
    finally:
        build.library.cache_clear()
    assert not list((tmp_path / "temporary").iterdir())
