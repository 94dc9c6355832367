"""Events reduced to frames: what changed in the text, the charts and the sentence, step by step.

There is one frame per engine step, and one each for the start, an admission worth mentioning, a preemption and the end,
in order, numbered by ``seq``. A frame says only what changed, so that a run can be sent as it grows; applied from the
first on, frames rebuild the whole picture (``static/stage.js``), so that a player can show any instant of it and a page
that opens late can catch up. A frame is a JSON-able dict:

    seq, t_ms, step        its place in the run: the latest step (-1: none yet, or the run is over)
    head                   first frame only: prompt pieces (a special token as an object like ``tokens``, with
                           ``special``), configuration, models, the sentence for each state, the settings in words
                           (``described``, ``short``, and each by its name: ``settings``), and whether the run is
                           ``recorded``: read from a file, so perhaps another machine's
    tokens                 [{text, origin, p, q?, u?, threshold?, block?, rejected?, note?, top?, bits?}], to append;
                           ``top``: the target's likeliest tokens there, [text, p]; ``bits``: the entropy there
    round                  a step's events: {drafts: [{text, q?}],
                           verdicts: [{accepted, p, q?, u?, chance?, threshold?, product?}],
                           own: {kind, text, p} or null, written: tokens whose slots were written, kept: those left}
    table                  the sequence's cache blocks in order, if they changed
    columns                first frame only: {"pool": the rows of all blocks}, see ``block_map.BlockMap``
    verdicts               [{title, say, columns, layout}], by position, if the run recorded distributions
    charts                 {chart: patches}, see ``charts.base.Patch``, and {"pool": those of the rows}
    layout                 {chart: {axis path: range}}
    captions               {chart: its caption}, those that changed
    readouts               {readout: [value, unit, the previous run's]}, those that changed
    compared               first frame only: which settings changed since the previous run
    say                    the step in one sentence
    linger                 true if the sentence is rare enough to stay up for a moment
    owner                  first frame after an admission: the run's number among all runs of the server
    notice                 text that has to stay beside the numbers
    finished               {reason, message}, last frame only

A token's ``rejected`` are the proposals discarded for it: [{text, q, p?, u?}], the first rejected by the target, those
after it never verified. Text has been passed through ``visible`` and is to be set as text, never as markup.

The transcript of a run, for the page's script, is one JSON object per line. The first is ``{"run": its id}``. With
``"live": true`` the others arrive through the channel of that id (``visualize.jobs.sse_channel``); ``"against"`` is the
address of another page with the run's settings (``visualize.compare_link``, ``visualize.pool_inputs.in_lab``). Then
come frames, and ``{"status": ...}``, ``{"problem": ...}`` or, of a run that was stopped before it began,
``{"stopped": ...}``, a sentence each. In a channel, a file that was saved before its run's end ends with
``{"cut": true}``. The same script reads a run in progress, one from a file and one in an exported page.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lab.config import EMBEDDED_TARGET
from lab.trace.events import (
    Admitted,
    BlockEvicted,
    BlockFreed,
    Bonus,
    CacheDropped,
    Committed,
    Distributions,
    Event,
    FellBack,
    Finished,
    Preempted,
    Proposed,
    Recovered,
    RecurrentRolledBack,
    RunStarted,
    StepTimed,
    Verified,
    WindowChanged,
)
from lab.trace.json_codec import dump_json
from lab.trace.metrics import Meter
from lab.trace.roofline import achieved, limits_of
from lab.trace.run import Run, RunFileError
from lab.trace.verdict_rounding import in_order, round_verdict, significant
from visualize.charts import pool_charts
from visualize.charts import rounds_chart as rounds
from visualize.charts import timing_chart as timing
from visualize.charts.base import Patch, nice_ceiling
from visualize.reduce.block_map import BlockMap
from visualize.reduce.metric_cards import PreviousRun, rows
from visualize.reduce.narration import Narrator, limit
from visualize.reduce.pass_times import RecomputedView, TimingView
from visualize.reduce.settings_text import described, difference, in_short, one_by_one, rule_of
from visualize.reduce.verification_view import opened
from visualize.states import LOSSY, sentences
from visualize.text import visible

Frame = dict[str, Any]

SPECIAL = {"special": True, "note": "A special token, not text."}
"""Of a token of the prompt that is no text."""


def about(run: RunStarted) -> dict[str, Any]:
    """The part of a head about a run's settings, models and device."""
    names = {name: visible(getattr(run, name)) for name in ("target", "accelerator", "dtype")}
    return {**names, "draft": run.draft and visible(run.draft), "config": run.config, "sampling": run.sampling}


