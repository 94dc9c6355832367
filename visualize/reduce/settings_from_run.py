"""From a run to the settings on the Lab's page that make it again."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.config import EMBEDDED_TARGET
from lab.models.devices import has_gpu
from lab.models.loader import EMBEDDED_DRAFTS
from lab.registry import Pair
from lab.settings import ENGINE_DEFAULTS, SETTINGS, unmet
from lab.trace.events import RunStarted
from visualize.reduce.settings_text import every_setting, listed_ids, value_in_words
from visualize.run_settings import ALWAYS, FORM, POOL_TOKENS, Settings, from_link, stops_as_text
from visualize.text import visible
from visualize.url_settings import Form


def settings_from_run(run: RunStarted, pairs: Mapping[str, Pair], form: Form = FORM) -> tuple[Settings, list[str]]:
    """The settings of a run, and a sentence for each that the page cannot have, if it did anything.

    ``pairs``: the model pairs that this server offers; ``form``: one with them.
    """
    had = every_setting(run.config, run.sampling)
    wanted = {name: had[name] for name in FORM.names if had.get(name) is not None} | {"prompt": run.prompt}
    wanted |= {"stop": stops_as_text(had["stop"]), "stop_token_ids": listed_ids(had["stop_token_ids"])}
    if run.messages:
        wanted |= _chat(run)
    elif run.prompt_given_as_ids:
        wanted |= {"prompt": listed_ids(run.prompt_token_ids), "token_ids": True}
    if not had["kv_cache"] or had["num_blocks"] == POOL_TOKENS // had["block_size"]:
        wanted.pop("num_blocks", None)
    if not has_gpu():  # there is nothing to switch off
        del wanted["cuda_graphs"]
    pair = next((name for name, pair in pairs.items() if _made(pair, run)), None)
    if pair:
        wanted["pair"] = pair
    settings, notices = from_link({name: str(value) for name, value in wanted.items()}, form, pairs, source="run")
    if not pair:
        models = " and ".join(visible(name) for name in (run.target, run.draft) if name)
        notices.append(f"The run's models cannot be chosen here: {models}.")
    return settings, notices + _missing(had)


def _chat(run: RunStarted) -> dict[str, str]:
    """The settings of a chat, as its messages have it: a file's may be anything."""
    system = [one.get("content", "") for one in run.messages if one.get("role") == "system"]
    turns = [one for one in run.messages if one.get("role") != "system"]
    said = {"prompt": turns[-1].get("content", "") if turns else "", "system": system[0] if system else ""}
    said["messages"] = json.dumps(turns[:-1], ensure_ascii=False, separators=(",", ":")) if turns[1:] else ""
    return said | {"thinking": {None: "", True: "on", False: "off"}[run.thinking]}


def _missing(had: Mapping[str, Any]) -> list[str]:
    """A sentence for each setting that did something in the run and has no control on the page."""
    unused = unmet(had)
    return [
        f"The run's {SETTINGS[name].words} cannot be set here: {value_in_words(name, had[name])}."
        for name, usual in ENGINE_DEFAULTS.items()
        if name not in FORM.names and had[name] not in (usual, ALWAYS.get(name)) and name not in unused
    ]


def _made(pair: Pair, run: RunStarted) -> bool:
    """True for a run of this pair's; one without a draft may be that of several."""
    target = EMBEDDED_TARGET if pair.target is None else _called(pair.target)
    draft = f"{EMBEDDED_TARGET}-{pair.draft}" if pair.draft in EMBEDDED_DRAFTS else _called(pair.draft)
    return run.target == target and run.draft in (None, draft)


def _called(where: str | Path | None) -> str | None:
    """The name of a model in runs: a folder's own name, or the hub id."""
    return Path(os.path.abspath(where)).name if isinstance(where, Path) else where
