"""The roofline bench: every kind of step, from real runs, against the measured limits."""

from __future__ import annotations

import json
import sys
from itertools import count

import pytest

from lab import EngineConfig, LabError
from lab.bench import __main__ as command
from lab.bench import roofline_bench as roofline
from lab.bench.roofline_bench import format_roofline, run_roofline
from lab.engine.request import Request
from lab.trace.events import FellBack
from lab.trace.run import Run
from tests import tiny_models


def silent(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def lab():
    return tiny_models.engine("llama", "identical")


def test_every_kind_of_step_is_measured(lab, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "load_engine", lambda *_, **__: lab)
    out = tmp_path / "roofline.json"
    monkeypatch.setattr(sys, "argv", ["bench", "roofline", "--max-tokens", "8", "--repeats", "2", "--json", str(out)])
    command.main()
    result = json.loads(out.read_text())
    rows = {row["name"]: row for row in result["rows"]}
    together = f"decode, {roofline.TOGETHER} at once"
    assert list(rows) == [
        "prefill",
        "decode",
        "decode, INT8",
        "decode, no cache",
        together,
        "draft, 4 passes",
        "verify, 4 proposals",
    ]
    for row in rows.values():
        assert row["steps"] >= 2
        assert row["least_ms"] > 0
        assert row["ms"] > 0
        assert row["share"] > 0
        assert row["bound"] in ("memory", "compute")
    assert rows["decode"]["steps"] == 2 * 7
    assert rows["verify, 4 proposals"]["steps"] == 2  # a second round has room for only one proposal
    decode = rows["decode"]
    assert rows["prefill"]["flops"] > rows[together]["flops"] > rows["verify, 4 proposals"]["flops"] > decode["flops"]
    assert rows["decode, INT8"]["bytes"] < decode["bytes"] < rows[together]["bytes"]
    assert rows["draft, 4 passes"]["bytes"] > 3.9 * lab.draft.weight_bytes
    assert result["prefill_tokens"] >= tiny_models.CONTEXT // 2
    assert (result["max_tokens"], result["repeats"]) == (8, 2)
    assert result["machine"]["torch_threads"]
    assert "FLOPs a byte" in capsys.readouterr().out
    assert "verify, 4 proposals" in format_roofline(result)


def test_without_a_draft_there_is_no_verification():
    rows = run_roofline(tiny_models.engine("llama"), 6, 1, silent)["rows"]
    assert "decode" in {row["name"] for row in rows}
    assert not [row for row in rows if "proposals" in row["name"]]


def test_a_roofline_that_cannot_be_measured_is_refused(lab, monkeypatch):
    monkeypatch.setattr(roofline, "device_limits", lambda device, dtype: None)
    with pytest.raises(LabError, match="a copy or a float32 matrix product failed on cpu"):
        run_roofline(lab, 6, 1, silent)
    with pytest.raises(LabError, match=r"--max-tokens 5 leaves no room for a whole round: .* Ask for 6 or more"):
        run_roofline(lab, 5, 1, silent)


def test_steps_beside_a_request_that_fell_back_are_not_measured(lab, monkeypatch):
    """Only the first of several requests is asked for its steps."""
    result, results = Request.result, count()

    def fallen(request: Request) -> Run:
        run = result(request)
        return Run([*run.events, FellBack(t_ms=0, part="kernel", reason="Too slow.")]) if next(results) else run

    monkeypatch.setattr(Request, "result", fallen)
    with pytest.raises(LabError, match="went on without its kernel"):
        roofline._steps(lab, ["The king", "A fox"], EngineConfig(), 4, "decode")
