"""What lessons measure: the distributions of the rules, many requests, and the figures of a run."""

from __future__ import annotations

import functools
import re
import threading
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from lab import Engine, load_engine
from lab.config import EngineConfig, SamplingParams
from lab.measure.theory import speculated
from lab.trace.run import Run
from lessons.course import course
from lessons.experiments.base import whole
from lessons.experiments.batches import Batches
from lessons.experiments.rules import RULES, Rules, by_rule, law_of, moved, parts_of, variation
from lessons.experiments.runs import Runs, figures, figures_of
from lessons.marking import right_answer
from tests import tiny_models
from tests.visualize.conftest import script

pytestmark = pytest.mark.slow


@st.composite
def distributions(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    words = draw(st.integers(2, 8))
    weights = st.lists(st.floats(0.01, 1), min_size=words, max_size=words)
    p, q = (torch.tensor(draw(weights), dtype=torch.float64) for _ in range(2))
    return p / p.sum(), q / q.sum()


@given(distributions())
def test_by_calculation_every_rule_but_redrawing_from_p_is_exact(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    p, q = pair
    law = {rule: law_of(rule, p, q) for rule in RULES}
    for rule, (distribution, _) in law.items():
        assert distribution.sum().item() == pytest.approx(1)
        if rule != "redrawn_from_p":
            torch.testing.assert_close(distribution, p)
    assert law["residual"][1] == law["redrawn_from_p"][1] == pytest.approx(torch.minimum(p, q).sum().item())
    assert law["without_q"][1] == pytest.approx((p * q).sum().item())
    # Accepted words have min(p, q) already; redrawing from p adds to that, which leaves p by this much.
    rejected = 1 - torch.minimum(p, q).sum()
    assert variation(law["redrawn_from_p"][0], p) == pytest.approx(
        variation(torch.minimum(p, q) + rejected * p, p), abs=1e-9
    )


def test_draws_agree_with_the_calculation() -> None:
    """40,000 draws of 8 words stray from their own distribution by 0.5% on average, a third of the tolerance; the
    wrong rule is 22% away."""
    found = whole(Rules(draws=40_000).work(_no_engine, threading.Event(), lambda words, share: None)).figures
    for rule in RULES:
        assert abs(found[rule]["distance"] - found[rule]["law_distance"]) < 0.015
        assert abs(found[rule]["accepted"] - found[rule]["law_accepted"]) < 0.015
        assert found[rule]["draws"][-1] == 40_000
    assert found["redrawn_from_p"]["law_distance"] > 0.2
    assert found["residual"]["distances"][0] > 3 * found["residual"]["distances"][-1]


@given(distributions(), st.floats(0, 2))
def test_a_moved_draft_goes_from_the_target_through_itself_and_beyond(
    pair: tuple[torch.Tensor, torch.Tensor], to: float
) -> None:
    p, q = pair
    torch.testing.assert_close(moved(p, q, 0), p)
    torch.testing.assert_close(moved(p, q, 1), q)
    assert variation(p, moved(p, q, to)) <= variation(p, moved(p, q, to + 0.1)) + 1e-9


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "target_alone"])
def test_the_calculated_parts_agree_with_draws(rule: str) -> None:
    """100,000 draws by the rule itself, with the engine's verdicts where it is the engine's rule: a share of them
    strays by more than 1.2% less than once in a hundred billion times (Hoeffding)."""
    random = torch.Generator().manual_seed(3)
    p, q = torch.randn(2, 6, generator=random, dtype=torch.float64).softmax(-1)
    words, kept = by_rule(rule, p, q, torch.rand(3, 100_000, generator=random, dtype=torch.float64))
    for part, drawn in zip(parts_of(rule, p, q), (words[kept], words[~kept]), strict=True):
        torch.testing.assert_close(torch.bincount(drawn, minlength=6) / 100_000, part.float(), atol=0.012, rtol=0)


def _no_engine(pair: str) -> Engine:
    raise AssertionError("a rule asks for no engine")


ENGINE = functools.cache(lambda: tiny_models.engine("llama"))


def batched(**settings: dict) -> dict[str, dict]:
    """The figures of each setting, measured once on a tiny model."""
    batches = Batches.model_validate({"settings": settings, "repeats": 1})
    return whole(batches.work(lambda pair: ENGINE(), threading.Event(), lambda *_: None)).figures


