"""The site's runs: a handful made by the engine here, and any from files."""

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.engine.engine import Engine
from lab.measure.comparison import Case, in_turns, typical
from lab.measure.measuring import RunTurn
from lab.trace.events import Event
from lab.trace.run import Run
from lab.util.machine_info import hardware
from lab.util.messages import counted
from visualize import recorded_results as replays
from visualize.assets import read
from visualize.export.pages import CHARTS, Page
from visualize.reduce.frames import recorded
from visualize.reduce.settings_text import described
from visualize.run_settings import Settings
from visualize.static_page import stage
from visualize.text import visible

REPEATS = 3
LONGEST = 80
"""Most characters of a name taken from a file: with a number and ``.json`` or ``.html``, it has to be a file name."""
POOL = 32
"""Slots of cache: few enough that each block can be seen."""


@dataclass(frozen=True)
class SiteRun:
    """A run to record: its title, what there is to see, and the Lab's settings for it."""

    title: str
    about: str
    settings: Settings


@dataclass(frozen=True)
class Recording:
    """A run of the site. ``name``: that of its files. ``device``: what it was recorded on, as far as known.
    ``repeats``: all runs that were made of it, including itself."""

    name: str
    title: str
    about: str
    device: str
    run: Run
    repeats: Sequence[Run]


def _preset(title: str, about: str, temperature: float = 0.0, **changes: object) -> SiteRun:
    usual = {"speculative": "off", "paged": False, "max_tokens": 120, "logprobs": 5, "num_blocks": POOL}
    return SiteRun(title, about, Settings(**usual | {"temperature": temperature} | changes))


PRESETS = {
    "plain": _preset("One token a pass", "Plain decoding with a KV cache: what all others are compared with."),
    "no-cache": _preset(
        "Without a KV cache", "Every pass computes the whole text again, and takes longer.", kv_cache=False
    ),
    "int8": _preset(
        "Cache in INT8", "A cached number takes one byte, and a scale for every token and head.", kv_dtype="int8"
    ),
    "paged": _preset("Paged blocks", "Blocks are handed out as they fill; nothing is reserved for later.", paged=True),
    "draft": _preset(
        "A draft model, greedy",
        "A small model proposes four tokens per pass. Greedy text repeats itself, which makes drafting easy.",
        speculative="draft",
    ),
    "draft-drawn": _preset(
        "A draft model, temperature 0.8",
        "Draft tokens are accepted with probability min(1, p / q).",
        0.8,
        speculative="draft",
    ),
    "mismatched": _preset(
        "A mismatched draft",
        "It was trained on other texts. The target rejects most of its draft tokens.",
        0.8,
        speculative="draft",
        pair="mismatched",
    ),
    "lookup": _preset(
        "Prompt lookup",
        "No draft model: it proposes what followed the same few tokens earlier, and greedy text repeats itself.",
        speculative="ngram",
    ),
}
"""The runs to make, by name, in the order in which they are listed."""


def record(
    load: Callable[[str], Engine], names: Iterable[str], repeats: int, step: Callable[[str], None]
) -> list[Recording]:
    """Make these runs, in turns, each ``repeats`` times, and take the one of median speed. ``step`` is called for each.

    Raises:
        LabError: one of them failed.
    """
    cases = {name: _case(load, PRESETS[name].settings) for name in names}

    def report(turn: RunTurn, tokens: int, _: Event | None) -> None:
        step(f"{PRESETS[turn.name].title}, run {turn.number} of {turn.of}: {counted(tokens, 'token')}")

    runs: dict[str, list[Run]] = {name: [] for name in cases}
    for turn, run in in_turns(cases, repeats, cancelled=threading.Event(), watch=report):
        if turn.repeat:
            runs[turn.name].append(run)
    return [
        Recording(
            name, PRESETS[name].title, PRESETS[name].about, hardware(cases[name].engine.device), typical(some), some
        )
        for name, some in runs.items()
    ]


def _case(load: Callable[[str], Engine], settings: Settings) -> Case:
    return Case(load(settings.pair), settings.asked(), settings.engine_config(settings.blocks), settings.sampling())


def read_files(paths: Sequence[Path], taken: Iterable[str]) -> list[Recording]:
    """The runs in these files, named after the files; none gets a name that is ``taken``. Those that the repository
    keeps have the titles that they have in the Lab.

    Raises:
        RunFileError: one is not a run's file.
    """
    names, found = set(taken), []
    titles = {file: title for title, file in replays.runs().items()}
    for path in paths:
        run = Run.load(path)
        recorded(run, "")  # a run that contradicts itself is refused before anything is made
        stem = re.sub(r"[^a-z0-9]+", "-", path.stem.lower())[:LONGEST].strip("-") or "run"
        name = next(name for name in (stem, *(f"{stem}-{i}" for i in range(2, 1000))) if name not in names)
        names.add(name)
        about = described(run.started.config, run.started.sampling)
        place = visible(run.started.hardware or run.started.device)
        found.append(Recording(name, titles.get(path, visible(path.stem)), about, place, run, [run]))
    return found


def page(recording: Recording) -> Page:
    """The run with its player. Raises RunFileError for a run that contradicts itself."""
    return Page(
        path=address(recording),
        under="Runs",
        title=recording.title,
        about=f"{recording.title}. {recording.about}",
        body=f'<main id="stage">{read("static/stage.html")}</main>',
        scripts=(*CHARTS, "stage", "run"),
        data={"transcript": recorded(recording.run, recording.name)},
    )


def address(recording: Recording) -> str:
    return f"runs/{recording.name}.html"


def files() -> dict[str, str]:
    """The scripts of the player."""
    return {"assets/stage.js": stage(), "assets/run.js": read("export/run.js")}


def pages(recordings: Sequence[Recording]) -> Mapping[str, str]:
    """One page per run, and beside it the run as a file that the Lab opens."""
    found: dict[str, str] = {}
    for recording in recordings:
        found[address(recording)] = page(recording).html()
        found[f"runs/{recording.name}.json"] = recording.run.to_json()
    return found
