"""The same weights in other modules: a model cut short, with other layers, or with modules of its own."""

import copy

from torch import nn
from transformers import PreTrainedConfig

from lab.errors import UnsupportedModelError
from lab.models.devices import rebind_hook


def cut_layers(module: nn.Module, layers: int, kept: int) -> nn.Module:
    """A copy of the modules above a list of ``layers`` layers, with the first ``kept`` of them. The weights and the
    layers themselves are shared; the list of layers is not."""
    found = copy.copy(module)
    found._modules = dict(module._modules)
    rebind_hook(found)
    for name, child in module._modules.items():
        if isinstance(child, nn.ModuleList) and len(child) == layers:
            found._modules[name] = child[:kept]
        elif isinstance(child, nn.Module) and _has_layers(child, layers):
            found._modules[name] = cut_layers(child, layers, kept)
    return found


def copy_modules(module: nn.Module, configs: dict[int, PreTrainedConfig]) -> nn.Module:
    """A copy of a module and all below it. Weights are shared; configurations, which name the attention, are not.

    ``configs``: those copied so far, by the identity of the original; empty to begin with.
    """
    found = copy.copy(module)
    rebind_hook(found)
    config = getattr(found, "config", None)
    if isinstance(config, PreTrainedConfig):
        found.config = configs.setdefault(id(config), copy.copy(config))
    found._modules = {name: child and copy_modules(child, configs) for name, child in module._modules.items()}
    return found


def layers_of(model: nn.Module, layers: int) -> nn.ModuleList:
    """The list of a model's ``layers`` layers.

    Raises:
        UnsupportedModelError: it has no list of so many.
    """
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == layers:
            return module
    raise UnsupportedModelError(
        f"{type(model).__name__} has no list of its {layers} layers: they cannot be replaced or compiled."
    )


def _has_layers(module: nn.Module, layers: int) -> bool:
    return any(isinstance(inner, nn.ModuleList) and len(inner) == layers for inner in module.modules())
