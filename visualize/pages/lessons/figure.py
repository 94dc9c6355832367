"""The figure in a lesson's introduction: recorded runs, picture by picture, as JSON for ``figure.js``.

A record has ``draws``, the kind of drawing, ``say``, what it shows, and one of these:

    pictures   [{say, ...}], each whole
    frames     of "round" and "table": see ``visualize.reduce.frames``; the latter each with the block ``tables``, too.
               ``first``: the first frame of a round with draft tokens
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Mapping

from lab.trace.events import Committed, StepTimed
from lab.trace.json_codec import from_dict
from lab.trace.run import Run
from lab.util.messages import counted, listed
from lessons.lesson import Lesson
from lessons.template import WRITE
from visualize.charts import verdict_chart
from visualize.charts.base import looks
from visualize.charts.lesson_charts import KINDS
from visualize.pages.lessons.figure_batches import Record, Steps, batch, prefixes, table, widths
from visualize.pages.lessons.figure_costs import ladder, order, passes, ruler, users
from visualize.recorded_results import DOCS, OPENING
from visualize.reduce.frames import Reducer
from visualize.states import as_json
from visualize.text import visible

RECORDED = DOCS / "lesson-figures.json.gz"
"""Written by ``python -m docs.record_figures``, for the embedded pair."""
ROUNDS = 4
"""Rounds of a run that are shown."""
VERDICTS = 8
"""Draft tokens of a run whose verification is shown."""


def figure(lesson: Lesson) -> Record | None:
    """The figure of a lesson; None if it has none, or there is no recording.

    Raises:
        KeyError: it names a recording that there is not.
    """
    asked = lesson.front.figure
    if asked is None or not RECORDED.exists():
        return None
    return {"draws": asked.draws, "say": asked.say} | _drawn(asked.draws, *asked.runs.items())


def figure_setup() -> Record:
    """The setup of ``figure.js``."""
    return {"shells": {"verdict": looks(verdict_chart.figure)}, "states": as_json()["states"]}


@functools.cache
def _drawn(draws: str, *runs: tuple[str, str]) -> Record:
    return DRAWN[draws]({name: _recorded(recording) for name, recording in runs})


@functools.cache
def _recorded(name: str) -> Run | Steps | Record:
    if name == "opening":
        return Run.load(OPENING)
    found = json.loads(gzip.decompress(RECORDED.read_bytes()))[name]
    if isinstance(found, dict):
        return Run.of(found) if "events" in found else found
    return [[(owner, from_dict(event)) for owner, event in step] for step in found]


def _cache(runs: Mapping[str, Run]) -> Record:
    """Keys and values, a column per token: computed in a pass, computed again, or kept. Each pass gives one token."""
    passes = [[event for event in run.events if isinstance(event, StepTimed)] for run in runs.values()]
    by_format = len({run.config.kv_dtype for run in runs.values()}) > 1
    run = next(iter(runs.values()))
    words = [visible(word.strip(" ")) for word in pieces(run)]
    prompt = len(run.started.prompt_token_ids)
    pictures = []
    for i, timed in enumerate(zip(*passes, strict=True)):
        length = prompt + i
        if by_format:
            captions = [WRITE["bytes"](one.kv_used_bytes) for one in timed]
            said = f"{counted(length, 'token')} in the cache: this pass added {timed[0].target_tokens}."
        else:
            sums = [sum(one.target_tokens for one in steps[: i + 1]) for steps in passes]
            captions = [f"{one.target_tokens} computed now, {all} so far" for one, all in zip(timed, sums, strict=True)]
            computes = f"all {prompt} tokens of the prompt" if i == 0 else f"one token, “{words[length - 1]}”,"
            said = f"Pass {i + 1} computes {computes} and gives “{words[length]}”."
            if len(runs) > 1 and i:
                said += f" Without a cache it computes the {length - 1} others again."
        lanes = [
            {"from": length - one.target_tokens, "to": length, "known": length - 1 if i else 0, "caption": caption}
            for one, caption in zip(timed, captions, strict=True)
        ]
        pictures.append({"lanes": lanes, "say": said})
    sizes = [steps[-1].kv_used_bytes if by_format else 1 for steps in passes]
    rows = ["K", "V"] if len(runs) > 1 else [""]
    heads = [{"name": name, "share": size / max(sizes), "rows": rows} for name, size in zip(runs, sizes, strict=True)]
    return {"words": words, "lanes": heads, "pictures": pictures}


def pieces(run: Run) -> list[str]:
    """A run's tokens as text, its prompt's first."""
    committed = [piece for event in run.events if isinstance(event, Committed) for piece in event.pieces]
    return [*run.started.prompt_pieces, *committed]


def _round(runs: Mapping[str, Run]) -> Record:
    """The first rounds of a run, phase by phase."""
    (run,) = runs.values()
    kept = ("seq", "step", "head", "tokens", "round", "table")
    frames = [{name: frame[name] for name in kept if name in frame} for frame in Reducer().feed(run.events)]
    rounds = [i for i, frame in enumerate(frames) if frame.get("round", {}).get("drafts")][:ROUNDS]
    return {"frames": frames[: rounds[-1] + 1], "first": rounds[0]}


def _verdict(runs: Mapping[str, Run]) -> Record:
    """Draft tokens with p, q and the residual: the first of a run or, of several runs, the first of each."""
    pictures = []
    for name, run in runs.items():
        verdicts = [one for frame in Reducer().feed(run.events) for one in frame.get("verdicts", [])]
        if len(runs) == 1:
            return {"pictures": verdicts[:VERDICTS]}
        pictures.append(verdicts[0] | {"title": name})
    return {"pictures": pictures}


def _kept(runs: Mapping[str, Record]) -> Record:
    """The blocks that models with layers of several kinds keep of a text, block by block: the figures of ``Kept``."""
    (found,) = runs.values()
    write = WRITE["bytes"]
    most = max(one["bytes"] for one in found.values())
    lanes = [
        {
            "name": KINDS[kind],
            "shares": [size / most for size in one["bytes_at"]],
            "captions": [
                f"{write(size)}: {counted(blocks, 'block')}{' and a state' if one['state_bytes'] else ''}"
                for size, blocks in zip(one["bytes_at"], one["blocks_at"], strict=True)
            ],
        }
        for kind, one in found.items()
    ]
    pictures = []
    for i, length in enumerate(found["full"]["lengths"]):
        sizes = listed([f"{KINDS[kind]} {write(one['bytes_at'][i])}" for kind, one in found.items()])
        pictures.append({"say": f"After {length} tokens: {sizes}."})
    return {"draws": "heights", "lanes": lanes, "pictures": pictures}


DRAWN = {
    "cache": _cache,
    "round": _round,
    "verdict": _verdict,
    "table": table,
    "batch": batch,
    "prefixes": prefixes,
    "kept": _kept,
    "passes": passes,
    "ladder": ladder,
    "users": users,
    "ruler": ruler,
    "order": order,
    "widths": widths,
}
