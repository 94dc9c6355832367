"""An explanation claims no more about times than the run shows: made-up figures, and the sentences they get."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lab.measure.comparison import Summary
from lab.measure.interval import factor_interval
from lessons.course import FOLDER, course
from lessons.lesson import names
from lessons.marking import right_one


def measured(number: int, **found: Any) -> dict[str, Any]:
    """Figures of a lesson's preset: 1 in every repeat, except for those given by name, with "__" for dots."""

    def ones(known: Mapping[str, Any]) -> dict[str, Any]:
        return {name: ones(more) if isinstance(more, Mapping) else [1.0] * 3 for name, more in known.items()}

    figures = ones(names(course()[number].front.preset))
    for name, value in found.items():
        *path, last = name.split("__")
        place = figures
        for part in path:
            place = place[part]
        assert last in place
        place[last] = value
    return figures


def explained(number: int, **found: Any) -> str:
    return " ".join(course()[number].explain.fill(measured(number, **found)).split())


def rates(kind: str = "runs", **some: list[float]) -> dict[str, list[float]]:
    """Tokens per second by setting, as figures."""
    return {f"{kind}__{name}__tokens_per_second": values for name, values in some.items()}


def growing(exponent: float, low: float, high: float, grows: int = 1) -> dict[str, Any]:
    own = {"exponent": exponent, "exponent_low": low, "exponent_high": high, "grows": grows}
    curves = {f"growth__uncached__{name}": value for name, value in own.items()}
    for way in ("cached", "uncached"):
        curves |= {f"growth__{way}__lengths": [20.0, 120.0, 240.0], f"growth__{way}__ms": [1.0, 2.0, 4.0]}
    return curves


SMALL, LINE = "lies in between, too", "cannot be told from a straight line"
SLOWER, UNFIT = "more slowly than a straight line", "this form of curve is wrong, and its power means nothing"
FLAT = "means nothing here: the times do not rise clearly above their scatter"


@pytest.mark.parametrize(
    ("curve", "said"),
    [
        (growing(1.4, 1.2, 1.6), SMALL),
        (growing(1.1, 0.9, 1.3), LINE),
        (growing(0.52, 0.5, 0.53), SLOWER),
        (growing(2.13, 1.86, 2.44), UNFIT),
        (growing(1.5, 0.8, 2.4), UNFIT),
        (growing(2.5, 2.2, 2.9), UNFIT),
        (growing(2.5, 2.2, 2.9, grows=0), FLAT),
    ],
)
def test_a_power_is_explained_only_as_far_as_its_interval_allows(curve: dict[str, Any], said: str) -> None:
    text = explained(2, **curve)
    assert [one for one in (SMALL, LINE, SLOWER, UNFIT, FLAT) if one in text] == [said]
    check = course()[2].front.check
    for feedback in (check.near, check.far):
        clear = curve["growth__uncached__exponent_high"] < 2
        assert ("less than the square" in feedback.fill(measured(2, **curve))) == clear
        assert ("too noisy to tell" in feedback.fill(measured(2, **curve))) != clear


@pytest.mark.parametrize("name", ["INT8", "INT4"])
@pytest.mark.parametrize(
    ("own", "said"),
    [
        ([90.0, 95.0, 92.0], "was clearly slower"),
        ([90.0, 105.0, 101.0], "was neither clearly slower nor clearly faster"),
        ([101.0, 130.0, 170.0], "was neither clearly slower nor clearly faster"),  # though faster in every repeat
        ([103.0, 104.0, 103.0], "was clearly faster"),
        ([169.0, 160.0, 171.0], "was clearly faster by more than its bytes can explain"),
    ],
)
def test_a_formats_speed_is_only_what_the_repeats_bear_out(name: str, own: list[float], said: str) -> None:
    read = {"runs__native__step_bytes": 1.1, "runs__int8__step_bytes": 1.05, "runs__int4__step_bytes": 1.0}
    both = {"native": [100.0] * 3, "int8": [100.0] * 3, "int4": [100.0] * 3}
    text = explained(4, **read, **rates(**both | {name.lower(): own}))
    assert re.search(rf"{name} decoded at \S+( the native speed)? and {said}", text)
    assert ("something else" in text) == ("more than" in said)
    assert ("costs more here" in text) == (said[4:] == "clearly slower")


@pytest.mark.parametrize(
    ("number", "rate", "said"),
    [
        (5, "batches__paged__tokens_per_second", "the repeats disagree: it raised throughput in some"),
        (8, "runs__draft__tokens_per_second", "too close to call whether it pays here."),
        (10, "runs__adaptive__tokens_per_second", "was too close to call here."),
    ],
)
def test_repeats_that_disagree_are_said_to_disagree(number: int, rate: str, said: str) -> None:
    assert said in explained(number, **{rate: [0.4, 0.5, 1.1]})
    assert said not in explained(number, **{rate: [0.4, 0.45, 0.5]})


