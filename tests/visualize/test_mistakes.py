"""The Mistakes page: what a browser may ask for, code in colours, and runs that are stopped or fail."""

from __future__ import annotations

import json
import threading
from textwrap import dedent

import pytest

from lab.claims.claim import ClaimChart, Series
from lab.errors import LabError
from lessons.mistakes.evidence import MistakeEvidence, RunLimit, Texts
from lessons.mistakes.mistake import MISTAKES
from tests.visualize.picture import draw
from visualize.charts.claim_charts import CHARTS
from visualize.jobs.job_queue import JobQueue
from visualize.pages.mistakes import cards
from visualize.pages.mistakes.cards import MistakeRun, asked_for, opened, setup, shown, spans

HOSTILE = "<img src=x onerror=window.pwned=1>\u202e"
LINES = ClaimChart("lines", "x", "y", (Series("this code", (1.0, 2.0), (3.0, 4.0), "measured"),))
FOUND = MistakeEvidence(
    "other", False, f"It writes {HOSTILE}.", Texts("a", " b", (HOSTILE, "c"), ("d", "")), [("n", "1", "2")], LINES
)


def no_engine(pair: str):
    raise AssertionError("nothing is to be loaded")


def test_cards_show_the_code_that_runs() -> None:
    record = setup()
    json.dumps(record, allow_nan=False)
    for card, mistake in zip(record["cards"], MISTAKES.values(), strict=True):
        whole = "".join(text for part in card["code"] for _, text in part)
        assert whole.strip() in mistake.sample
        assert "".join(text for _, text in card["code"][1]) == mistake.fault.strip("\n")
        kinds = {kind for part in card["code"] for kind, _ in part}
        assert {"", "keyword", "defined", "number"} <= kinds
        for repair, known in zip(card["repairs"], mistake.repairs, strict=True):
            assert "".join(text for _, text in repair["code"]) == dedent(known.code).strip("\n")
    assert spans("def f(x):  # def g") == [
        ["keyword", "def"], ["", " "], ["defined", "f"], ["", "(x):  "], ["comment", "# def g"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("card", "repair"),
    [
        (None, None),
        ("none", None),
        (["rows"], None),
        ("rows", 3),
        ("rows", -1),
        ("rows", True),
        ("rows", "1"),
        ({}, {}),
    ],
)
def test_what_is_not_in_the_table_is_not_run(card: object, repair: object) -> None:
    assert asked_for(card, repair) is None
    assert asked_for("rows", 2) == (MISTAKES["rows"], 2)
    assert asked_for("rows", None) == (MISTAKES["rows"], None)


def test_a_link_opens_its_card_and_an_unknown_one_gives_a_notice() -> None:
    assert opened({"card": "rows"}) == ({"running": False, "progress": "", "open": "rows"}, [])
    record, notices = opened({"card": HOSTILE})
    assert record["open"] == ""
    assert len(notices) == 1


def test_evidence_is_shown_with_its_chart_and_without_control_characters() -> None:
    record = shown(FOUND)
    assert "\u202e" not in json.dumps(record, ensure_ascii=False)
    assert record["text"][1] == " b"
    assert draw(CHARTS[record["chart"]["shell"]](False), record["chart"]["columns"], {}).data[0].y == (3, 4)


def test_a_run_reports_its_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(cards, "evidence", lambda mistake, program, watch: asked.append((mistake, program)) or FOUND)
    *_, last = MistakeRun(JobQueue(), no_engine, MISTAKES["rows"], 1).records()
    assert last == {"running": False, "card": "rows", "repair": 1, "progress": "", "evidence": shown(FOUND)}
    assert "speculate" in asked[0][1]


def test_a_run_is_stopped_and_a_problem_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def endless(mistake: object, program: object, watch: RunLimit) -> MistakeEvidence:
        watch.start("running this code")
        begun.set()
        while True:
            watch()

    monkeypatch.setattr(cards, "evidence", endless)
    run = MistakeRun(JobQueue(), no_engine, MISTAKES["rows"], None)
    assert begun.wait(60)
    assert run.record()["progress"] == "Running this code …"
    run.cancelled.set()
    *_, last = run.records()
    assert last["progress"] == "Stopped."
    assert not last["running"]

    def failing(*_: object) -> MistakeEvidence:
        raise LabError("It was stopped.")

    monkeypatch.setattr(cards, "evidence", failing)
    *_, last = MistakeRun(JobQueue(), no_engine, MISTAKES["rows"], None).records()
    assert last["problem"] == "It was stopped."
