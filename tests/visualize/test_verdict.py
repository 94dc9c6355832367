"""An opened verdict: its chart and its text come from its events."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from lab.config import EngineConfig, SamplingParams
from lab.load import new_engine
from lab.trace.events import Distributions, Event, Proposed, Recovered, Verified
from tests.engine.test_distribution import chain
from tests.scripted_model import ScriptedModel
from tests.tiny_models import tokenizer
from tests.visualize.conftest import script
from tests.visualize.picture import draw
from visualize.charts import verdict_chart as verdict
from visualize.reduce.frames import Frame, Reducer
from visualize.reduce.verification_view import opened

ROUND = {"t_ms": 1.0, "step": 3, "position": 1}
DRAFT_TOKEN = Proposed(**ROUND, token_id=7, text=" forest", q=0.5)
REJECTED = Verified(**ROUND, token_id=7, p=0.1, q=0.5, u=0.9, accepted=False)
OWN = Recovered(**ROUND, token_id=9, text=" castle", p=0.4)
AROUND = Distributions(
    **ROUND,
    token_ids=(7, 8, 9),
    texts=(" forest", " sea", " castle"),
    p=(0.1, 0.5, 0.4),
    q=(0.5, 0.3, 0.2),
    residual=(0.0, 0.5, 0.5),
)
KEPT = replace(REJECTED, u=0.1, accepted=True)
TOLD = r"min\(1, p / q\) = ([\d.]+)\. .*: u q = ([\d.]+) × ([\d.]+) = ([\d.]+) is below p = ([\d.]+),"


def frames(events: list[Event]) -> list[Frame]:
    return [frame for frame in Reducer().feed(events) if "verdicts" in frame]


@pytest.mark.parametrize("speculative", ["draft", "ngram", "synthetic", "early_exit"])
@pytest.mark.parametrize("temperature", [0.8, 0.0])
def test_recorded_verdicts_are_in_their_frames(speculative: str, temperature: float) -> None:
    events = script(EngineConfig(speculative=speculative), temperature=temperature, logprobs=4)
    said = {(frame["step"], i): said for frame in frames(events) for i, said in enumerate(frame["verdicts"])}
    verified = [event for event in events if isinstance(event, Verified)]
    assert list(said) == [(event.step, event.position) for event in verified]
    around = [event for event in events if isinstance(event, Distributions)]
    for event, each, found in zip(verified, said.values(), around, strict=True):
        p, q, residual, bar, _ = (trace["y"] for trace in each["columns"])
        assert sorted(p) == pytest.approx(sorted(found.p))
        assert p[0] == event.p
        assert q == ([] if speculative == "synthetic" else [event.q, *[0.01] * (len(p) - 1)])
        assert bool(residual) == (found.residual is not None)
        drawn = temperature > 0 and speculative != "synthetic"
        assert bar == ([pytest.approx(event.u * event.q, rel=1e-3)] * 2 if drawn else [])
        assert "u q =" in each["say"] or not drawn
        assert json.loads(json.dumps(each)) == each


def test_a_rejection_is_explained_with_numbers_and_marked_tokens() -> None:
    said = opened(DRAFT_TOKEN, REJECTED, AROUND, OWN, "draft")
    assert said["title"].endswith("2 ✗ “ forest”")
    assert "u q = 0.9 × 0.5 = 0.45 is not below p = 0.1" in said["say"]
    assert "“ castle”" in said["say"]
    assert said["layout"]["xaxis.ticktext"] == ["✗ “ forest”", "“ sea”", "↻ “ castle”"]
    figure = draw(verdict.figure(), said["columns"], said["layout"])
    assert [trace.y for trace in figure.data] == [(0.1, 0.5, 0.4), (0.5, 0.3, 0.2), (0.0, 0.5, 0.5), (0.45, 0.45), ()]
    hovered = [trace.hovertemplate.split("%{y:")[1] for trace in figure.data]
    assert hovered == [".3~g}<extra></extra>"] * 5, "written as in the sentence: 0.5, not 0.500"
    assert figure.layout.yaxis.range == (0, pytest.approx(0.53))
    assert min(figure.data[3].x) < 0 < max(figure.data[3].x)


def test_an_accepted_draft_token_has_no_residual_and_no_replacement() -> None:
    said = opened(DRAFT_TOKEN, KEPT, replace(AROUND, residual=None), OWN, "draft")
    assert "u q = 0.1 × 0.5 = 0.05 is below p = 0.1" in said["say"]
    assert "resample" not in said["say"]
    assert said["layout"]["xaxis.ticktext"] == ["✓ “ forest”", "“ sea”", "“ castle”"]
    assert said["columns"][2] == {"x": [], "y": []}


def test_a_close_verdict_is_reported_with_as_many_digits_as_show_it() -> None:
    """With three, both sides would be 0.00218."""
    close = replace(REJECTED, p=0.0021827521, q=0.0024019224, u=0.9086675729, accepted=True)
    say = opened(DRAFT_TOKEN, close, replace(AROUND, residual=None), OWN, "draft")["say"]
    chance, u, q, product, p = map(float, re.search(TOLD, say).groups())
    assert product < p
    assert u * q < p
    assert u < chance
    assert u < p / q
    assert product == pytest.approx(u * q, rel=1e-4)
    assert chance == pytest.approx(p / q, rel=1e-4)


def test_without_a_draw_the_rule_that_applies_is_stated() -> None:
    greedy, bare = replace(REJECTED, u=None), replace(AROUND, residual=None)
    said = opened(DRAFT_TOKEN, greedy, bare, OWN, "draft")
    assert "not the target's likeliest token. p = 0.1, q = 0.5. In its place: “ castle”. Greedy draws" in said["say"]
    assert said["columns"][3]["y"] == []
    said = opened(DRAFT_TOKEN, greedy, replace(bare, q=None), OWN, "synthetic")
    assert said["say"].endswith("on purpose, so it was rejected: p = 0.1. In its place: “ castle”. It has no q.")
    assert said["columns"][1]["y"] == []
    assert "N-gram lookup draws nothing: its q is 1." in opened(DRAFT_TOKEN, REJECTED, AROUND, OWN, "ngram")["say"]
    likeliest = opened(DRAFT_TOKEN, REJECTED, AROUND, OWN, "draft", drawn=False)
    assert likeliest["say"].endswith("The draft model draws nothing: its q is 1.")


def test_block_verification_is_explained_by_the_whole_round() -> None:
    """The second of three draft tokens failed by itself, and is accepted or rejected with the third."""
    first = replace(KEPT, position=0, p=0.3, q=0.5, u=0.7, threshold=0.5, product=0.6)
    own = replace(REJECTED, threshold=0.1, product=0.12)
    third = replace(own, position=2, u=0.05, threshold=0.2, product=0.3)
    products = "P = min(1, 0.6 × p / q) = min(1, 0.6 × 0.1 / 0.5) = 0.12"
    kept = [replace(one, accepted=True) for one in (first, own, third)]
    said = opened(DRAFT_TOKEN, kept[1], AROUND, OWN, "draft", kept)["say"]
    assert products in said
    assert (
        "It failed: the random draw u = 0.9 is not below its threshold h = 0.1. The block up to draft token 3" in said
    )
    assert said.endswith("passed: the random draw u = 0.05 is below its threshold h = 0.2: accepted with it.")
    lost = [replace(first, accepted=False), own, replace(third, u=0.8)]
    said = opened(DRAFT_TOKEN, own, AROUND, OWN, "draft", lost)
    assert "every longer block failed too, so it was rejected. In its place: “ castle”, drawn from" in said["say"]
    assert "norm(max(0, 0.6 p − q))" in said["say"]
    assert [bool(trace["y"]) for trace in said["columns"]] == [True, True, True, False, False]


def test_typical_acceptance_is_explained_by_its_threshold_and_says_that_it_is_lossy() -> None:
    lossy = replace(KEPT, u=None, threshold=0.09, total_variation=0.25)
    said = opened(DRAFT_TOKEN, lossy, AROUND, OWN, "draft")
    assert "p = 0.1 is above min(0.09, 0.3 exp(−H)) = 0.09" in said["say"]
    assert "Lossy: what comes out here is 25.0% from p" in said["say"]
    assert [bool(trace["y"]) for trace in said["columns"]] == [True, True, False, False, True]


@pytest.mark.parametrize("method", ["block", "typical"])
def test_frames_tell_a_round_by_the_numbers_of_its_rule(method: str) -> None:
    engine = new_engine(ScriptedModel(chain(1)), tokenizer(), ScriptedModel(chain(2), "draft"))
    config = EngineConfig(speculative="draft", rejection_sample_method=method)
    sampling = SamplingParams(max_tokens=40, temperature=1.0, seed=3, logprobs=4)
    events = engine.generate(tokenizer().decode([0, 1]), config, sampling).events
    shown = [frame for frame in Reducer().feed(events) if frame.get("round", {}).get("drafts")]
    assert any(not all(verdict["accepted"] for verdict in frame["round"]["verdicts"]) for frame in shown)
    for frame in shown:
        verdicts = frame["round"]["verdicts"]
        passed = [i for i, one in enumerate(verdicts, 1) if one["accepted"]]
        if method == "block":
            assert len(verdicts) == len(frame["round"]["drafts"])
            last = max((i for i, one in enumerate(verdicts, 1) if one["u"] < one["threshold"]), default=0)
            assert passed == [*range(1, last + 1)]
            assert all(token["block"] == last for token in frame["tokens"] if token["origin"] == "accepted")
        else:
            assert all(one["accepted"] == (one["p"] > one["threshold"]) for one in verdicts)
            assert "u" not in verdicts[0]
    assert (method == "typical") == ("variation" in shown[0]["readouts"])
    assert (method == "typical") == any("lossy" in frame.get("notice", "") for frame in Reducer().feed(events))


def test_of_many_tokens_the_marked_and_the_likeliest_are_shown() -> None:
    many = range(30)
    around = Distributions(
        **ROUND,
        token_ids=(7, *range(100, 129), 9),
        texts=(" forest", *map(str, many[1:]), " castle"),
        p=(0.1, *[0.01 * i for i in many[1:]], 0.001),
        q=(0.5, 0.9, *[0.0] * 28, 0.0),
        residual=None,
    )
    said = opened(DRAFT_TOKEN, REJECTED, around, OWN, "draft")
    names = said["layout"]["xaxis.ticktext"]
    assert len(names) == verdict.MOST
    assert (names[0], names[-1]) == ("✗ “ forest”", "↻ “ castle”")
    assert names[1:-1] == [f"“{i}”" for i in (29, 28, 27, 26, 25, 24, 23, 1)]
