"""Loads an engine by names: models and tokenizers are found, read, and checked against each other."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from lab.backends.choose import ModelBackends, choose_kernels
from lab.backends.cpu.native_model import packed_parameters
from lab.backends.interface import KernelChoice
from lab.config import EMBEDDED_TARGET
from lab.engine.engine import Engine
from lab.engine.step_limits import refuse_limits
from lab.models import loader
from lab.models.devices import DeviceMap, computing, refuse_device_map, resolve_device
from lab.models.head_files import load_head
from lab.models.language_model import LanguageModel
from lab.models.quantization import Quantization, resolve_quantization
from lab.models.tokenizer import load_tokenizer, refuse_mismatch
from lab.trace.recorder import EventListener


def load_engine(
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    head: str | Path | None = None,
    device: str | None = None,
    device_map: DeviceMap | None = None,
    dtype: str = "auto",
    quantization: Quantization | None = None,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int | None = None,
    kv_bytes: int | None = None,
    kernels: KernelChoice = "auto",
    fuse_layers: bool = True,
    async_scheduling: bool = True,
    on_event: EventListener | None = None,
    seq_ids: Iterator[int] | None = None,
) -> Engine:
    """Load a target model and perhaps a draft, ready to decode. What is wrong with the arguments is said before a model
    is loaded.

    Args:
        target: a folder or a hub id. None: the embedded story model, which needs no network.
        draft: a folder or a hub id with the target's tokenizer; "matched" (the default) or "mismatched" with the
            embedded target. None with another target: no draft model.
        head: a folder or a hub id of an EAGLE-3, DFlash or DSpark head for the target. The embedded target has its
            own; one that is given takes the place of that of its kind.
        device: "cpu", "cuda", "cuda:1". None: a GPU if there is one.
        device_map: for a target larger than one GPU, instead of ``device``: "auto" (accelerate spreads it over the GPUs
            and main memory), or a device for each of its modules by name (a GPU's number, "cpu", "disk").
        dtype: "float32", "bfloat16", "float16"; "auto": bfloat16 on GPUs, float16 if one has a compute capability below
            8.0 or with bitsandbytes; float32 on a CPU, but with products of bfloat16 where the processor has them, so
            that several tokens cost hardly more than one ("float32" asks for float32 alone).
        quantization: INT8 weights: "torchao-int8" or "bitsandbytes-int8" (``lab.models.quantization``).
        max_num_seqs, max_num_batched_tokens, kv_bytes, async_scheduling, on_event, seq_ids: see ``Engine``.
        kernels, fuse_layers: see ``new_engine``.

    Raises:
        ModelLoadError: a model that cannot be found or read.
        UnsupportedModelError: a model this engine would decode wrongly, or a draft that does not fit.
        ConfigError: arguments that are unknown or do not go together, limits that are too low, a library that is not
            installed, or kernels that cannot run here.
    """
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens, "kv_bytes": kv_bytes}
    how = {"kernels": kernels, "fuse_layers": fuse_layers, "async_scheduling": async_scheduling}
    settings = limits | how | {"on_event": on_event, "seq_ids": seq_ids}
    if device_map is None:
        place = resolve_device(device)
        devices = [place]
    else:
        refuse_device_map(device_map, device, quantization)
        devices = computing(device_map)
        # On a Mac, accelerate's choice is Metal.
        place = "cpu" if device_map == "auto" and devices == ["cpu"] else device_map
    refuse_limits(**limits)
    chosen = choose_kernels(kernels, torch.device(devices[0]))  # refuses those that cannot run there
    weights, dtype = resolve_quantization(quantization, dtype, devices[0].partition(":")[0])
    torch_dtype = loader.resolve_dtype(dtype, *devices)

    def load(
        where: str | Path, name: str, place: str | DeviceMap = place
    ) -> tuple[LanguageModel, PreTrainedTokenizerBase]:
        how = {"quantization": weights, "rounded": dtype == "auto"}
        how["packed"] = packed_parameters if chosen == "c" else None
        model = loader.load_model(where, name=name, place=place, dtype=torch_dtype, **how)
        tokenizer, notes = load_tokenizer(where, name=name)
        model.notes += notes
        if name == str(where) and os.path.isdir(where):  # a run's file may be passed on, and somebody's path may not
            model.name = Path(os.path.abspath(where)).name
        return model, tokenizer

    if target is None:
        target, target_name = loader.WEIGHTS / "target", EMBEDDED_TARGET
        heads = {loader.WEIGHTS / kind: f"{EMBEDDED_TARGET}-{kind}" for kind in loader.EMBEDDED_HEADS}
        draft, draft_name = _embedded_draft("matched" if draft is None else str(draft))
    else:
        target_name, draft_name, heads = str(target), str(draft), {}
    if head is not None:
        heads[head] = str(head)
    for where in (target, draft, head):  # both, before one of them takes minutes
        if where is not None:
            loader.refuse_absent(where)
    target_model, tokenizer = load(target, target_name)
    for where, name in heads.items():
        loaded = load_head(where, target_model, name=name)
        target_model.heads[loaded.kind] = loaded
    if draft is None:
        return new_engine(target_model, tokenizer, **settings)
    draft_model, draft_tokenizer = load(draft, draft_name, str(target_model.device))
    refuse_mismatch(target_model, tokenizer, draft_model, draft_tokenizer)
    if draft_model.vocabulary != target_model.vocabulary:
        draft_model = draft_model.with_vocabulary(target_model.vocabulary)
    return new_engine(target_model, tokenizer, draft_model, **settings)


def new_engine(
    target: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    draft: LanguageModel | None = None,
    *,
    kernels: KernelChoice = "auto",
    fuse_layers: bool = True,
    **settings: Any,
) -> Engine:
    """An engine of models that are loaded.

    Args:
        kernels: what computes the steps. "triton": kernels on a GPU; "c": a step in C on a CPU (``lab.backends.cpu``;
            made ready here, in a few seconds the first time); "reference": torch. "auto": Triton on a GPU of compute
            capability 8.0 or more if it is installed, C on a CPU. If they fail, torch takes over (``FellBack``).
        fuse_layers: with Triton's kernels, compute Llama-like layers in few launches (``lab.backends.gpu``).
        settings: see ``Engine``. Raises ConfigError, as that does, or for kernels that cannot run here.
    """
    return Engine(ModelBackends(target, draft, kernels=kernels, fuse_layers=fuse_layers), tokenizer, **settings)


def _embedded_draft(choice: str) -> tuple[str | Path, str]:
    if choice in loader.EMBEDDED_DRAFTS:
        return loader.WEIGHTS / loader.EMBEDDED_DRAFTS[choice], f"{EMBEDDED_TARGET}-{choice}"
    if "/" not in choice and not os.path.isdir(choice):
        raise loader.ModelLoadError(
            f"There is no draft {choice[:80]!r} for the embedded target: it is "
            f"{' or '.join(loader.EMBEDDED_DRAFTS)}, a folder, or a hub id, which is owner/name."
        )
    return choice, choice
