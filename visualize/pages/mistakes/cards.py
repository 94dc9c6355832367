"""The cards and the evidence of a run, as JSON for the page's script.

Nothing that a browser sends is executed: it names a mistake, and a repair of the table.
"""

import keyword
import re
from textwrap import dedent
from typing import Any

from lab.claims.trial import Stopped
from lab.settings import Setting
from lessons.course import course
from lessons.mistakes.evidence import MistakeEvidence, RunLimit, evidence
from lessons.mistakes.mistake import MISTAKES, Mistake
from visualize.charts.base import drawn, shells
from visualize.charts.claim_charts import CHARTS, columns
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.live_run import ProgressJob, Record
from visualize.text import visible, visible_lines
from visualize.url_settings import Form

FORM = Form(
    [Setting("card", "Card", options={"": "none"} | {id: one.title for id, one in MISTAKES.items()}, default="")]
)
PYTHON = re.compile(
    r'(?P<comment>#.*)|(?P<string>"""[\s\S]*?"""|"[^"\n]*")|(?P<number>\b\d[\d_.]*(?:e-?\d+)?)|(?P<word>[A-Za-z_]\w*)'
    r"|[\s\S]"
)
"""The pieces of Python that are coloured. The samples have no other strings."""

Spans = list[list[str]]
"""Pieces of code, each with its class: "comment", "string", "number", "keyword", "defined", or none."""


def spans(code: str) -> Spans:
    """Code in pieces of one colour."""
    found: Spans = []
    for piece in PYTHON.finditer(code):
        kind, text = piece.lastgroup or "", piece[0]
        if kind == "word":
            before = found[-2][1].split()[-1:] if len(found) > 1 and not found[-1][0] else []
            kind = "defined" if before in (["def"], ["class"]) else "keyword" if keyword.iskeyword(text) else ""
        if found and found[-1][0] == kind:
            found[-1][1] += text
        else:
            found.append([kind, text])
    return found


def _card(mistake: Mistake) -> Record:
    """A card before anything has run. The code is shown from its first definition on, in three parts: the fault is in
    the middle."""
    code = mistake.sample
    code = code[re.search(r"^(def|class) ", code, re.MULTILINE).start() :].rstrip("\n")
    before, _, after = code.partition(mistake.fault.rstrip("\n"))
    return {
        "id": mistake.id,
        "number": mistake.number,
        "title": mistake.title,
        "does": mistake.does,
        "why": mistake.why,
        "lesson": [mistake.lesson, course()[mistake.lesson].front.title],
        "code": [spans(part) for part in (before, mistake.fault.rstrip("\n"), after)],
        "repairs": [
            {"code": spans(dedent(repair.code).rstrip("\n")), "reply": repair.reply, "right": repair.right}
            for repair in mistake.repairs
        ],
    }


def setup() -> Record:
    """The script's start: all cards, and charts without data."""
    return {"cards": [_card(mistake) for mistake in MISTAKES.values()], "shells": shells(CHARTS)}


def shown(found: MistakeEvidence) -> Record:
    """The evidence of a run."""
    record: Record = {
        "outcome": found.outcome,
        "noticed": found.noticed,
        "say": visible(found.say),
        "numbers": found.numbers,
    }
    if found.text:
        prompt, same, this, right = found.text
        record["text"] = [
            visible_lines(prompt),
            visible_lines(same),
            *([visible(first), visible_lines(rest)] for first, rest in (this, right)),
        ]
    if found.chart:
        record |= drawn({"chart": columns(found.chart)})
        record["chart"]["shell"] = found.chart.form
    return record


class MistakeRun(ProgressJob):
    """Runs a mistake, with its fault or a repair, beside the right code. ``repair``: its place; None: the fault."""

    def __init__(self, queue: JobQueue, load: Load, mistake: Mistake, repair: int | None) -> None:
        self._mistake, self._repair = mistake, repair
        self._now, self._found, self._watch = "", None, RunLimit()
        super().__init__(queue, load)

    def _work(self) -> None:
        with self.turn():
            if self.cancelled.is_set():
                return
            self._watch = watch = RunLimit(self.cancelled, self._report)
            self._report("loading the models")
            try:
                found = evidence(self._mistake, self._mistake.program(self._repair), watch)
            except Stopped:
                return
        self._found = shown(found)

    def _report(self, words: str) -> None:
        self._now = words

    def record(self) -> Record:
        over = self.done.is_set()
        record: Record = {"running": not over, "card": self._mistake.id, "repair": self._repair, "progress": ""}
        if not over:
            record["progress"] = self.status() or f"{self._now[:1].upper()}{self._now[1:]} …"
            record |= self.share(self._watch.share)
        elif self.problem:
            record["problem"] = visible(self.problem)
        elif self._found:
            record["evidence"] = self._found
        else:
            record["progress"] = "Stopped."
        return record


def asked_for(card: Any, repair: Any) -> tuple[Mistake, int | None] | None:
    """The variant that a browser asks to run; None if there is no such thing."""
    if not isinstance(card, str) or card not in MISTAKES:
        return None
    mistake = MISTAKES[card]
    known = repair is None or (type(repair) is int and 0 <= repair < len(mistake.repairs))
    return (mistake, repair) if known else None


def opened(query: Any) -> tuple[Record, list[str]]:
    """The page's first state, and a sentence for each value of its link that was left out."""
    settings, notices = FORM.read(query)
    return {"running": False, "progress": "", "open": settings.get("card", "")}, notices
