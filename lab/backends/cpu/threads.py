"""Number of threads of a step in C."""

from __future__ import annotations

import torch

from lab.backends.cpu.cpu_count import cores


def threads() -> int:
    """Return torch's number of threads, but no more than there are ``cores``."""
    return min(torch.get_num_threads(), cores())
