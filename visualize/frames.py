"""Events reduced to frames: what changed in the text, the charts and the sentence, step by step.

One frame a step of the engine, in order, numbered by ``seq``. A frame says only what
changed, so that a run can be sent as it grows; applied from the first, frames give
the whole picture again (``Picture``), so that a player can show any instant of it and a
page that opens late can catch up. A frame is a JSON-able dict:

    seq, t_ms, step        where in the run it stands (step -1: the run is over)
    head                   first frame only: prompt pieces, configuration, models, pool
    tokens                 [{text, origin, p, q?, u?, refused?, note?}], to append
    columns                first frame only: {chart: columns to begin with}
    charts                 {chart: patches} for ``figures.apply``
    layout                 {chart: {axis path: range}}
    caption                the block map's caption
    say                    the step in one sentence
    finished               {reason, message}, last frame only

A token's ``refused`` are the proposals thrown away for it: [{text, q, p?, u?}], the first
refused by the target, those after it never judged. Text has been made visible
(``visible``) and is to be set as text, never as markup.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lab.trace.events import (
    BlockAllocated,
    BlockFreed,
    Bonus,
    Committed,
    Event,
    Finished,
    Judged,
    Proposed,
    Recovered,
    RunStarted,
    StepTimed,
)
from visualize import narrate
from visualize.figures import blocks, rounds, timing
from visualize.text import visible

Frame = dict[str, Any]


@dataclass
class Step:
    """The events of one step, sorted by what they tell."""

    proposals: list[Proposed] = field(default_factory=list)
    verdicts: dict[int, Judged] = field(default_factory=dict)
    own: Recovered | Bonus | None = None
    committed: Committed | None = None
    blocks: list[BlockAllocated | BlockFreed] = field(default_factory=list)

    def add(self, event: Event) -> None:
        match event:
            case Proposed():
                self.proposals.append(event)
            case Judged():
                self.verdicts[event.position] = event
            case Recovered() | Bonus():
                self.own = event
            case Committed():
                self.committed = event
            case BlockAllocated() | BlockFreed():
                self.blocks.append(event)

    def tokens(self) -> list[dict[str, Any]]:
        """The committed tokens, each with the verdict behind it and what was thrown away for it."""
        if self.committed is None:
            return []
        commit = self.committed
        tokens = []
        for position, (origin, piece, p) in enumerate(
            zip(commit.origins, commit.pieces, commit.probabilities, strict=True)
        ):
            token: dict[str, Any] = {"text": visible(piece), "origin": origin, "p": _short(p)}
            if origin == "accepted":
                token |= _numbers(self.verdicts[position], "q", "u")
            elif origin == "recovered":
                token["refused"] = [self._refused(guess) for guess in self.proposals[position:]]
            tokens.append(token)
        return tokens

    def squares(self, step: int) -> list[Any]:
        """The step's column in the chart of rounds."""
        points = []
        for guess in self.proposals:
            verdict = self.verdicts.get(guess.position)
            state = "unjudged" if verdict is None else "accepted" if verdict.accepted else "rejected"
            numbers = _numbers(verdict or guess, "p", "q", "u")
            points.append(rounds.point(step, guess.position + 1, state, guess.text, numbers))
        if self.own is not None:
            points.append(rounds.point(step, 0, self.own.kind, self.own.text, _numbers(self.own, "p")))
        elif self.committed is not None:
            p = {"p": _short(self.committed.probabilities[0])}
            points.append(rounds.point(step, 0, "plain", self.committed.pieces[0], p))
        return points

    def _refused(self, guess: Proposed) -> dict[str, Any]:
        return {"text": visible(guess.text)} | _numbers(self.verdicts.get(guess.position) or guess, "p", "q", "u")


