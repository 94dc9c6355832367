"""The formulas of speculation, and the figures from runs that they are compared with."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.config import EngineConfig, SamplingParams
from lab.engine.adaptive_window import tokens_per_round
from lab.measure.measuring import Spread
from lab.measure.theory import speculated, speedup, tree_tokens, without_speculation
from lab.trace.events import StepTimed, Verified
from lab.trace.run import Run
from tests.visualize.scripted import ScriptedEngine


def run(
    max_tokens: int = 80, seed: int = 1, temperature: float = 1.0, prompt: str = "Once upon a time", **config: object
) -> Run:
    sampling = SamplingParams(max_tokens=max_tokens, seed=seed, temperature=temperature)
    return Run(ScriptedEngine().stream(prompt, EngineConfig(**config), sampling))


@given(st.floats(0, 0.999), st.integers(1, 16), st.floats(0, 2))
def test_the_speed_up_is_theorem_3_8(a: float, gamma: int, c: float) -> None:
    assert speedup(1, 4, 0.25, pass_ratio=1.5) == 2  # all accepted: 5 tokens for 4 x 0.25 + 1.5
    assert speedup(a, gamma, c) == pytest.approx((1 - a ** (gamma + 1)) / ((1 - a) * (gamma * c + 1)))


def test_figures_of_runs_equal_those_counted_by_hand() -> None:
    runs = [run(seed=seed, speculative="draft", num_speculative_tokens=3) for seed in (1, 2)]
    plain = [run(seed=seed) for seed in (1, 2)]
    found = speculated(runs, plain)
    whole = [
        {step.step for step in one.events if isinstance(step, StepTimed) and step.batch_tokens == 4} for one in runs
    ]
    verdicts = [
        event for one, steps in zip(runs, whole, strict=True) for event in one.events
        if isinstance(event, Verified) and event.step in steps
    ]  # fmt: skip
    kept = sum(event.accepted for event in verdicts)
    assert found.rounds == sum(map(len, whole))
    passes = {"decode", "verify"}
    assert found.passes == sum(
        isinstance(step, StepTimed) and step.step_kind in passes for one in runs for step in one.events
    )
    assert found.verified == tuple(sum(event.position == i for event in verdicts) for i in range(3))
    assert sum(found.accepted) == kept
    assert found.verified[1] == found.accepted[0]  # a proposal is verified if all before it were accepted
    assert found.acceptance == kept / len(verdicts)
    assert found.tokens == 1 + kept / sum(map(len, whole))
    # The scripted draft takes 0.7 ms per proposal, a pass 4 to 6 ms whatever its size.
    assert found.cost == pytest.approx(0.7 / 5, rel=0.1)
    assert found.pass_ratio == pytest.approx(1, rel=0.1)
    rates = [a.metrics.tokens_per_second / b.metrics.tokens_per_second for a, b in zip(runs, plain, strict=True)]
    assert found.speedup == Spread.of(rates)
    assert found.expected_tokens == pytest.approx(found.tokens, rel=0.25)
    assert found.expected_with_pass == pytest.approx(found.expected_speedup / found.pass_ratio, rel=0.1)


def test_a_repeat_with_the_same_seed_adds_times_but_no_verdicts() -> None:
    """Its verdicts are those of the first run: counted twice, they would make every interval too narrow. Its times are
    new."""
    config = {"speculative": "draft", "num_speculative_tokens": 3}
    plain = [run() for _ in range(3)]
    once = speculated([run(**config)], plain[:1])
    thrice = speculated([run(**config) for _ in range(3)], plain)
    assert (once.rounds, once.passes) == (thrice.rounds, thrice.passes)
    assert (thrice.verified, thrice.accepted, thrice.tokens) == (once.verified, once.accepted, once.tokens)
    slower = [replace_times(one, factor) for factor, one in enumerate([run(**config) for _ in range(3)], 1)]
    assert speculated(slower, plain).cost == pytest.approx(2 * once.cost, rel=0.1)

    def verified(*runs: Run) -> int:
        return sum(speculated(runs, plain).verified)

    first, other_seed, other_prompt = (
        run(**config),
        run(seed=2, **config),
        run(prompt="There was once a king", **config),
    )
    assert verified(first, other_seed, first) == verified(first) + verified(other_seed)
    assert verified(first, other_prompt, first) == verified(first) + verified(other_prompt)
    greedy = [run(seed=seed, temperature=0.0, **config) for seed in (1, 2)]
    assert verified(*greedy) == verified(greedy[0])


def replace_times(one: Run, factor: float) -> Run:
    """The same run, with the drafting of every step ``factor`` times as long."""
    return Run(
        replace(event, draft_ms=factor * event.draft_ms) if isinstance(event, StepTimed) else event
        for event in one.events
    )


def test_runs_the_theory_does_not_cover_are_left_out() -> None:
    """The last round proposes fewer tokens, as the run may not write more."""
    plain, short = [run()], run(max_tokens=3, speculative="draft", num_speculative_tokens=8)
    assert any(isinstance(event, Verified) for event in short.events)
    for runs in (plain, [short], [run(speculative="draft", adaptive_window=True)]):
        assert speculated(runs, plain) is None
    assert speculated([run(speculative="draft")], []) is None


def test_a_setting_is_compared_with_the_most_similar_one_without_speculation() -> None:
    def draft(**more: object) -> EngineConfig:
        return EngineConfig(speculative="draft", **more)

    configs = {
        "none": EngineConfig(kv_cache=False),
        "cache": EngineConfig(),
        "paged": EngineConfig(paged=True),
        "int8": EngineConfig(kv_dtype="int8"),
        "draft": draft(),
        "draft int8": draft(kv_dtype="int8", paged=True),
        "draft none": draft(kv_cache=False),
    }
    assert without_speculation("draft", configs) == "cache"
    assert without_speculation("draft int8", configs) == "int8", "the format matters more than the blocks"
    assert without_speculation("draft none", configs) == "none"
    del configs["none"]
    assert without_speculation("draft none", configs) is None


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=4), st.integers(0, 4))
def test_the_best_tree_is_the_best_of_all_trees(ranks: list[float], nodes: int) -> None:
    """By all trees of so many tokens: a token is a path of ranks, and stands below its parent."""
    ranks = sorted(ranks, reverse=True)

    def best(tree: frozenset[tuple[int, ...]], left: int) -> float:
        if not left:
            return sum(math.prod(ranks[rank] for rank in path) for path in tree)
        places = {(*path, rank) for path in tree for rank in range(len(ranks))} - tree
        return max(best(tree | {place}, left - 1) for place in places)

    assert math.isclose(tree_tokens(nodes, ranks), best(frozenset([()]), nodes), abs_tol=1e-9)
    assert math.isclose(tree_tokens(nodes, ranks[:1]), tokens_per_round(ranks[0], nodes))
