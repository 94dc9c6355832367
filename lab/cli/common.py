"""Steps that commands share: the prompt, the engine, Ctrl-C, and notes about a run."""

from __future__ import annotations

import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from lab import load_engine
from lab.config import EngineConfig
from lab.engine.engine import Engine
from lab.errors import ConfigError, LabError, PromptError
from lab.trace.run import Run


def read_prompt(options: Namespace) -> str:
    """The prompt, refused here if it is empty: an engine would only say so once its models are loaded."""
    prompt = _read() if options.prompt == "-" else options.prompt
    if not prompt:
        raise PromptError("The prompt is empty. Write at least one word to go on from.")
    return prompt


def _read() -> str:
    """All of standard input."""
    try:
        if sys.stdin is None:
            raise LabError("standard input is closed: there is no prompt to read.")
        return sys.stdin.buffer.read().decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except OSError as error:
        raise LabError(f"standard input cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise LabError(f"standard input is not text in UTF-8: byte {error.start} begins no character.") from None


def load(options: Namespace, configs: Iterable[EngineConfig]) -> Engine:
    """The engine for these settings. Raises ConfigError, and what ``load_engine`` raises."""
    if options.target and not options.draft and any(config.speculative == "draft" for config in configs):
        raise ConfigError("speculative=draft takes a draft model: name a --draft too.")
    return load_engine(options.target, options.draft, device=options.device, dtype=options.dtype)


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Let Ctrl-C set the event, so that a run ends after its current step and is whole; a second one interrupts."""
    cancelled = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def interrupt(*_: object) -> None:
        cancelled.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield cancelled
    finally:
        signal.signal(signal.SIGINT, before)


def idle_draft(options: Namespace, configs: Iterable[EngineConfig]) -> list[str]:
    """As ``idle``, for a draft that was named."""
    if options.draft is None or any(config.speculative == "draft" for config in configs):
        return []
    return ["draft does nothing without speculative=draft."]


def is_cut(run: Run) -> bool:
    """True if the model's context was full before all requested tokens had come."""
    return run.reason == "length" and len(run.token_ids) < run.sampling.max_tokens


def context_full(context_length: int) -> str:
    return f"the model's context of {context_length:,} tokens is full"
