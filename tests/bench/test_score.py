"""Teacher forcing gives the distributions that decoding samples from."""

from __future__ import annotations

import math

import pytest
import torch

from lab import EngineConfig, SamplingParams
from lab.kv_cache.attention_metadata import BlockPlan
from lab.measure import score
from lab.measure.score import divergence, log_probabilities, surprise
from lab.models.language_model import LanguageModel
from tests import tiny_models
from tests.captured import SMALL


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(score, "CHUNK", 7)


@pytest.mark.parametrize("config", [EngineConfig(), EngineConfig(paged=True), EngineConfig(kv_cache=False)])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_native_scores_equal_those_of_transformers(architecture, config):
    lab = tiny_models.engine(architecture)
    ids = torch.randint(256, (40,), generator=torch.Generator().manual_seed(1))
    with lab.target.stock_attention() as model, torch.inference_mode():
        expected = model(ids[None]).logits[0, :-1].double().log_softmax(-1)
    scored = torch.cat(list(log_probabilities(lab, ids.tolist(), config)))
    assert torch.allclose(scored, expected, atol=1e-4)
    later = torch.cat(list(log_probabilities(lab, ids.tolist(), config, first=17)))
    assert torch.allclose(
        later, scored[16:], atol=1e-5
    )  # with several threads a product of fewer rows is summed in another order


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "int4"])
def test_scores_agree_with_decoding(kv_dtype):
    """Greedy decoding must have taken the likeliest token of every scored distribution, with the same
    quantised keys and values. In float64, so that a chunk and a single token round the same way."""
    lab = tiny_models.engine("llama")
    lab.target.model.double()
    config = EngineConfig(kv_dtype=kv_dtype)
    run = lab.generate("The king said", config, SamplingParams(max_tokens=150, ignore_eos=True))
    ids = run.prompt_token_ids + run.token_ids
    scored = torch.cat(list(log_probabilities(lab, ids, config)))
    likeliest = scored.argmax(-1).tolist()
    assert likeliest[len(run.prompt_token_ids) - 1 :] == run.token_ids
    if kv_dtype != "auto":  # and the setting is not ignored
        assert not torch.equal(scored, torch.cat(list(log_probabilities(lab, ids, EngineConfig()))))


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles here, and for no CPU")
@pytest.mark.parametrize(
    ("config", "computed"),
    [
        (EngineConfig(kv_dtype="int8"), "by kernels"),
        (EngineConfig(kernels="reference"), "auto"),
        (EngineConfig(kv_cache=False, prefill_attention="math"), "math"),
    ],
    ids=["Triton's kernels", "the reference", "no cache"],
)
def test_scores_are_computed_as_decoding_is(monkeypatch, config, computed):
    """By what computes the steps of a run after its prompt."""
    pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")
    lab = tiny_models.engine("llama", shape=SMALL, kernels="triton")
    run, asked, forward = lab.generate("A fox", config, SamplingParams(max_tokens=4)), set(), LanguageModel.forward

    def spied(model, token_ids, positions, plan, keep):
        asked.add("by kernels" if isinstance(plan, BlockPlan) else plan.sdpa)
        return forward(model, token_ids, positions, plan, keep)

    monkeypatch.setattr(LanguageModel, "forward", spied)
    ids = run.prompt_token_ids + run.token_ids
    scored = torch.cat(list(log_probabilities(lab, ids, config, first=len(run.prompt_token_ids))))
    assert scored.argmax(-1).tolist() == run.token_ids
    assert asked == {computed}


def test_divergence_and_surprise_are_in_nats():
    p, q = torch.tensor([[0.5, 0.5]], dtype=torch.float64), torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert divergence(p.log(), q.log()).item() == pytest.approx(expected)
    assert divergence(p.log(), p.log()).item() == 0
    assert surprise(q.log(), torch.tensor([0])).exp().item() == pytest.approx(4)
