"""Parts that failed, and the sequences that go on without them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from lab.engine.error_messages import explain
from lab.engine.sequence import Sequence
from lab.trace.events import FellBack, Part

log = logging.getLogger(__name__)


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
