"""Figures of what passes cost, of numbers that are rounded, and of the order of measurements.

``costs``: a table of bars. ``heads`` are its columns; a picture has ``cells``, a row each (null: to come), of
[[share, kind], ...] and a caption. ``ruler``: in each lane exact numbers above, what is stored below, and ``marks``
where anything can be stored, all from 0 to 1. ``heights``: a row of columns per lane.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lab.trace.events import Committed, Proposed, StepTimed, Verified
from lab.trace.run import Run
from lab.util.messages import counted, listed
from lessons.template import WRITE

Record = dict[str, Any]
ROUNDS = 6
"""Rounds whose passes are shown."""
EVERY = 4
"""Tokens from one picture of the ladder to the next."""
TARGET, DRAFT = "computed", "drafting"
"""Kinds of bars: what a pass of the target costs, and what the draft's passes of a round do."""
size, times, percent = (WRITE[unit] for unit in ("bytes", "times", "percent"))


class CountedStep(NamedTuple):
    """A step of a run, with its tokens: proposed, accepted, and given in all."""

    timed: StepTimed
    proposed: int
    accepted: int
    given: int


def _steps(run: Run) -> Iterator[CountedStep]:
    proposed = accepted = given = 0
    for event in run.events:
        match event:
            case Proposed():
                proposed += 1
            case Verified():
                accepted += event.accepted
            case Committed():
                given += len(event.token_ids)
            case StepTimed():
                yield CountedStep(event, proposed, accepted, given)
                proposed = accepted = given = 0


def _operations(flops: float) -> str:
    """Millions of operations."""
    return f"{flops / 1e6:,.0f} million operations"


def _shares(rows: Sequence[Sequence[Sequence[Sequence[Any]]]], most: Sequence[float]) -> list[list[list[list[Any]]]]:
    """Amounts of each row and column as shares of the longest bar of the column."""
    return [
        [[[amount / top, kind] for amount, kind in parts] for parts, top in zip(row, most, strict=True)] for row in rows
    ]


def passes(runs: Mapping[str, Run]) -> Record:
    """Bytes and arithmetic of passes for the same tokens, without draft tokens and, round by round, with them."""
    plain, drafted = ([*_steps(run)][1:] for run in runs.values())  # without the prompt's
    found, told, tokens = [], [], 0
    for i, one in enumerate(drafted[:ROUNDS]):
        tokens += one.given
        bars = [
            [
                [(getattr(step.timed, f"verify_{of}"), TARGET) for step in plain[:tokens]],
                [
                    (getattr(step.timed, f"{part}_{of}"), kind)
                    for step in drafted[: i + 1]
                    for part, kind in (("draft", DRAFT), ("verify", TARGET))
                ],
            ]
            for of in ("bytes", "flops")
        ]
        found.append([*zip(*bars, strict=True)])
        sums = [[sum(amount for amount, _ in parts) for parts in of] for of in bars]
        ratios = [times(with_draft / without) for without, with_draft in sums]
        told.append(
            f"Round {i + 1}: {counted(one.proposed, 'draft token')}, {one.accepted} accepted, so "
            f"{counted(one.given, 'token')}. So far {tokens} tokens took {counted(i + 1, 'round')} in place of "
            f"{tokens} passes, {ratios[0]} the bytes and {ratios[1]} the arithmetic."
        )
    most = [max(sum(amount for amount, _ in row[column]) for row in found[-1]) for column in (0, 1)]
    pictures = []
    for rows, said in zip(found, told, strict=True):
        captions = [
            [write(sum(amount for amount, _ in parts)) for parts, write in zip(row, (size, _operations), strict=True)]
            for row in rows
        ]
        pictures.append({"say": said, "cells": _cells(_shares(rows, most), captions)})
    key = [[TARGET, "a pass of the target"], [DRAFT, "the draft's passes of a round"]]
    return _costs(["Bytes moved", "Arithmetic"], runs, pictures, key)


def ladder(runs: Mapping[str, Run]) -> Record:
    """Passes, arithmetic and memory of each setting as the same text grows."""
    steps = {name: [*_steps(run)] for name, run in runs.items()}
    whole = min(sum(step.given for step in some) for some in steps.values())
    lengths = range(EVERY, whole + 1, EVERY)
    amounts = {tokens: {name: _spent(some, tokens) for name, some in steps.items()} for tokens in lengths}
    last = [*amounts.values()][-1].values()
    most = [max(one[column] for one in last) for column in range(3)]
    writers = (lambda passes: f"{passes}", lambda flops: f"{flops / 1e9:.2f} GFLOP", size)
    pictures = []
    for tokens, found in amounts.items():
        rows = [[[(amount, TARGET)] for amount in one] for one in found.values()]
        captions = [[write(amount) for write, amount in zip(writers, one, strict=True)] for one in found.values()]
        pictures.append({"say": _bought(tokens, found), "cells": _cells(_shares(rows, most), captions)})
    return _costs(["Passes of the target", "Arithmetic", "KV cache allocated"], runs, pictures)


def _spent(steps: Sequence[CountedStep], tokens: int) -> tuple[int, int, int]:
    """Passes of the target, operations, and allocated bytes of the cache by the time there are so many ``tokens``."""
    passes = given = flops = 0
    for step in steps:
        passes += 1
        given += step.given
        flops += step.timed.draft_flops + step.timed.verify_flops
        if given >= tokens:
            break
    return passes, flops, step.timed.kv_reserved_bytes


