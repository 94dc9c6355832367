"""Sampling in C follows lab.backends.torch.sampler, and a whole proposal can be drafted in one call."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import SamplingParams
from lab.backends.cpu.native_model import NativeModel
from lab.backends.cpu.native_sampler import sample
from lab.backends.interface import NewTokens
from lab.backends.torch import sampler
from lab.backends.torch.sampler import distribution, draw
from lab.kv_cache.block_pool import BlockPool
from tests.cpu.test_native import llama, storage_of, table

ROWS = st.lists(st.sampled_from((0.0, 0.01, 0.8, 1.0, 5.0)), min_size=1, max_size=5)
SAMPLINGS = (SamplingParams(), SamplingParams(temperature=0.8), SamplingParams(temperature=0.8, top_k=5, top_p=0.9))


def params(temperatures: list[float]) -> list[SamplingParams]:
    return [SamplingParams(temperature=temperature) for temperature in temperatures]


@settings(max_examples=40, deadline=None)
@given(
    temperatures=ROWS, vocabulary=st.integers(1, 70), spread=st.sampled_from((0.0, 1.0, 30.0)), seed=st.integers(0, 999)
)
def test_distributions_are_close_to_those_of_torch_and_draws_are_exact(temperatures, vocabulary, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(len(temperatures), vocabulary, generator=generator)
    u = torch.rand(len(temperatures), generator=generator, dtype=torch.float64)
    p, tokens = sample(logits, params(temperatures), u)
    torch.testing.assert_close(p, distribution(logits, params(temperatures)), rtol=2e-5, atol=1e-30)
    torch.testing.assert_close(p.sum(-1), torch.ones(len(temperatures)))
    drawn = draw(p, u)
    for row, temperature in enumerate(temperatures):
        assert tokens[row] == (drawn[row] if temperature else logits[row].argmax())


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_draws_at_the_ends_of_the_distribution(u):
    """A point at either end of the sum still falls on a token, and tokens without weight are not drawn."""
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 1.0, -math.inf]])
    p, token = sample(logits, params([1.0]), torch.tensor([u], dtype=torch.float64))
    assert token.item() == (3 if u else 1)
    assert not p[0, [0, 2, 4]].any()


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor always keeps them")
def test_all_threads_treat_denormals_as_the_calling_thread_does(monkeypatch):
    """Whatever the setting of the thread that started them, and again after the setting has changed."""
    monkeypatch.setattr("lab.backends.cpu.cpu_count.cores", lambda: 1000)
    logits = torch.zeros(8, 40)
    logits[:, 5:] = -86.99  # gives denormal probabilities
    before, found = torch.get_num_threads(), {}
    try:
        for flushed in (False, True, False):
            for threads in (1, 4):
                torch.set_num_threads(threads)
                torch.set_flush_denormal(flushed)
                p, _ = sample(logits, params([1.0] * 8), None)
                torch.set_flush_denormal(False)
                assert torch.equal(p, found.setdefault(flushed, p))
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
    assert not found[True][:, 5:].any()
    assert found[False].all()


@settings(max_examples=100, deadline=None)
@given(
    vocabulary=st.sampled_from((1, 2, 30, 70, 600)),
    spread=st.sampled_from((0.0, 0.01, 1.0, 8.0, 60.0)),
    top_k=st.sampled_from((0, 1, 2, 29, 30, 31, 1000)),
    top_p=st.sampled_from((1e-3, 0.3, 0.5, 0.9, 0.999, 1.0)),
    seed=st.integers(0, 9999),
)
def test_top_k_and_top_p_keep_the_likeliest(vocabulary, spread, top_k, top_p, seed):
    """With ties: the logits are rounded."""
    generator = torch.Generator().manual_seed(seed)
    logits = (spread * torch.randn(1, vocabulary, generator=generator)).mul(4).round().div(4)
    whole, _ = sample(logits, [SamplingParams(temperature=1.0)], None)
    cut, _ = sample(logits, [SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p)], None)
    order = whole[0].double().sort(descending=True, stable=True)
    of_top_k = order.values[: top_k or vocabulary]
    left = int(cut.count_nonzero())
    assert (cut[0, order.indices] > 0)[:left].all(), "not the likeliest tokens, or not the first of equals"
    assert 1 <= left <= len(of_top_k)
    wanted = top_p * of_top_k.sum()
    assert of_top_k[: left - 1].sum() < wanted * (1 + 1e-6), "the last token kept was not needed to reach top_p"
    if left < of_top_k.count_nonzero():
        assert of_top_k[:left].sum() > wanted * (1 - 1e-6)
    expected = torch.zeros(vocabulary).double().index_copy(0, order.indices[:left], of_top_k[:left])
    torch.testing.assert_close(cut[0].double(), expected / expected.sum(), rtol=1e-5, atol=1e-30)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(top_k=st.sampled_from((0, 3, 40)), top_p=st.sampled_from((0.2, 0.95, 1.0)), seed=st.integers(0, 999))
def test_top_k_and_top_p_cut_off_what_torch_cuts_off(top_k, top_p, seed):
    """The examples are fixed: in none does a sum come as near to ``top_p`` as float32 rounds."""
    logits = 2 * torch.randn(3, 50, generator=torch.Generator().manual_seed(seed))
    cut = [SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p) for temperature in (0.0, 0.7, 1.3)]
    p, tokens = sample(logits, cut, None)
    torch.testing.assert_close(p, distribution(logits, cut), rtol=2e-5, atol=1e-30)
    assert torch.equal(tokens, logits.argmax(-1))


@pytest.mark.parametrize("sample", [sample, sampler.sample], ids=["c", "torch"])
@pytest.mark.parametrize("cut", [{"top_k": 5}, {"top_p": 0.15}, {"top_p": 5 / 32}, {"top_k": 20, "top_p": 0.24}])
def test_of_equally_likely_tokens_the_lowest_ids_are_kept(sample, cut):
    """On torch and in C alike: otherwise one seed would give two texts."""
    logits = torch.zeros(2, 64)
    logits[:, ::2] = -100.0  # the others, half of all, share the probability
    p, _ = sample(logits, [SamplingParams(temperature=1.0, **cut)] * 2, None)
    assert [row.nonzero()[:, 0].tolist() for row in p] == [[1, 3, 5, 7, 9]] * 2


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(1, 6), st.sampled_from(SAMPLINGS)),
        min_size=1,
        max_size=4,
    ),
    kv_format=st.sampled_from(("auto", "int8")),
    layers=st.sampled_from((2, 3)),
)
@torch.inference_mode()
def test_drafting_in_one_call_equals_drafting_step_by_step_bit_for_bit(lengths, kv_format, layers):
    """Sequences of (known, unread) tokens, each with its own window and sampling."""
    model, generator, size = llama(), torch.Generator().manual_seed(7), 8
    native = NativeModel(model)
    known, unread, windows, samplings = zip(*lengths, strict=True)
    width = max(windows)
    texts = [torch.randint(0, 257, (a + b,), generator=generator) for a, b in zip(known, unread, strict=True)]
    u = torch.rand(len(texts), width, generator=generator, dtype=torch.float64)

    def prepared():
        rooms = [-(-(len(text) + width) // size) for text in texts]
        storage, pool = storage_of(model, kv_format, size * sum(rooms)), BlockPool(sum(rooms), size)
        tables = [table(pool, size * room) for room in rooms]
        for text, its, first in zip(texts, tables, known, strict=True):
            if first:
                native.step([NewTokens(text[:first], 0, its, 0)], layers, storage)
        return storage, [
            NewTokens(text[first:], first, its, 1) for text, its, first in zip(texts, tables, known, strict=True)
        ]

    storage, batch = prepared()
    drafts = native.decode_ahead(
        batch, layers, storage, windows, samplings, [some[:w] for some, w in zip(u, windows, strict=True)]
    )
    storage, batch = prepared()
    for i in range(width):
        active = [s for s, window in enumerate(windows) if window > i]
        logits = native.step([batch[s] for s in active], layers, storage)
        p, chosen = sample(logits, [samplings[s] for s in active], u[active, i])
        for row, s in enumerate(active):
            assert chosen[row] == drafts[s].token_ids[i]
            assert torch.equal(p[row], drafts[s].q[i])
            batch[s] = NewTokens(chosen[row : row + 1], batch[s].stop, batch[s].table, 1)
