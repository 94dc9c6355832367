"""Compilation of ``step.c`` into a library for this processor, kept in the user's cache."""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lab.util.machine_info import instructions, processor_name

SOURCE = Path(__file__).with_name("step.c")
# On ARM, Clang refuses -march=native before version 15; GCC and every Clang know -mcpu=native there.
PROCESSOR = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
# -ffast-math would also flush denormal numbers to zero in the whole process.
FLAGS = ("-O3", PROCESSOR, "-std=gnu11", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-pthread")
if sys.platform == "win32":
    FLAGS += ("-Wl,-Bstatic",)  # Python does not look for other libraries, such as that of threads, beside the compiler


class BuildError(Exception):
    """There is no C compiler, it refused the source, or the system refused what it made."""


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled step. The first time on a machine this takes a few seconds.

    Raises:
        BuildError: with what the compiler said, or the system.
    """
    compiler = _compiler()
    try:
        source = b"".join(file.read_bytes() for file in sorted(SOURCE.parent.glob("*.[ch]")))
        target = "\0".join((*compiler, processor_name(), instructions(), *FLAGS)).encode()
        name = f"step-{hashlib.sha256(source + target).hexdigest()[:20]}"
        with _folder() as folder:
            return _cached(folder, name) or ctypes.CDLL(str(_compile(compiler, folder, name)))
    except OSError as error:
        raise BuildError(f"the step in C cannot be compiled or loaded here ({error})") from error


def _compiler() -> list[str]:
    """The compiler's command: ``CC``, which may have arguments, or else whichever compiler there is."""
    named = os.environ.get("CC", "")
    try:
        compiler = [named] if shutil.which(named) else shlex.split(named)  # which would take a path's backslashes away
    except ValueError as error:
        raise BuildError(f"CC names no compiler: {named} ({error})") from error
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler and not found:
        raise BuildError("there is no C compiler (cc, gcc or clang) on this machine")
    return compiler or [found]


def _cached(folder: Path, name: str) -> ctypes.CDLL | None:
    """Load what was compiled before. A damaged file could crash the process, so its name has its contents' digest."""
    for file in folder.glob(f"{name}-*.so"):
        with suppress(OSError):  # made with another C library, say, in a home that two systems share
            if file.stem == f"{name}-{_digest(file)}":
                return ctypes.CDLL(str(file))
        file.unlink(missing_ok=True)
    return None


def _compile(compiler: list[str], folder: Path, name: str) -> Path:
    """Compile elsewhere, then move the result into ``folder``: another process never sees half a file."""
    compiler_name = shlex.join(compiler)
    with tempfile.TemporaryDirectory(dir=folder) as room:
        made = Path(room) / "step.so"
        command = [*compiler, *FLAGS, "-o", str(made), str(SOURCE), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"{compiler_name} could not be run ({error})") from error
        if done.returncode:
            said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
            raise BuildError(f"{compiler_name} refused step.c: {said[:300]}")
        if not made.exists():
            raise BuildError(f"{compiler_name} produced nothing from step.c")
        file = folder / f"{name}-{_digest(made)}.so"
        os.replace(made, file)
    return file


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:20]


@contextmanager
def _folder() -> Iterator[Path]:
    """Folder of compiled steps: the user's cache, writable by its owner only. If there is none, a temporary folder,
    which is removed once the step is loaded.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decode-lab"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # refused where it is somebody else's, or cannot be written to
    except (OSError, RuntimeError):  # a home that cannot be written to, or none at all
        folder = None
    if folder:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="decode-lab-", ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)
