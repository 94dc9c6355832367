"""The adaptive window: the rule against brute force, and its behaviour with scripted costs and verdicts."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from types import SimpleNamespace

import pytest

from lab import Run
from lab.config import EngineConfig, SamplingParams
from lab.engine import drafter
from lab.engine.adaptive_window import PROBE_EVERY, AdaptiveWindow, StepCosts, TheilSen, best_window, tokens_per_round
from lab.trace import recorder
from lab.trace.events import Committed, Event, Proposed, StepTimed, Verified, WindowChanged
from lab.util import step_timer as clock
from tests import tiny_models

PROPOSAL, PASS, TOKEN = 0.9, 6.5, 0.45  # milliseconds: about what the embedded pair takes on one CPU core
MOST = 8


def round_ms(gamma: int, sequences: int = 1) -> float:
    return gamma * PROPOSAL + PASS + TOKEN * sequences * (gamma + 1)


def rate(acceptance: float, gamma: int, sequences: int = 1) -> float:
    """Expected tokens per millisecond of one sequence."""
    return tokens_per_round(acceptance, gamma) / round_ms(gamma, sequences)


class Script:
    """Rounds of one adaptive window with known costs and acceptance, in noisy times."""

    def __init__(self, seed: int, *, noise: float = 0.1, sequences: int = 1, around: float = 0.0) -> None:
        self.window, self.costs, self.drafting = AdaptiveWindow(MOST, adaptive=True), StepCosts(), TheilSen()
        self.gammas: list[int] = []
        self._random = random.Random(seed)
        self._noise, self._sequences, self._around = noise, sequences, around

    def run(self, acceptance: float, rounds: int) -> list[int]:
        """The windows of these rounds."""
        for _ in range(rounds):
            gamma, size = self.window.gamma, self._sequences * (self.window.gamma + 1)
            self.gammas.append(gamma)
            luck = itertools.takewhile(lambda _: self._random.random() < acceptance, range(gamma))
            accepted = sum(1 for _ in luck)
            passed, around = self._slowed(PASS + TOKEN * size), self._slowed(self._around * size)
            self.costs.observe(size, passed, around)
            if gamma:
                self.drafting.observe(gamma, self._slowed(PROPOSAL * gamma))
            self.window.observe(
                accepted, min(accepted + 1, gamma), self._sequences, self._sequences, self.costs, self.drafting
            )
        return self.gammas[-rounds:]

    def _slowed(self, ms: float) -> float:
        return ms * max(0.3, self._random.gauss(1, self._noise))


# -- the rule --------------------------------------------------------------------------------


def test_the_best_window_is_what_brute_force_finds():
    """Sums over every outcome of a round, by its probability, instead of using the closed form."""
    draw = random.Random(0).uniform
    for _ in range(300):
        acceptance, proposal, constant, token = draw(0, 1), draw(0.01, 5), draw(1, 20), draw(0, 3)
        most = 6

        def cost(gamma, proposal=proposal, constant=constant, token=token):
            return gamma * proposal + constant + token * (gamma + 1)

        rates = []
        for gamma in range(most + 1):
            expected = 0.0
            for verdicts in itertools.product((True, False), repeat=gamma):
                chance = 1.0
                for right in verdicts:
                    chance *= acceptance if right else 1 - acceptance
                expected += chance * (1 + len(list(itertools.takewhile(bool, verdicts))))
            rates.append(expected / cost(gamma))
        chosen = best_window(acceptance, most, cost)
        assert rates[chosen] == pytest.approx(max(rates))


def test_a_fixed_window_stays():
    window, costs, drafting = AdaptiveWindow(5, adaptive=False), StepCosts(), TheilSen()
    for _ in range(50):
        costs.observe(6, 10.0, 0.0)
        drafting.observe(5, 50.0)
        assert not window.observe(0, 1, 1, 1, costs, drafting)
    assert window.gamma == 5


# -- how it settles --------------------------------------------------------------------------


@pytest.mark.parametrize("sequences", [1, 8])
@pytest.mark.parametrize("acceptance", [0.02, 0.3, 0.5, 0.7, 0.85, 0.95])
def test_the_window_settles_where_theory_says(acceptance, sequences):
    """At the true acceptance rate, its windows are expected to be nearly as fast as the best one.

    The mean share over 20 scripts of 200 rounds after 100. With these seeds it was 0.957 at worst. Between
    scripts it spread by at most 0.024, so the mean of 20 by 0.0054: 0.93 is five of those below. It can
    fail: no single window passes (``test_no_fixed_window_is_that_good_everywhere``).
    """
    best = max(rate(acceptance, gamma, sequences) for gamma in range(MOST + 1))
    shares = []
    for seed in range(20):
        script = Script(seed, sequences=sequences)
        script.run(acceptance, 100)
        gammas = script.run(acceptance, 200)
        shares.append(statistics.mean(rate(acceptance, gamma, sequences) for gamma in gammas) / best)
    assert statistics.mean(shares) > 0.93


def test_costs_around_a_pass_count():
    """Verifying and reporting one takes as long as twenty tokens in a pass: then one proposal is as good as none, and
    three are not the best."""
    acceptance, around = 0.7, 20 * TOKEN
    assert max(range(MOST + 1), key=lambda gamma: rate(acceptance, gamma)) >= 3
    settled = []
    for seed in range(20):
        script = Script(seed, around=around)
        script.run(acceptance, 100)
        settled.append(statistics.mean(script.run(acceptance, 100)))
    assert statistics.mean(settled) < 1.5


def test_an_engine_measures_the_time_of_its_rounds(monkeypatch):
    """Reporting a proposal takes five milliseconds, like reporting a token, and many times a pass of this tiny model;
    every second proposal is right. Then no proposals are better than eight."""
    now = [0.0]

    def passes() -> float:
        now[0] += 20e-6
        return now[0]

    def slowly(owner: int, seconds: float, event: Event) -> None:
        if isinstance(event, Proposed | Committed):
            now[0] += 0.005

    engine = tiny_models.engine(on_event=slowly)
    engine.generate("The wolf", sampling=SamplingParams(max_tokens=2))  # measures the device, by the real clock
    for module in (clock, recorder):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=passes))
    draft_token = {"speculative": "synthetic", "synthetic_acceptance_rate": 0.5, "num_speculative_tokens": MOST}
    config = EngineConfig(**draft_token, adaptive_window=True)
    run = engine.generate("The wolf", config, SamplingParams(max_tokens=60, ignore_eos=True))
    windows = [event.target_tokens - 1 for event in run.events if isinstance(event, StepTimed)][1:]
    assert windows[0] == MOST
    assert statistics.mean(windows[len(windows) // 2 :]) < 1.5


def test_the_window_closes_for_a_worthless_draft_and_reopens_for_a_good_one():
    """Acceptance goes from 0.85 to 0.02 and back, with 40 seeds: it closed in at most 37 rounds and reopened in at
    most 72."""
    fell, rose = [], []
    for seed in range(40):
        script = Script(seed)
        assert statistics.mean(script.run(0.85, 100)[50:]) > 3
        fell.append(next((i for i, gamma in enumerate(script.run(0.02, 150)) if gamma == 0), 150))
        rose.append(next((i for i, gamma in enumerate(script.run(0.85, 200)) if gamma >= 3), 200))
    assert max(fell) < 80
    assert max(rose) < 4 * PROBE_EVERY


def test_a_drafter_that_proposes_nothing_is_not_taken_for_a_worthless_one():
    """A lookup finds nothing before the text repeats itself. Until then, only plain passes are measured."""
    window, costs = AdaptiveWindow(MOST, adaptive=True), StepCosts()
    for _ in range(100):
        costs.observe(1, PASS + TOKEN, 0.0)
        assert not window.observe(0, 0, 1, 1, costs, TheilSen())
    dear = TheilSen()
    dear.observe(MOST, 1000 * PASS)  # nor later, whatever a proposal would have cost
    assert not window.observe(0, 0, 1, 1, costs, dear)
    assert window.gamma == MOST


def test_a_worthless_draft_is_probed_only_now_and_then():
    script = Script(0)
    script.run(0.0, 50)
    gammas = script.run(0.0, 10 * PROBE_EVERY)
    assert set(gammas) == {0, 1}
    assert 10 <= sum(gammas) <= len(gammas) / 10


def test_the_window_does_not_flap():
    """With 10% noise in all times and random verdicts, it changes less than once in 20 rounds on average."""
    for acceptance in (0.5, 0.7, 0.9):
        changes = []
        for seed in range(20):
            script = Script(seed)
            script.run(acceptance, 50)
            gammas = script.run(acceptance, 400)
            changes.append(sum(a != b for a, b in itertools.pairwise(gammas)))
        assert statistics.mean(changes) < 20


@pytest.mark.parametrize("cached", [True, False])
def test_costs_are_taken_from_usual_rounds_only(monkeypatch, cached):
    """Left out are prefills, and proposals for which the draft first had to catch up on text written without it.
    Without a cache it reads everything in every round."""
    seen = []
    scripted = iter([3, 0, 0, 0, 3, 3, 3])
    monkeypatch.setattr(StepCosts, "observe", lambda self, tokens, *times: seen.append([tokens, 0]))

    class Seen(TheilSen):
        def observe(self, size: int, ms: float) -> None:
            seen[-1][1] = size

    monkeypatch.setattr(drafter, "TheilSen", Seen)

    def follow(window: AdaptiveWindow, *_: object) -> bool:
        window.gamma = next(scripted, 0)
        return False

    monkeypatch.setattr(AdaptiveWindow, "observe", follow)
    config = EngineConfig(kv_cache=cached, speculative="draft", num_speculative_tokens=2, adaptive_window=True)
    prompt = "The king and the queen had a daughter"
    tiny_models.engine("llama", "good").generate(prompt, config, SamplingParams(max_tokens=60, ignore_eos=True))
    assert [window for _, window in seen[:8]] == [2, 3, 0, 0, 0, 0 if cached else 3, 3, 3]
    if cached:
        assert [tokens for tokens, _ in seen[:8]] == [3, 4, 1, 1, 1, 4, 4, 4]


def test_a_pass_size_that_was_never_timed_is_reported_without_a_time():
    """The first try is based on an assumption, not on a measurement."""
    config = EngineConfig(speculative="draft", adaptive_window=True)
    run = tiny_models.engine("llama", "good").generate("The king", config, SamplingParams(max_tokens=40))
    first, *later = [event for event in run.events if isinstance(event, WindowChanged)]
    assert (first.gamma, first.verify_ms) == (0, None)
    assert all(event.verify_ms > 0 for event in later)
    assert Run.of(json.loads(run.to_json())).events == run.events


def test_a_window_learns_from_the_draft_tokens_that_were_verified(monkeypatch):
    seen = []
    monkeypatch.setattr(AdaptiveWindow, "observe", lambda _, accepted, verified, *__: seen.append([accepted, verified]))
    config = EngineConfig(speculative="draft", num_speculative_tokens=4)
    sampling = SamplingParams(max_tokens=40, temperature=1.0, seed=2, ignore_eos=True)
    run = tiny_models.engine("llama", "good").generate("The king", config, sampling)
    verdicts = [event for event in run.events if isinstance(event, Verified)]
    by_step = [list(some) for _, some in itertools.groupby(verdicts, key=lambda event: event.step)]
    reported = [[sum(event.accepted for event in some), len(some)] for some in by_step]
    assert seen == reported[: len(seen)]
    assert len(seen) >= len(reported) - 1  # a round that ends the text teaches nothing any more
    assert any(accepted < verified < 4 for accepted, verified in seen)
