"""The site's runs: a handful made by the engine here, and any from files."""

import re
import threading
import tomllib
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


_DATA = tomllib.loads(Path(__file__).with_name("runs.toml").read_text("utf-8"))
PRESETS = {
    name: SiteRun(one["title"], one["about"], Settings(**_DATA["all"] | one.get("settings", {})))
    for name, one in _DATA["runs"].items()
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