def _bought(tokens: int, found: Mapping[str, tuple[int, int, int]]) -> str:
    """The savings of each technique, in words. The first setting has no cache, the second has one, the others more."""
    (_, all_flops, _), (passes, flops, held), *others = found.values()
    said = [f"After {tokens} tokens. The cache saved {percent(1 - flops / all_flops)} of the arithmetic."]
    for name, (own_passes, _, own_held) in zip([*found][2:], others, strict=True):
        saved = []
        if own_passes < passes:
            saved.append(f"{passes - own_passes} of {passes} passes")
        if own_held < held:
            saved.append(f"{percent(1 - own_held / held)} of the cache's memory")
        said.append(f"{name[0].upper()}{name[1:]} saved {listed(saved) if saved else 'nothing'}.")
    return " ".join(said)


def users(runs: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Record:
    """Bytes and arithmetic of a pass by the number of requests in it."""
    (found,) = runs.values()
    most = [
        max(one["bytes"] for one in found.values()),
        max(one["flops"] for one in found.values()),
        max(one["bytes"] / int(name) for name, one in found.items()),
    ]
    rows, captions, pictures = [], [], []
    alone = found["1"]
    for name, one in found.items():
        each = one["bytes"] / int(name)
        rows.append([[(amount, TARGET)] for amount in (one["bytes"], one["flops"], each)])
        captions.append([size(one["bytes"]), _operations(one["flops"]), size(each)])
        cells = _cells(_shares(rows, most), captions) + [None] * (len(found) - len(rows))
        said = f"{counted(int(name), 'request')} in a pass: {one['flops'] / one['bytes']:.1f} operations per byte."
        if name != "1":
            said += (
                f" It moves {times(one['bytes'] / alone['bytes'])} the bytes of a pass for one, and computes "
                f"{times(one['flops'] / alone['flops'])} as much."
            )
        pictures.append({"say": said, "cells": cells})
    names = [counted(int(name), "request") for name in found]
    return _costs(["Bytes moved by a pass", "Its arithmetic", "Bytes per token"], names, pictures)


def _cells(rows: Sequence[Any], captions: Sequence[Sequence[str]]) -> list[Any]:
    return [
        [{"parts": parts, "caption": caption} for parts, caption in zip(row, said, strict=True)]
        for row, said in zip(rows, captions, strict=True)
    ]


def _costs(heads: Sequence[str], rows: Iterable[str], pictures: list[Record], key: Sequence[Any] = ()) -> Record:
    return {"draws": "costs", "heads": heads, "rows": [*rows], "pictures": pictures, "key": key}


def ruler(runs: Mapping[str, Record]) -> Record:
    """Numbers of a key, and what each format makes of them."""
    (found,) = runs.values()
    most = max(abs(number) for exact in found["exact"] for number in exact)

    def place(number: float) -> float:
        return 0.5 + number / most / 2

    pictures = []
    for i, (at, exact) in enumerate(zip(found["at"], found["exact"], strict=True)):
        lanes, said = [], []
        for name, lane in found["lanes"].items():
            stored = lane["stored"][i]
            marks = [value * lane["steps"][i] for value in lane["values"]] if lane["values"] else []
            off = sum((a - b) ** 2 for a, b in zip(exact, stored, strict=True)) / sum(a**2 for a in exact)
            lanes.append(
                {
                    "marks": [place(mark) for mark in marks if abs(mark) <= most],
                    "numbers": [[place(a), place(b)] for a, b in zip(exact, stored, strict=True)],
                    "caption": f"off by {percent(off**0.5)}; {len({*stored})} of {len(stored)} numbers still differ",
                }
            )
            said.append(f"{name} is off by {percent(off**0.5)}")
        pictures.append({"say": f"{at} {'. '.join(said)}.", "lanes": lanes})
    return {"draws": "ruler", "lanes": [*found["lanes"]], "pictures": pictures}


def order(runs: Mapping[str, Record]) -> Record:
    """Runs of one setting, labelled as if there were two: in blocks, and in turns."""
    (found,) = runs.values()
    ms = found["ms"]
    half, most = len(ms) // 2, max(ms)
    labels = {"in blocks": [i >= half for i in range(len(ms))], "in turns": [i % 4 in (1, 2) for i in range(len(ms))]}
    lanes, said = [], {}
    for name, second in labels.items():
        ratios = [_ratio(ms[: i + 1], second) for i in range(len(ms))]
        captions = ["" if one is None else f"B takes {times(one)} the time of A" for one in ratios]
        lanes.append(
            {
                "name": name,
                "shares": [one / most for one in ms],
                "captions": captions,
                "kinds": [f"decode tone-{int(one)}" for one in second],
            }
        )
        said[name] = captions
    pictures = []
    for i, one in enumerate(ms):
        told = [f"{name}, {captions[i]}" for name, captions in said.items() if captions[i]]
        busy = " Now another program computes as well." if i >= found["disturbed"] else ""
        labelled = f" Labelled {listed(told)}." if told else ""
        pictures.append({"say": f"Run {i + 1} took {WRITE['ms'](one)}.{busy}{labelled}"})
    key = [["decode tone-0", "A"], ["decode tone-1", "B"]]
    return {"draws": "heights", "lanes": lanes, "pictures": pictures, "key": key}


def _ratio(ms: Sequence[float], second: Sequence[bool]) -> float | None:
    """Median of the ratios of B's runs and A's, pair by pair; None before there is one."""
    first, other = ([one for one, is_b in zip(ms, second, strict=False) if is_b is of] for of in (False, True))
    pairs = [b / a for a, b in zip(first, other, strict=False)]
    return statistics.median(pairs) if pairs else None
