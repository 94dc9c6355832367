"""The figures in the lessons' introductions show what the recorded events say."""

from __future__ import annotations

import re
import statistics
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
    "ruler": [4, 18],
    "passes": [10],
    "ladder": [12],
    "users": [15],
    "widths": [21],
    "order": [22],
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
    assert "".join(record["words"]) == "".join(figures.pieces(runs[0])).replace(" ", "").replace("\n", "↵")


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


@pytest.mark.parametrize("number", KINDS["ruler"])
def test_what_is_stored_lies_on_a_mark(number: int) -> None:
    record, [found] = shown(number)
    for i, picture in enumerate(record["pictures"]):
        for name, lane in zip(record["lanes"], picture["lanes"], strict=True):
            recorded = found["lanes"][name]
            for number_at, stored in zip(lane["numbers"], recorded["stored"][i], strict=True):
                assert 0 <= number_at[0] <= 1
                if marks := recorded["values"]:
                    step = recorded["steps"][i]
                    assert min(abs(stored - mark * step) for mark in marks) < 1e-4 * abs(max(marks) * step)


def off(lane: dict[str, Any]) -> float:
    return sum((exact - stored) ** 2 for exact, stored in lane["numbers"])


def test_fewer_bits_and_an_outlier_make_numbers_less_exact() -> None:
    for picture in shown(4)[0]["pictures"]:
        int8, int4 = map(off, picture["lanes"])
        assert int4 > 10 * int8
    first, *_, last = ([off(lane) for lane in picture["lanes"]] for picture in shown(18)[0]["pictures"])
    assert first[0] < first[1]  # without an outlier INT8 is more exact than FP8
    assert last[0] > 5 * max(last[1:])  # and with it far less, but for a scale per channel


def amounts(record: dict[str, Any], at: int = -1) -> list[list[float]]:
    """The shares of each row and column in a picture."""
    return [[sum(share for share, _ in cell["parts"]) for cell in row] for row in record["pictures"][at]["cells"]]


def test_bars_of_passes_are_the_bytes_and_operations_of_the_same_tokens() -> None:
    record, (plain, drafted) = shown(10)
    steps = [[event for event in run.events if isinstance(event, StepTimed)][1:] for run in (plain, drafted)]
    rounds = len(record["pictures"])
    tokens = int(re.search(r"So far (\d+) tokens", record["pictures"][-1]["say"])[1])
    assert plain.token_ids[: 1 + tokens] == drafted.token_ids[: 1 + tokens]  # they are compared
    (plain_bytes, plain_flops), (bytes_, flops) = amounts(record)
    drafts = steps[1][:rounds]
    ratio = sum(one.verify_bytes + one.draft_bytes for one in drafts) / sum(
        one.verify_bytes for one in steps[0][:tokens]
    )
    assert bytes_ / plain_bytes == pytest.approx(ratio)
    ratio = sum(one.verify_flops + one.draft_flops for one in drafts) / sum(
        one.verify_flops for one in steps[0][:tokens]
    )
    assert flops / plain_flops == pytest.approx(ratio)
    assert bytes_ < plain_bytes
    assert flops > plain_flops


def test_the_ladder_ends_with_what_the_runs_spent() -> None:
    record, runs = shown(12)
    by_name = dict(zip(record["rows"], amounts(record), strict=True))
    timed = [[event for event in run.events if isinstance(event, StepTimed)] for run in runs]
    assert len(runs[0].token_ids) % 4 == 0  # the last picture is of all tokens
    flops = [sum(one.draft_flops + one.verify_flops for one in some) for some in timed]
    assert [row[1] for row in by_name.values()] == pytest.approx([one / max(flops) for one in flops])
    assert by_name["no cache"][2] == 0
    first = dict(zip(record["rows"], amounts(record, 0), strict=True))
    assert first["paged"][2] < first["cache"][2] == by_name["cache"][2] == by_name["paged"][2]
    assert by_name["draft"][0] < by_name["cache"][0] == 1
    assert by_name["INT8"][2] < by_name["cache"][2]


def test_a_pass_for_more_users_computes_more_and_moves_little_more() -> None:
    record, [found] = shown(15)
    assert record["pictures"][0]["cells"][1] is None  # to come
    (moved, computed, each), *_, (moved_by_all, computed_by_all, each_of_all) = amounts(record)
    assert computed_by_all / computed == pytest.approx(found["16"]["flops"] / found["1"]["flops"])
    assert computed_by_all / computed > 10 * moved_by_all / moved / 2
    assert each_of_all < each / 8


def test_a_long_prompt_is_read_at_once_or_in_chunks() -> None:
    record, batches = shown(21)
    for lane, steps in zip(record["lanes"], batches, strict=True):
        timed = [[event for _, event in step if isinstance(event, StepTimed)] for step in steps]
        tokens = [some[0].batch_tokens for some in timed if some]
        assert [share * max(tokens) for share in lane["shares"]] == pytest.approx(
            [one * max(lane["shares"]) for one in tokens]
        )
    whole, chunked = (max(lane["shares"]) for lane in record["lanes"])
    assert whole == 1 > 3 * chunked


def test_runs_of_one_setting_differ_in_blocks_and_hardly_in_turns() -> None:
    record, [found] = shown(22)
    ratios = [float(re.search(r"[\d.]+", lane["captions"][-1])[0]) for lane in record["lanes"]]
    half = found["disturbed"]
    pairs = [second / first for first, second in zip(found["ms"][:half], found["ms"][half:], strict=True)]
    assert ratios[0] == pytest.approx(statistics.median(pairs), rel=0.01)
    assert abs(ratios[0] - 1) > 2 * abs(ratios[1] - 1)  # or the recording shows nothing
