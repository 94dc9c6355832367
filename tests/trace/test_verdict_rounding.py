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


def verified(p: float, q: float, u: float) -> RoundedVerdict:
    return round_verdict(p, q, u, accepted=u * q < p)


@given(verdicts())
def test_what_a_reader_works_out_is_what_was_decided(numbers: tuple[float, float, float]) -> None:
    p, q, u = numbers
    found, accepted = verified(p, q, u), u * q < p
    written = [float(f"{value:.15g}") for value in (found.p, found.q, found.u)]
    assert written == [found.p, found.q, found.u] == pytest.approx([p, q, u], rel=0.005)
    assert (found.u * found.q < found.p) == accepted
    assert (found.u < found.p / found.q) == accepted
    assert (found.product < found.p) == (found.u < found.chance) == accepted
    assert found.product != found.p
    assert found.u != found.chance
    assert found.product == pytest.approx(found.u * found.q, rel=0.005)
    assert found.ratio == pytest.approx(found.p / found.q, rel=0.005)
