"""Devices that a model computes on: one, or several through accelerate's ``device_map``."""

import functools
import re

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import nn
from transformers import PreTrainedModel

from lab.errors import ConfigError
from lab.kv_cache.attention import BACKENDS
from lab.kv_cache.sdpa_support import refuse_sdpa

DeviceMap = str | dict[str, str | int]
"""In accelerate's form: "auto", or a device for each module by name ("" is the whole model): the number of a
GPU, "cuda:1", "cpu" or "disk". With a GPU in the map, "cpu" and "disk" only store weights; the GPU computes."""
BUILDS = "that for CUDA 12.6 is for older GPUs, too"
"""Which build of torch has kernels for a GPU that the usual one has none for."""
ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)([af]?)")
"""What torch was built for: "sm_86" is machine code for compute capability 8.6."""


def best_device() -> str:
    """ "cuda" when there is one that this build of torch has kernels for, else "cpu"."""
    return "cuda" if torch.cuda.is_available() and has_kernels("cuda") else "cpu"


@functools.cache
def has_gpu() -> bool:
    """True if a GPU computes where no device is named."""
    return best_device() != "cpu"


@functools.cache
def prefill_backends() -> tuple[str, ...]:
    """Torch's attention back ends that can read a prompt here.

    On a GPU all are offered: only the loaded model's dtype decides, and one that does not take it is refused then.
    """
    return tuple(BACKENDS) if has_gpu() else tuple(filter(_runs_on_cpu, BACKENDS))


def _runs_on_cpu(backend: str) -> bool:
    try:
        refuse_sdpa(backend, torch.device("cpu"), torch.float32, head_dim=64)  # a common size: none is special here
    except ConfigError:
        return False
    return True


def _capability(device: torch.device | str) -> tuple[int, int] | None:
    """A GPU's compute capability. None: there is no GPU to ask, as on a Space that lends GPUs and has none yet."""
    try:
        return torch.cuda.get_device_capability(device)
    except (RuntimeError, AssertionError):
        return None


def has_kernels(device: torch.device | str) -> bool:
    """True if this build of torch has kernels for a GPU, or if that cannot be known.

    Machine code ("sm") runs on GPUs of the same major version, and of the same or a higher minor one. From the other
    kind ("compute") the driver makes machine code for any later GPU. With an "a", either is for one compute capability
    alone; with an "f", for its major version (NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities").
    """
    capability = _capability(device)
    built = [ARCHITECTURE.fullmatch(name) for name in torch.cuda.get_arch_list()]
    if capability is None or not built or not all(built):  # ROCm's have other names
        return True
    return any(_runs(*name.groups(), capability) for name in built)


def _runs(kind: str, number: str, only: str, capability: tuple[int, int]) -> bool:
    """True if code of an architecture runs on a GPU; the first three are the parts of its name."""
    made_for = divmod(int(number), 10)
    if capability == made_for:
        return True
    same_major = capability[0] == made_for[0]
    return capability > made_for and only != "a" and (same_major or (kind == "compute" and not only))


def multiplies_bfloat16(device: torch.device | str) -> bool:
    """True if a GPU's tensor cores multiply bfloat16: from compute capability 8.0 (Ampere, 2020) on. Compiled for 7.5
    (a T4), Triton 3.6's kernels use no tensor cores in any dtype, need seven times the instructions, and spill.
    """
    return (_capability(device) or (8, 0)) >= (8, 0)


def resolve_device(device: str | None) -> str:
    """The device that is asked for; None: the best available.

    Raises:
        ConfigError: not the name of a device, one that this machine lacks, or one that torch has no kernels for.
    """
    if device is None:
        return best_device()
    _refuse_absent(device)
    _refuse_without_kernels(device)
    return device


def _refuse_absent(device: str) -> None:
    kind, colon, index = str(device).partition(":")
    numbered = index.isascii() and index.isdecimal() if colon else True
    if kind not in ("cpu", "cuda") or not numbered or (kind == "cpu" and int(index or 0)):
        raise ConfigError(f"device must be 'cpu', 'cuda' or the number of a GPU as in 'cuda:1', not {device!r}.")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device={device!r} is not there: {_gpus()} Choose another, or 'cpu'.")


def _refuse_without_kernels(*devices: str) -> None:
    for device in devices:
        if device.startswith("cuda") and not has_kernels(device):
            major, minor = torch.cuda.get_device_capability(device)
            raise ConfigError(
                f"{device} cannot be used: its compute capability is {major}.{minor}, and this build of PyTorch "
                f"({torch.__version__}) has kernels for {', '.join(torch.cuda.get_arch_list())}. Choose another "
                f"device, or 'cpu'; or install a build that has them for this one: {BUILDS}."
            )


