"""Results for programs: a run, a comparison or a deployment as plain values, ready for JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lab.measure.comparison import summarise
from lab.measure.difference import Difference
from lab.memory.capacity import POLICIES, Deployment
from lab.memory.model_memory import ModelInfo
from lab.models.chat_template import answer
from lab.trace.run import Run

JsonResult = dict[str, Any]


def fell_back(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(event.reason for run in runs for event in run.events if event.kind == "fell_back"))


def run_result(run: Run) -> JsonResult:
    """A run without its events: ``text`` and ``reason`` (``StopReason``), the models, the ``config`` and the
    ``sampling`` with its seed, what to know of the model's files and the prompt (``notes``), what the run went on
    without (``fell_back``), and ``metrics`` (``Metrics``, under its names). Of a chat also ``answer``: the message to
    put at its end, before the next of the user's."""
    started = run.started
    return {
        "text": run.text,
        "reason": run.reason,
        "message": run.finished.message if run.finished else "",
        "notes": list(started.notes),
        "fell_back": fell_back([run]),
        **{name: getattr(started, name) for name in ("target", "draft", "device", "hardware", "dtype")},
        "config": started.config,
        "sampling": started.sampling,
        "metrics": asdict(run.metrics),
        **({"answer": answer(run)} if started.messages else {}),
    }


def compare_result(
    runs: Mapping[str, Sequence[Run]], partings: Mapping[tuple[str, str], Difference] | None
) -> JsonResult:
    """Settings compared with each other.

    ``target``, ``draft`` (None: no setting asks for it), ``device``, ``hardware``, ``dtype`` and the ``sampling`` with
    its seed, as all runs had them; None if no run is over. What they went on without (``fell_back``). ``settings``: by
    name, its ``config``, the fields of ``Summary`` and the ``text`` of the first run. ``speedup`` is relative to the
    first setting. ``differences``: for each two that wrote different text, the first token that differs; None, as
    ``partings``, if not every setting has had a run, or one failed.
    """
    started = [some[0].started for some in runs.values() if some]
    first = started[0] if started else None
    return {
        **{name: getattr(first, name, None) for name in ("target", "device", "hardware", "dtype", "sampling")},
        "fell_back": fell_back(run for some in runs.values() for run in some),
        "draft": next((one.draft for one in started if one.draft), None),
        "settings": {
            name: {"config": runs[name][0].started.config} | asdict(found) | {"text": runs[name][0].text}
            for name, found in summarise(runs).items()
        },
        "differences": None
        if partings is None
        else [{"settings": list(pair), **asdict(found)} for pair, found in partings.items()],
    }


FIT = ("weights", "kv_dtype", "kv_cache_dtype_skip_layers", "set_aside")
"""What is asked of a device, as ``Deployment`` has it."""


def fit_result(model: ModelInfo, deployment: Deployment) -> JsonResult:
    """A device's memory by purpose: bytes, blocks and sequences, and the request itself."""
    return {
        "model": model.name,
        "source": model.source,
        "parameters": model.parameters,
        **{name: getattr(deployment, name) for name in FIT},
        "mean": deployment.lengths.mean,
        "longest": deployment.lengths.longest,
        "block_size": deployment.block_size,
        "memory_bytes": deployment.memory,
        "weight_bytes": deployment.weight_bytes,
        "cache_bytes": max(0, deployment.cache_bytes),
        "token_bytes": deployment.token_bytes,
        "state_bytes": deployment.state_bytes,
        "num_blocks": deployment.num_blocks,
        "sequences": {policy: deployment.sequences(policy) for policy in POLICIES},
    }
