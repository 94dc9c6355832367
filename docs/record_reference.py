"""The reference runs that stand in grey behind measurements: ``python -m docs.record_reference``.

On a quiet machine, for some ten minutes: every lesson in its careful mode, Compare's settings with what that page
asks at first, and the claims.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from lab.claims import CLAIMS
from lab.claims.trial import Trial
from lab.engine.engine import Engine
from lab.measure.comparison import compare, summarise
from lab.measure.quiet import look
from lab.measure.reference import FOLDER, Reference, reference
from lab.registry import Engines
from lab.util.machine_info import describe_machine
from lessons.course import course
from lessons.experiments import Preset
from lessons.experiments.base import Measured, whole
from visualize.pages.claims.checks import shown
from visualize.pages.compare.configurations import LANES, CompareInputs
from visualize.pages.lessons.observation import seen

COMPARED = tuple(name for name, (_, config) in LANES.items() if not config.torch_compile)  # compiling takes minutes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--name", default="cpu", help="what the file is called after")
    parser.add_argument("--quick", action="store_true", help="as many repeats as the pages' quick mode has")
    parser.add_argument("--add", action="store_true", help="keep what the file has, and record what it lacks")
    asked = parser.parse_args()
    engines = Engines(device=asked.device)
    gate = look(engines("matched"), threading.Event())
    print(gate.sentence if gate else "This machine is too slow to look at.")
    before = reference(asked.name) if asked.add else None
    found = Reference(describe_machine(asked.device), gate is None or gate.busy, {}, {}, {})
    if before:
        found = replace(before, machine=found.machine, busy=before.busy or found.busy)
    for part, kept in record(found, engines, quick=asked.quick):
        found = replace(found, **{part: kept})
        found.save(FOLDER / f"reference-{asked.name}.json.gz")  # a part at a time: all of them take minutes


def record(found: Reference, load: Engines, *, quick: bool) -> Iterator[tuple[str, Any]]:
    """What ``found`` lacks: each part with what it has by then."""
    lessons, claims = dict(found.lessons), dict(found.claims)
    for number, lesson in course().items():
        preset = lesson.front.preset if quick else lesson.front.preset.careful()
        if all(one.arithmetic for one in preset.experiments.values()) or lesson.name in lessons:
            continue
        print(f"Lesson {number} …", flush=True)
        measured = measure(preset, load)
        views = seen(lesson, measured)
        figures = {kind: one.figures for kind, one in measured.items() if not preset.experiments[kind].arithmetic}
        played = json.loads(views.played.to_json()) if views.played else None
        lessons[lesson.name] = {"figures": figures, "panels": views.panels, "played": played}
        yield "lessons", lessons
    if not found.compare:
        print("Compare …", flush=True)
        yield "compare", compared(load("matched"), 3 if quick else 9)
    trial = Trial(load)
    for name, claim in CLAIMS.items():
        if not claim.arithmetic and name not in claims:
            print(f"Claim {name} …", flush=True)
            claims[name] = shown(claim, claim.check(trial))
            yield "claims", claims


def measure(preset: Preset, load: Callable[[str], Engine]) -> dict[str, Measured]:
    """Every experiment of a preset."""
    watch: Any = lambda *_: None  # noqa: E731
    return {name: whole(one.work(load, threading.Event(), watch)) for name, one in preset.experiments.items()}


def compared(engine: Engine, repeats: int) -> dict[str, list[float]]:
    """Tokens per second of each setting, four at a time against the first."""
    inputs, found, base = CompareInputs(), {}, 0.0
    for place in range(1, len(COMPARED), 4):
        configs = {LANES[name][0]: LANES[name][1] for name in (COMPARED[0], *COMPARED[place : place + 4])}
        runs: dict[str, list[Any]] = {name: [] for name in configs}
        for turn, run in compare(engine, inputs.prompt, configs, inputs.sampling(), repeats):
            if turn.repeat:
                runs[turn.name].append(run)
        summaries = summarise(runs)
        base = base or next(iter(summaries.values())).tokens_per_second.median
        # each is measured against the first setting, whose speed may have changed between two groups
        found = {name: [base * factor for factor in one.factors] for name, one in summaries.items()} | found
    return found


if __name__ == "__main__":
    main()
