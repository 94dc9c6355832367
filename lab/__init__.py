"""Decode Lab's engine: real target and draft models, decoded step by step, every decision an event.

>>> from lab import load_engine, EngineConfig, SamplingParams
>>> engine = load_engine()
>>> run = engine.generate("Once upon a time", EngineConfig(speculative="draft"), SamplingParams(max_tokens=64))
>>> run.text, run.metrics.mean_acceptance_length
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lab.config import EngineConfig, SamplingParams
from lab.errors import ConfigError, LabError, PoolExhaustedError, PromptError, UnsupportedModelError
from lab.trace.metrics import Metrics, measure
from lab.trace.run import Run, RunFileError

if TYPE_CHECKING:
    from lab.engine.engine import Engine
    from lab.load import load_engine
    from lab.models.chat_template import Chat
    from lab.models.loader import ModelLoadError

__all__ = [
    "Chat",
    "ConfigError",
    "Engine",
    "EngineConfig",
    "LabError",
    "Metrics",
    "ModelLoadError",
    "PoolExhaustedError",
    "PromptError",
    "Run",
    "RunFileError",
    "SamplingParams",
    "UnsupportedModelError",
    "load_engine",
    "measure",
]

_HOMES = {
    "Chat": "lab.models.chat_template",
    "Engine": "lab.engine.engine",
    "ModelLoadError": "lab.models.loader",
    "load_engine": "lab.load",
}
"""What is imported on first use: reading a trace needs no torch, which takes seconds and 300 MB."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