class Reducer:
    """Turns one run's events, fed in order and in any portions, into frames."""

    def __init__(self) -> None:
        self._seq = 0
        self._config: dict[str, Any] = {}
        self._num_blocks = 0
        self._table: dict[int, tuple[int, int]] = {}  # block -> owner, index: the live blocks
        self._fills: dict[int, int] = {}
        self._kv_tokens = 0
        self._pace: deque[tuple[int, float]] = deque(maxlen=timing.SMOOTH)  # tokens and ms of the last passes
        self._tops = (1.0, 10.0)
        self._axes: dict[str, dict[str, Any]] = {}
        self._generated = 0
        self._step = Step()

    def feed(self, events: Iterable[Event]) -> list[Frame]:
        """The frames that these events complete."""
        frames = []
        for event in events:
            match event:
                case RunStarted():
                    frames.append(self._frame(event, 0, self._head(event)))
                case StepTimed():
                    frames.append(self._frame(event, event.step, self._closed(event)))
                case Finished():
                    frames.append(self._frame(event, -1, self._ended(event)))
                case _:
                    self._step.add(event)
        return frames

    def _frame(self, event: Event, step: int, changes: dict[str, Any]) -> Frame:
        frame = {"seq": self._seq, "t_ms": round(event.t_ms, 3), "step": step}
        self._seq += 1
        changes["layout"] = self._moved(changes.get("layout", {}))
        return frame | {name: value for name, value in changes.items() if value}

    def _moved(self, layout: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """The axes that are not where they were."""
        moved = {}
        for chart, paths in layout.items():
            known = self._axes.setdefault(chart, {})
            if new := {path: value for path, value in paths.items() if known.get(path) != value}:
                known |= new
                moved[chart] = new
        return moved

    def _head(self, run: RunStarted) -> dict[str, Any]:
        self._config = run.config
        self._num_blocks = run.num_blocks
        guesses = run.config["num_speculative_tokens"] if run.config["speculative"] != "off" else 0
        about = {name: getattr(run, name) for name in ("config", "sampling", "target", "draft", "device", "dtype")}
        return {
            "head": {**about, "prompt": [visible(piece) for piece in run.prompt_pieces]},
            "columns": {"blocks": blocks.columns(run.num_blocks)},
            "layout": {"rounds": rounds.rows(guesses), "blocks": blocks.layout(run.num_blocks)},
            "caption": self._caption(),
        }

    def _closed(self, timed: StepTimed) -> dict[str, Any]:
        step, self._step = self._step, Step()
        tokens = step.tokens()
        self._generated += len(tokens)
        self._kv_tokens = timed.kv_tokens
        charts = {"blocks": self._cells(step)}
        layout = {}
        if timed.step_kind != "prefill":
            charts |= {"rounds": step.squares(timed.step), "timing": self._bars(timed, len(tokens))}
            layout = {"rounds": rounds.layout(timed.step), "timing": timing.layout(timed.step, *self._tops)}
        return {
            "tokens": tokens,
            "charts": {name: patches for name, patches in charts.items() if patches},
            "layout": layout,
            "caption": self._caption(),
            "say": narrate.round_sentence(timed.step, step.proposals, step.own)
            if step.own
            else narrate.pass_sentence(timed, [token["text"] for token in tokens], self._config["kv_cache"]),
        }

    def _ended(self, finished: Finished) -> dict[str, Any]:
        step, self._step = self._step, Step()
        note = "Held back until it was clear how the text ends."
        patches = self._cells(step)
        return {
            "tokens": [{"text": visible(finished.text), "origin": "plain", "note": note}] if finished.text else [],
            "charts": {"blocks": patches} if patches else {},
            "caption": self._caption(),
            "say": narrate.ending(finished, self._generated),
            "finished": {"reason": finished.reason, "message": finished.message},
        }

    def _bars(self, timed: StepTimed, made: int) -> list[Any]:
        self._pace.append((made, timed.total_ms))
        tokens, spent = (sum(column) for column in zip(*self._pace, strict=True))
        speed = 1000 * tokens / spent if spent > 0 else 0.0
        typical = statistics.median(ms for _, ms in self._pace)
        self._tops = (timing.axis_top(self._tops[0], typical), timing.axis_top(self._tops[1], speed))
        return timing.points(timed.step, timed.draft_ms, timed.verify_ms, timed.sample_ms + timed.rest_ms, speed)

    def _cells(self, step: Step) -> list[Any]:
        """Patches for the blocks whose owner, state or fill changed."""
        moved = dict.fromkeys(event.block for event in step.blocks)
        for event in step.blocks:
            if isinstance(event, BlockAllocated):
                self._table[event.block] = (event.owner, event.index)
            else:
                self._table.pop(event.block, None)
        size = self._config["block_size"]
        fills = {block: min(size, max(0, self._kv_tokens - index * size)) for block, (_, index) in self._table.items()}
        patches: list[Any] = []
        for block in moved:
            if block in self._table:
                patches += blocks.cell(block, "live", size, *self._table[block], fills[block])
            else:
                patches += blocks.cell(block, "free", size)
        for block, fill in fills.items():
            if block not in moved and self._fills.get(block) != fill:
                patches += blocks.level(block, size, *self._table[block], fill)
        self._fills = fills
        return patches

    def _caption(self) -> str:
        if not self._num_blocks:
            return "no cache, no blocks"
        live, size = len(self._table), self._config["block_size"]
        used = f", {sum(self._fills.values()) / (live * size):.0%} filled" if live else ""
        cut = f" · first {blocks.SHOWN} shown" if self._num_blocks > blocks.SHOWN else ""
        return f"{live} of {self._num_blocks} live{used}{cut}"


def _numbers(event: Judged | Proposed | Recovered | Bonus, *names: str) -> dict[str, float]:
    """Those of p, q and u that the event has."""
    values = {name: getattr(event, name, None) for name in names}
    return {name: _short(value) for name, value in values.items() if value is not None}


def _short(value: float) -> float:
    """Four significant digits: what a person reads, and half the bytes."""
    return float(f"{value:.4g}")
