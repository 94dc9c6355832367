"""A model on several devices decodes as it does on one.

These tests cannot count on two GPUs: devices are simulated (``tests.simulated_devices``), and offloading to disk,
which uses the same hooks, is real.
"""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from accelerate import dispatch_model

from lab import ConfigError, EngineConfig, Run, SamplingParams, load, load_engine
from lab.engine import memory_budget as budget
from lab.engine import step_stats as reporting
from lab.engine.core import EngineCore
from lab.engine.engine import Engine
from lab.engine.memory_budget import Budget
from lab.load import new_engine
from lab.models.devices import best_device, has_kernels, refuse_device_map, resolve_device
from lab.models.language_model import LanguageModel
from lab.trace.events import CacheDropped, FellBack, Proposed
from tests import tiny_models
from tests.simulated_devices import SimulatedDevices

pytestmark = pytest.mark.slow

PROMPT = "There was once a fisherman"
SAMPLING = SamplingParams(max_tokens=6, ignore_eos=True)
FIRST, SECOND = torch.device("meta:0"), torch.device("meta:1")

# The last norm and the head are on different devices, as accelerate leaves them when the head is tied.
LLAMA = {"model.embed_tokens": FIRST, "model.rotary_emb": FIRST, "model.norm": SECOND, "lm_head": FIRST}
LLAMA |= {"model.layers.0": FIRST, "model.layers.1": SECOND, "model.layers.2": SECOND}
GPT2 = {"transformer.wte": FIRST, "transformer.wpe": FIRST, "transformer.ln_f": SECOND, "lm_head": FIRST}
GPT2 |= {"transformer.h.0": FIRST, "transformer.h.1": SECOND, "transformer.h.2": SECOND}
MAPS = {"llama": LLAMA, "gpt2": GPT2}


@pytest.fixture
def devices(monkeypatch):
    # A tensor that wraps another cannot be sliced under inference mode.
    monkeypatch.setattr(EngineCore, "step", torch.no_grad()(EngineCore.step.__wrapped__))
    with SimulatedDevices() as simulated:
        yield simulated


def spread(architecture: str) -> LanguageModel:
    model = tiny_models.random_model(architecture, num_hidden_layers=3)
    return LanguageModel(dispatch_model(model, MAPS[architecture], main_device=FIRST), architecture)


def decoded(engine: Engine, config: EngineConfig) -> tuple[list[int], list[tuple[int, ...]]]:
    """The tokens, and those proposed on the way."""
    run = Run(engine.stream(PROMPT, config, SAMPLING))
    assert not [event for event in run.events if isinstance(event, (FellBack, CacheDropped))]
    assert len(run.token_ids) == SAMPLING.max_tokens
    return run.token_ids, [event.token_id for event in run.events if isinstance(event, Proposed)]


CONFIGS = {
    "no cache": EngineConfig(kv_cache=False),
    "int8 paged": EngineConfig(kv_dtype="int8", paged=True),
    "drafted": EngineConfig(paged=True, enable_prefix_caching=True, speculative="draft"),
    "early exit": EngineConfig(speculative="early_exit", early_exit_layer=2),
}


# The cache is the same for both; an early exit ends with a norm and a head that are each architecture's own.
@pytest.mark.parametrize(
    ("architecture", "name"),
    [*(("llama", name) for name in ("no cache", "int8 paged", "drafted")), ("gpt2", "early exit")],
)
def test_two_devices_give_the_tokens_of_one(devices, architecture, name):
    config = CONFIGS[name]
    alone = tiny_models.engine(architecture, "good", shape={"num_hidden_layers": 3})
    expected = decoded(alone, config)
    draft = LanguageModel(alone.draft.model.to(FIRST), "draft")
    assert decoded(new_engine(spread(architecture), tiny_models.tokenizer(), draft), config) == expected


def test_layers_cache_and_memory_are_on_several_devices_and_one_copy_per_round_goes_to_the_host(devices, monkeypatch):
    model, asked = spread("llama"), []
    assert model.device == FIRST
    assert model.layer_devices == [FIRST, SECOND, SECOND]
    assert model.first(2).layer_devices == [FIRST, SECOND]
    monkeypatch.setattr(reporting, "memory_in_use", lambda where: asked.append(where) or 7)
    devices.arrivals.clear()
    engine = new_engine(model, tiny_models.tokenizer())
    decoded(engine, EngineConfig(kv_dtype="int8"))
    assert devices.arrivals[torch.device("cpu")] == SAMPLING.max_tokens
    assert asked == [{FIRST, SECOND}] * SAMPLING.max_tokens
    (pool,) = engine._cores
    found = [{tensor.device for tensor in layer.tensors} for layer in pool.cache.target.layers]
    assert found == [{FIRST}, {SECOND}, {SECOND}]


