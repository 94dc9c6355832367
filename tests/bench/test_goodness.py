"""The goodness-of-fit test is neither too strict nor too lenient."""

from __future__ import annotations

import math

import pytest
import torch

from lab.measure.goodness_of_fit import g_test


def drawn(p: torch.Tensor, times: int, seed: int) -> torch.Tensor:
    tokens = torch.multinomial(p, times, replacement=True, generator=torch.Generator().manual_seed(seed))
    return torch.bincount(tokens, minlength=len(p))


@pytest.mark.parametrize("least", [0.0, 10.0])
def test_correct_samples_fail_as_often_as_they_should(least):
    """Of 400 tests at 5% some 20 fail, with a standard deviation of 4.4."""
    p = torch.softmax(torch.randn(12, generator=torch.Generator().manual_seed(1)), 0)
    failed = sum(g_test(drawn(p, 2000, seed), p, least=least) < 0.05 for seed in range(400))
    assert 5 <= failed <= 40


def test_wrong_samples_are_noticed_if_there_are_enough():
    p, other = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.45, 0.35, 0.2])
    assert g_test(drawn(other, 20_000, 0), p) < 1e-6
    assert g_test(drawn(other, 20, 0), p) > 1e-3


def test_impossible_outcomes_are_noticed_and_rare_ones_are_pooled():
    p = torch.tensor([0.5, 0.5, 0.0])
    assert g_test(torch.tensor([10, 10, 1]), p) == 0
    assert g_test(torch.tensor([10, 10, 0]), p) == pytest.approx(1)
    rare = torch.cat([torch.tensor([0.9]), torch.full((1000,), 1e-4)])
    assert g_test(drawn(rare, 5000, 0), rare, least=10) > 1e-3
    assert g_test(torch.tensor([5000] + [0] * 1000), rare, least=10) < 1e-6  # together they should occur 500 times
    assert g_test(torch.tensor([7]), torch.tensor([1.0])) == 1


def test_the_degrees_of_freedom_are_one_less_than_the_outcomes():
    """The tails of chi-square with one and with two are known in closed form."""
    statistic = 2 * (60 * math.log(60 / 50) + 40 * math.log(40 / 50))
    assert g_test(torch.tensor([60, 40]), torch.full((2,), 1 / 2)) == pytest.approx(math.erfc(math.sqrt(statistic / 2)))
    statistic = 2 * sum(seen * math.log(seen / 50) for seen in (60, 50, 40))
    assert g_test(torch.tensor([60, 50, 40]), torch.full((3,), 1 / 3)) == pytest.approx(
        math.exp(-statistic / 2), rel=1e-5
    )
