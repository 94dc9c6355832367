"""Simulated devices: their tensors report to be on them, are computed on the CPU, and must not mix."""

from __future__ import annotations

from collections import Counter

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
KIND = "meta"
"""A kind of device that torch has without a driver. The tests use "meta:0" and "meta:1"."""


class Elsewhere(torch.Tensor):
    """A tensor on a simulated device, with its numbers in ``here``."""

    here: torch.Tensor

    @staticmethod
    def __new__(cls, here: torch.Tensor, device: torch.device) -> Elsewhere:
        made = torch.Tensor._make_wrapper_subclass(
            cls, here.size(), strides=here.stride(), dtype=here.dtype, device=device, requires_grad=False
        )
        made.here = here
        return made

    def __init__(self, here: torch.Tensor, device: torch.device) -> None: ...

    def __repr__(self) -> str:
        return f"Elsewhere({self.here!r}, {self.device})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _Factories(TorchFunctionMode):
    """Handles ``torch.tensor``, which creates tensors without calling a dispatch mode."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.Tensor.tolist:
            return func(args[0].cpu())
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == KIND:
            return func(*args, **kwargs | {"device": "cpu"}).to(kwargs["device"])
        return func(*args, **kwargs)


class SimulatedDevices(TorchDispatchMode):
    """While it is active, tensors can be created on simulated devices and copied to them.

    Attributes:
        arrivals: how many tensors each device has received from another.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: Counter[torch.device] = Counter()
        self._factories = _Factories()

    def __enter__(self) -> SimulatedDevices:
        self._factories.__enter__()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._factories.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is aten._to_copy.default and kwargs.get("device") not in (None, args[0].device):
            self.arrivals[kwargs["device"]] += 1
        return _run(func, args, kwargs)


def _run(func, args, kwargs):
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    crossing = func in (aten._to_copy.default, aten.copy_.default)
    # As on GPUs, a tensor on the host may take part if it has no dimensions, or as an index.
    apart = {t.device for t in tensors if t.dim() and not (func is aten.index.Tensor and t.device.type == "cpu")}
    if len(apart) > 1 and not crossing:
        raise RuntimeError(f"{func} was given tensors on different devices: {', '.join(sorted(map(str, apart)))}")
    away = {tensor.device for tensor in tensors if isinstance(tensor, Elsewhere)}
    if (target := kwargs.get("device")) is not None:
        away = {target} - {torch.device("cpu")}
        kwargs = kwargs | {"device": torch.device("cpu")}
    here_args, here_kwargs = tree_map_only(Elsewhere, lambda tensor: tensor.here, (args, kwargs))
    result = func(*here_args, **here_kwargs)
    if func._schema.is_mutable:  # in place
        return args[0]
    return tree_map_only(torch.Tensor, lambda tensor: Elsewhere(tensor, *away), result) if away else result
