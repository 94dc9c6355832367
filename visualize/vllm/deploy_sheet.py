"""The Deploy page's answer as JSON for its script: a command, whether it fits, and what differs from this lab."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from lab.memory.capacity import Deployment
from lab.memory.models import Model, known
from lab.remote.deployment import (
    BLOCK,
    differences,
    fewest_gpus,
    holds,
    keeps_block_size,
    serve_command,
    sharded,
    splits,
)
from visualize.memory import calculator
from visualize.memory.sheet import size
from visualize.vllm.deployment import NAMED, Inputs


def answer(inputs: Inputs) -> dict[str, Any]:
    """Everything that the page shows. Texts are plain: the page sets them as text.

    Raises:
        ConfigError: what was asked makes no sense; the message says what would.
    """
    inputs.check()
    config = inputs.engine_config()
    target, drafts = _model(inputs.model), inputs.speculation == "draft"
    draft = _model(inputs.draft_model) if drafts else None
    needed = _needed(inputs, target, draft) if target else None
    gpus = inputs.tensor_parallel or (_fewest(needed, inputs.at_once) if needed else 1)
    command = serve_command(
        config,
        _name(inputs.hub, target),
        _name(inputs.draft_hub, draft) if drafts else None,
        gpus,
        dtype="float32" if inputs.weights == "float32" else "auto",
        max_model_len=inputs.longest,
        gpu_memory_utilization=1 - inputs.set_aside / 100,
        max_num_seqs=inputs.at_once,
        max_num_batched_tokens=inputs.max_num_batched_tokens,
    )
    too_long = _too_long(inputs, target)
    return {
        "command": command,
        "say": too_long or _fits(inputs, needed, gpus),
        "problem": bool(too_long or (needed and not holds(splits(needed).get(gpus, needed), inputs.at_once))),
        "differences": [*_of_weights(inputs), *_of_models(target, draft, drafts, gpus), *differences(config)],
        "splits": _rows(needed, inputs.at_once, gpus) if needed else [],
    }


def _model(key: str) -> Model | None:
    return known()[key] if key in NAMED else None


def _name(other: str, model: Model | None) -> str:
    return model.source.removeprefix("config.json of ") if model else other.strip()


def _needed(inputs: Inputs, target: Model, draft: Model | None) -> Deployment:
    """The model on one GPU of the kind chosen, in the command's blocks; a known draft's weights are counted as the
    target's own.
    """
    machine = {name: getattr(inputs, name) for name in ("weights", "gpu", "memory", "set_aside", "mean", "longest")}
    config = inputs.engine_config()
    blocks = {"kv_format": config.kv_dtype, "block_size": config.block_size if keeps_block_size(config) else BLOCK}
    deployment = calculator.Inputs(**machine, **blocks).deployment(target)
    return replace(deployment, parameters=target.parameters + (draft.parameters if draft else 0))


def _fewest(needed: Deployment, sequences: int) -> int:
    """Where even the most are not enough, the most."""
    return fewest_gpus(needed, sequences) or max(splits(needed))


def _too_long(inputs: Inputs, target: Model | None) -> str:
    """Why vLLM would not start with sequences of this length; empty if it would."""
    if target is None or inputs.longest <= (most := target.shape.context_length):
        return ""
    return (
        f"{target.name} was made for {most:,} tokens at most, prompt and output together, and vLLM does not start with "
        f"more: set the longest to {most:,} or less."
    )


def _fits(inputs: Inputs, needed: Deployment | None, gpus: int) -> str:
    """Whether the command will do."""
    if needed is None:
        return "Whether it fits is worked out for known models; here the GPUs are as you say, or one."
    if gpus not in splits(needed):
        return f"This model's heads cannot be split over {gpus} GPUs: choose {_listed(splits(needed))}."
    shard, wanted = sharded(needed, gpus), f"{inputs.at_once:,} sequences at once"
    each = f"{gpus} GPU{'s' * (gpus > 1)} of {size(needed.memory)}"
    if holds(shard, inputs.at_once):
        most = "at most " * (inputs.speculation == "draft")  # whose own keys and values come on top
        return f"On {each} there is room for {most}{shard.sequences('paged'):,} sequences, and {wanted} are asked for."
    if shard.cache_bytes <= 0:
        return f"Not even the weights fit on {each}: choose more or larger GPUs, or weights of fewer bits."
    if not shard.sequences("contiguous"):
        return f"One sequence of {inputs.longest:,} tokens does not fit on {each}, and vLLM would not start."
    room = shard.sequences("paged")
    return f"On {each} there is room for {room:,} sequences on average, not for {wanted}: the others wait."


def _rows(needed: Deployment, at_once: int, gpus: int) -> list[dict[str, Any]]:
    """Each number of GPUs that the model can be split over, by what one of them holds."""
    return [
        {
            "gpus": str(count),
            "weights": size(shard.weight_bytes),
            "token": size(shard.token_bytes),
            "left": size(max(0, shard.cache_bytes)),
            "sequences": f"{shard.sequences('paged'):,}",
            "holds": holds(shard, at_once),
            "chosen": count == gpus,
        }
        for count, shard in splits(needed).items()
    ]


def _of_weights(inputs: Inputs) -> Iterator[str]:
    if inputs.weights in ("int8", "int4"):
        yield (
            f"{calculator.WEIGHTS[inputs.weights]} weights come with the model: name one that was quantised so (AWQ, "
            "GPTQ and others); vLLM sees it from its configuration."
        )


def _of_models(target: Model | None, draft: Model | None, drafts: bool, gpus: int) -> Iterator[str]:
    if not drafts:
        return
    if target and draft and target.shape.vocabulary != draft.shape.vocabulary:
        yield (
            f"{draft.name} has a vocabulary of {draft.shape.vocabulary:,} and {target.name} one of "
            f"{target.shape.vocabulary:,}: a draft needs the target's own tokenizer."
        )
    if draft and gpus not in splits(calculator.Inputs().deployment(draft)):
        yield (
            f"{draft.name} cannot be split over {gpus} GPUs, and vLLM splits a draft as it does the target: choose "
            "another draft, or as many GPUs as both can be split over."
        )
    yield "The draft's own keys and values come on top of what is counted here."


def _listed(numbers: Iterable[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last
