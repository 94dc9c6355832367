"""A verdict's numbers as they are printed: whoever works it out from them finds what was decided."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lab.trace.verdict_rounding import RoundedVerdict, round_verdict

CHANCE = st.floats(1e-6, 1)


@st.composite
def verdicts(draw: st.DrawFn) -> tuple[float, float, float]:
    """p, q and u: any, or u close to where the verdict turns."""
    p, q = draw(CHANCE), draw(CHANCE)
    closer = st.floats(1e-9, 0.1).flatmap(lambda by: st.sampled_from([1 - by, 1 + by])).map(lambda by: by * p / q)
    u = draw(st.one_of(st.floats(1e-6, 1, exclude_max=True), closer))
    assume(u < 1 - 1e-11)  # nearer, as next to where it turns, fifteen digits do not tell them apart
    assume(abs(u * q / p - 1) > 1e-11)
    return p, q, u


def judged(p: float, q: float, u: float) -> RoundedVerdict:
    return round_verdict(p, q, u, accepted=u * q < p)


@given(verdicts())
def test_what_a_reader_works_out_is_what_was_decided(numbers: tuple[float, float, float]) -> None:
    p, q, u = numbers
    found, accepted = judged(p, q, u), u * q < p
    written = [float(f"{value:.15g}") for value in (found.p, found.q, found.u)]
    assert written == [found.p, found.q, found.u] == pytest.approx([p, q, u], rel=0.005)
    assert (found.u * found.q < found.p) == accepted
    assert (found.u < found.p / found.q) == accepted
    assert (found.product < found.p) == (found.u < found.chance) == accepted
    assert found.product != found.p
    assert found.u != found.chance
    assert found.product == pytest.approx(found.u * found.q, rel=0.005)
    assert found.ratio == pytest.approx(found.p / found.q, rel=0.005)


@pytest.mark.parametrize(
    ("p", "q", "u", "shown"),
    [
        (0.4, 0.5, 0.2, RoundedVerdict(3, p=0.4, q=0.5, u=0.2, product=0.1, ratio=0.8)),
        (0.3, 0.1, 0.99995, RoundedVerdict(5, p=0.3, q=0.1, u=0.99995, product=0.099995, ratio=3.0)),
        # Three digits would make 0.844 times 0.541 less than 0.457, and four the two sides equal.
        (0.45661, 0.54083, 0.84433, RoundedVerdict(5, p=0.45661, q=0.54083, u=0.84433, product=0.45664, ratio=0.84428)),
        # The most that a float has.
        (
            0.123456789012345,
            1.0,
            0.123456789012344,
            RoundedVerdict(
                15, 0.123456789012345, 1.0, 0.123456789012344, product=0.123456789012344, ratio=0.123456789012345
            ),
        ),
    ],
)
def test_there_are_three_digits_or_as_many_as_it_takes(p: float, q: float, u: float, shown: RoundedVerdict) -> None:
    assert judged(p, q, u) == shown
