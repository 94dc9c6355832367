"""The conversation with a model that has a chat template: its turns, and what each found in the prefix cache."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from html import escape

from lab.errors import LabError
from lab.models.chat_template import answer, template_beside
from lab.registry import Pair, named_pair
from lab.trace.run import Run
from visualize.run_settings import OTHER, Settings, turns_in
from visualize.text import visible, visible_lines

CACHE_OFF = "Prefix caching is off: each turn computes the whole conversation again."


def template_of(settings: Settings, pairs: Mapping[str, Pair], own: bool) -> str | None:
    """The chat template of the chosen target, as far as it is known before it is loaded. None: it has none.

    Args:
        own: a visitor may name models, and so look into folders.
    """
    pair = pairs.get(settings.pair)
    if settings.pair == OTHER and own:
        with suppress(LabError):  # no models are named yet
            pair = named_pair(settings.target, settings.draft)
    return template_beside(pair.target) if pair and pair.target else None


def talks(settings: Settings, template: str | None) -> bool:
    """True if a run is a turn of a conversation."""
    return bool(template) and settings.chats


def shown(settings: Settings) -> str:
    """HTML: the turns so far. Empty without any."""
    try:
        turns = turns_in(settings.messages)
    except LabError as error:
        return f"<p>{escape(str(error))}</p>"
    if not turns:
        return ""
    items = "".join(_item(one) for one in turns)
    off = "" if settings.enable_prefix_caching else f"<p>{CACHE_OFF}</p>"
    return f'<ol aria-label="Conversation" tabindex="0">{items}</ol>{off}'


def _item(turn: Mapping[str, object]) -> str:
    said = f"<p>{escape(visible_lines(str(turn.get('content', ''))))}</p>"
    match turn.get("found"):
        case [int(hit), int(prompt)]:
            said += f"<small>Found in the cache: {hit:,} of {prompt:,} prompt tokens</small>"
    return f'<li class="{"user" if turn.get("role") == "user" else "assistant"}">{said}</li>'


def templated(run: Run) -> str:
    """HTML: a chat's prompt as its template wrote it, control tokens by name."""
    special = set(run.started.special_positions)
    pieces = (
        f"<b>{escape(visible(piece))}</b>" if place in special else escape(visible_lines(piece))
        for place, piece in enumerate(run.started.prompt_pieces)
    )
    return f'<details><summary>Templated prompt</summary><p tabindex="0">{"".join(pieces)}</p></details>'


def after(settings: Settings, run: Run) -> Settings | None:
    """The settings with a run's turn at the end of the conversation. None: it was no turn of this one."""
    started = run.started
    before = [one for one in map(dict, started.messages) if one["role"] != "system"]
    turns = turns_in(settings.messages)
    if (
        not before
        or run.reason in (None, "error")
        or [_bare(one) for one in turns] != [_bare(it) for it in before[:-1]]
    ):
        return None
    hits = [run.metrics.cached_prompt_tokens, len(started.prompt_token_ids)]
    turns += [before[-1], answer(run) | {"found": hits}]
    prompt = "" if settings.prompt == before[-1]["content"] else settings.prompt  # the next may be written already
    return replace(settings, messages=json.dumps(turns, ensure_ascii=False, separators=(",", ":")), prompt=prompt)


def _bare(turn: Mapping[str, object]) -> tuple[object, object]:
    return turn.get("role"), turn.get("content")