def test_the_fuller_device_limits_the_cache(devices, monkeypatch):
    free = {FIRST: 1_000_000, SECOND: 1_200_000}
    monkeypatch.setattr(budget, "free_bytes", free.__getitem__)
    # Two of three layers are on the second device: its share fills up first.
    assert Budget(spread("llama"), None).limit == int(1_200_000 * 0.25 * 3 / 2)
    free[FIRST] = 100_000
    assert Budget(spread("llama"), None).limit == int(100_000 * 0.25 * 3 / 1)
    free[FIRST] = free[SECOND] = 1_000_000
    draft = LanguageModel(tiny_models.random_model("llama", num_hidden_layers=1).to(FIRST), "draft")
    # Of four layers, each as large as any other, two are on either device.
    assert Budget(spread("llama"), draft).limit == int(1_000_000 * 0.25 * 4 / 2)


def test_tensors_on_different_simulated_devices_do_not_mix(devices):
    """The other tests rely on this."""
    with pytest.raises(RuntimeError, match="different devices: meta:0, meta:1"):
        torch.ones(2, device=FIRST) + torch.ones(2, device=SECOND)


@pytest.fixture
def folder(saved):
    return saved / "qwen3"


DISK = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.norm": "cpu", "lm_head": "disk"}
DISK |= {"model.layers.0": "cpu", "model.layers.1": "disk", "model.layers.2": "disk"}


@pytest.mark.parametrize("device_map", [DISK, {"": "disk"}], ids=["in part", "whole"])
def test_weights_on_disk_decode_the_same(folder, device_map):
    """Twice, as weights that were loaded and dropped again still have to be taken for the same."""
    plain = load_engine(folder, device="cpu")
    offloaded = load_engine(folder, folder, device_map=device_map)
    assert "meta" in {weight.device.type for weight in offloaded.target.model.parameters()}
    assert offloaded.device == "cpu"
    assert {weight.device.type for weight in offloaded.draft.model.parameters()} == {"cpu"}
    config = EngineConfig(paged=True, enable_prefix_caching=True, speculative="early_exit", early_exit_layer=2)
    for _ in range(2):
        assert decoded(offloaded, config) == decoded(plain, config)
    assert offloaded.target.weight_bytes == plain.target.weight_bytes


IN_PART = DISK | {
    "model.embed_tokens": 0,
    "model.rotary_emb": 0,
    "model.norm": 0,
    "model.layers.0": 0,
    "lm_head": "cpu",
}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("device_map", ["auto", {"": 0}, IN_PART], ids=["auto", "whole", "in part"])
def test_a_map_with_a_gpu_gives_the_tokens_of_the_gpu_alone(folder, device_map):
    plain = load_engine(folder, device="cuda", dtype="float32")
    mapped = load_engine(folder, folder, device_map=device_map, dtype="float32")
    assert torch.device(mapped.device).type == "cuda"
    assert {weight.device.type for weight in mapped.draft.model.parameters()} == {"cuda"}
    assert mapped.target.weight_bytes == plain.target.weight_bytes
    for config in (EngineConfig(), EngineConfig(paged=True, speculative="early_exit", early_exit_layer=2)):
        assert decoded(mapped, config) == decoded(plain, config)


@pytest.fixture
def gpus(monkeypatch):
    """Makes torch report GPUs of these compute capabilities, and what it was built for."""

    def report(*capabilities: tuple[int, int], built: str = "sm_75 sm_80") -> None:
        def capability(device: str | torch.device) -> tuple[int, int]:
            return capabilities[torch.device(device).index or 0]

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
        monkeypatch.setattr(torch.cuda, "get_arch_list", built.split)

    return report


