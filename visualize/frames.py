"""Events reduced to frames: what changed in the text, the charts and the sentence, step by step.

One frame a step of the engine, and one each for the beginning, an admission, a preemption
and the end, in order, numbered by ``seq``. A frame says only what
changed, so that a run can be sent as it grows; applied from the first, frames give
the whole picture again (``Picture``), so that a player can show any instant of it and a
page that opens late can catch up. A frame is a JSON-able dict:

    seq, t_ms, step        where in the run it stands (step -1: the run is over)
    head                   first frame only: prompt pieces, configuration, models, what is said of each state
    tokens                 [{text, origin, p, q?, u?, refused?, note?}], to append
    columns                first frame only: {chart: columns to begin with}
    charts                 {chart: patches} for ``figures.apply``
    layout                 {chart: {axis path: range}}
    captions               {chart: its caption}, those that changed
    say                    the step in one sentence
    linger                 true where that is rare enough to be left standing for a moment
    notice                 what has to stay beside the numbers
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
    Admitted,
    BlockEvicted,
    Bonus,
    CacheDropped,
    Committed,
    Event,
    FellBack,
    Finished,
    Judged,
    Preempted,
    Proposed,
    Recovered,
    RunStarted,
    StepTimed,
    WindowChanged,
)
from lab.trace.roofline import achieved, limits_of
from visualize.figures import blocks, rounds, timing
from visualize.narrate import Narrator, limit
from visualize.pool import PoolEvent, PoolView
from visualize.text import visible
from visualize.vocabulary import sentences

Frame = dict[str, Any]


@dataclass
class Step:
    """The events of one step, sorted by what they tell."""

    proposals: list[Proposed] = field(default_factory=list)
    verdicts: dict[int, Judged] = field(default_factory=dict)
    own: Recovered | Bonus | None = None
    committed: Committed | None = None
    rare: list[FellBack | CacheDropped | WindowChanged | BlockEvicted] = field(default_factory=list)

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
            case FellBack() | CacheDropped() | WindowChanged() | BlockEvicted():
                self.rare.append(event)

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
        self._seq = self._at = 0
        self._pace: deque[tuple[int, float]] = deque(maxlen=timing.SMOOTH)  # tokens and ms of the last passes
        self._tops = (1.0, 10.0)
        self._axes: dict[str, dict[str, Any]] = {}
        self._captions: dict[str, str] = {}
        self._notice = ""
        self._generated = 0
        self._step = Step()

    def feed(self, events: Iterable[Event]) -> list[Frame]:
        """The frames that these events complete."""
        frames = []
        for event in events:
            if isinstance(event, PoolEvent):
                self._pool.take(event)
            match event:
                case RunStarted():
                    frames.append(self._frame(event, self._head(event)))
                case Admitted():
                    said = self._narrator.admitted(event)
                    frames.append(self._frame(event, {"say": said, "linger": bool(said)}))
                case Preempted():
                    frames.append(self._frame(event, {"say": self._narrator.preempted(event), "linger": True}))
                case StepTimed():
                    self._at = event.step
                    frames.append(self._frame(event, self._closed(event)))
                case Finished():
                    self._at = -1
                    frames.append(self._frame(event, self._ended(event)))
                case _:
                    self._step.add(event)
        return frames

    def _frame(self, event: Event, changes: dict[str, Any]) -> Frame:
        """A frame of the changes, with what has changed in the pool and around the charts."""
        frame = {"seq": self._seq, "t_ms": round(event.t_ms, 3), "step": self._at}
        self._seq += 1
        charts = changes.get("charts", {}) | {"blocks": self._pool.patches()}
        changes["charts"] = {name: patches for name, patches in charts.items() if patches}
        changes["layout"] = self._moved(changes.get("layout", {}))
        captions = changes.get("captions", {}) | {"blocks": self._pool.caption()}
        changes["captions"] = {name: text for name, text in captions.items() if self._captions.get(name) != text}
        self._captions |= captions
        frame |= {name: value for name, value in changes.items() if value}
        if self._notice != self._narrator.notice:
            self._notice = frame["notice"] = self._narrator.notice
        return frame

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
        speculative = run.config["speculative"]
        self._pool = PoolView(run.num_blocks, run.config["block_size"])
        self._narrator = Narrator(run.config, len(run.prompt_token_ids))
        self._limits = limits_of(run)
        guesses = run.config["num_speculative_tokens"] if speculative != "off" else 0
        about = {name: getattr(run, name) for name in ("config", "sampling", "target", "draft", "device", "dtype")}
        prompt = [visible(piece) for piece in run.prompt_pieces]
        said = sentences(speculative, greedy=run.sampling["temperature"] == 0)
        return {
            "head": {**about, "prompt": prompt, "sentences": said},
            "columns": {"blocks": blocks.columns(run.num_blocks)},
            "layout": {"rounds": rounds.rows(guesses), "blocks": blocks.layout(run.num_blocks)},
            "captions": {"rounds": rounds.caption(1), "timing": ""},
        }

    def _closed(self, timed: StepTimed) -> dict[str, Any]:
        step, self._step = self._step, Step()
        tokens = step.tokens()
        self._generated += len(tokens)
        self._pool.level(timed.kv_tokens)
        charts, layout = {}, {}
        found = achieved(timed, self._limits) if self._limits else None
        near = limit(found) if found else ""
        if timed.step_kind != "prefill":
            charts = {"rounds": step.squares(timed.step), "timing": self._bars(timed, len(tokens), near)}
            layout = {"rounds": rounds.layout(timed.step), "timing": timing.layout(timed.step, *self._tops)}
        pieces = [token["text"] for token in tokens]
        return {
            "tokens": tokens,
            "charts": charts,
            "layout": layout,
            "captions": {"rounds": rounds.caption(timed.batch_sequences), "timing": timing.caption(timed, near)},
            "linger": any(not isinstance(event, BlockEvicted) for event in step.rare),
            "say": self._narrator.step(
                timed, step.proposals, list(step.verdicts.values()), step.own, pieces, step.rare
            ),
        }

    def _ended(self, finished: Finished) -> dict[str, Any]:
        note = "Held back until it was clear how the text ends."
        return {
            "tokens": [{"text": visible(finished.text), "origin": "plain", "note": note}] if finished.text else [],
            "say": self._narrator.ended(finished, self._generated),
            "finished": {"reason": finished.reason, "message": finished.message},
        }

    def _bars(self, timed: StepTimed, made: int, near: str) -> list[Any]:
        self._pace.append((made, timed.total_ms))
        tokens, spent = (sum(column) for column in zip(*self._pace, strict=True))
        speed = 1000 * tokens / spent if spent > 0 else 0.0
        typical = statistics.median(ms for _, ms in self._pace)
        self._tops = (timing.axis_top(self._tops[0], typical), timing.axis_top(self._tops[1], speed))
        other = timed.sample_ms + timed.rest_ms
        return timing.points(timed.step, timed.draft_ms, timed.verify_ms, other, speed, near)


def _numbers(event: Judged | Proposed | Recovered | Bonus, *names: str) -> dict[str, float]:
    """Those of p, q and u that the event has."""
    values = {name: getattr(event, name, None) for name in names}
    return {name: _short(value) for name, value in values.items() if value is not None}


def _short(value: float) -> float:
    """Four significant digits: what a person reads, and half the bytes."""
    return float(f"{value:.4g}")
