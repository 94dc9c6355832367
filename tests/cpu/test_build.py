"""From step.c to a function: it is compiled once and kept, and torch takes over where it cannot be."""

from __future__ import annotations

import shutil
import stat
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from lab import ConfigError, SamplingParams
from lab.backends.cpu import build
from lab.backends.cpu.native_model import NativeModel
from lab.backends.cpu.native_support import native_step
from lab.load import new_engine
from lab.models.language_model import LanguageModel
from lab.trace.events import FellBack
from lab.util import machine_info as machine
from tests import tiny_models
from tests.cpu.test_native import LLAMA, engines, exact

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def _in_a_hurry():
    """Compiles in a fifth of the time: how fast the step is does not matter here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FLAGS", ("-O0", *(flag for flag in build.FLAGS if flag != "-O3")))
        yield


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """The folder of compiled steps, empty, with nothing loaded yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.library.cache_clear()
    yield tmp_path / "decode-lab"
    build.library.cache_clear()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder of compiled steps with one step in it."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        build.library.cache_clear()
        build.library()
        build.library.cache_clear()
    return folder / "decode-lab"


@pytest.fixture
def made(kept, compiled):
    """The compiled step in the folder."""
    shutil.copytree(compiled, kept)
    (made,) = kept.iterdir()
    return made


def loaded_anew():
    build.library.cache_clear()
    return build.library()


def a_compiler(path: Path, script: str) -> str:
    """Write a program for ``CC`` that runs ``script``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
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


@pytest.mark.usefixtures("kept")
def test_gcc_is_refused_on_windows(monkeypatch):
    """A library that it made there could crash the process."""
    monkeypatch.setenv("CC", "cc -D_WIN32 -D__AVX__ -U__clang__")
    with pytest.raises(build.BuildError, match=r"On Windows, GCC .*: use Clang"):
        build.library()


@pytest.mark.parametrize("path", ["Program Files/cc.exe", r"a\b/LLVM\clang.exe"])
def test_cc_may_be_a_path_with_spaces_and_backslashes(monkeypatch, tmp_path, path):
    monkeypatch.setenv("CC", compiler := a_compiler(tmp_path / path, "false"))
    assert build._compiler() == [compiler]


def test_a_compiler_may_have_arguments(monkeypatch, kept, tmp_path):
    script = f'test "$1" = --odd && shift && exec {shutil.which("cc")} "$@"'
    monkeypatch.setenv("CC", f"{a_compiler(tmp_path / 'compiler', script)} --odd")
    assert build.library()
    assert len(list(kept.iterdir())) == 1


def test_an_operating_system_error_does_not_stop_an_engine(monkeypatch, kept):
    """A full disk, say, is reported like a failure of the compiler."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build.tempfile, "TemporaryDirectory", full)
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


@pytest.mark.parametrize("damage", ["none", "empty", "cut", "zeros at its end"])
def test_only_a_damaged_step_is_compiled_again(made, damage):
    """As a power failure may leave it: loading it could crash the process."""
    whole, written = made.read_bytes(), made.stat().st_mtime_ns
    half = len(whole) // 2
    if damage != "none":
        made.write_bytes({"empty": b"", "cut": whole[:half], "zeros at its end": whole[:half] + bytes(half)}[damage])
    loaded_anew()
    (after,) = made.parent.iterdir()
    assert after.read_bytes() == whole
    assert (after.stat().st_mtime_ns == written) == (damage == "none")


def test_a_step_that_cannot_be_loaded_is_compiled_again(monkeypatch, made):
    """Such as one built with another C library, in a home directory that two systems share."""
    load, refused = build.ctypes.CDLL, []

    def load_the_second(name):
        if not refused:
            refused.append(name)
            raise OSError("version `GLIBC_2.38' not found")
        return load(name)

    monkeypatch.setattr(build.ctypes, "CDLL", load_the_second)
    loaded_anew()
    assert refused == [str(made)]


@pytest.mark.usefixtures("made")
def test_another_processor_gets_a_step_of_its_own(monkeypatch, kept):
    """On a processor without some of the step's instructions, the first of them would crash the process."""
    monkeypatch.setattr(build, "instructions", lambda: "fpu sse sse2")
    loaded_anew()
    assert len(list(kept.iterdir())) == 2


@pytest.mark.parametrize("line", ["flags\t\t: fpu avx2", "Features\t: fp asimd", None])
def test_instructions_are_those_the_system_lists_if_any(monkeypatch, line):
    listed = Mock(side_effect=FileNotFoundError if line is None else None)
    listed.return_value = f"processor\t: 0\nmodel name\t: AMD EPYC\n{line}\n\n"
    monkeypatch.setattr(machine.Path, "read_text", listed)
    assert machine.instructions() == (line.split(": ")[1] if line else "")
    assert machine.processor_name() == "AMD EPYC" if line else machine.processor_name()


@pytest.mark.skipif(sys.platform == "win32", reason="its folders have no such modes")
def test_the_folder_of_compiled_steps_is_writable_only_by_its_owner(kept):
    kept.mkdir()
    kept.chmod(0o777)
    build.library()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700


@pytest.mark.parametrize("home", ["none", "not to be written to"])
def test_without_a_home_the_step_is_compiled_in_a_temporary_folder(monkeypatch, tmp_path, home):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    no_home = RuntimeError("Could not determine home directory.") if home == "none" else None
    # Root could write to any folder.
    monkeypatch.setattr(build.Path, "home", Mock(side_effect=no_home, return_value=tmp_path / "file"))
    with build._folder() as folder:
        assert folder.parent == tmp_path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    try:
        assert loaded_anew().forward
    finally:
        build.library.cache_clear()
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