MOST_SLID = 2**14
"""Blocks before those that a sequence holds, at most: a file may claim any number."""


class Fold(ABC):
    """Base of what turns events, fed in order and in chunks of any size, into frames: numbers them, and leaves out what
    has not changed."""

    def __init__(self) -> None:
        self._seq = 0
        self._reported: dict[str, dict[str, Any]] = {}

    @abstractmethod
    def feed(self, events: Iterable[Any]) -> list[Frame]:
        """The frames that these events complete."""

    @abstractmethod
    def after(self) -> Any:
        """The run that the next one is compared with: this run, if it started."""

    def _frame(self, t_ms: float, step: int, changes: dict[str, Any]) -> Frame:
        """A frame of those of ``changes`` that are any."""
        frame = {"seq": self._seq, "t_ms": round(t_ms, 3), "step": step}
        self._seq += 1
        layout = {chart: self._news(f"layout {chart}", paths) for chart, paths in changes.get("layout", {}).items()}
        for name, parts in (("charts", changes.get("charts", {})), ("layout", layout)):
            changes[name] = {chart: part for chart, part in parts.items() if part}
        for name in ("captions", "readouts"):
            changes[name] = self._news(name, changes.get(name, {}))
        return frame | {name: value for name, value in changes.items() if value}

    def _news(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        """Those of ``values`` that differ from what was last told under that name."""
        reported = self._reported.setdefault(name, {})
        new = {key: value for key, value in values.items() if reported.get(key) != value}
        reported |= new
        return new


class Reducer(Fold):
    """Turns one run's events into frames.

    Its numbers are shown beside those of the run ``before``. A ``recorded`` run is labelled as such.
    """

    def __init__(self, before: PreviousRun | None = None, *, recorded: bool = False) -> None:
        super().__init__()
        self._before, self._recorded = before, recorded
        self._meter = Meter()
        self._at = -1
        self._timing, self._recomputed = TimingView(), RecomputedView()
        self._admitted: dict[str, int] = {}
        self._table: list[int] = []
        self._notice = ""
        self._generated = 0
        self._kept = 0  # tokens in the cache after the last step
        self._most = 4.0  # fewer would have ticks between whole blocks
        self._step = Step()

    def feed(self, events: Iterable[Event]) -> list[Frame]:
        frames = []
        for event in events:
            self._meter.take(event)
            if self._seq:
                self._map.take(0, event)
            match event:
                case RunStarted():
                    frames.append(self._shown(event, self._head(event)))
                case Admitted():
                    self._admitted = {"owner": event.owner}
                    self._kept = event.cached_tokens
                    if said := self._narrator.admitted(event):
                        frames.append(self._shown(event, {"say": said, "linger": True}))
                case Preempted():
                    frames.append(self._shown(event, {"say": self._narrator.preempted(event), "linger": True}))
                case StepTimed():
                    self._at = event.step
                    frames.append(self._shown(event, self._closed(event)))
                case Finished():
                    self._at = -1
                    frames.append(self._shown(event, self._ended(event)))
                case _:
                    self._step.add(event)
        return frames

    def after(self) -> PreviousRun | None:
        return PreviousRun(self._started, self._meter.metrics()) if self._seq else self._before

    def _shown(self, event: Event, changes: dict[str, Any]) -> Frame:
        """A frame of ``changes`` and of what changed in the pool and the readouts."""
        over = isinstance(event, Finished)
        changes["charts"] = changes.get("charts", {}) | {"pool": self._map.patches()}
        changes["captions"] = changes.get("captions", {}) | {"blocks": self._map.caption()}
        if not over and (held := self._held()) != self._table:  # at the end, those it had stay
            self._table = changes["table"] = held
        changes["readouts"] = rows(self._meter.metrics(), self._config, self._before, over=over)
        if self._notice != self._narrator.notice:
            self._notice = changes["notice"] = self._narrator.notice
        frame = self._frame(event.t_ms, self._at, changes) | self._admitted
        self._admitted = {}
        return frame

    def _held(self) -> list[int | None]:
        """The numbers of the sequence's cache blocks, in the order of its first block table. None: it slid out."""
        held = [place for table in self._map.tables.values() for place in table.items() if not place[0][0]]
        slid = min((index for (_, index), _ in held), default=0)
        return [None] * min(slid, MOST_SLID) + [block for _, block in sorted(held)]

    def _head(self, run: RunStarted) -> dict[str, Any]:
        self._started, self._config = run, run.config
        speculative = run.config["speculative"]
        self._map = BlockMap(run.num_blocks, run.config["block_size"], alone=True, windows=run.group_windows)
        self._narrator = Narrator(run.config, len(run.prompt_token_ids), run.sampling["max_tokens"])
        self._limits = limits_of(run)
        if self._recorded:
            idle = run.target == EMBEDDED_TARGET and run.device != "cpu"
            small = ", which so small a model hardly uses" if idle else ""
            self._narrator.note(f"recorded on {visible(run.hardware or run.device)}{small}")
        gamma = run.config["num_speculative_tokens"] if speculative != "off" else 0
        for note in run.notes:
            self._narrator.note(visible(note))
        prompt: list[Any] = [visible(piece) for piece in run.prompt_pieces]
        for i in run.special_positions:
            if 0 <= i < len(prompt):  # a file may say anything
                prompt[i] = {"text": prompt[i], "origin": "prompt"} | SPECIAL
        rule = rule_of(run)
        if rule == "typical":
            self._narrator.note(LOSSY)
        said = sentences(speculative, run.sampling["temperature"] == 0, rule)
        words = {
            "sentences": said,
            "described": described(run.config, run.sampling),
            "short": in_short(run.config),
            "settings": one_by_one(run.config, run.sampling),
        }
        if run.messages:
            words["chat"] = True
        return {
            "head": {**about(run), "prompt": prompt, **words, "recorded": self._recorded},
            "say": self._narrator.asked(),
            "compared": difference(self._before.started, run) if self._before and not self._recorded else "",
            "columns": {"pool": self._map.columns()},
            "layout": {"rounds": rounds.rows(gamma)},
            "captions": {"rounds": rounds.caption(1), "timing": ""},
        }

    def _closed(self, timed: StepTimed) -> dict[str, Any]:
        step, self._step = self._step, Step()
        before, self._kept = self._kept, timed.kv_tokens
        written = max(self._kept, before + 1 + len(step.proposals)) if step.proposals else self._kept
        tokens = step.tokens()
        self._generated += len(tokens)
        found = achieved(timed, self._limits) if self._limits else None
        near = limit(found) if found else ""
        charts = {
            "rounds": step.squares(timed.step, self._config["speculative"]),
            "timing": self._timing.take(timed, len(tokens), near),
            "blocks": self._occupied(timed),
        }
        layout = {
            "rounds": rounds.layout(timed.step),
            "timing": self._timing.layout(timed.step),
            "blocks": pool_charts.layout(timed.t_ms / 1000, self._most, 0, 0)["occupancy"],
        }
        captions = {"rounds": rounds.caption(timed.batch_sequences), "timing": timing.caption(timed, near)}
        if not self._config["kv_cache"]:
            charts["recomputed"] = self._recomputed.take(timed, len(step.proposals))
            layout["recomputed"] = self._recomputed.layout(timed.step)
            captions["recomputed"] = self._recomputed.caption()
        pieces = [token["text"] for token in tokens]
        return {
            "tokens": tokens,
            "round": step.round(written, timed.kv_tokens, self._config["speculative"]),
            "verdicts": step.opened(self._config["speculative"], self._config.get("draft_sample_method")),
            "charts": charts,
            "layout": layout,
            "captions": captions,
            "say": self._narrator.step(
                timed, step.proposals, list(step.verdicts.values()), step.own, pieces, step.rare
            ),
            "linger": self._narrator.lingers,
        }

    def _ended(self, finished: Finished) -> dict[str, Any]:
        note = "Held back until it was clear how the text ends."
        return {
            "tokens": [{"text": visible(finished.text), "origin": "plain", "note": note}] if finished.text else [],
            "say": self._narrator.ended(finished, self._meter.metrics(), self._generated),
            "charts": {"blocks": self._occupied(finished)},
            "finished": {"reason": finished.reason, "message": finished.message},
        }

    def _occupied(self, event: StepTimed | Finished) -> list[Patch]:
        """The point of the blocks in use and cached now. The axis goes as far as the most of them so far need."""
        blocks = self._map.occupancy()
        needed = nice_ceiling(1.25 * (blocks.live + blocks.cached))
        self._most = max(self._most, min(needed, self._map.num_blocks))
        return pool_charts.occupancy(event.t_ms / 1000, blocks)["occupancy"]


OF_A_VERDICT = ("p", "q", "u", "chance")
"""Numbers that a token's sentence may name (``vocabulary.sentences``)."""


@dataclass
class Step:
    """The events of one step, sorted by kind."""

    proposals: list[Proposed] = field(default_factory=list)
    verdicts: dict[int, Verified] = field(default_factory=dict)
    around: dict[int, Distributions] = field(default_factory=dict)
    own: Recovered | Bonus | None = None
    committed: Committed | None = None
    rare: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        match event:
            case Proposed():
                self.proposals.append(event)
            case Verified():
                self.verdicts[event.position] = event
            case Distributions():
                self.around[event.position] = event
            case Recovered() | Bonus():
                self.own = event
            case Committed():
                self.committed = event
            case FellBack() | CacheDropped() | WindowChanged() | BlockEvicted() | RecurrentRolledBack():
                self.rare.append(event)
            case BlockFreed(slid_out=True):
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
            token: dict[str, Any] = {"text": visible(piece), "origin": origin, "p": significant(p)}
            if origin == "accepted":
                token |= _numbers(self.verdicts[position], *OF_A_VERDICT) | self._block(self.verdicts[position])
            elif origin == "recovered":
                token["rejected"] = [self._rejected(one) for one in self.proposals[position:]]
            if position < min(len(commit.top_texts), len(commit.top_p), len(commit.entropies)):
                there = zip(commit.top_texts[position], commit.top_p[position], strict=True)
                token["top"] = [[visible(text), significant(p)] for text, p in there]
                token["bits"] = significant(commit.entropies[position] / math.log(2))
            tokens.append(token)
        return tokens

    def _block(self, verdict: Verified) -> dict[str, float]:
        """The test of the longest block that passed, which let an accepted token pass in block verification."""
        if verdict.product is None:
            return {}
        last = max(position for position, one in self.verdicts.items() if one.accepted)
        numbers = _numbers(self.verdicts[last], *OF_A_VERDICT)
        return {"u": numbers["u"], "threshold": numbers["threshold"], "block": last + 1}

    def squares(self, step: int, speculative: str) -> list[Any]:
        """The step's column in the chart of rounds."""
        names = ("p", "u") if speculative == "synthetic" else ("p", "q", "u")  # it has no q
        points = []
        for one in self.proposals:
            verdict = self.verdicts.get(one.position)
            state = "unjudged" if verdict is None else "accepted" if verdict.accepted else "rejected"
            numbers = _numbers(verdict or one, *names)
            points.append(rounds.point(step, one.position + 1, state, one.text, numbers))
        if self.own is not None:
            points.append(rounds.point(step, 0, self.own.kind, self.own.text, _numbers(self.own, "p")))
        elif self.committed is not None and not self.proposals:
            p = {"p": significant(self.committed.probabilities[0])}
            points.append(rounds.point(step, 0, "plain", self.committed.pieces[0], p))
        return points

    def round(self, written: int, kept: int, speculative: str) -> dict[str, Any]:
        """The step's draft tokens, verdicts and own token, and the cache's length before a rollback and after it; and
        whether one pass gave all draft tokens."""
        verdicts = [self.verdicts[position] for position in sorted(self.verdicts)]
        known = ("p", "u", "chance") if speculative == "synthetic" else OF_A_VERDICT  # it has no q
        own, commit = self.own, self.committed
        if own is not None:
            chosen = {"kind": own.kind, "text": visible(own.text), "p": significant(own.p)}
        elif commit is not None and commit.pieces and not self.proposals:
            chosen = {"kind": "plain", "text": visible(commit.pieces[0]), "p": significant(commit.probabilities[0])}
        else:
            chosen = None
        return {
            "drafts": [{"text": visible(draft.text)} | _numbers(draft, *known) for draft in self.proposals],
            "verdicts": [{"accepted": verdict.accepted} | _numbers(verdict, *known) for verdict in verdicts],
            "own": chosen,
            "written": written,
            "kept": kept,
        } | ({"parallel": True} if speculative in ("dflash", "dspark") else {})

    def opened(self, speculative: str, drafts: str | None) -> list[dict[str, Any]]:
        """The step's verdicts by position, with their distributions; none if those were not recorded."""
        verdicts = [self.verdicts[position] for position in sorted(self.verdicts)]
        return [
            opened(
                self.proposals[position],
                self.verdicts[position],
                around,
                self.own,
                speculative,
                verdicts,
                drawn=drafts != "greedy",
            )
            for position, around in self.around.items()
        ]

    def _rejected(self, draft_token: Proposed) -> dict[str, Any]:
        numbers = _numbers(self.verdicts.get(draft_token.position) or draft_token, *OF_A_VERDICT)
        return {"text": visible(draft_token.text)} | numbers


def _numbers(event: Verified | Proposed | Recovered | Bonus, *names: str) -> dict[str, float]:
    """Those of ``names`` (of p, q, u and the chance of being kept) that the event has, rounded as they are printed."""
    if isinstance(event, Verified) and event.threshold is not None:
        compared = "p" if event.u is None else "u"  # with the threshold
        value, threshold = in_order(getattr(event, compared), event.threshold)
        product = {} if event.product is None else {"product": significant(event.product)}
        pq = {"p": significant(event.p), "q": significant(event.q)}
        return pq | {compared: value, "threshold": threshold} | product
    if isinstance(event, Verified) and event.u is not None:
        drawn = round_verdict(event.p, event.q, event.u, accepted=event.accepted)
        return {name: getattr(drawn, name) for name in names}
    values = {name: getattr(event, name, None) for name in names}
    return {name: significant(value) for name, value in values.items() if value is not None}


# -- a run as text -------------------------------------------------------------------------------


def line(record: dict[str, Any]) -> str:
    """One line of JSON with no tags in it: it is safe in a script element, and Gradio does not take it for markup."""
    return dump_json(record, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c") + "\n"


def lines(reducer: Fold, events: Iterable[Any]) -> list[str]:
    """The frames that these events complete, one per line."""
    return [line(frame) for frame in reducer.feed(events)]


def head(id: str, *, live: bool = False, against: str = "") -> str:
    """The first line."""
    return line({"run": id} | ({"live": True} if live else {}) | ({"against": against} if against else {}))


def recorded(run: Run, id: str, *, elsewhere: bool = True) -> str:
    """The whole transcript of a run that is over. ``elsewhere``: it comes from a file, and perhaps another machine.

    Raises:
        RunFileError: its events are valid one by one, but contradict each other.
    """
    return reduced(Reducer(recorded=elsewhere), run.events, id)


def reduced(reducer: Fold, events: Iterable[Any], id: str) -> str:
    """The transcript that a reducer makes of all ``events``. Raises RunFileError as ``recorded`` does."""
    try:
        return head(id) + "".join(lines(reducer, events))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunFileError(
            f"This file's events contradict each other ({type(error).__name__}: {str(error)[:80]}), so they are not "
            "what an engine recorded."
        ) from error
