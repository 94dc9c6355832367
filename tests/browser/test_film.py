"""A round in phases: with what the Lab opens, what the arrow keys go through, and at which speed it plays."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.browser.pages import Lab, Visit
from visualize.assets import module_folder

SEEN = """() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  return {
    stage: all(".stages .now").map((one) => one.textContent).join(),
    cards: all(".card:not(.own, .to-come)").map((card) => card.classList[1]),
    own: all(".card.own:not(.to-come)").map((card) => card.classList[2]),
    slots: all(".kv-lane .slots i").map((slot) => slot.className.split(" ")[0]).filter((state) => state !== "empty"),
    tokens: all(".token:not(.prompt)").length,
    say: document.querySelector(".say").textContent,
  };
}"""
OTHERS = "before => document.querySelector('.say').textContent !== before"
ORDER = ["Draft", "Verify", "Accept or reject", "Commit"]


def open_plainly(lab: Lab) -> Lab:
    lab.page.goto(lab.server)
    return lab.ready()


def test_the_lab_opens_on_a_recording_that_plays_until_something_is_run(visit: Visit) -> None:
    lab = open_plainly(visit(reduced_motion="no-preference"))
    page = lab.page
    page.wait_for_selector(".opening .badge")
    assert page.inner_text(".opening .badge").startswith("Recording")
    cut = page.eval_on_selector(
        ".opening", "one => [one.scrollHeight - one.clientHeight, one.scrollWidth - one.clientWidth]"
    )
    assert max(cut) <= 0, "nothing of it is cut off"
    lab.plays()
    page.wait_for_selector(".card.accepted")
    first = lab.instant
    assert first < lab.last
    page.wait_for_function("first => document.querySelector('.stage').dataset.seq > first", arg=first)
    page.click("[data-start=round]")
    lab.plays(False)
    assert page.inner_text(".stages .now") == "Draft"
    assert "lanes=" in page.get_attribute("[data-start=compare]", "href")
    page.select_option(".speed", "real")
    lab.ran()
    assert page.locator(".opening").is_hidden()
    assert page.locator(".readouts").is_visible()
    lab.came_to_its_end()


def test_whoever_wants_no_motion_sees_a_finished_round(visit: Visit) -> None:
    page = open_plainly(visit()).page
    page.wait_for_selector(".card.own:not(.to-come)")
    lab = Lab(page, "")
    lab.plays(False)
    assert page.inner_text(".tally").endswith("from one target pass.")


def test_arrow_keys_go_through_every_phase_and_back(visit: Visit) -> None:
    lab = visit().open(max_tokens=8, seed=3, temperature=0)
    assert lab.page.locator(".opening").is_hidden(), "a link with settings shows no recording of others"
    assert lab.tokens("prompt").count() == 0
    lab.ran()
    lab.leave_controls()
    lab.press("Home")
    lab.wait_for_instant(0)
    forth = [lab.page.evaluate(SEEN)]
    while lab.instant < lab.last or lab.page.evaluate(SEEN)["say"] != forth[-1]["say"]:
        lab.press("ArrowRight")
        lab.page.wait_for_function(OTHERS, arg=forth[-1]["say"])
        forth.append(lab.page.evaluate(SEEN))
        if forth[-1]["say"].startswith("Done"):
            break
    rounds = split(forth)
    assert len(rounds) > 1
    for phases in rounds:
        stages = [ORDER.index(phase["stage"]) for phase in phases]
        assert stages == sorted(stages)
        assert set(stages) == set(range(4)), "every stage is seen"
        drafts = [len(phase["cards"]) for phase in phases]
        assert drafts[0] == 1
        assert all(later - before in (0, 1) for before, later in pairwise(drafts))
        for phase in phases:
            if phase["stage"] == "Draft":
                assert set(phase["cards"]) == {"proposed"}, "no verdict before the target has read them"
                assert "written" not in phase["slots"]
            if phase["stage"] == "Verify":
                assert phase["slots"].count("written") == len(phase["cards"])
        assert {phase["tokens"] for phase in phases[:-1]} == {phases[0]["tokens"]}, (
            "the text grows when they are committed"
        )
        end = phases[-1]
        lost = {"unjudged", "rejected"} & set(end["cards"])
        assert any("drained" in phase["slots"] for phase in phases) == bool(lost), "slots are given up in sight"
        assert not {"written", "rejected", "drained"} & set(end["slots"])
        assert end["tokens"] - phases[0]["tokens"] == end["cards"].count("accepted") + len(end["own"])
    back = [forth[-1]]
    while len(back) < len(forth) // 3:
        lab.press("ArrowLeft")
        lab.page.wait_for_function(OTHERS, arg=back[-1]["say"])
        back.append(lab.page.evaluate(SEEN))
    assert [one["cards"] for one in back] == [one["cards"] for one in reversed(forth)][: len(back)]


def split(seen: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The phases of each round with draft tokens."""
    rounds: list[list[dict[str, Any]]] = []
    for phase in seen:
        if phase["stage"] == "Draft" and len(phase["cards"]) == 1:
            rounds.append([])
        if rounds and phase["cards"] and not phase["say"].startswith("Done"):
            rounds[-1].append(phase)
    return rounds


def test_a_speed_is_in_rounds_per_second_on_every_device(visit: Visit) -> None:
    lab = visit()
    lab.page.goto(f"{lab.server}/health")  # a module alone needs no page of its own
    drafted = {"drafts": [{"text": "a", "q": 0.5}] * 4, "verdicts": [{"accepted": True}] * 4, "own": {"kind": "bonus"}}
    frames = [{"seq": seq, "step": seq, "t_ms": seq, "round": drafted | {"written": 9, "kept": 9}} for seq in range(40)]

    def timed(frames: list[dict[str, Any]]) -> dict[str, list[float]]:
        return lab.page.evaluate(
            """async ([folder, frames]) => {
              const { Timeline } = await import(new URL(`${folder}/static/pace.js`, document.baseURI));
              const slower = frames.map((frame) => ({ ...frame, t_ms: 500 * frame.t_ms }));
              const ends = (pace) => [frames, slower].map((run) => new Timeline(run, pace, true).end(39));
              const paces = ["auto", "explain", "slow", "fast", "fit", "real"];
              return Object.fromEntries(paces.map((pace) => [pace, ends(pace)]));
            }""",
            [module_folder(), frames],
        )

    ends = timed(frames)
    assert ends.pop("real") == [39, 39 * 500]
    assert all(quick == slow for quick, slow in ends.values())
    assert ends["slow"][0] == 40_000
    assert ends["fast"][0] == 8_000
    assert ends["fit"][0] == 20_000
    assert 3_000 < ends["explain"][0] / 40 < 4_000, "0.3 rounds per second"
    assert ends["auto"][0] < 20_000

    for frame in frames:  # without draft tokens, as with speculation off
        frame["round"] |= {"drafts": [], "verdicts": [], "own": {"kind": "plain"}}
    assert timed(frames)["auto"][0] < 20_000
