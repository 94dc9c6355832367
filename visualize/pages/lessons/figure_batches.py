"""Figures of many requests on one engine: block tables and the pool, the steps of a batch, the tree of prefixes."""

from __future__ import annotations

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
from lab.util.messages import counted, listed
from visualize.reduce.block_map import BlockMap
from visualize.text import visible

Record = dict[str, Any]
Steps = Sequence[Sequence[tuple[int, Event]]]
"""The events of a batch, by step, each with the number of its sequence."""


def table(runs: Mapping[str, Steps]) -> Record:
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


def batch(runs: Mapping[str, Steps]) -> Record:
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


def widths(runs: Mapping[str, Steps]) -> Record:
    """The tokens in the pass of each step, a lane per way to serve the same requests."""
    passes = {name: [*filter(None, map(_pass, steps))] for name, steps in runs.items()}
    most = max(tokens for some in passes.values() for tokens, _ in some)
    lanes = [
        {
            "name": name,
            "shares": [tokens / most for tokens, _ in some],
            "captions": [f"{counted(tokens, 'token')} in the pass" for tokens, _ in some],
            "kinds": [f"{'prefill' if reads else 'decode'} tone-2" for _, reads in some],
        }
        for name, some in passes.items()
    ]
    pictures = []
    for i in range(max(map(len, passes.values()))):
        said = [f"{counted(some[i][0], 'token')} ({name})" for name, some in passes.items() if i < len(some)]
        pictures.append({"say": f"In the pass of step {i + 1}: {listed(said)}."})
    for lane in lanes:  # one that is over earlier stays as it is
        lane["captions"] += ["over"] * (len(pictures) - len(lane["captions"]))
    key = [["decode tone-2", "one token per request"], ["prefill tone-2", "a prompt is read, too"]]
    return {"draws": "heights", "lanes": lanes, "pictures": pictures, "key": key}


def _pass(step: Sequence[tuple[int, Event]]) -> tuple[int, bool] | None:
    """The tokens in a step's pass, and whether a prompt is read in it."""
    timed = [event for _, event in step if isinstance(event, StepTimed)]
    return (timed[0].batch_tokens, any(one.step_kind == "prefill" for one in timed)) if timed else None


def prefixes(runs: Mapping[str, Steps]) -> Record:
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
