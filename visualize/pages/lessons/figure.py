"""The figure in a lesson's introduction: recorded runs, picture by picture, as JSON for ``figure.js``.

A record has ``draws``, the kind of drawing, ``say``, what it shows, and one of these:

    pictures   [{say, ...}], each whole: of "cache", "prefixes", "batch", "verdict" and "kept"
    frames     of "round" and "table": see ``visualize.reduce.frames``; the latter each with the block ``tables``, too.
               ``first``: the first frame of a round with draft tokens
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lab.trace.events import (
    Admitted,
    BlockAllocated,
    BlockFreed,
    BlockShared,
    Committed,
    Event,
    Finished,
    Preempted,
    RunStarted,
    StepTimed,
)
from lab.trace.json_codec import from_dict
from lab.trace.run import Run
from lab.util.messages import counted, listed
from lessons.lesson import Lesson
from lessons.template import WRITE
from visualize.charts import verdict_chart
from visualize.charts.base import looks
from visualize.charts.lesson_charts import KINDS
from visualize.recorded_results import DOCS, OPENING
from visualize.reduce.block_map import BlockMap
from visualize.reduce.frames import Reducer
from visualize.states import as_json
from visualize.text import visible

RECORDED = DOCS / "lesson-figures.json.gz"
"""Written by ``python -m docs.record_figures``, for the embedded pair."""
Record = dict[str, Any]
Steps = Sequence[Sequence[tuple[int, Event]]]
"""The events of a batch, by step, each with the number of its sequence."""
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


# -- one run ---------------------------------------------------------------------------------------


def _cache(runs: Mapping[str, Run]) -> Record:
    """Keys and values, a column per token: computed in a pass, computed again, or kept. Each pass gives one token."""
    passes = [[event for event in run.events if isinstance(event, StepTimed)] for run in runs.values()]
    by_format = len({run.config.kv_dtype for run in runs.values()}) > 1
    run = next(iter(runs.values()))
    words = [visible(word.strip(" ")) for word in _words(run)]
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


def _words(run: Run) -> list[str]:
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
    return {"lanes": lanes, "pictures": pictures}


# -- a batch ---------------------------------------------------------------------------------------


def _table(runs: Mapping[str, Steps]) -> Record:
    """The pool's blocks and every request's block table, after each step."""
    (steps,) = runs.values()
    pool = _pool(steps)
    config = _started(steps)[0].config
    frames = [{"seq": 0, "head": {"config": {"block_size": config["block_size"]}}, "columns": {"pool": pool.columns()}}]
    frames[0] |= {"tables": {}, "say": "All blocks are free."}
    for step in steps:
        for owner, event in step:
            pool.take(owner, event)
        tables = {owner: [table[i] for i in sorted(table)] for owner, table in pool.tables.items() if table}
        frames.append({"seq": len(frames), "charts": {"pool": pool.patches()}, "tables": tables, "say": _moved(step)})
    return {"frames": frames}


def _moved(step: Sequence[tuple[int, Event]]) -> str:
    """The blocks that changed hands in a step, in words."""
    said = []
    for owner in dict.fromkeys(owner for owner, _ in step):
        events = [event for one, event in step if one == owner]
        taken = [event.block for event in events if isinstance(event, BlockAllocated)]
        freed = [event.block for event in events if isinstance(event, BlockFreed)]
        joined = any(isinstance(event, Admitted) for event in events)
        if taken and joined:
            said.append(f"Request {owner} begins: its prompt gets {_blocks(taken)}.")
        elif taken:
            said.append(f"Request {owner} has filled its blocks, and gets {_blocks(taken)}.")
        if freed:
            said.append(f"Request {owner} has ended and frees its {counted(len(freed), 'block')}.")
    tokens = sum(len(event.token_ids) for _, event in step if isinstance(event, Committed))
    return " ".join(said) or f"{counted(tokens, 'token')} written, each into its request's last block."


def _blocks(blocks: Sequence[int]) -> str:
    return f"block{'s' * (len(blocks) > 1)} {listed([*map(str, blocks)])}"


def _batch(runs: Mapping[str, Steps]) -> Record:
    """A row per request, a column per step: whether it waits, reads its prompt, or decodes."""
    (steps,) = runs.values()
    waits: set[int] = set()
    rows: dict[int, list[str]] = {owner: [] for owner in range(len(_started(steps)))}
    pictures = []
    for i, step in enumerate(steps):
        begun = {owner for owner, event in step if isinstance(event, Admitted)}
        ended = [owner for owner, event in step if isinstance(event, Finished)]
        timed = {owner: event for owner, event in step if isinstance(event, StepTimed)}
        waits |= {owner for owner, event in step if isinstance(event, RunStarted | Preempted)}
        waits -= begun
        for owner, row in rows.items():
            of = timed.get(owner)
            row.append((of.step_kind if of else "") or ("waiting" if owner in waits else ""))
        said = [f"Step {i + 1}: {counted(len(timed), 'request')} in one pass."]
        said += [f"Request {listed([*map(str, sorted(begun))])} joins." if begun else ""]
        said += [f"Request {listed([*map(str, ended)])} has its last token: its place is free." if ended else ""]
        said += [f"Waiting: request {listed([*map(str, sorted(waits))])}." if waits else ""]
        pictures.append({"say": " ".join(filter(None, said))})
    return {"rows": [{"name": str(owner), "cells": cells} for owner, cells in rows.items()], "pictures": pictures}


def _prefixes(runs: Mapping[str, Steps]) -> Record:
    """The blocks that can be found, as a tree: a branch is what a request does not share with the others."""
    (steps,) = runs.values()
    pool = _pool(steps)
    size = _started(steps)[0].config["block_size"]
    lengths = {owner: len(run.prompt_token_ids) for owner, run in enumerate(_started(steps))}
    pieces: dict[int, list[str]] = {}
    above: dict[int, int | None] = {}  # a block's predecessor in the tables that it is in
    text: dict[int, str] = {}
    pictures = []
    for step in steps:
        for owner, event in step:
            pool.take(owner, event)
            match event:
                case RunStarted():
                    pieces[owner] = [*event.prompt_pieces]
                case Committed():
                    pieces[owner] += event.pieces
                case BlockAllocated() | BlockShared():
                    above[event.block] = pool.tables[owner].get((event.group, event.index - 1))
            for (_, index), block in pool.tables.get(owner, {}).items():
                text[block] = "".join(pieces[owner][index * size : (index + 1) * size])
        if any(isinstance(event, Admitted | Finished) for _, event in step):
            known = [block for block in above if block in pool.owners or block in pool.cached]
            tree = [*_branches(None, known, above, text, pool)]
            found = [event.block for _, event in step if isinstance(event, BlockShared)]
            pictures.append({"tree": tree, "found": found, "say": " ".join(_found(step, lengths, size))})
    return {"pictures": pictures}


def _found(step: Sequence[tuple[int, Event]], lengths: Mapping[int, int], size: int) -> Iterator[str]:
    """The blocks that each request of a step has found, or leaves."""
    for owner, event in step:
        if isinstance(event, Admitted):
            found, length = event.cached_tokens, lengths[owner]
            yield f"Request {owner} has {length} prompt tokens. " + (
                f"It finds {found} of them, in {counted(found // size, 'block')}, and computes the rest."
                if found
                else "It finds none of them, and computes all."
            )
        elif isinstance(event, Finished):
            yield f"Request {owner} has ended: its full blocks can still be found."


def _branches(
    parent: int | None, known: Sequence[int], above: Mapping[int, int | None], text: Mapping[int, str], pool: BlockMap
) -> Iterator[Record]:
    """The branches below a block, each up to where it divides or other requests use it."""
    for block in (block for block in known if above[block] == parent):
        chain, users = [block], sorted(pool.owners.get(block, ()))
        while len(then := [other for other in known if above[other] == chain[-1]]) == 1:
            if sorted(pool.owners.get(then[0], ())) != users:
                break
            chain += then
        words, below = visible("".join(text[one] for one in chain)), _branches(chain[-1], known, above, text, pool)
        yield {"blocks": chain, "owners": users, "text": words, "below": [*below]}


def _started(steps: Steps) -> list[RunStarted]:
    return [event for step in steps for _, event in step if isinstance(event, RunStarted)]


def _pool(steps: Steps) -> BlockMap:
    run = _started(steps)[0]
    return BlockMap(run.num_blocks, run.config["block_size"])


DRAWN = {
    "cache": _cache,
    "round": _round,
    "verdict": _verdict,
    "table": _table,
    "batch": _batch,
    "prefixes": _prefixes,
    "kept": _kept,
}