def test_paged_blocks_let_more_requests_share_a_pool() -> None:
    small = {"requests": 6, "output_tokens": 40, "num_blocks": 26}
    found = batched(reserved=small, paged=small | {"paged": True})
    reserved, paged = found["reserved"], found["paged"]
    assert set(reserved) == set(Batches.model_validate({"settings": {"a": small}}).names()["a"])
    assert reserved["output_tokens"] == paged["output_tokens"] == [240]
    assert reserved["most_sequences"][0] < paged["most_sequences"][0]
    assert reserved["wasted_share"][0] > paged["wasted_share"][0]


def test_requests_are_decoded_one_at_a_time_without_a_cache_and_with_a_shared_prefix() -> None:
    few, shared = {"requests": 3, "output_tokens": 6, "paged": True}, {"requests": 10, "output_tokens": 2}
    shared |= {"system_tokens": 100, "paged": True}
    found = batched(
        one=few | {"at_once": 1},
        all=few,
        uncached={"requests": 2, "output_tokens": 2, "kv_cache": False},
        computed=shared,
        shared=shared | {"enable_prefix_caching": True},
    )
    assert (found["one"]["most_sequences"], found["all"]["most_sequences"]) == ([1], [3])
    for figure in ("prompt_tokens", "output_tokens"):
        assert found["one"][figure] == found["all"][figure]
    assert found["uncached"]["wasted_share"] == [0]
    assert found["computed"]["prompt_tokens"] == found["shared"]["prompt_tokens"]
    assert found["computed"]["cached_prompt_tokens"] == [0]
    assert found["shared"]["cached_prompt_tokens"][0] >= 96  # by the requests that did not fit into the first step


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"a": {"requests": 0}}, "greater than or equal to 1"),
        ({"a": {"requests": 2, "at_once": 0}}, "greater than or equal to 1"),
        ({"a": {"requests": 2, "pagd": True}}, "there is no 'pagd' here; there are requests, output_tokens"),
        ({"a": {"requests": 2, "block_size": 0}}, "block_size must be a whole number"),
        ({"a b": {"requests": 2}}, "cannot stand in an expression"),
    ],
)
def test_invalid_batches_are_refused(settings: dict, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Batches.model_validate({"settings": settings})


def test_verdicts_of_a_run_are_given_by_their_numbers() -> None:
    found = figures_of(Run(script(EngineConfig(speculative="draft"), temperature=0.8)))
    assert (found["kept_p"], found["kept_q"], found["kept_u"]) == (0.4, 0.5, 0.2)
    assert (found["refused_p"], found["refused_q"], found["refused_u"]) == (0.02, 0.5, 0.9)
    assert (found["close_p"], found["close_u"]) == (0.4, 0.2)  # 0.2 against 0.8 is closer than 0.9 against 0.04
    assert found["kv_token_bytes"] == 1000
    greedy = figures_of(Run(script(EngineConfig(speculative="draft"), temperature=0.0)))
    assert "kept_u" not in greedy
    assert "draft_acceptance_rate" not in figures_of(Run(script(EngineConfig())))


def of_verdicts(*numbers: tuple[float, float, float]) -> dict[str, float]:
    """Figures of a run with verdicts of these p, q and u, and with no others."""
    events = script(EngineConfig(speculative="draft"))
    verdicts = [event for event in events if event.kind == "verified"][: len(numbers)]
    verdicts = [replace(e, p=p, q=q, u=u, accepted=u * q < p) for e, (p, q, u) in zip(verdicts, numbers, strict=True)]
    *others, end = [event for event in events if event.kind != "verified"]
    return figures_of(Run([*others, *(replace(event, t_ms=end.t_ms) for event in verdicts), end]))


@given(st.floats(0.001, 0.99), st.floats(0.001, 1), st.floats(0.001, 1, exclude_max=True))
def test_what_became_of_a_draft_token_follows_from_the_numbers_that_lesson_8_prints(
    ratio: float, q: float, u: float
) -> None:
    check = course()[8].front.check
    for drawn in (u, 0.9999 * ratio, 1.0001 * ratio):  # any, and close ones
        assume(abs(drawn / ratio - 1) > 1e-9)
        figures = {"runs": {"recorded": of_verdicts((ratio * q, q, drawn))}}
        printed = re.findall(r"[qpu] = ([\d.]*\d)", check.question.fill(figures))
        printed += re.findall(r"Divide p by q: ([\d.]*\d)\. .* u is ([\d.]*\d)", check.far.fill(figures))[0]
        q_, p_, u_, over, again = map(float, printed)
        assert (u_ * q_ < p_) == (u_ < over) == (drawn < ratio)
        assert u_ == again != over
        assert right_answer(check, figures).startswith(
            "The target accepted" if drawn < ratio else "The target rejected"
        )
        assert ("u is below it" in check.near.fill(figures)) == (drawn < ratio)


def test_of_close_verdicts_one_is_taken_that_three_digits_show() -> None:
    def closest(*numbers: tuple[float, float, float]) -> list[float]:
        found = of_verdicts(*numbers)
        return [found[f"close_{name}"] for name in ("p", "q", "u", "ratio")]

    closer, close, clear = (0.45661, 0.54083, 0.84433), (0.25, 0.5, 0.48), (0.25, 0.5, 0.9)
    assert closest(closer, clear, close) == [0.25, 0.5, 0.48, 0.5]
    assert closest(closer) == [0.45661, 0.54083, 0.84433, 0.84428], "more digits where none is shown by three"
    found = of_verdicts((0.45661, 0.54083, 0.84433), (0.45661, 0.54083, 0.84423), (0.25, 0.5, 0.9), (0.3, 0.5, 0.1))
    for word, numbers in (("refused", [0.25, 0.5, 0.9]), ("kept", [0.3, 0.5, 0.1])):  # the first of these are such too
        assert [found[f"{word}_{name}"] for name in ("p", "q", "u")] == numbers


def proposed(run: Run) -> list[tuple[int, int]]:
    return [(event.step, event.position) for event in run.events if event.kind == "proposed"]


def test_a_tokens_cost_counts_all_passes_after_the_prefill_and_the_drafts() -> None:
    run = Run(script(EngineConfig(speculative="draft")))
    later = [event for event in run.events if event.kind == "step_timed" and event.step_kind != "prefill"]
    found, tokens = figures_of(run), len(run.token_ids) - 1
    assert found["token_flops"] * tokens == pytest.approx(sum(s.verify_flops + s.draft_flops for s in later))
    assert found["token_bytes"] * tokens == pytest.approx(sum(s.verify_bytes + s.draft_bytes for s in later))
    assert any(step.draft_flops for step in later)
    verified = [event for event in run.events if event.kind == "verified"]
    assert found["kept_share"] == pytest.approx(sum(event.accepted for event in verified) / len(verified))


def test_the_overlap_of_a_run_is_the_mean_over_its_positions() -> None:
    events = script(EngineConfig(speculative="draft"), logprobs=4)
    assert "overlap" not in figures_of(Run(events)), "an older run has not recorded it"
    places = iter([0.2, 0.6, 0.7])
    around = [replace(e, overlap=next(places, None)) if e.kind == "distributions" else e for e in events]
    assert figures_of(Run(around))["overlap"] == pytest.approx(0.5)


def test_speculation_is_compared_with_the_setting_with_the_same_cache() -> None:
    configs = {"no_cache": EngineConfig(kv_cache=False), "cached": EngineConfig()}
    configs |= {"draft": EngineConfig(speculative="draft")}
    runs = {name: [Run(script(config))] for name, config in configs.items()}
    found, expected = figures(runs)["draft"], speculated(runs["draft"], runs["cached"])
    assert (found["draft_cost"], found["pass_ratio"]) == (expected.cost, expected.pass_ratio)
    steps = {
        (event.step, event.position): event.accepted for event in runs["draft"][0].events if event.kind == "verified"
    }
    whole = {step for step, count in Counter(step for step, _ in proposed(runs["draft"][0])).items() if count == 4}
    kept = [sum(accepted for (at, _), accepted in steps.items() if at == step) for step in whole]
    assert found["rounds"] == len(kept)
    assert found["whole_rounds"] == pytest.approx(kept.count(4) / len(kept))
    assert found["lost_rounds"] == pytest.approx(kept.count(0) / len(kept))
    del runs["cached"]
    assert "draft_cost" not in figures(runs)["draft"]


def test_settings_become_configs_and_sampling() -> None:
    runs = Runs.model_validate(
        {
            "prompts": {"a": "Once", "b": "Twice"},
            "settings": {
                "plain": {},
                "other": {"prompt": "b", "speculative": "draft", "draft": "mismatched", "seed": 5},
            },
            "sampling": {"max_tokens": 7},
        }
    )
    asked = []

    def load(pair: str) -> Engine:
        asked.append(pair)
        return load_engine(draft=pair)

    plain, other = runs.case(load, "plain"), runs.case(load, "other")
    assert asked == ["matched", "mismatched"]
    assert (plain.prompt, other.prompt) == ("Once", "Twice")
    assert plain.sampling == SamplingParams(max_tokens=7, seed=1)
    assert other.sampling == SamplingParams(max_tokens=7, seed=5)
    assert other.config == EngineConfig(speculative="draft", num_blocks=64)
