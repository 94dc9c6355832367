"""The experts of a mixture, and how many of them a pass reads.

A router sends each token to a few experts of every layer, and a pass reads the weights of all that one of its tokens
goes to: the more tokens, the more experts, until it reads all. Which ones is known on the device alone, so they are
counted there, and the host asks when a step is over.
"""

import inspect
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from lab.models.quantization import stored_tensors

CHOSEN = "top_k_index"
"""The argument with which transformers tells a layer's experts who computes each token: [tokens, top_k] int64."""

PER_TOKEN = ("num_experts_per_tok", "moe_topk", "top_k_experts")
"""Names of the number of a layer's experts that compute a token."""


class Experts(NamedTuple):
    """The experts of all layers together.

    Attributes:
        bytes: of all their weights.
        bytes_each: of one expert in one layer.
        weights_per_token: weights that a token is multiplied by, in all layers.
    """

    bytes: int
    bytes_each: int
    weights_per_token: int


def expert_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that hold a layer's experts, each weight stacked as [experts, ...]."""
    return [module for module in model.modules() if any(it.ndim > 2 for it in module.parameters(recurse=False))]


def experts_per_token(config: PreTrainedConfig) -> tuple[int, int] | None:
    """The number of a layer's experts that compute a token, and of all; None for a model that is no mixture."""
    text = config.get_text_config(decoder=True)
    names = PER_TOKEN, ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    some, all_ = (next((it for name in of if (it := getattr(text, name, None))), None) for of in names)
    return (some, all_) if isinstance(some, int) and isinstance(all_, int) else None


def experts_of(model: PreTrainedModel) -> Experts | None:
    """The experts of a mixture; None for another model, and for one whose experts cannot be counted."""
    modules, text = expert_modules(model), model.config.get_text_config(decoder=True)
    top_k = next((it for name in PER_TOKEN if (it := getattr(text, name, None))), None)
    if not modules or not isinstance(top_k, int):
        return None
    sizes = set()
    for module in modules:
        stacks = list(module.parameters(recurse=False))
        if CHOSEN not in inspect.signature(type(module).forward).parameters or len({len(it) for it in stacks}) > 1:
            return None
        if any(stored_tensors(it)[0] is not it for it in stacks):
            return None
        numbers = sum(it.numel() for it in stacks if it.ndim > 2)
        sizes.add((numbers // len(stacks[0]), sum(it.nbytes for it in stacks) // len(stacks[0]), len(stacks[0])))
    if len(sizes) > 1:
        return None
    ((numbers, each, count),) = sizes
    return Experts(each * count * len(modules), each, top_k * numbers * len(modules))


class ExpertCounter:
    """Counts the experts that passes over ``model`` read, summed over its layers. Cut and compiled copies of the model
    share it with the layers."""

    def __init__(self, model: nn.Module) -> None:
        by_device: dict[torch.device, list[nn.Module]] = {}
        for module in expert_modules(model):
            by_device.setdefault(next(module.parameters(recurse=False)).device, []).append(module)
        self._read = []
        """For each device, [layers, experts] bool: which experts the pass under way has read."""
        for device, modules in by_device.items():
            most = max(len(next(module.parameters(recurse=False))) for module in modules)
            self._read.append(read := torch.zeros(len(modules), most, dtype=torch.bool, device=device))
            for row, module in zip(read, modules, strict=True):
                module.register_forward_pre_hook(_marking(row), with_kwargs=True)
        self._count = torch.zeros((), dtype=torch.int64, device=self._read[0].device)

    def begin(self) -> None:
        """To be called before a pass."""
        for read in self._read:
            read.zero_()

    def end(self) -> None:
        for read in self._read:
            self._count += read.sum().to(self._count.device)

    def take(self) -> torch.Tensor:
        """The number of experts read since the last call, on the device: [] int64."""
        found = self._count.clone()
        self._count.zero_()
        return found


def _marking(row: torch.Tensor) -> Any:
    @torch.compiler.disable
    def mark(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        chosen = named[CHOSEN] if CHOSEN in named else given[1]
        row.index_fill_(0, chosen.flatten(), True)

    return mark
