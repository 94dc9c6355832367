"""The Claims page: how a claim and its chart are shown, and checks in a thread that take turns and can be stopped."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.claims import CLAIMS
from lab.claims.claim import ClaimChart, Figures, Series
from lab.claims.rule import Rule
from lab.errors import LabError
from lab.measure.reference import Reference
from tests.visualize.picture import draw
from tests.visualize.scripted import ScriptedEngine
from tests.waiting import until
from visualize.charts import claim_charts as figures
from visualize.jobs import live_run
from visualize.jobs.job_queue import JobQueue
from visualize.pages.claims import checks
from visualize.pages.claims.checks import Checks, calculated, opened
from visualize.states import VERDICTS

ARITHMETIC = [name for name, claim in CLAIMS.items() if claim.arithmetic]
HOSTILE = "<img src=x onerror=window.pwned=1>\u202e"


def no_engine(pair: str):
    raise AssertionError("nothing is to be loaded")


def put(monkeypatch: pytest.MonkeyPatch, **experiments: Callable) -> None:
    """Replace the claims by a few with experiments of the test's own."""
    few = {
        name: replace(
            CLAIMS["ladder"],
            id=name,
            experiment=experiment,
            numbers={"a": ("a number", "×", "measured")},
            decide=Rule("False", "Why.", "This."),
        )
        for name, experiment in experiments.items()
    }
    monkeypatch.setattr(checks, "CLAIMS", few)


def found(_) -> Figures:
    return Figures({"a": 2.5})


# -- what is shown ---------------------------------------------------------------------------


def test_recorded_verdicts_are_there_at_once_and_say_so(monkeypatch: pytest.MonkeyPatch):
    row = {"verdict": "holds", "why": "Why.", "needs": "", "numbers": [], "took": "measured here"}
    machine = {"date": "2026-11-29", "processor": "Abacus", "torch_threads": 2}
    claims = {"ladder": row, ARITHMETIC[0]: row, "gone": row, "both-ten": row | {"verdict": "of an earlier kind"}}
    monkeypatch.setattr(checks, "reference", lambda: Reference(machine, False, {}, {}, claims))
    found = opened({})[0]["checked"]
    assert set(found) == {"ladder", *ARITHMETIC}
    assert found["ladder"]["recorded"]
    assert "Abacus" in found["ladder"]["took"]
    assert found[ARITHMETIC[0]]["took"] == "calculated"


def test_only_calculated_claims_have_a_verdict_at_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks, "reference", lambda: None)
    record, notices = opened({})
    assert notices == []
    assert record["open"] == ""
    assert list(record["checked"]) == ARITHMETIC
    for name, row in record["checked"].items():
        assert row["verdict"] in VERDICTS
        assert row["took"] == "calculated"
        assert [number.label for number in CLAIMS[name].find(None).numbers] == [row[0] for row in row["numbers"]]
    json.dumps(record, allow_nan=False)


def test_a_link_opens_its_claim_and_an_unknown_one_gives_a_notice():
    assert opened({"claim": "ladder"})[0]["open"] == "ladder"
    record, notices = opened({"claim": HOSTILE})
    assert record["open"] == ""
    assert len(notices) == 1
    assert "claim was left out" in notices[0]


# -- charts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True])
def test_charts_take_their_columns(dark: bool):
    for row in calculated().values():
        if chart := row.get("chart"):
            drawn = draw(figures.CHARTS[chart["shell"]](dark), chart["columns"], {})
            assert len(drawn.data[0].x) == len(drawn.data[0].y) > 0


def test_bars_are_measured_values_and_marks_are_formula_and_claim():
    names = ("one", "two")
    claimed, theory, measured = (
        Series(kind, names, (float(i), float(i + 1)), kind) for i, kind in enumerate(("claimed", "formula", "measured"))
    )
    bar, diamonds, ticks, none = figures.columns(ClaimChart("bars", "ms", "", (claimed, theory, measured)))[0]
    assert (bar["name"], bar["x"], bar["y"]) == ("measured", [2, 3], ["one", "two"])
    assert (diamonds["name"], ticks["name"]) == ("formula", "claimed")
    assert none["x"] == []
    assert not none["showlegend"]
    bar, diamonds, *_ = figures.columns(ClaimChart("bars", "ms", "", (theory,)))[0]
    assert (bar["name"], diamonds["x"]) == ("formula", [])


