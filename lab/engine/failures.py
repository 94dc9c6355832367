"""Failures: in sentences for the user, and the sequences that go on without a part that failed."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from lab.engine.sequence import Sequence
from lab.errors import LabError
from lab.trace.events import FellBack, Part
from lab.util.device_memory import is_out_of_memory
from lab.util.messages import error_summary

log = logging.getLogger(__name__)

NOT_FINITE = "The model's output is not finite. Try dtype='float32', or other weights."
FAULTS = (
    "an illegal memory access was encountered",
    "an illegal instruction was encountered",
    "misaligned address",
    "device-side assert triggered",
    "unspecified launch failure",
)
"""What CUDA calls the faults of a kernel after which a process gets nothing but the same error (CUDA Runtime API,
"Data types used by CUDA Runtime", cudaError). They surface later, where the host waits for the GPU."""


def explain(error: Exception) -> str:
    if isinstance(error, LabError):
        return str(error)
    if is_out_of_memory(error):
        return "The device ran out of memory. Use fewer blocks, a shorter prompt or a smaller model."
    if any(fault in str(error) for fault in FAULTS):
        return (
            f"The GPU met a fault after which this process can no longer use it ({error_summary(error)}). Start the "
            "program again."
        )
    return f"The engine failed in this step ({type(error).__name__}: {error})."


def disable_drafter(sequence: Sequence, reason: str) -> None:
    """Let the sequence go on without a drafter. ``reason`` is a sentence."""
    sequence.draft.num_computed = 0  # what it stored may be wrong, too, and must not be found
    _report(sequence, "drafter", reason)


@contextmanager
def disabling_drafter(sequences: list[Sequence]) -> Iterator[None]:
    """If the drafter of ``sequences`` fails in this block, let them go on without it."""
    try:
        yield
    except Exception as error:
        log.warning("a drafter failed", exc_info=True)
        for sequence in sequences:
            disable_drafter(sequence, explain(error))


def report_failures(failures: dict[Part, str], sequences: Iterable[Sequence]) -> None:
    """Report once to every sequence which parts its steps go on without, even if it joined later."""
    for part, reason in failures.items():
        for sequence in sequences:
            if part not in sequence.report.disabled:
                _report(sequence, part, reason)


def _report(sequence: Sequence, part: Part, reason: str) -> None:
    sequence.report.disabled.add(part)
    sequence.recorder.emit(FellBack, part=part, reason=reason)
