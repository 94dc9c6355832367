"""Few cases that cover every pair of parameters' values: most faults need no more than two values to show."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product

import pytest


def pairwise(**values: Iterable) -> list[tuple]:
    """Cases, a value of each parameter, in which any two values of two parameters meet at least once. Greedy."""
    options = [list(some) for some in values.values()]
    places, sizes = range(len(options)), [range(len(some)) for some in options]
    left = {((a, i), (b, j)) for a, b in combinations(places, 2) for i, j in product(sizes[a], sizes[b])}
    cases = []
    while left:
        case = dict(min(left))
        for place in places:
            if place not in case:
                met = [
                    len(left.intersection(combinations(sorted([*case.items(), (place, i)]), 2))) for i in sizes[place]
                ]
                case[place] = met.index(max(met))
        left.difference_update(combinations(sorted(case.items()), 2))
        cases.append(tuple(options[place][case[place]] for place in places))
    return cases


def parametrize_pairwise(**values: Iterable) -> pytest.MarkDecorator:
    """``pytest.mark.parametrize`` with the cases of ``pairwise``."""
    return pytest.mark.parametrize(list(values), pairwise(**values))
