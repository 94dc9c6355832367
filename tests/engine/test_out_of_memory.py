"""A device that runs out of memory: the step is made smaller, or one request refused; all others go on."""

from __future__ import annotations

import functools
import gc
import weakref
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from lab import ConfigError, EngineConfig, SamplingParams
from lab.backends.gpu.launching import launching
from lab.engine import cores as pools
from lab.engine import step_limits
from lab.engine.memory_budget import Budget
from lab.kv_cache import kv_cache as cache
from lab.trace.events import FellBack, Preempted, StepTimed
from lab.util.device_memory import is_out_of_memory
from tests import tiny_models
from tests.engine.test_batching import CONFIGS
from tests.tiny_models import of

DRAFTERS = ("off", "draft", "ngram", "draft")
PROMPTS = ("The king had three daughters", "There was once a fisherman", "Snow", "A very long way from here")
SAMPLING = SamplingParams(max_tokens=24, ignore_eos=True)
ERRORS = {
    "gpu": torch.OutOfMemoryError("CUDA out of memory"),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    "driver": torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "triton": RuntimeError("Triton Error [CUDA]: out of memory"),
}


@pytest.fixture
def lab():
    engine = tiny_models.engine("llama", "good")
    yield engine
    assert engine.occupancy().live == 0
    assert engine.counts() == (0, 0)


def short_of_memory(monkeypatch, model, at=(), most=10**9):
    """The model's forward pass raises in the calls numbered ``at``, and with more tokens than ``most``. Returns the
    number of tokens of every call."""
    forward, calls = model.forward, []

    def raising(token_ids, *rest):
        calls.append(len(token_ids))
        if len(calls) - 1 in at or len(token_ids) > most:
            raise ERRORS["gpu"]
        return forward(token_ids, *rest)

    monkeypatch.setattr(model, "forward", raising)
    return calls


def test_out_of_memory_is_reported_from_other_errors():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    on_windows = "[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: not enough memory: you tried to"
    assert all(map(is_out_of_memory, (caught.value, RuntimeError(on_windows), *ERRORS.values())))
    others = RuntimeError("CUDA error: an illegal memory access was encountered"), ValueError("out of memory")
    assert not any(map(is_out_of_memory, others))


def test_kernels_are_not_given_up_for_a_reference_that_takes_more_memory():
    for error in ERRORS.values():
        with pytest.raises(type(error)) as caught, launching(torch.zeros(1)):
            raise error
        assert caught.value is error


def test_a_single_request_is_refused_and_the_next_is_served(lab, monkeypatch):
    plain = lab.generate(PROMPTS[0], CONFIGS["paged"], SAMPLING)
    short_of_memory(monkeypatch, lab.target, {5})
    run = lab.generate(PROMPTS[0], CONFIGS["paged"], SAMPLING)
    assert run.reason == "error"
    assert run.finished.message.startswith("The device ran out of memory. Use fewer blocks")
    assert run.token_ids == plain.token_ids[:5]
    assert lab.generate(PROMPTS[0], CONFIGS["paged"], SAMPLING).token_ids == plain.token_ids


def test_what_a_failed_pass_had_in_memory_is_free_when_its_request_has_ended(lab, monkeypatch):
    """Without waiting for the garbage collector, which a GPU's allocator does not call."""
    kept = []

    def raising(*rest):
        activation = torch.zeros(8)
        kept.append(weakref.ref(activation))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(pools, "log", Mock())  # pytest keeps what is logged
    monkeypatch.setattr(lab.target, "forward", raising)
    gc.disable()
    try:
        assert lab.generate(PROMPTS[0], CONFIGS["paged"], SAMPLING).reason == "error"
        assert [activation() for activation in kept] == [None]
    finally:
        gc.enable()


def asked(name):
    return [
        (prompt, replace(CONFIGS[name], speculative=drafter)) for prompt, drafter in zip(PROMPTS, DRAFTERS, strict=True)
    ]


@functools.cache
def alone(name, prompts=PROMPTS):
    lab, plain = tiny_models.engine("llama", "good"), replace(CONFIGS[name], enable_prefix_caching=False)
    return [lab.generate(prompt, plain, SAMPLING).token_ids for prompt in prompts]


def together(lab, name):
    return [request.result() for request in [lab.submit(*ask, SAMPLING) for ask in asked(name)]]


