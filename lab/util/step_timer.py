"""Times of a step's parts, in milliseconds, without making the device wait."""

import time
from collections import defaultdict
from collections.abc import Hashable

import torch


class StepTimer:
    """Times the parts of a step: each ``mark(part)`` ends a part that began at the previous mark (or at the start).

    On a CPU marks read the clock. On CUDA they record events in the stream, which cost the device nothing; ``read`` is
    called once the step's result has been copied to the host, when there is nothing left to wait for.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._stream = torch.cuda.current_stream(device) if self._cuda else None
        self._began = time.perf_counter()
        self._marks: list[tuple[Hashable, float | torch.cuda.Event]] = [("", self._now())]

    def mark(self, part: Hashable) -> None:
        """End a part here. Parts of the same name are added up."""
        self._marks.append((part, self._now()))

    def read(self) -> tuple[dict[Hashable, float], float]:
        """Milliseconds of each part, and of the whole step so far by the host's clock."""
        if self._cuda:
            self._marks[-1][1].synchronize()
        parts: dict[Hashable, float] = defaultdict(float)
        for (_, before), (part, now) in zip(self._marks, self._marks[1:], strict=False):
            parts[part] += before.elapsed_time(now) if self._cuda else (now - before) * 1000
        return parts, (time.perf_counter() - self._began) * 1000

    def _now(self) -> float | torch.cuda.Event:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event
