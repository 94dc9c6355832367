"""A pair of tiny models with random weights that follow a script: for tests of the GPU bench, without a GPU."""

from __future__ import annotations

import torch

from lab.bench.gpu.random_models import TINY_DRAFT, TINY_TARGET, Scripted, draft_script, engine, random_script
from lab.engine.engine import Engine

CPU = torch.device("cpu")
OPTIONS = {"dtype": torch.float32, "device": CPU}


def scripted_pair(rate: float) -> Engine:
    """``rate``: how often the draft is right."""
    script = random_script(TINY_TARGET, CPU)
    target = Scripted(TINY_TARGET, script, "target", **OPTIONS)
    draft = Scripted(TINY_DRAFT, draft_script(script, rate), "draft", **OPTIONS)
    return engine(target, draft)