@pytest.mark.slow
@pytest.mark.parametrize("at", [{0}, {3, 4}], ids=["prompts", "twice"])
@pytest.mark.parametrize("name", CONFIGS)
def test_no_request_of_a_batch_is_lost(lab, monkeypatch, name, at):
    """They are computed a few at a time, with the same tokens."""
    expected = alone(name)
    short_of_memory(monkeypatch, lab.target, at)
    runs = together(lab, name)
    assert [run.token_ids for run in runs] == expected
    assert {event.cause for event in of(runs[-1], Preempted)} == {"memory"}
    assert not of(runs[0], Preempted)  # the oldest goes on
    assert not any(of(run, FellBack) for run in runs)  # what was drafted for the failed step is drafted again


def test_a_quantised_cache_does_not_fall_back_to_a_larger_one(lab, monkeypatch):
    short_of_memory(monkeypatch, lab.target, {3})
    run = lab.generate(PROMPTS[0], CONFIGS["int8"], SAMPLING)
    assert run.reason == "error"
    assert "ran out of memory" in run.finished.message
    assert of(run, FellBack) == []


LONG = "There was once a fisherman who lived with his wife in a pigsty close by the sea. " * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "drafter"), [("contiguous", "off"), ("paged", "ngram"), ("cached", "draft"), ("int8", "draft")]
)
def test_a_prompt_is_read_in_smaller_chunks_where_one_ran_out_of_memory(lab, monkeypatch, name, drafter):
    config, expected = replace(CONFIGS[name], speculative=drafter), alone(name, (LONG, LONG[1:]))
    calls = short_of_memory(monkeypatch, lab.target, most=70)
    other = lab.submit(PROMPTS[2], CONFIGS[name], replace(SAMPLING, max_tokens=60))
    lab.step()  # its pool has the prefixes of nobody, and lasts
    run = lab.generate(LONG, config, SAMPLING)
    assert run.token_ids == expected[0]
    assert len(run.prompt_token_ids) == 243
    assert [tokens for tokens in calls if tokens > 70] == [244, 243, 121]  # beside the other, alone, and half of it
    assert not of(run, FellBack)
    assert lab.generate(LONG[1:], config, SAMPLING).token_ids == expected[1]
    assert [tokens for tokens in calls if tokens > 70][3:] == [120]  # twice as many are tried once more
    assert other.result().reason == "length"


def test_chunks_grow_again_where_memory_has_come_back(lab, monkeypatch):
    """With every request that comes while there is no other, or after a minute, up to what they were."""
    now = [0.0]
    monkeypatch.setattr(step_limits.time, "monotonic", lambda: now[0])

    def largest(text):
        run = lab.generate(text, CONFIGS["paged"], replace(SAMPLING, max_tokens=4))
        return max(event.target_tokens for event in of(run, StepTimed))

    with monkeypatch.context() as short:
        short_of_memory(short, lab.target, most=70)
        assert largest(LONG) == 60
    other = lab.submit(PROMPTS[2], CONFIGS["paged"], replace(SAMPLING, max_tokens=60))
    lab.step()
    now[0] += step_limits.TRY_AGAIN_SECONDS - 1
    assert [largest(LONG[i:]) for i in range(2)] == [119, 119]  # and the other's token
    now[0] += 1
    assert [largest(LONG[i:]) for i in range(2)] == [239, 239]
    assert other.result().reason == "length"
    assert largest(LONG) == 243


@pytest.mark.parametrize(("name", "tried"), [("paged", [243, 121, 60, 33]), ("no cache", [243])])
def test_a_prompt_is_refused_where_no_smaller_chunk_can_be_read(lab, monkeypatch, name, tried):
    calls = short_of_memory(monkeypatch, lab.target, most=32)
    run = lab.generate(LONG, CONFIGS[name], SAMPLING)
    assert run.reason == "error"
    assert "ran out of memory" in run.finished.message
    assert calls == tried
    assert lab.generate(PROMPTS[2], CONFIGS["paged"], SAMPLING).reason == "length"