@pytest.mark.parametrize("factors", [(1.05, 1.3, 1.6), (1.5, 1.74, 2.0), (0.6, 0.7, 0.8), (0.7, 0.95, 0.98)])
def test_the_text_calls_a_gain_clear_where_the_chart_of_speeds_does(factors: tuple[float, ...]) -> None:
    clear = replace(Summary(*[None] * 12), likely_speedup=factor_interval(factors)).clear
    text = explained(8, **rates(draft=list(factors)))
    assert ("it pays." in text or "it does not pay" in text) == clear
    assert ("too close to call" in text) != clear


@pytest.mark.parametrize(
    ("adaptive", "fastest", "slowest"),
    [
        ([150.0, 149.0, 151.0], "0.75× the speed (clearly slower)", "clearly faster"),
        ([90.0, 40.0, 190.0], "0.45× the speed (too close to call)", "too close to call"),
        ([220.0, 219.0, 221.0], "1.10× the speed (clearly faster)", "clearly faster"),
    ],
)
def test_the_adaptive_window_is_set_beside_the_best_and_the_worst_fixed_one(
    adaptive: list[float], fastest: str, slowest: str
) -> None:
    """``four`` has the fastest repeat of all and the slowest: medians choose."""
    fixed = {"one": [100.0] * 3, "four": [300.0, 1.0, 120.0], "eight": [200.0] * 3}
    text = explained(10, **rates(**fixed, adaptive=adaptive))
    assert f"Compared with the fastest of the three fixed ones it gave {fastest}" in text
    times, clear = re.search(r"with the slowest (\S+)× \(([^)]*)\)", text).groups()
    assert float(times) == sorted(adaptive)[1] / 100
    assert clear == slowest


@pytest.mark.parametrize(
    ("longer", "said"),
    [
        ([1.09, 1.1, 1.11], "So a difference of this size is clear here."),
        ([0.8, 1.1, 1.6], "too close to call here. That does not mean that there is none."),
        ([0.9, 0.91, 0.92], "point the wrong way, which is noise."),
    ],
)
def test_a_known_difference_is_clear_only_where_the_pairs_show_it(longer: list[float], said: str) -> None:
    known = {"noise__one__ms": [1.0] * 3, "noise__truth__ratio": 1.1}
    text = explained(22, **known, noise__longer__ms=longer)
    assert said in text
    assert ("is clear here" in text) == ("clear here" in said)


@pytest.mark.parametrize(
    ("pauses", "said"),
    [
        ([10.0, 11.0, 9.0], "made it clearly shorter"),
        ([10.0, 200.0, 60.0], "too close"),
        ([210.0, 200.0, 220.0], "did not"),
    ],
)
def test_chunks_are_said_to_help_only_where_the_repeats_agree(pauses: list[float], said: str) -> None:
    text = explained(21, traffic__whole__worst_gap_ms=[100.0] * 3, traffic__chunked__worst_gap_ms=pauses)
    verdicts = ("made it clearly shorter", "too close to call here", "did not help")
    assert [one for one in verdicts if one in text] == [one for one in verdicts if one.startswith(said)]


FEWER, MORE, CLOSE = "clearly fewer requests", "That cannot last", "in time is too close to call"
NONE = "say nothing about goodput"


@pytest.mark.parametrize(
    ("busy", "too_busy", "said"),
    [
        ([3.0, 2.0, 2.5], [1.0, 0.0, 0.2], FEWER),
        ([1.0, 0.0, 1.0], [2.0, 1.3, 1.9], MORE),
        ([1.0, 3.0, 2.0], [2.0, 1.0, 2.5], CLOSE),
        ([0.0, 1.0, 2.0], [0.0, 2.0, 1.0], CLOSE),
        ([0.0] * 3, [0.0] * 3, NONE),
    ],
)
def test_goodput_is_said_to_fall_only_where_it_clearly_does(
    busy: list[float], too_busy: list[float], said: str
) -> None:
    figures = {"traffic__busy__goodput": busy, "traffic__too_busy__goodput": too_busy}
    shares = {"traffic__busy__good_share": busy, "traffic__too_busy__good_share": too_busy}
    text = explained(21, **figures, **shares)
    assert [one for one in (FEWER, MORE, CLOSE, NONE) if one in text] == [said]


