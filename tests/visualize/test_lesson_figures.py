"""The figures in the lessons' introductions show what the recorded events say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lab.trace.events import BlockAllocated, BlockShared, RunStarted, StepTimed, Verified
from lessons.course import course
from tests.visualize.picture import Picture
from visualize.pages.lessons import figure as figures
from visualize.pages.lessons.figure import figure

DRAWN = {number: lesson.front.figure for number, lesson in course().items() if lesson.front.figure}
KINDS = {
    "cache": [1, 2, 3],
    "table": [5],
    "prefixes": [6, 16],
    "batch": [7, 19],
    "round": [8, 11, 13],
    "verdict": [9, 14, 17],
    "kept": [20],
}


def shown(number: int) -> tuple[dict[str, Any], list[Any]]:
    """A lesson's figure, and the recordings that it shows."""
    return figure(course()[number]), [figures._recorded(name) for name in DRAWN[number].runs.values()]


def test_the_figures_have_the_kinds_that_their_lessons_are_about() -> None:
    assert {number: one.draws for number, one in DRAWN.items()} == {
        number: kind for kind, numbers in KINDS.items() for number in numbers
    }


@pytest.mark.parametrize("number", KINDS["cache"])
def test_columns_are_the_tokens_that_each_pass_computed(number: int) -> None:
    record, runs = shown(number)
    for lane, run in enumerate(runs):
        passes = [event for event in run.events if isinstance(event, StepTimed)]
        lanes = [picture["lanes"][lane] for picture in record["pictures"]]
        assert [one["to"] - one["from"] for one in lanes] == [event.target_tokens for event in passes]
        if run.config.kv_cache:
            assert [one["to"] for one in lanes] == [event.kv_tokens for event in passes]
            assert all(one["from"] == one["known"] for one in lanes)  # nothing is computed again
        else:
            assert all(one["from"] == 0 for one in lanes)
    assert "".join(record["words"]) == "".join(figures._words(runs[0])).replace(" ", "").replace("\n", "↵")


@pytest.mark.parametrize("number", KINDS["round"])
def test_rounds_have_the_verdicts_of_the_run(number: int) -> None:
    record, [run] = shown(number)
    rounds = [frame["round"] for frame in record["frames"] if "round" in frame]
    verdicts = [verdict["accepted"] for one in rounds for verdict in one["verdicts"]]
    assert verdicts == [event.accepted for event in run.events if isinstance(event, Verified)][: len(verdicts)]
    assert {True, False} == {*verdicts}
    assert record["frames"][record["first"]]["round"]["drafts"]


@pytest.mark.parametrize("number", KINDS["verdict"])
def test_verdicts_have_p_and_q_of_the_run(number: int) -> None:
    record, runs = shown(number)
    first = [next(event for event in run.events if isinstance(event, Verified)) for run in runs]
    for event, picture in zip(first, record["pictures"], strict=len(runs) > 1):
        p, q = (picture["columns"][trace]["y"][0] for trace in (0, 1))
        assert (p, q) == pytest.approx((event.p, event.q), rel=1e-3)


def test_a_block_is_in_one_table_and_the_pool_says_whose_it_is() -> None:
    record, [steps] = shown(5)
    picture = Picture({})
    for frame in record["frames"]:
        picture.apply(frame)
        held = [block for table in frame["tables"].values() for block in table]
        assert len(held) == len({*held})
        owners = picture.columns["pool"][0]["owners"]
        for owner, table in frame["tables"].items():
            assert all(owners[block] == [owner] for block in table)
    assert not any(owners)  # all is free in the end
    allocated = [str(event.block) for step in steps for _, event in step if isinstance(event, BlockAllocated)]
    said = " ".join(frame["say"] for frame in record["frames"])
    named = re.findall(r"\d+", " ".join(re.findall(r"gets (blocks? [\d, and]+)", said)))
    assert sorted(named) == sorted(allocated)


@pytest.mark.parametrize("number", KINDS["prefixes"])
def test_a_path_of_the_tree_is_the_beginning_of_a_request(number: int) -> None:
    record, [steps] = shown(number)
    prompts = {o: "".join(e.prompt_pieces) for step in steps for o, e in step if isinstance(e, RunStarted)}

    def paths(node: dict[str, Any], before: str = "") -> Any:
        text = before + node["text"]
        yield from [(owner, text) for owner in node["owners"]]
        for one in node["below"]:
            yield from paths(one, text)

    seen, shared = set(), 0
    for picture in record["pictures"]:
        assert len(picture["tree"]) == 1  # all have one system prompt
        shared = max(shared, len(picture["tree"][0]["owners"]))
        for owner, text in paths(picture["tree"][0]):
            seen.add(owner)
            prompt = prompts[owner].replace("\n", "↵")
            assert text.startswith(prompt) or prompt.startswith(text)
    assert seen == {*prompts}
    found = [event for step in steps for _, event in step if isinstance(event, BlockShared)]
    assert [event.block for event in found] == [block for picture in record["pictures"] for block in picture["found"]]
    assert shared == max(event.references for event in found)


def test_a_column_of_the_batch_has_the_requests_of_its_step() -> None:
    record, [steps] = shown(7)
    waits = False
    for i, step in enumerate(steps):
        timed = {owner: event for owner, event in step if isinstance(event, StepTimed)}
        cells = {int(row["name"]): row["cells"][i] for row in record["rows"]}
        assert {owner: kind for owner, kind in cells.items() if kind not in ("", "waiting")} == {
            owner: event.step_kind for owner, event in timed.items()
        }
        assert len(timed) == next(iter(timed.values())).batch_sequences <= 4
        waits = waits or "waiting" in cells.values()
    assert waits  # there is something to be seen


def test_without_the_recording_there_is_no_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(figures, "RECORDED", tmp_path / "none")
    assert figure(course()[1]) is None


def test_columns_of_kinds_of_layers_are_the_bytes_that_were_counted() -> None:
    record, [found] = shown(20)
    most = max(one["bytes"] for one in found.values())
    for lane, one in zip(record["lanes"], found.values(), strict=True):
        assert [share * most for share in lane["shares"]] == pytest.approx(one["bytes_at"])
        assert len(lane["captions"]) == len(record["pictures"])
    assert [int(re.search(r"\d+", picture["say"])[0]) for picture in record["pictures"]] == found["full"]["lengths"]