def refuse_device_map(device_map: DeviceMap, device: str | None, quantization: str | None = None) -> None:
    """Refuse a map that accelerate could not carry out, before anything is loaded.

    Raises:
        ConfigError: not a map, a device in it that this machine lacks or torch has no kernels for, a single device
            given as well, or offloading of weights that are to be quantised.
    """
    if device is not None:
        raise ConfigError(
            f"device={device!r} is one device, but device_map={device_map!r} spreads the model. Give only one of them."
        )
    places = set()
    if device_map != "auto":
        if not isinstance(device_map, dict) or not device_map:
            raise ConfigError(
                "device_map must be 'auto', or a device for each module by name, as in {'model.embed_tokens': 0, ...}, "
                f"not {device_map!r}."
            )
        for name, place in device_map.items():
            try:
                if place != "disk":
                    _refuse_absent(f"cuda:{place}" if isinstance(place, int) else place)
            except ConfigError as error:
                raise ConfigError(
                    f"device_map puts {name or 'the model'!r} on {place!r}, which does not exist here: {_gpus()} A "
                    "place is the number of a GPU, 'cpu' or 'disk'."
                ) from error
        places = set(device_map.values())
    _refuse_without_kernels(*computing(device_map))
    if quantization is not None and ("disk" in places or ("cpu" in places and len(places) > 1)):
        raise ConfigError(
            f"quantization={quantization!r} quantises weights where they compute, and device_map keeps some on the "
            "CPU or on disk. Put every module on a GPU, or leave quantization at None."
        )


def refuse_incomplete(device_map: dict[str, str | int], model: nn.Module, name: str) -> None:
    """Refuse a map that names modules the model does not have, or gives a weight two places or none.

    Args:
        model: may be without weights, on "meta".

    Raises:
        ConfigError: names the first such module or weight.
    """
    modules = dict(model.named_modules())
    if unknown := [module for module in device_map if module not in modules]:
        children = ", ".join(repr(child) for child, _ in model.base_model.named_children())
        raise ConfigError(
            f"device_map names {unknown[0]!r}, and {name} has no module of that name. Below "
            f"{model.base_model_prefix!r} it has {children}."
        )
    for weight in model.state_dict():
        places = [module for module in device_map if f".{weight}.".startswith(f".{module}." if module else ".")]
        if len(places) != 1:
            places = " and ".join(map(repr, places)) or "none of its modules"
            raise ConfigError(
                f"device_map names {places} for {weight} of {name}. Name one for every weight, none inside another."
            )


def computing(device_map: DeviceMap) -> list[str]:
    """The devices that a map's modules compute on: GPUs or, if there are none in it, the CPU."""
    if device_map == "auto":
        return ["cpu"] if best_device() == "cpu" else [f"cuda:{gpu}" for gpu in range(torch.cuda.device_count())]
    places = [f"cuda:{place}" if isinstance(place, int) else place for place in device_map.values()]
    return list(dict.fromkeys(place for place in places if "cuda" in place)) or ["cpu"]


def execution_device(module: nn.Module) -> torch.device:
    """The device that accelerate's hook moves a module's inputs to or, without a hook, that its weights are on.

    Offloaded weights are on no device ("meta") between passes.
    """
    device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    return next(module.parameters()).device if device is None else torch.device(device)


def is_dispatched(model: PreTrainedModel) -> bool:
    """True if accelerate's hooks move each module's inputs, or its weights, to where it computes."""
    return any(hasattr(module, "_hf_hook") for module in model.modules())


def gather_hidden_states(model: PreTrainedModel) -> None:
    """Return the last hidden states of a dispatched model to the device that its inputs came from.

    The model then picks the rows whose logits are wanted with an index on that device. Otherwise the
    hidden states would stay wherever the last norm is, and indexing does not cross devices.
    """
    hook = AlignDevicesHook(execution_device(model), io_same_device=True)
    add_hook_to_module(model.base_model, hook, append=True)


def rebind_hook(copied: nn.Module) -> None:
    """Give a shallow copy of a hooked module a hook of its own: the one it was copied with calls the original."""
    if hook := copied.__dict__.pop("_hf_hook", None):
        del copied.forward, copied._old_forward
        add_hook_to_module(copied, hook)


def _gpus() -> str:
    count = torch.cuda.device_count()
    return f"this machine has {f'GPUs 0 to {count - 1}' if count > 1 else 'GPU 0' if count else 'no GPU'}."
