"""Graphs of a cache write their logits to memory that they share, one that finds no memory is left out, and none is
destroyed during a capture."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from torch.nn import functional as F

from lab import Engine, EngineConfig, SamplingParams
from lab.backends.gpu import cuda_graphs as graphs
from lab.backends.gpu.cuda_graphs import Bucket
from lab.util.device_memory import CAPTURING
from tests.captured import Again, captured_engine


def scripted(monkeypatch: pytest.MonkeyPatch, vocabulary: int = 12) -> tuple[Mock, graphs.Graphs]:
    """A model whose logits are one-hot, and graphs of it."""
    monkeypatch.setattr(Again, "made", [], raising=False)
    monkeypatch.setattr(graphs, "CaptureStream", lambda device: Again(device, {}, RuntimeError("no")))

    def forward(ids, positions, plan, keep, out):
        return out.copy_(F.one_hot(ids[keep], vocabulary))

    model = Mock(device=torch.device("cpu"), vocabulary=vocabulary, forward=forward)
    model.name = "scripted"
    return model, graphs.Graphs()


def replayed(captured: graphs.Graphs, model: Mock, bucket: Bucket, token: int) -> torch.Tensor | None:
    """The logits of a step of one token by the graph of a bucket."""
    packed = bucket.layout(16).pack((1,), (0,), (1,), (array("i", [0]),), 16, model.device)
    return captured.forward(model, torch.tensor([token]), packed, 1, bucket, 16, None)


def test_graphs_share_the_memory_of_their_logits_and_results_do_not(monkeypatch):
    """A graph always writes to the same place, even after a larger one has needed more memory: then at least twice
    as much."""
    model, captured = scripted(monkeypatch, vocabulary=15)
    most = [1, 2, 3, 16, 64]
    buckets = [Bucket(sequences, 1, context) for sequences in most for context in (512, 1024, 2048)]
    first = [replayed(captured, model, bucket, token) for token, bucket in enumerate(buckets)]
    again = [replayed(captured, model, bucket, token) for token, bucket in enumerate(reversed(buckets))]
    for logits in (first, again):
        assert [row.argmax().item() for row in logits] == list(range(15))
    assert captured.count == 15
    logits = [captured.capture(model, bucket, 16, None).logits for bucket in buckets]
    assert [part.shape for part in logits] == [(bucket.rows, 15) for bucket in buckets]
    memory = {storage.data_ptr(): storage.nbytes() for storage in map(torch.Tensor.untyped_storage, logits)}
    assert list(memory.values()) == [rows * 15 * 4 for rows in (1, 2, 4, 16, 64)]


def in_the_end(error: Exception, cause: Exception) -> Exception:
    """``error``, raised while ``cause`` was: ending a capture may fail because of what failed within it."""
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        in_the_end(RuntimeError("operation failed due to a previous error"), torch.OutOfMemoryError("CUDA")),
    ],
)
def test_a_bucket_without_memory_is_tried_once_and_the_next_in_a_new_pool_if_there_are_no_others(monkeypatch, error):
    """A pool of memory whose only graph is gone cannot be used again."""
    model, captured = scripted(monkeypatch)
    small, large, other = Bucket(1, 1, 512), Bucket(4, 1, 512), Bucket(2, 1, 512)
    record, asked = Again.record, []

    def short(place, run):
        asked.append(Again.made.index(place))
        if len(asked) in (1, 3):
            raise error
        return record(place, run)

    monkeypatch.setattr(Again, "record", short)
    tokens = [replayed(captured, model, bucket, 7) for bucket in (large, large, small, other, other, large, small)]
    assert [logits is not None for logits in tokens] == [False, False, True, False, False, False, True]
    assert asked == [0, 1, 1]
    assert captured.on
    assert captured.count == 1
    assert "scripted, 2 x 1 tokens, context 512" in captured.failure


PAGED = EngineConfig(paged=True, block_size=4)
ONE = SamplingParams(max_tokens=2, ignore_eos=True)


def need_the_memory(lab: Engine) -> None:
    lab._cores._budget.lower(lab._cores.bytes_in_use())
    lab.generate("Once", replace(PAGED, kv_dtype="int8"), ONE)


def change_the_weights(lab: Engine) -> None:
    lab.target.model.double()
    lab.generate("Once", PAGED, ONE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA captures here: see the tests marked gpu")
@pytest.mark.parametrize(
    "drop",
    [
        need_the_memory,
        change_the_weights,
        lambda lab: lab._cores._drop_idle(),
        lambda lab: lab._cores.abort_all(),
        lambda lab: next(iter(lab._cores)).target.close(),
    ],
    ids=["need the memory", "change the weights", "memory ran out", "broken off", "give up"],
)
def test_graphs_are_destroyed_while_no_thread_captures(monkeypatch, drop: Callable[[Engine], None]):
    """Whoever still refers to their cache, as the function that drops it does."""
    pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")
    lab, record, alone = captured_engine(monkeypatch), Again.record, []

    def watched(place, run):
        replay, output = record(place, run)
        weakref.finalize(replay, lambda: alone.append(CAPTURING.locked()))
        return replay, output

    monkeypatch.setattr(Again, "record", watched)
    lab.generate("Once", PAGED, ONE)
    drop(lab)
    assert alone == [True]