def only_so_many_slots(monkeypatch, most):
    """A cache of more slots than ``most[0]`` finds no memory. Returns the slots of every one that was tried."""
    storage, tried = cache._storage, []

    def raising(model, setting, *rest):
        tried.append(setting.num_blocks * setting.block_size)
        if tried[-1] > most[0]:
            raise ERRORS["gpu"]
        return storage(model, setting, *rest)

    monkeypatch.setattr(cache, "_storage", raising)
    return tried


def test_a_pool_as_large_as_memory_allows_is_made_smaller_if_that_was_too_much(lab, monkeypatch):
    """What is told from then on is the size that it has."""
    full = lab.default_num_blocks(EngineConfig())
    expected = lab.generate(PROMPTS[0], CONFIGS["paged"], SAMPLING).token_ids
    only_so_many_slots(monkeypatch, [10 * 16])
    requests = [lab.submit(prompt, EngineConfig(), SAMPLING) for prompt in PROMPTS[:2]]
    runs = [request.result() for request in requests]
    assert runs[0].token_ids == expected
    room = lab.default_num_blocks(EngineConfig())
    assert 3 / 4 * 10 < room <= 10
    assert sum(lab.occupancy()) == room
    for run in runs:
        (event,) = of(run, FellBack)
        assert event.part == "full_pool"
        assert event.reason == f"The device has no room for {full:,} cache blocks: the pool has {room:,}."
    third = lab.generate(PROMPTS[0], EngineConfig(), SAMPLING)
    assert (third.started.num_blocks, of(third, FellBack)) == (room, [])
    with pytest.raises(ConfigError, match=f"holds {room} blocks"):
        lab.submit(PROMPTS[0], EngineConfig(num_blocks=room + 1), SAMPLING)


def test_a_pool_that_leaves_no_memory_for_a_step_is_made_smaller(lab, monkeypatch):
    """But not one whose size was asked for, nor below what the request needs: they may still do."""
    full, made = lab.default_num_blocks(EngineConfig()), pools.EngineCore

    def new(setting, *rest, **how):
        pool = made(setting, *rest, **how)
        monkeypatch.setattr(Budget, "leaves_enough", setting.num_blocks <= room)
        return pool

    monkeypatch.setattr(pools, "EngineCore", new)
    room = 0
    run = lab.generate(PROMPTS[0], EngineConfig(num_blocks=11), SAMPLING)
    assert (run.reason, run.started.num_blocks, of(run, FellBack)) == ("length", 11, [])
    needed = -(-(len(run.prompt_token_ids) + SAMPLING.max_tokens) // 16)
    for room, expected in ((10, {8, 9, 10}), (0, {needed})):
        run = lab.generate(PROMPTS[0], EngineConfig(eviction="priority" if room else "lru"), SAMPLING)
        assert run.reason == "length"
        assert [event.part for event in of(run, FellBack)] == ["full_pool"]
        assert lab.default_num_blocks(EngineConfig()) in expected
    assert full > 11


def test_an_idle_pool_is_freed_for_one_that_finds_no_memory(lab, monkeypatch):
    """A cached prefix keeps its pool allocated, but the device is fuller than the budget knows."""
    lab.generate(PROMPTS[0], CONFIGS["cached"], SAMPLING)
    assert lab.occupancy().cached
    storage = cache._storage

    def raising(model, setting, *rest):
        if lab.occupancy().cached:
            raise ERRORS["gpu"]
        return storage(model, setting, *rest)

    monkeypatch.setattr(cache, "_storage", raising)
    assert lab.generate(PROMPTS[0], CONFIGS["contiguous"], SAMPLING).reason == "length"
    assert lab.occupancy().cached == 0


@pytest.mark.parametrize("at", [{0}, {3}])
def test_a_drafter_out_of_memory_is_dropped_and_no_other_request_affected(lab, monkeypatch, at):
    plain = lab.generate(PROMPTS[0], CONFIGS["paged"], SAMPLING).token_ids
    short_of_memory(monkeypatch, lab.draft, at)
    configs = [replace(CONFIGS["paged"], speculative=drafter) for drafter in ("draft", "off", "ngram")]
    runs = [request.result() for request in [lab.submit(PROMPTS[0], config, SAMPLING) for config in configs]]
    assert [run.token_ids for run in runs] == [plain] * 3
    assert [[event.part for event in of(run, FellBack)] for run in runs] == [["drafter"], [], []]
    assert "ran out of memory" in of(runs[0], FellBack)[0].reason