@pytest.mark.parametrize(
    ("device_map", "dtype"),
    [
        ("auto", "float16"),
        ({"": 0}, "bfloat16"),
        ({"": "cuda:1"}, "float16"),
        ({"model": 0, "lm_head": 1}, "float16"),
        ({"model": "disk", "lm_head": 1}, "float16"),
    ],
)
def test_the_dtype_is_one_that_every_gpu_in_use_supports(folder, gpus, monkeypatch, device_map, dtype):
    """Of two, the second is too old for bfloat16."""
    gpus((8, 0), (7, 5))
    chosen = []

    def load_model(*_, **how):
        chosen.append(how["dtype"])
        raise ConfigError("enough")

    monkeypatch.setattr(load.loader, "load_model", load_model)
    with pytest.raises(ConfigError, match="enough"):
        load_engine(folder, device_map=device_map)
    assert chosen == [getattr(torch, dtype)]


CUDA_13 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120"
CUDA_12_6 = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((7, 0), CUDA_13, False),
        ((7, 0), CUDA_12_6, True),
        *[((major, minor), CUDA_13, True) for major, minor in ((7, 5), (8, 9), (10, 3), (12, 1))],
        ((11, 0), CUDA_13, False),
        ((13, 0), CUDA_13, True),  # compiled by the driver
        ((12, 0), CUDA_12_6, False),
        ((8, 0), "sm_86", False),  # a higher minor version
        ((10, 3), "sm_100a compute_100a", False),  # of one architecture alone
        ((10, 3), "sm_100f", True),  # of a family
        ((9, 0), "gfx90a gfx942", True),  # ROCm's
        ((6, 1), "", True),
    ],
)
def test_a_gpu_is_used_if_this_build_of_torch_has_kernels_for_it(gpus, capability, built, runs):
    gpus(capability, built=built)
    assert has_kernels("cuda") is runs
    assert best_device() == ("cuda" if runs else "cpu")


def test_a_gpu_without_kernels_is_not_chosen_and_refused_by_name(folder, gpus, monkeypatch):
    """Of two, the second is too old."""
    gpus((8, 0), (6, 1))
    assert (resolve_device(None), resolve_device("cuda:0")) == ("cuda", "cuda:0")
    for settings in ({"device": "cuda:1"}, {"device_map": "auto"}, {"device_map": {"model": 0, "lm_head": 1}}):
        with pytest.raises(ConfigError, match=r"cuda:1 .* 6\.1.*sm_75, sm_80"):
            load_engine(folder, **settings)
    gpus((6, 1))
    monkeypatch.setattr("accelerate.utils.modeling.is_mps_available", lambda *_, **__: True)  # on a Mac
    assert resolve_device(None) == "cpu"
    engine = load_engine(folder, device_map="auto")
    assert (engine.device, engine.dtype) == ("cpu", "float32")
    assert decoded(engine, EngineConfig())
    gpus((8, 0))  # on a Space that lends GPUs there is none before a call
    monkeypatch.setattr(torch.cuda, "get_device_capability", Mock(side_effect=RuntimeError("No CUDA GPUs")))
    assert best_device() == "cuda"


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        *(({"device": name}, f"not {name!r}") for name in ("gpu", "cuda:x", "cpu:1")),
        ({"device": "cuda:99"}, "'cuda:99' is not there"),
        ({"device": "cpu", "device_map": "auto"}, "only one of them"),
        ({"device_map": "balanced"}, "not 'balanced'"),
        ({"device_map": {"": 99}}, "'the model' on 99"),
        ({"device_map": {"model": "cpu", "lm_head": "attic"}}, "'lm_head' on 'attic'"),
        ({"device_map": {"model": "cpu", "tail": "disk"}}, "names 'tail'"),
        ({"device_map": {"model": "cpu"}}, "none of its modules for lm_head.weight"),
        ({"device_map": {"": "cpu", "lm_head": "disk"}}, "'' and 'lm_head' for lm_head.weight"),
    ],
    ids=str,
)
def test_invalid_devices_and_device_maps_are_refused(folder, settings, word):
    with pytest.raises(ConfigError) as refused:
        load_engine(folder, **settings)
    assert word in str(refused.value)


def test_only_weights_that_stay_where_they_compute_are_quantised(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cases = ((0, 1), False), (("cpu", "cpu"), False), ((0, "cpu"), True), ((0, "disk"), True), (("disk", "disk"), True)
    for places, refused in cases:
        device_map = dict(zip(("model", "lm_head"), places, strict=True))
        refuse_device_map(device_map, None)
        with pytest.raises(ConfigError, match="on disk") if refused else nullcontext():
            refuse_device_map(device_map, None, "torchao-int8")
