"""The lessons' expression language, what it computes and what it refuses; and how texts write its numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.measure.interval import factor_interval
from lessons.expressions import FUNCTIONS, Expression, ExpressionError
from lessons.template import UNITS, WRITE, Template, significant

FIGURES = {
    "runs": {
        "slow": {"ms": [8.0, 20.0, 9.0], "words": "slow"},
        "fast": {"ms": [2.0, 10.0, 3.0], "words": "fast"},
    },
    "none": [0.0, 0.0, 0.0],
    "growth": {
        "spread": [2.0, 40.0, 3.0],
        "near": [8.0, 9.0, 8.5],
        "lengths": [1.0, 2.0, 3.0, 4.0],
        "ms": [2.0, 8.0, 18.0, 32.0],
    },
    "never": [],
    "zero": 0.0,
    "x": 3,
}
FACTOR = factor_interval([4, 2, 3])
PIECES = [*FUNCTIONS, *"()+-*/<>=.,'0123x ", "runs", " if ", "not "]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3 - 4 / 8", 6.5),
        ("-x", -3),
        ("runs.slow.ms + 1", 10.0),  # the median of the repeats
        ("ratio(runs.slow.ms, runs.fast.ms)", 3.0),  # repeat by repeat: 4, 2, 3
        ("ratio(runs.slow.ms, growth.lengths)", 3.6),  # not as many on both sides: 9 / 2.5, of the medians
        ("lowest_ratio(runs.slow.ms, runs.fast.ms)", 2.0),
        ("highest_ratio(runs.slow.ms, runs.fast.ms)", 4.0),
        ("ratio_low(runs.slow.ms, runs.fast.ms)", pytest.approx(FACTOR.low)),
        ("ratio_high(runs.slow.ms, runs.fast.ms)", pytest.approx(FACTOR.high)),
        ("ratio_low(4, 2)", 2.0),  # once only: how sure that is cannot be told
        ("ratios(runs.slow.ms, runs.fast.ms)", [4.0, 2.0, 3.0]),
        ("highest(x, runs.slow.ms, runs.fast.ms)", [8.0, 20.0, 9.0]),  # by the medians 3, 9 and 3, and in its order
        ("lowest(runs.fast.ms, 4)", [2.0, 10.0, 3.0]),  # though one repeat is above 4
        ("clearly(runs.slow.ms, runs.fast.ms, 'more', 'less', 'neither')", "more"),
        ("clearly(runs.fast.ms, runs.slow.ms, 'more', 'less', 'neither')", "less"),
        ("clearly(runs.slow.ms, 9, 'more', 'less', 'neither')", "neither"),  # the medians are the same
        ("clearly(runs.slow.ms, growth.spread, 'more', 'less', 'neither')", "neither"),  # 4, 0.5 and 3
        ("apart(growth.near, none, 'more', 'less', 'neither')", "more"),
        ("apart(none, growth.near, 'more', 'less', 'neither')", "less"),
        ("apart(growth.spread, none, 'more', 'less', 'neither')", "neither"),
        ("apart(none, none, 'more', 'less', 'neither')", "neither"),
        ("runs.slow.ms / runs.fast.ms", 3.0),
        ("near(growth.lengths, growth.ms, 2)", 13.0),  # with so few points, the nearest ten are all of them
        ("tokens_per_round(0.5, 2)", 1.75),
        ("speedup(1, 3, 0)", 4.0),
        ("1 < x <= 3 and not x == 4", True),
        ("'much' if ratio(runs.slow.ms, runs.fast.ms) > 2 else 'little'", "much"),
        ("runs.slow.words != runs.fast.words", True),
        ("zero > 0 or x > 0", True),
    ],
)
def test_expressions_are_computed(text: str, value: object) -> None:
    assert Expression(text).value(FIGURES) == pytest.approx(value)


REFUSED = """
__import__('os').system('true') | runs.__class__ | runs.slow.ms.__len__() | ().__class__.__bases__ | [].append(1)
[1, 2] | {1: 2} | (1, 2) | runs['slow'] | runs.slow.ms[0] | lambda: 1 | [x for x in growth.ms] | f'{x}' | x := 1 | x = 1
import os | x ** 9 | x % 2 | 9 << 9 | ~x | x if x | open('/etc/passwd') | ratio(a=1, b=2) | ratio(*growth.ms) | x.y()
x is 3 | 3 in growth.ms | None | 1j | b'1' | ... | x; x | await x
"""


def test_anything_outside_the_language_is_refused_before_evaluation() -> None:
    for text in (*REFUSED.replace("\n", " | ").split(" | "), "(" * 300, "x" * 1500, "x\0"):
        with pytest.raises(ExpressionError):
            Expression(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runs.none.ms", "runs.none.ms was not measured"),
        ("runs.slow", "not a figure but has some: ms, words"),
        ("x / zero", "division by zero"),
        ("ratio(x, zero)", "division by zero"),
        ("runs.slow.words + 1", "a word stands where a number is wanted"),
        ("x if x else x", "neither true nor false"),
        ("median(x)", "several numbers are wanted"),
        ("median(never)", "several numbers are wanted"),
        ("ratio(x)", "missing"),
        ("highest()", "cannot be computed"),
        ("near(growth.ms, runs.slow.ms, 1)", "cannot be computed"),
        ("1e308 * 1e308", "too large"),
        ("tokens_per_round(1, 1e300)", "0 to 64 draft tokens"),
    ],
)
def test_errors_in_computing_are_explained(text: str, said: str) -> None:
    with pytest.raises(ExpressionError, match=said):
        Expression(text).number(FIGURES)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@given(st.text(max_size=60) | st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_computed_or_refused(text: str) -> None:
    try:
        value = Expression(text).value(FIGURES)
    except ExpressionError:
        return
    assert isinstance(value, (bool, int, float, str, list))


def test_an_expression_knows_which_figures_it_uses_and_fills_a_template() -> None:
    assert Expression("ratio(a.b, c.d) if e.f > 1 else -g").names == ("e.f", "a.b", "c.d", "g")
    text = Template("It took {{ runs.slow.ms | ms }}, {{ratio(runs.slow.ms,runs.fast.ms)|times}} as long: {{ x }}.")
    assert text.fill(FIGURES) == "It took 9.00 ms, 3.00× as long: 3."
    with pytest.raises(ExpressionError, match="there is no unit 'metres'; there are number"):
        Template("{{ x | metres }}")
    with pytest.raises(ExpressionError, match="was not measured"):
        Template("{{ y }}").fill(FIGURES)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It was 5.4× as fast, or 40%.", ["5.4", "40%"]),
        ("It took 12 ms; later 1,024.", ["12", "1,024"]),
        ("It was twice as fast, then three times, then ten-fold.", ["twice", "three times", "ten-fold"]),
        ("It was {{ 5.4 | times }} as fast.", ["5.4"]),
        ("INT8 on an H100 with FP16, Llama 7B; {{ x | times }}", []),
        ("At $n = 3$, $$n^2$$ and `x = 3`, [about 295 operations](https://a.b/c?d=1).", []),
        ("One pass gives one token (lesson 1, or lessons 4, 5 and 10). In lesson 4 it was 5 ms.", ["5"]),
    ],
)
def test_hard_coded_numbers_are_found(text: str, found: list[str]) -> None:
    assert Template(text).hard_coded() == found


def test_numbers_are_written_with_three_digits_and_their_unit() -> None:
    for value, text in (
        *((0, "0"), (1, "1.00"), (5.4321, "5.43"), (54.321, "54.3"), (543.21, "543"), (9.999, "10.0")),
        *((999.9, "1,000"), (0.05, "0.05"), (0.012345, "0.0123"), (-2.5, "−2.50"), (1234567, "1,230,000")),
        (math.nan, "–"),
    ):
        assert significant(value) == text
    for unit, value, text in (
        *(("times", 5.4, "5.40×"), ("percent", 0.642, "64.2%"), ("count", 15.9, "16")),
        *(("ms", 0.48, "0.48 ms"), ("ms", 999.4, "999 ms"), ("ms", 999.7, "1.00 s")),
        *(("bytes", 327680, "320 KiB"), ("bytes", 10 * 2**30, "10.0 GiB"), ("bytes", 12, "12.0 B")),
        *(("tokens", 1, "1 token"), ("tokens", 1024, "1,024 tokens")),
        *(("digits", 0.45661, "0.45661"), ("digits", 0.0000024, "0.0000024"), ("digits", 12300.0, "12,300")),
    ):
        assert WRITE[unit](value) == text


@given(st.floats(-1e300, 1e300), st.sampled_from(UNITS))
def test_any_number_can_be_written(value: float, unit: str) -> None:
    assert WRITE[unit](value)
