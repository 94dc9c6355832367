"""A model's recurrent layers: transformers' own, each sequence's tokens computed from that sequence's state.

A packed pass has the tokens of several sequences in one row. Attention is told which are whose by the step's plan; a
recurrent layer would take them for one text. So it is given them sequence by sequence.
"""

import functools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from lab.kv_cache.block_pool import Emit
from lab.kv_cache.recurrent_state import Compute, LayerState, RecurrentState, Rollback
from lab.trace.events import RecurrentRolledBack

UPDATES = {"update_conv_state", "update_recurrent_state"}
"""Methods of transformers' ``Cache`` by whose names a module is known that keeps a state."""
STATES = 2
"""States of a sequence in a pass: before it and after it."""
SCAN = "mamba_selective_scan"
"""A function of transformers by whose name a module is known that begins anew with several tokens, whatever its state:
Mamba's, of Jamba."""


class PassPart(NamedTuple):
    """One sequence's part of a packed pass.

    Attributes:
        rows: its tokens.
        start: position of the first.
        uncertain: how many of the last may be rejected.
        state: None without a cache: the tokens are a whole text.
        settled: tokens that will never be rejected.
        drafting: how many tokens are drafted one after another from ``settled`` on, of which this pass computes the
            next. 0: none, the target computes them.
        block_size: of blocks that others may share: then there is a state at the end of the last full one, and of
            ``behind`` before it. None: they do not.
        emit: where a rollback is reported. None: nowhere.
    """

    rows: slice
    start: int
    uncertain: int = 0
    state: RecurrentState | None = None
    settled: int = 0
    drafting: int = 0
    block_size: int | None = None
    behind: int = 0
    emit: Emit | None = None


class RollbackCosts(NamedTuple):
    """Milliseconds that all recurrent layers take for a round with a rejected token, measured: its tokens one by one,
    or all at once and then the accepted ones again."""

    snapshots_ms: float
    recompute_ms: float

    @property
    def snapshots_are_cheaper(self) -> bool:
        return self.snapshots_ms < self.recompute_ms


_parts: ContextVar[tuple[Sequence[PassPart], Compute] | None] = ContextVar("parts", default=None)
"""Those of the pass under way. None: whoever calls the model gives it no plan (``stock_attention``)."""


