"""The KV error bench: exact where it has to be, ordered by format, written as JSON."""

from __future__ import annotations

import math

import pytest
import torch

from lab.bench import kv_bench
from lab.config import EngineConfig
from lab.kv_cache.storage import KVStorage
from lab.measure.score import kv_errors, log_probabilities, storing_squares


def silent(line: str) -> None:
    pass


def test_an_exact_cache_has_no_error_and_coarser_formats_have_more(lab):
    ids = [torch.randint(256, (60,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(6)]
    auto, int8, int4, *_ = kv_errors(lab, ids, silent)
    assert (auto.key_error, auto.value_error, auto.kl.value, auto.kl.high) == (0, 0, 0, 0)
    assert (auto.perplexity_ratio.low, auto.perplexity_ratio.high) == (1, 1)
    assert 0 < int8.key_error < 0.01 < int4.key_error < 0.15
    assert 0 < int8.value_error < 0.01 < int4.value_error < 0.15
    assert 0 < int8.kl.low <= int8.kl.value < int4.kl.value
    assert int4.bytes_ratio > int8.bytes_ratio > auto.bytes_ratio == 1
    assert int4.perplexity / auto.perplexity == pytest.approx(int4.perplexity_ratio.value)


def test_exempt_layers_leave_less_error_and_take_more_bytes(lab):
    ids = [torch.randint(256, (60,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(6)]
    rows = [kv_errors(lab, ids, silent, ["auto", "int4"], skipped) for skipped in ("", "0", "0 1")]
    (_, every), (_, one), (auto, none) = rows
    assert every.key_error > one.key_error > none.key_error == none.value_error == none.kl.value == 0
    assert every.bytes_per_token < one.bytes_per_token < none.bytes_per_token == auto.bytes_per_token
    assert every.kl.value > one.kl.value > 0


def test_the_bench_measures_each_format_again_with_its_ends_exempt(lab, monkeypatch):
    """Here these are all layers, so that nothing is lost."""
    monkeypatch.setattr(kv_bench, "WINDOW", 40)
    monkeypatch.setattr(kv_bench, "TIMED", 3)
    found = kv_bench.run_kv(lab, [("A text", "Once upon a time " * 6)], silent, repeats=1, exempt_ends=True)
    every, exempt = found["formats"], found["exempt"]["formats"]
    assert found["exempt"]["kv_cache_dtype_skip_layers"] == "0 1"
    assert [row["kv_dtype"] for row in every[1:]] == [row["kv_dtype"] for row in exempt]
    assert all(row["key_error"] > 0 for row in every[1:])
    assert all(row["key_error"] == row["kl"]["value"] == 0 and row["bytes_ratio"] == 1 for row in exempt)
    assert all(row["speed"]["reference"]["ratio"]["value"] > 0 for row in (*every, *exempt))


def test_perplexity_is_that_of_the_text_and_divergence_and_errors_those_of_all_windows(lab):
    ids = list(range(40, 100))
    auto, *_ = kv_errors(lab, [ids, ids[:30]], silent)
    nats = []
    for part in (ids, ids[:30]):
        scored = torch.cat(list(log_probabilities(lab, part, EngineConfig())))
        nats += [-scored[i, token].item() for i, token in enumerate(part[1:])]
    assert auto.perplexity == pytest.approx(math.exp(sum(nats) / len(nats)))
    whole, first, second = (kv_errors(lab, some, silent)[2] for some in ([ids, ids[:30]], [ids], [ids[:30]]))
    assert whole.kl.value == pytest.approx((59 * first.kl.value + 29 * second.kl.value) / 88, rel=1e-4)
    low, high = sorted([first.key_error, second.key_error])
    assert low < whole.key_error < high


def test_the_error_is_between_stored_and_computed_numbers():
    """A largest number of 2 makes steps of a quarter: 2 and 1 are stored exactly, 1.125 is half a step off."""
    shape = {"layers": 2, "kv_heads": 1, "head_dim": 2, "dtype": torch.float64, "device": torch.device("cpu")}
    native, other = KVStorage("auto", 3, **shape), KVStorage("int4", 3, **shape)
    key, value = torch.tensor([[[2.0, 1.0]]] * 3, dtype=torch.float64), torch.zeros(3, 1, 2, dtype=torch.float64)
    for layer in native.layers:
        layer.write(torch.arange(3), key, value)
    (off_keys, off_values), (keys, values) = storing_squares(native, other, 3).tolist()
    assert (off_keys, off_values) == (0, 0)
    assert (keys, values) == (2 * 3 * 5, 0)
    key[:, :, 1] = 1.125
    for layer in native.layers:
        layer.write(torch.arange(3), key, value)
    assert storing_squares(native, other, 3)[0, 0] == 2 * 3 * 0.125**2
