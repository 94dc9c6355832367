"""Numbers and what they do to a text: ``temperatures``, how often a draft token is accepted; ``eight_bits``, what
rounding keys to a byte costs. Both read texts that the target wrote, and no time is measured."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field

from lab.backends.interface import NewTokens
from lab.backends.torch.sampler import distribution
from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.kv_cache.kv_cache import new_storage
from lab.kv_cache.storage import LayerStorage
from lab.measure.score import divergence, log_probabilities
from lab.measure.workload import write
from lessons.experiments.base import Experiment, Load, Measured, Name, Part, Watch, Work

OF_TEMPERATURES = {
    "drawn": "sum of min(p, q), mean over places: how often a draft token drawn from q is accepted",
    "greedy": "p of the draft's likeliest token, mean over places: how often that is accepted",
    "sure": "p of the target's likeliest token, the same mean",
}
OF_ROUNDING = {
    "error": "how far stored keys are off, the outlier's factor undone, as a share (Frobenius norms over all layers)",
    "kl": "nats per token that the next-token distribution moves by",
}
PLAIN = EngineConfig(kernels="reference")


class Sampled(Part):
    """One way to sample; target and draft alike."""

    temperature: float = Field(ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)


class Temperatures(Experiment):
    """Settings compared at the same places: those of ``texts`` texts of ``tokens`` tokens, drawn at temperature 1."""

    settings: dict[Name, Sampled] = Field(min_length=1, max_length=8)
    texts: int = Field(default=4, ge=1, le=10)
    tokens: int = Field(default=192, ge=8, le=1000)

    def names(self) -> Mapping[str, Any]:
        return dict.fromkeys(self.settings, dict.fromkeys(OF_TEMPERATURES))

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        engine = load("matched")
        watch("writing texts to read", 0.0)
        texts = write(engine, [self.tokens] * self.texts)
        yield
        watch("reading them with the target and with the draft", 0.5)
        both = [torch.cat(each) for each in zip(*(_logits(engine, text) for text in texts), strict=True)]
        yield
        watch("comparing the distributions", 0.8)
        return Measured({name: _accepted(*both, one) for name, one in self.settings.items()})


@torch.inference_mode()
def _logits(engine: Engine, text: str) -> list[torch.Tensor]:
    """The target's and the draft's after each token of a text, [tokens, vocabulary] float32 each."""
    ids = torch.tensor(engine.tokenizer(text)["input_ids"][: engine.context_length])
    back_ends = engine.backends(EngineConfig(kv_cache=False, kernels="reference", speculative="draft"))
    read = [one.forward([NewTokens(ids.to(one.model.device), 0, None, len(ids))], None, "auto") for one in back_ends]
    return [logits.float().cpu() for logits in read]


def _accepted(target: torch.Tensor, draft: torch.Tensor, how: Sampled) -> dict[str, float]:
    likeliest, same = draft.argmax(-1), (draft.argmax(-1) == target.argmax(-1)).double().mean().item()
    if not how.temperature:  # nothing is drawn: a draft token is accepted if it is the target's own
        return {"drawn": same, "greedy": same, "sure": 1.0}
    sampling = SamplingParams(temperature=how.temperature, top_p=how.top_p)
    p, q = (distribution(logits, sampling).double() for logits in (target, draft))
    return {
        "drawn": torch.minimum(p, q).sum(-1).mean().item(),
        "greedy": p.gather(-1, likeliest[:, None]).mean().item(),
        "sure": p.amax(-1).mean().item(),
    }


class Rounding(Part):
    """``scale``: one for each token's key, for each channel, or none (E4M3 then has its own range). ``outlier``: the
    factor by which one channel of every key is larger, and that of every query smaller, so that no score changes."""

    form: Literal["int8", "e4m3"]
    scale: Literal["token", "channel", "none"] = "token"
    outlier: float = Field(default=1.0, ge=1, le=1000)


class EightBits(Experiment):
    """Ways to keep keys in a byte, compared with keys that are not rounded, on the same text."""

    settings: dict[Name, Rounding] = Field(min_length=1, max_length=8)
    tokens: int = Field(default=256, ge=8, le=1000)

    def names(self) -> Mapping[str, Any]:
        return dict.fromkeys(self.settings, dict.fromkeys(OF_ROUNDING))

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        engine = load("matched")
        watch("writing a text to read", 0.0)
        ids = engine.tokenizer(write(engine, [self.tokens])[0])["input_ids"][: engine.context_length]
        exact = torch.cat(list(log_probabilities(engine, ids, PLAIN)))
        found = {}
        for place, (name, how) in enumerate(self.settings.items()):
            if cancelled.is_set():
                return Measured({})
            watch(f"{how.form}, scale per {how.scale}", (1 + place) / (1 + len(self.settings)))
            found[name] = _rounded(engine, ids, exact, how)
            yield
        return Measured(found)


def _rounded(engine: Engine, ids: list[int], exact: torch.Tensor, how: Rounding) -> dict[str, float]:
    size = PLAIN.block_size
    storage = new_storage(engine.target, PLAIN.kv_dtype, -(-len(ids) // size) * size)
    storage.layers = [RoundedKeys(layer, how) for layer in storage.layers]
    moved = torch.cat(list(log_probabilities(engine, ids, PLAIN, storage)))
    off, whole = sum(layer.squares for layer in storage.layers).sqrt().tolist()
    return {"error": off / whole, "kl": divergence(exact, moved).mean().item()}


class RoundedKeys:
    """A layer's slots, with keys that went through a byte and back. A channel's scale is that of all tokens written
    together. ``squares``: sums of squares of the error and of the keys."""

    def __init__(self, layer: LayerStorage, how: Rounding) -> None:
        self.read, self._store, self._how = layer.read, layer.write, how
        self.squares = torch.zeros(2, dtype=torch.float64)

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        larger = torch.ones(key.shape[-1], device=key.device)
        larger[0] = self._how.outlier
        exact = key.float()
        back = round_keys(exact * larger, self._how.form, self._how.scale) / larger
        self.squares += torch.stack([(back - exact).square().sum(), exact.square().sum()]).double().cpu()
        self._store(slots, back.to(key.dtype), value)


def round_keys(key: torch.Tensor, form: str, scale: str) -> torch.Tensor:
    """[tokens, kv_heads, head_dim] float32 to a byte per number and back."""
    most = 127.0 if form == "int8" else torch.finfo(torch.float8_e4m3fn).max
    step = torch.ones(())
    if scale != "none":
        step = (key.abs().amax(-1 if scale == "token" else 0, keepdim=True) / most).clamp_min(1e-30)
    numbers = (key / step).clamp(-most, most)
    return (numbers.round() if form == "int8" else numbers.to(torch.float8_e4m3fn).float()) * step