class RecurrentLayers:
    """The recurrent layers of a model, by their number among all.

    Attributes:
        rollback: how a state goes back; None: the way that takes less time here, measured for each number of tokens.
        max_states: most states that the sequences of a pass may have together. Where snapshots would be more, a state
            is computed again. None: any number.
    """

    def __init__(self, layers: dict[int, nn.Module], width: int) -> None:
        """``width``: of the hidden states that go through the layers."""
        self.rollback: Rollback | None = None
        self.max_states: int | None = None
        self._layers, self._width = layers, width
        for module in layers.values():
            if not hasattr(module, "whole_text"):
                module.__class__ = _by_sequence(type(module))
        self.costs = functools.cache(self._measured)

    def first(self, layers: int) -> "RecurrentLayers | None":
        """Those among the first ``layers`` layers of the model; None if there is none."""
        found = {index: module for index, module in self._layers.items() if index < layers}
        if not found:
            return None
        made = RecurrentLayers(found, self._width)
        made.max_states = self.max_states
        return made

    @functools.cached_property
    def state_bytes(self) -> int:
        """Bytes of one sequence's state, however long its text."""
        found = RecurrentState()
        self._through(found, 1 + max(_kernel(layer) for layer in self._layers.values()), 0, "recompute")
        return found.bytes

    @contextmanager
    def computing(self, parts: Sequence[PassPart]) -> Iterator[None]:
        """Within, a pass of the model is over these parts, in the order of their rows."""
        spare = math.inf if self.max_states is None else self.max_states - STATES * len(parts)
        for part in parts:
            if part.state is not None:
                self.rewind(part.state, part.start, part.settled, part.emit)
                count, states = part.rows.stop - part.rows.start, part.drafting or part.uncertain
                rollback = self._rollback(part, spare)
                spare -= states if rollback == "snapshots" else 0
                if part.drafting:
                    part.state.begin_drafting(count, rollback)
                else:
                    part.state.begin(count, part.uncertain, rollback, part.block_size, part.behind)
        token = _parts.set((parts, self._compute))
        try:
            yield
        finally:
            _parts.reset(token)

    def rewind(self, state: RecurrentState, start: int, settled: int, emit: Emit | None = None) -> None:
        """Go back to the state before the token at ``start``. Positions before ``settled`` are never gone back to.
        ``emit`` reports it, if draft tokens were rejected."""
        before, verified = time.perf_counter(), state.uncertain + 1
        gone, again = state.rewind(start, settled, self._compute)
        if gone and start and verified > 1 and emit:
            took, costs = time.perf_counter() - before, self.costs(verified)
            emit(
                RecurrentRolledBack,
                position=start,
                discarded=gone,
                recomputed=again,
                method=state.rollback,
                ms=1000 * took,
                snapshots_ms=costs.snapshots_ms,
                recompute_ms=costs.recompute_ms,
                state_bytes=state.bytes,
            )

    def _rollback(self, part: PassPart, spare: float) -> Rollback:
        """The way back to before the last tokens of a pass, with room for ``spare`` states after them. Drafting has a
        state after each token anyway, which only needs to be kept."""
        if part.drafting:
            if part.start > part.settled:
                return part.state.rollback  # it goes on
            cheaper = part.drafting <= spare
        else:
            cheaper = 0 < part.uncertain <= spare and self.costs(part.uncertain + 1).snapshots_are_cheaper
        return self.rollback or ("snapshots" if cheaper else "recompute")

    @torch.inference_mode()
    def _measured(self, tokens: int) -> RollbackCosts:
        """Of the verification of ``tokens``, the newest known one included; the best of three."""

        def took(rollback: Rollback) -> float:
            state = RecurrentState()
            self._through(state, 8, 0, rollback)
            before = time.perf_counter()
            self._through(state, tokens, tokens - 1, rollback)
            state.rewind(8 + (tokens + 1) // 2, 8, self._compute)
            for layer in self._layers.values():
                if (device := next(layer.parameters()).device).type == "cuda":
                    torch.cuda.synchronize(device)
            return 1000 * (time.perf_counter() - before)

        return RollbackCosts(*(min(took(way) for _ in range(3)) for way in ("snapshots", "recompute")))

    @torch.inference_mode()
    def _through(self, state: RecurrentState, count: int, uncertain: int, rollback: Rollback) -> None:
        """Let the layers alone compute ``count`` tokens of no text."""
        state.begin(count, uncertain, rollback)
        for index, layer in self._layers.items():
            linear = next(part for part in layer.modules() if isinstance(part, nn.Linear))
            inputs = linear.weight.new_full((1, count, self._width), 0.01)
            state.run(index, inputs, self._compute)

    def _compute(self, layer: int, inputs: torch.Tensor, state: LayerState | None) -> torch.Tensor:
        if state is not None and state.recurrent and inputs.shape[1] > 1 and _restarts(type(self._layers[layer])):
            return torch.cat([self._compute(layer, one, state) for one in inputs.split(1, dim=1)], dim=1)
        return self._layers[layer].whole_text(inputs, cache=state, attention_mask=None)


def recurrent_layers(model: PreTrainedModel) -> RecurrentLayers | None:
    """A model's recurrent layers; None if it has none."""
    found = {module.layer_idx: module for module in model.modules() if _keeps_state(type(module))}
    return RecurrentLayers(found, model.config.get_text_config(decoder=True).hidden_size) if found else None


def _keeps_state(kind: type[nn.Module]) -> bool:
    """True for a class of which a method updates a state."""
    return hasattr(kind, "whole_text") or bool(UPDATES & _names(kind))


@functools.cache
def _restarts(kind: type[nn.Module]) -> bool:
    return any(SCAN in _names(base) for base in kind.__mro__)


def _names(kind: type[nn.Module]) -> set[str]:
    """The names that a class's methods read and call."""
    methods = (getattr(method, "__wrapped__", method) for method in vars(kind).values() if callable(method))
    bodies = (getattr(_unwrapped(method), "__code__", None) for method in methods)
    return {name for body in bodies if body for name in body.co_names}


def _unwrapped(method: object) -> object:
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    return method


def _kernel(layer: nn.Module) -> int:
    return max((part.kernel_size[0] for part in layer.modules() if isinstance(part, nn.Conv1d)), default=1)


@functools.cache
def _by_sequence(kind: type[nn.Module]) -> type[nn.Module]:
    """The same layer, which computes a packed pass part by part. A class, so that a copied layer computes with its own
    weights."""

    def forward(self: nn.Module, hidden_states: torch.Tensor, *given: object, **how: object) -> torch.Tensor:
        if (step := _parts.get()) is None:
            return self.whole_text(hidden_states, *given, **how)
        parts, compute = step
        outputs = []
        for part in parts:
            rows = hidden_states[:, part.rows]
            run = compute if part.state is None else part.state.run
            more = (None,) if part.state is None else (compute,)
            outputs.append(run(self.layer_idx, rows, *more))
        return torch.cat(outputs, dim=1)

    return type(kind.__name__, (kind,), {"forward": forward, "whole_text": kind.forward})
