"""From ``step.c`` to a function that Python can call: compiled once for this processor, then kept."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from lab.machine import processor_name

SOURCE = Path(__file__).with_name("step.c")
# -ffast-math would also make denormal numbers zero in the whole process.
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC", "-ffp-contract=fast", "-fno-math-errno",
         "-fno-trapping-math", "-pthread")  # fmt: skip


class BuildError(Exception):
    """There is no C compiler, or it refused the source."""


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled step. The first time on a machine this takes a few seconds.

    Raises:
        BuildError: says what the compiler said.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        raise BuildError("there is no C compiler (cc, gcc or clang) on this machine")
    source = b"".join(file.read_bytes() for file in sorted(SOURCE.parent.glob("*.[ch]")))
    made_for = "\0".join((compiler, processor_name(), *FLAGS)).encode()
    file = _folder() / f"step-{hashlib.sha256(source + made_for).hexdigest()[:20]}.so"
    if not file.exists():
        _compile(compiler, file)
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:
        raise BuildError(f"the compiled step cannot be loaded ({error})") from error


def _compile(compiler: str, file: Path) -> None:
    """Another process never sees half a file."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        try:
            done = subprocess.run(
                [compiler, *FLAGS, "-o", str(made), str(SOURCE), "-lm"], capture_output=True, text=True, timeout=120
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"{compiler} could not be run ({error})") from error
        if done.returncode:
            said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
            raise BuildError(f"{compiler} refused step.c: {said[:300]}")
        os.replace(made, file)


def _folder() -> Path:
    """Where compiled steps are kept: the user's cache, which nobody else can write to."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decode-lab"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError
    except (OSError, RuntimeError):  # a home that cannot be written to, or none at all
        folder = Path(tempfile.mkdtemp(prefix="decode-lab-"))
    return folder