def test_logarithmic_axes_name_their_ticks_in_full():
    """Plotly would write "2" for 20."""
    times = Series("times", (8, 64, 960), (0.7, 4.0, 90.0))
    layout = figures.columns(ClaimChart("lines", "tokens", "ms", (times,), log="xy"))[1]
    assert layout["xaxis.ticktext"] == ["10", "20", "50", "100", "200", "500"]
    assert layout["yaxis.ticktext"] == ["1", "2", "5", "10", "20", "50"]
    for axis in ("xaxis", "yaxis"):
        assert [f"{tick:,g}" for tick in layout[f"{axis}.tickvals"]] == layout[f"{axis}.ticktext"]
    near = Series("near", (30, 40), (3.0, 4.0))
    assert "xaxis.tickvals" not in figures.columns(ClaimChart("lines", "tokens", "ms", (near,), log="x"))[1]


# -- checks ----------------------------------------------------------------------------------


def test_checks_continue_past_one_that_fails_and_end_with_one_that_crashes(monkeypatch, caplog):
    def fail(_):
        raise LabError(f"No. {HOSTILE}")

    def broken(_):
        raise ZeroDivisionError("by nothing")

    put(monkeypatch, good=found, bad=fail, better=found)
    *_, last = Checks(JobQueue(), no_engine, ["better", "bad", "good", "none such", "good"]).records()
    assert list(last["checked"]) == ["good", "bad", "better"]
    assert last["checked"]["bad"] == {"problem": "No. <img src=x onerror=window.pwned=1>⟨RLO⟩"}
    row = last["checked"]["good"]
    assert row["numbers"] == [["a number", "2.5×", "measured", ""]]
    assert (row["verdict"], row["why"], row["needs"]) == ("fails", "Why.", "This.")
    assert (last["running"], last["progress"]) == (False, "")
    assert "now" not in last
    put(monkeypatch, good=found, bad=broken)
    *_, last = Checks(JobQueue(), no_engine, ["good", "bad"]).records()
    assert "failed (ZeroDivisionError: by nothing)" in last["problem"]
    assert list(last["checked"]) == ["good"]


def test_measurements_wait_their_turn_and_can_be_stopped(monkeypatch):
    queue, begun = JobQueue(), threading.Event()

    def slow(trial):
        trial.take_turns({"row": lambda: (begun.set(), time.sleep(0.01))}, 1000)
        return found(trial)

    put(monkeypatch, quick=found, slow=slow, never=found)
    other, held = object(), threading.Event()
    with queue.turn(other, held):
        task = Checks(queue, no_engine, ["quick", "slow", "never"])
        records = task.records()
        waiting = next(record for record in records if record.get("step", "").startswith("Waiting"))
        assert waiting["step"] == "Waiting: 1 run is before yours."
        assert waiting["now"] == "slow"
        assert waiting["progress"] == "Checking 2 of 3"
        assert not begun.is_set()
    step = next(record for record in records if "run" in record.get("step", "") and begun.is_set())
    assert step["running"]
    task.cancelled.set()
    *_, last = records
    assert last["progress"] == "Stopped after 1 of 3."
    assert list(last["checked"]) == ["quick"]
    with queue.turn(other, held):  # the check has left the line
        assert queue.ahead(other) == 0


def test_a_check_shows_how_much_of_it_is_done_after_a_look_at_the_machine(monkeypatch):
    """Also a single one, of many runs."""
    monkeypatch.setattr(live_run, "LONG_S", 0.0)  # so that the time left is told of the shortest
    step = threading.Semaphore(0)

    def measuring(trial):
        trial.engine("matched")
        trial.take_turns({"row": lambda: step.acquire(timeout=60)}, 3)
        return found(trial)

    put(monkeypatch, slow=measuring)
    check = Checks(JobQueue(), lambda pair: ScriptedEngine(), ["slow"])
    for done in range(4):
        until(lambda done=done: f"run {done + 1} of 4" in check.record()["step"])
        assert check.record()["share"] == done / 4
        step.release()
    assert check.record()["gate"]["said"]
    *_, last = check.records()
    assert last["checked"]["slow"]["verdict"] == "fails"
