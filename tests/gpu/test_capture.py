"""What can be captured, and captures for real, where there is a GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

from lab import load_engine
from lab.backends.gpu import cuda_graphs as graphs
from tests.captured import DRAFT, EARLY_EXIT, PAGED, SAMPLING, fell_back


def test_a_capture_that_fails_is_ended_for_the_allocator_too(monkeypatch):
    """With a simulated CUDA: what is called, and when."""
    called = []

    @contextmanager
    def graph(*_: object, pool: object = None, **__: object):
        yield
        called.append("ended")
        if pool:  # not the capture that restores order, which has memory of its own
            raise RuntimeError("operation not permitted when stream is capturing")

    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    for name in ("Stream", "current_stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, Mock())
    waited = torch.cuda.current_stream.return_value.wait_stream
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda size, device=None: zeros(size))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *which: called.append(which), raising=False)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: called.append("cleared"), raising=False)
    place = graphs.CaptureStream(torch.device("cuda", 1))
    with pytest.raises(RuntimeError, match="not permitted"):
        place.record(lambda: (called.append("run" if gc.isenabled() else "captured"), torch.zeros(1))[1])
    assert called == ["run", "cleared", "captured", "ended", (1, (0, 7)), "ended", "cleared"]
    assert not graphs.CAPTURING.locked()
    assert gc.isenabled()  # no garbage was collected during the capture: it may hold a graph, not to be destroyed then
    waited.reset_mock()
    with pytest.raises(ZeroDivisionError):
        place.record(lambda: 1 / 0)
    waited.assert_called_once()  # what had been launched before may still read what is freed now


def on_a_gpu(modules: Iterable[object] = (), **attributes: object) -> SimpleNamespace:
    weight = SimpleNamespace(device=torch.device("cuda", 0))
    model = SimpleNamespace(parameters=lambda: [weight, weight], modules=lambda: modules, **attributes)
    return SimpleNamespace(model=model, windows=[None])


class Looked(TorchDispatchMode):
    """Whether a number was read from a tensor, for which the host would have to wait for a GPU."""

    looked = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.looked |= func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


VERSION = tuple(map(int, transformers.__version__.split(".")[:2]))
OLD_LONGROPE = pytest.mark.skipif(VERSION < (5, 23), reason="transformers 5.17, for one, does ask")
LONGROPE = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": 16, "factor": 4.0}


@pytest.mark.parametrize(
    ("kind", "parameters", "waits"),
    [
        ("default", {}, False),
        ("yarn", {"factor": 4.0}, False),
        pytest.param("longrope", LONGROPE, False, marks=OLD_LONGROPE),
        ("dynamic", {"factor": 4.0}, True),
    ],
)
def test_a_model_is_captured_if_its_rotary_embedding_never_asks_for_a_number(kind, parameters, waits):
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=64,
        rope_parameters={"rope_type": kind, "rope_theta": 1e4, **parameters},
    )
    rotary = LlamaRotaryEmbedding(config)
    for _ in range(2):  # a capture follows a call that is not captured
        with Looked() as now:
            rotary(torch.zeros(1, 3, 64), torch.arange(3)[None])
    assert now.looked is waits
    assert graphs.can_be_captured(on_a_gpu([torch.nn.Linear(1, 1), rotary])) is not waits
    assert not graphs.can_be_captured(on_a_gpu(is_loaded_in_8bit=True))
    rotary.rope_type = {"full_attention": kind}  # as in models with several types of layers
    assert graphs.can_be_captured(on_a_gpu([rotary])) is not waits


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing to capture")
@pytest.mark.parametrize("config", [PAGED, DRAFT, EARLY_EXIT], ids=["paged", "a draft, int8", "an early exit"])
@pytest.mark.parametrize("sequences", [1, 3])
def test_the_embedded_pair_gives_the_same_tokens_captured(config, sequences):
    """In float32, token for token, across the boundaries of blocks and of context buckets. Fewer with INT8, where a
    difference in the last bit can become one of a whole step."""
    tokens = 100 if config.kv_dtype == "int8" else 600
    config, sampling = replace(config, block_size=16), replace(SAMPLING, max_tokens=tokens)
    texts = []
    for cuda_graphs in (True, False):
        lab, config = load_engine(device="cuda", dtype="float32"), replace(config, cuda_graphs=cuda_graphs)
        assert lab.cuda_graphs
        prompts = [f"Once upon a time there were {number}" for number in ("two", "three", "four")][:sequences]
        runs = [request.result() for request in [lab.submit(prompt, config, sampling) for prompt in prompts]]
        assert [fell_back(run) for run in runs] == [[]] * sequences
        assert all(run.started.cuda_graphs is cuda_graphs for run in runs)
        texts.append([run.token_ids for run in runs])
    assert texts[0] == texts[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing to capture")
def test_a_capture_that_fails_leaves_cuda_in_order(monkeypatch):
    """Waiting for the device is not permitted in a capture: steps go on, in the stream they were in before."""
    lab = load_engine(device="cuda", dtype="float32")
    forward, stream = lab.target.forward, torch.cuda.current_stream()

    def waiting(*args):
        logits = forward(*args)
        if torch.cuda.is_current_stream_capturing():
            logits.sum().item()
        return logits

    monkeypatch.setattr(lab.target, "forward", waiting)
    run = lab.generate("Once upon a time", PAGED, SAMPLING)
    assert [event.part for event in fell_back(run)] == ["cuda_graph"]
    assert (
        run.token_ids
        == load_engine(device="cuda", dtype="float32").generate("Once upon a time", PAGED, SAMPLING).token_ids
    )
    assert torch.cuda.current_stream() == stream
    torch.rand(1, device="cuda")  # fails if the random number generator is still in a capture
    torch.cuda.empty_cache()  # fails if the allocator believes that it is still in a capture
    assert not fell_back(load_engine(device="cuda", dtype="float32").generate("Once upon a time", PAGED, SAMPLING))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing to capture")
def test_a_capture_out_of_memory_leaves_the_next_one_in_order(monkeypatch):
    """Of two buckets, the first finds no memory: the second is captured, in another pool of memory."""
    lab = load_engine(device="cuda", dtype="float32")
    forward, config = lab.target.forward, replace(PAGED, block_size=16)

    def short(token_ids, *rest):
        logits = forward(token_ids, *rest)
        if torch.cuda.is_current_stream_capturing() and len(token_ids) == 1:
            raise torch.OutOfMemoryError("no more")
        return logits

    monkeypatch.setattr(lab.target, "forward", short)
    expected = [
        load_engine(device="cuda", dtype="float32").generate("Once upon a time", config, SAMPLING).token_ids
    ] * 2
    alone = lab.generate("Once upon a time", config, SAMPLING)
    assert [event.part for event in fell_back(alone)] == ["cuda_graph"]
    assert alone.token_ids == expected[0]
    requests = [lab.submit("Once upon a time", config, SAMPLING) for _ in range(2)]
    assert [request.result().token_ids for request in requests] == expected
    (pool,) = lab._cores
    assert pool.target.launches_ahead
    assert pool.target.num_captured == 1
    torch.rand(1, device="cuda")
    torch.cuda.empty_cache()
