"""A completion streamed by a vLLM server: the pieces of its text, its end, and its rounds.

Messages come from another machine: whatever is malformed is left out.
"""

import json
from dataclasses import dataclass
from typing import Any

MAX_REASON = 200
MAX_ROUNDS = 100_000
ROUND_METRICS_FLAG = "--per-request-spec-decode-metrics detailed"
"""What a server must be started with to report each round."""


@dataclass(frozen=True)
class ReportedRounds:
    """For each round with draft tokens: how many were ``drafted``, and how many of those ``accepted``. Rounds without
    draft tokens are not reported, nor is which tokens were drafted."""

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]


@dataclass(frozen=True)
class CompletionEnd:
    """The end of an answer. ``rounds`` is None if the server does not report rounds."""

    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None
    rounds: ReportedRounds | None


class CompletionReader:
    def __init__(self) -> None:
        self._reason = ""
        self._last: dict[str, dict[str, Any]] = {}

    def take(self, message: dict[str, Any]) -> str:
        choices = message.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        if isinstance(reason := choice.get("finish_reason"), str):
            self._reason = reason[:MAX_REASON]
        self._last |= {name: message[name] for name in ("usage", "metrics") if isinstance(message.get(name), dict)}
        text = choice.get("text")
        # A lone surrogate, which JSON can express, could not be sent on.
        return text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""

    def completed(self) -> CompletionEnd:
        usage = self._last.get("usage", {})
        counts = (_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
        rounds = reported_rounds(self._last.get("metrics", {}).get("speculative_decoding"))
        return CompletionEnd(self._reason, *counts, rounds)


def error_message(body: bytes) -> str:
    """The server's own error message, at most 300 characters of it."""
    try:
        error = json.loads(body)
        error = error.get("error") or error.get("detail") or error
        if isinstance(error, list):  # FastAPI's validation errors: which part of the request is wrong
            error = f"{error[0]['loc'][-1]}: {error[0]['msg']}"
        return str(error.get("message", "") if isinstance(error, dict) else error)[:300].strip(" .")
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return ""


def reported_rounds(metrics: Any) -> ReportedRounds | None:
    if not isinstance(metrics, dict):
        return None
    drafted, accepted = metrics.get("per_step_drafted"), metrics.get("per_step_accepted")
    if (drafted, accepted) == (None, None) and metrics.get("num_spec_steps") == 0:  # vLLM leaves empty lists out
        return ReportedRounds((), ())
    if not isinstance(drafted, list) or not isinstance(accepted, list) or len(drafted) != len(accepted):
        return None
    pairs = [(_count(d), _count(a)) for d, a in zip(drafted[:MAX_ROUNDS], accepted, strict=False)]
    if any(d is None or a is None or a > d for d, a in pairs):
        return None
    return ReportedRounds(tuple(d for d, _ in pairs), tuple(a for _, a in pairs))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None
