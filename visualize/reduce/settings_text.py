"""A run's settings in words: all that matter, those that changed since the previous run, or as few as tell it from
others."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lab.config import SamplingParams
from lab.settings import ENGINE_DEFAULTS, SETTINGS, unmet
from lab.trace.events import RunStarted
from visualize.text import named, visible

_MAIN = ("kv_dtype", "paged", "speculative", "num_speculative_tokens", "temperature", "seed")
_STOPS = 2
"""How many stop strings are told."""
MOST_IDS = 8
"""How many stop tokens."""
_STOP = 16
"""How many characters of each."""


def every_setting(config: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a run. One from a file may predate some, and then has their defaults; it may also have its stop
    strings as a list, or one without a list."""
    had = ENGINE_DEFAULTS | config | sampling
    stops = SamplingParams(stop=had["stop"], stop_token_ids=had["stop_token_ids"])
    return had | {"stop": stops.stop, "stop_token_ids": stops.stop_token_ids}


def listed_ids(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))


def rule_of(run: RunStarted) -> str:
    """The rule by which verdicts are drawn: ``rejection_sample_method``. "": none is drawn."""
    had = every_setting(run.config, run.sampling)
    return "" if "rejection_sample_method" in unmet(had) else had["rejection_sample_method"]


def in_words(name: str, value: Any) -> str:
    """A setting and its value. Of stop strings, which anybody may have written, only the beginning is told."""
    return f"{SETTINGS[name].words} {value_in_words(name, value)}"


def value_in_words(name: str, value: Any) -> str:
    if name == "stop" and value:
        more = [f"{len(value) - _STOPS} more"] if len(value) > _STOPS else []
        return " or ".join([named(text, _STOP) for text in value[:_STOPS]] + more)
    if name == "stop_token_ids" and value:
        return listed_ids(value[:MOST_IDS]) + (f" and {len(value) - MOST_IDS} more" if len(value) > MOST_IDS else "")
    return SETTINGS[name].value_in_words(value)


def difference(before: RunStarted, now: RunStarted) -> str:
    """The settings that changed since the previous run, in words."""
    was, had = (every_setting(run.config, run.sampling) for run in (before, now))
    unused = unmet(had)
    changed = [
        f"{in_words(name, was[name])} → {value_in_words(name, had[name])}"
        for name in SETTINGS
        if name in had and was[name] != had[name] and name not in unused
    ]
    if before.target != now.target:
        changed.append(f"target {visible(before.target)} → {visible(now.target)}")
    if before.draft and now.draft and before.draft != now.draft:
        changed.append(f"draft model {_draft(before)} → {_draft(now)}")
    if before.prompt != now.prompt:
        changed.append("another prompt")
    return since(changed)


def since(changed: Sequence[str]) -> str:
    """A sentence on what numbers are compared with, and which settings were ``changed``."""
    return f"Since the previous run: {', '.join(changed) or 'same settings'}."


def _draft(run: RunStarted) -> str:
    """The draft's name without its target's, which the embedded drafts have as a prefix."""
    return visible((run.draft or "").removeprefix(f"{run.target}-"))


def described(config: Mapping[str, Any], sampling: Mapping[str, Any]) -> str:
    """A run's settings in words: the main ones, and any others that matter to it and are not the default."""
    return ", ".join(_words(every_setting(config, sampling), _MAIN))


def in_short(config: Mapping[str, Any]) -> str:
    """A run's settings in a few words: those of the engine that are not the default, except how large the pool is."""
    return ", ".join(_words(every_setting({**config, "num_blocks": None}, {}))) or "KV cache on"


def one_by_one(config: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, str]:
    """Every setting that matters to a run, by name: its words and its value, to tell one run from another."""
    had = every_setting(config, sampling)
    names = [name for name in SETTINGS if name in had and name not in unmet(had) and name != "num_blocks"]
    whole = {name: int(value) for name, value in had.items() if isinstance(value, float) and value.is_integer()}
    return {name: f"{SETTINGS[name].words}: {value_in_words(name, whole.get(name, had[name]))}" for name in names}


def _words(had: Mapping[str, Any], always: Sequence[str] = ()) -> list[str]:
    """Settings in words: those that matter to a run and are not the default, and those that are ``always`` named. Top
    tokens change only what is recorded."""
    unused = unmet(had)
    names = [name for name in SETTINGS if name in had and name not in unused and name != "top_tokens"]
    return [in_words(name, had[name]) for name in names if name in always or had[name] != ENGINE_DEFAULTS[name]]