@pytest.mark.parametrize(
    ("in_chunks", "pays"), [([1.4, 1.5, 1.6], True), ([0.7, 1.2, 1.6], False), ([0.5, 0.6, 0.55], False)]
)
def test_the_long_prompt_pays_only_where_it_waited_longer(in_chunks: list[float], pays: bool) -> None:
    text = explained(21, traffic__chunked__long_ttft_ms=in_chunks, traffic__whole__long_ttft_ms=[1.0] * 3)
    assert ("it is the long prompt that pays" in text) == pays


@pytest.mark.parametrize(("share", "noise"), [(1.03, True), (0.97, False)])
def test_more_than_the_most_is_said_to_be_noise(share: float, noise: bool) -> None:
    text = explained(21, traffic__too_busy__requests_per_second=[share] * 3)
    assert ("No load can give more than the most" in text) == noise


@pytest.mark.parametrize("kept", [1.0, 0.5])
def test_misses_at_the_light_load_are_called_noise(kept: float) -> None:
    assert ("there is noise" in explained(21, traffic__light__good_share=[kept] * 3)) == (kept < 0.9)


LARGER, SMALLER, NOISY = "gain was clearly larger with", "gain was clearly smaller with", "gained more is too close"


def test_text_chart_and_mark_give_the_same_statistic() -> None:
    """The median of the quotients by repeat, 12; the quotient of the medians is 24."""
    long = {"ttft_ms": [100.0, 200.0, 100.0], "itl_p50_ms": [10.0, 24.0, 40.0], "prompt_tokens": [100.0] * 3}
    found = measured(1, **{f"runs__long__{name}": values for name, values in long.items()})
    lesson = course()[1]
    assert "A generated token took 12.0× the time per prompt token" in " ".join(lesson.explain.fill(found).split())
    chart = next(view for view in lesson.front.observe if "generated token" in getattr(view, "bars", ()))
    assert chart.bars["generated token"].number(found) == lesson.front.predict.answer.number(found) == 12


NEAR, FAR, BEYOND = 0.8, 0.05, 1.4
WAITS = {  # what lessons 1 and 12 may say: by share of the roofline and by what binds
    1: ("So it is memory-bound here", "So it is bound by arithmetic here", "far below both", "could not be measured"),
    12: ("It waits for memory", "It waits for arithmetic", "far below both", "could not be measured"),
}


@pytest.mark.parametrize("number", WAITS)
@pytest.mark.parametrize(
    ("share", "bound", "said"),
    [(NEAR, 1, [0]), (NEAR, 2, [1]), (FAR, 0, [2]), (BEYOND, 0, [3]), (1.1, 0, [])],
)
def test_nothing_is_blamed_for_a_passs_time_unless_it_takes_most_of_it(
    number: int, share: float, bound: int, said: list[int]
) -> None:
    run = {1: "long", 12: "cached"}[number]
    found = {f"runs__{run}__roofline_fraction": [share] * 3, f"runs__{run}__bound": [bound] * 3}
    text = explained(number, **found)
    assert [place for place, words in enumerate(WAITS[number]) if words in text] == said
    assert "at least" not in text.partition("How near")[2].partition("What each")[0]  # no bound that a pass may beat


@pytest.mark.parametrize(
    ("draft", "lookup", "said"),
    [([2.0, 2.1, 2.2], [1.5, 1.4, 1.6], "The draft model"), ([2.0, 1.1, 2.2], [1.9, 2.0, 1.8], "too close to call")],
)
def test_the_fastest_drafter_is_the_same_in_the_mark_and_in_the_text(
    draft: list[float], lookup: list[float], said: str
) -> None:
    found = measured(11, **rates(draft=draft, lookup=lookup))
    text = " ".join(course()[11].explain.fill(found).split())
    predict = course()[11].front.predict
    assert said in predict.options[right_one(predict, found)].text
    assert (f"{said} was clearly the fastest" in text) or said in text
    assert ("clearly the fastest" in text) == (said == "The draft model")


def test_no_time_is_taken_from_runs_that_record_distributions() -> None:
    """Recording takes time, and verdicts then come from torch instead of C."""
    for number, lesson in course().items():
        (path,) = FOLDER.glob(f"{number:02}-*.md")
        runs = lesson.front.preset.runs
        for name in runs.settings if runs else ():
            if runs.how(name).logprobs:
                of_time = rf"runs\.{name}\.(\w*_ms|tokens_per_second|draft_cost|pass_ratio|roofline_fraction)"
                assert not re.search(of_time, path.read_text("utf-8"))


