"""The claims and the results of checking them, as JSON for the page's script."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lab.claims import CLAIMS
from lab.claims.claim import NOISE, Checked, Claim
from lab.claims.trial import Stopped, Trial
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.measure.measuring import CAREFUL
from lab.measure.reference import reference
from lab.settings import Setting
from visualize.charts.base import drawn, shells
from visualize.charts.claim_charts import CHARTS, columns
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.live_run import ProgressJob, Record
from visualize.states import VERDICTS
from visualize.text import visible
from visualize.url_settings import Form

_SAID = {name: claim.says for name, claim in CLAIMS.items()}
FORM = Form([Setting("claim", "Claim", options={"": "none"} | _SAID, default="")])


def claim_records() -> list[Record]:
    """All claims as data, in their order."""
    return [
        {name: getattr(claim, name) for name in ("id", "topic", "says", "source", "tested", "rule", "arithmetic")}
        | {"noise": "" if claim.arithmetic else NOISE}
        for claim in CLAIMS.values()
    ]


def setup() -> Record:
    """The script's start: claims, charts without data, and the verdicts' words and signs."""
    verdicts = {key: asdict(state) for key, state in VERDICTS.items()}
    return {"claims": claim_records(), "shells": shells(CHARTS), "verdicts": verdicts, "careful": CAREFUL}


def shown(claim: Claim, checked: Checked, careful: bool = False) -> Record:
    """A claim's numbers, chart and verdict."""
    found, verdict = checked.found, checked.verdict
    measured = any(number.kind == "measured" for number in found.numbers)
    times = f", with {CAREFUL} times the repeats" if careful else ""
    record: Record = {
        "verdict": verdict.word,
        "why": verdict.why,
        "needs": verdict.needs,
        "numbers": [[number.label, number.text, number.kind, number.spread] for number in found.numbers],
        "took": f"measured here{_seconds(checked.seconds)}{times}" if measured else "calculated",
    }
    if found.chart:
        record |= drawn({"chart": columns(found.chart)})
        record["chart"]["shell"] = found.chart.form
    return record


def _seconds(seconds: float) -> str:
    """The time a measurement took; empty where it was made for another claim."""
    return f" in {seconds:.1f} s" if seconds >= 0.1 else ""


def calculated() -> Record:
    """The results of all claims that are arithmetic. No model is loaded for them."""

    def refuse(pair: str) -> Engine:
        raise AssertionError("a calculation asks for no engine")

    trial = Trial(refuse)
    return {name: shown(claim, claim.check(trial)) for name, claim in CLAIMS.items() if claim.arithmetic}


def recorded() -> Record:
    """The reference machine's findings on the claims that are measured."""
    found = reference()
    rows = found.claims if found else {}
    named = {"took": f"recorded: {found.label}", "recorded": True} if found else {}
    return {name: {**rows[name], **named} for name in CLAIMS if name in rows and rows[name]["verdict"] in VERDICTS}


class Checks(ProgressJob):
    """Checks claims for a visitor, one after another; a measurement that several share is made once."""

    def __init__(self, queue: JobQueue, load: Load, names: Sequence[str], *, careful: bool = False) -> None:
        self._careful = careful
        self._names = [name for name in CLAIMS if name in names]  # they come from a browser
        self._checked: Record = {}
        self._place, self._now = 0, ""
        self._trial: Trial | None = None
        self._looked = False
        super().__init__(queue, load)

    def _work(self) -> None:
        asked = {"careful": self._careful, "cancelled": self.cancelled, "report": self._report, "turn": self.turn}
        trial = Trial(self._load_in_turn, **asked)
        self._trial = trial
        for place, name in enumerate(self._names):
            if self.cancelled.is_set():
                return
            self._place, self._now, trial.share = place, "", 0.0
            try:
                row = shown(CLAIMS[name], CLAIMS[name].check(trial), self._careful)
            except Stopped:
                return
            except LabError as error:
                row = {"problem": visible(str(error))}
            self._checked = self._checked | {name: row}

    def _load_in_turn(self, pair: str) -> Engine:
        with self.turn():
            engine = self.engine(pair)
            if not self._looked:
                self._looked = True
                self.look(engine)
            return engine

    def _report(self, queue: str) -> None:
        self._now = visible(queue)

    def record(self) -> Record:
        over = self.done.is_set()
        record: Record = {"running": not over, "checked": self._checked, "progress": self._progress(over)}
        record["of"] = len(self._names)
        if not over and self._names:
            record["now"] = self._names[self._place]
            record["step"] = self.status() or self._now
            within = self._trial.share if self._trial else 0.0
            record |= self.share((self._place + within) / len(self._names)) | self.gate
        if over and self.problem:
            record["problem"] = visible(self.problem)
        return record

    def _progress(self, over: bool) -> str:
        count = len(self._names)
        if over:
            stopped = self.cancelled.is_set() and len(self._checked) < count
            return f"Stopped after {len(self._checked)} of {count}." if stopped else ""
        return f"Checking {self._place + 1} of {count}" if count > 1 else "Checking"


def opened(query: Any) -> tuple[Record, list[str]]:
    """The page's first state, and a sentence for each value of its link that was left out."""
    settings, notices = FORM.read(query)
    return {"running": False, "checked": recorded() | calculated(), "open": settings.get("claim", "")}, notices