@pytest.mark.parametrize(("number", "name"), [(8, "draft"), (10, "four")])
@pytest.mark.parametrize(("wide", "fits"), [(1.8, True), (9.0, False), (0.4, False)])
def test_times_of_passes_that_contradict_the_speed_are_said_to(number: int, name: str, wide: float, fits: bool) -> None:
    """On a busy machine: 3.5 tokens for 4 x 0.15 + 9 passes would be 0.36 times the speed."""
    round_of_four = {"round_tokens": [3.5] * 3, "gamma": [4.0] * 3, "draft_cost": [0.15] * 3, "pass_ratio": [wide] * 3}
    figures = {f"runs__{name}__{key}": values for key, values in round_of_four.items()}
    text = explained(number, **figures, **rates(**{name: [1.5] * 3}))
    assert ("contradict the speed" in text) != fits
    assert ("faster than a pass over one token, so this is noise" in text) == (wide < 1)


@pytest.mark.parametrize(("latency", "fits"), [(4.4, True), (12.8, False), (1.5, False)])
def test_a_latency_that_does_not_fit_the_throughput_is_said_to_be_noise(latency: float, fits: bool) -> None:
    """Sixteen users at 12.8 times the latency of one get 16 / 12.8 times its tokens."""
    slower = {"batches__sixteen__itl_p50_ms": [latency] * 3}
    text = explained(7, **rates("batches", sixteen=[3.6] * 3), **slower)
    assert ("does not fit the throughput" in text) != fits


@pytest.mark.parametrize(("passes", "speed", "noise"), [(1.0, 0.78, True), (1.0, 0.97, False), (0.8, 0.78, False)])
def test_a_lookup_that_found_nothing_is_not_said_to_cost_much(passes: float, speed: float, noise: bool) -> None:
    found = measured(11, **rates(lookup=[speed] * 3), runs__lookup__target_passes_per_token=[passes] * 3)
    see = course()[11].front.change.see.fill(found | {"before": measured(11)})
    assert ("most of this change is noise" in see) == noise


@pytest.mark.parametrize(("after", "changed"), [(0.52, False), (0.3, True)])
def test_a_change_of_speed_is_put_down_to_acceptance_only_where_that_changed(after: float, changed: bool) -> None:
    before, now = (measured(12, runs__draft__draft_acceptance_rate=[rate] * 3) for rate in (0.51, after))
    see = course()[12].front.change.see.fill(now | {"before": before})
    assert ("would be noise" in see) != changed


@pytest.mark.parametrize(("high", "misses"), [(0.98, True), (1.02, False)])
def test_an_interval_that_misses_the_truth_is_said_to(high: float, misses: bool) -> None:
    text = explained(22, noise__resampled__same_low=0.94, noise__resampled__same_high=high)
    assert ("misses the truth, which is one" in text) == misses


@pytest.mark.parametrize(("cost", "decides"), [(0.25, True), (0.03, False)])
def test_a_head_that_costs_less_than_its_layer_decides_nothing(cost: float, decides: bool) -> None:
    assert ("Here cost decides as well" in explained(13, runs__head__draft_cost=[cost] * 3)) == decides


@pytest.mark.parametrize(("cost", "noise"), [(0.126, True), (0.22, False)])
def test_a_head_with_a_table_is_not_said_to_cost_less_than_one_without(cost: float, noise: bool) -> None:
    costs = {f"runs__{name}__draft_cost": [value] * 3 for name, value in {"parallel": 0.21, "corrected": cost}.items()}
    assert ("its lower cost is noise" in explained(13, **costs)) == noise


@pytest.mark.parametrize(("pairs", "misses"), [([1.04, 1.05, 1.06], True), ([0.95, 1.05, 1.02], False)])
def test_a_disturbed_interval_that_misses_the_truth_is_said_to(pairs: list[float], misses: bool) -> None:
    known = measured(22, noise__one__ms=[1.0] * 3, noise__same__ms=pairs)
    assert ("It misses the truth" in course()[22].front.change.see.fill(known | {"before": known})) == misses


@pytest.mark.parametrize(("paged", "noise"), [(2.06, True), (0.97, False)])
def test_a_gain_from_paging_for_one_user_is_called_noise(paged: float, noise: bool) -> None:
    assert ("its factor here is noise" in explained(12, **rates(paged=[paged] * 3))) == noise


@pytest.mark.parametrize(("greedy", "said"), [(1.7, "Greedy draft."), (2.95, "The lowest two are too close to call.")])
def test_the_rule_with_the_fewest_tokens_is_named_only_if_it_is_apart(greedy: float, said: str) -> None:
    tokens = {"standard": 3.0, "block": 3.1, "greedy_draft": greedy, "typical": 3.3}
    found = measured(14, **{f"runs__{name}__round_tokens": [value] * 2 for name, value in tokens.items()})
    predict = course()[14].front.predict
    assert predict.options[right_one(predict, found)].text == said
