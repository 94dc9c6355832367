"""The Deploy page's answer as JSON for its script: a command, whether it fits, and how vLLM differs from this lab."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from lab.memory.capacity import Deployment
from lab.memory.model_memory import ModelInfo, known_models
from lab.util.messages import counted
from lab.vllm.serve_command import (
    DEFAULT_BLOCK_SIZE,
    WithDraft,
    differences,
    fewest_gpus,
    holds,
    keeps_block_size,
    left_behind,
    own_limit,
    serve_command,
    sharded,
    splits,
    unavoidable_differences,
)
from visualize import memory_inputs as calculator
from visualize.charts.memory_charts import size
from visualize.pages.deploy.deployment import NAMED, DeployInputs

NOTHING_LEFT = (
    "vLLM does not start with a GPU's whole memory: when it asks for its share, CUDA has already taken some. Leave "
    "some of it reserved, a few percent at least."
)
"""Why vLLM would not start if nothing is set aside."""


def answer(inputs: DeployInputs) -> dict[str, Any]:
    """Everything that the page shows. Texts are plain: the page sets them as text.

    Raises:
        ConfigError: what was asked makes no sense; the message says what would.
    """
    inputs.check()
    config = inputs.engine_config()
    target, drafts = _model(inputs.model), inputs.speculative == "draft"
    draft = _model(inputs.draft_model) if drafts else None
    needed = _needed(inputs, target, draft) if target else None
    # If even the most GPUs are not enough: the most.
    fewest = (fewest_gpus(needed, inputs.at_once) or max(splits(needed))) if needed else 1
    gpus = inputs.tensor_parallel or fewest
    limit = own_limit(calculator.gpu_bytes(inputs.gpu, inputs.memory), "a100" in inputs.gpu)
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
        limit=limit,
    )
    refused = _too_long(inputs, target) or _mismatched(target, draft) or NOTHING_LEFT * (not inputs.set_aside)
    rows = _rows(needed, inputs.at_once, gpus) if needed else []
    share = f"{100 - inputs.set_aside}% of the memory (--gpu-memory-utilization {1 - inputs.set_aside / 100:.3g})"
    of_memory = (
        f"vLLM's activations, CUDA graphs and whatever else it holds come out of its {share}, not out of what is "
        "reserved. So less is left for the cache than is counted here."
    )
    return {
        "command": command,
        "say": refused or _fits(inputs, target, draft, needed, gpus),
        "problem": bool(refused or (needed and not any(row["chosen"] and row["holds"] for row in rows))),
        "differences": [
            *_of_models(inputs, target, draft, gpus),
            *unavoidable_differences(inputs.kv_cache, inputs.paged),
            *differences(config),
            *left_behind(config, inputs.at_once, inputs.max_num_batched_tokens, limit),
            *([of_memory] if needed else ()),
        ],
        "splits": rows,
    }


def _model(key: str) -> ModelInfo | None:
    return known_models()[key] if key in NAMED else None


def _name(other: str, model: ModelInfo | None) -> str:
    return model.hub if model else other.strip()


def _needed(inputs: DeployInputs, target: ModelInfo, draft: ModelInfo | None) -> Deployment:
    """The model on one GPU of the chosen kind, with the command's block size, and a known draft beside it. The draft is
    the one that the command names: vLLM quantises its cache like the target's, but not its weights.
    """
    machine = {name: getattr(inputs, name) for name in ("weights", "gpu", "memory", "set_aside", "mean", "longest")}
    config = inputs.engine_config()
    block_size = config.block_size if keeps_block_size(config) else DEFAULT_BLOCK_SIZE
    blocks = {name: getattr(config, name) for name in ("kv_dtype", "kv_cache_dtype_skip_layers")}
    blocks |= {"block_size": block_size}
    asked = calculator.MemoryInputs(**machine, **blocks)
    if draft is None:
        return asked.deployment(target)
    weights = "float32" if inputs.weights == "float32" else "bfloat16"
    whole = replace(asked, weights=weights, kv_cache_dtype_skip_layers="").deployment(draft)
    both = target.state_bytes + draft.state_bytes
    return WithDraft(**vars(asked.deployment(target)) | {"state_bytes": both}, draft=whole)


def _too_long(inputs: DeployInputs, target: ModelInfo | None) -> str:
    """Why vLLM would not start with sequences of this length; empty if it would."""
    if target is None or inputs.longest <= (most := target.shape.context_length):
        return ""
    return (
        f"{target.name} was made for {most:,} tokens at most, prompt and output together, and vLLM does not start with "
        f"more: set the longest to {most:,} or less."
    )


def _mismatched(target: ModelInfo | None, draft: ModelInfo | None) -> str:
    """Why vLLM would not start with this draft; empty if it would."""
    if target is None or draft is None or (size := target.shape.vocabulary) == draft.shape.vocabulary:
        return ""
    drafts = [
        model.name
        for model in map(known_models().get, NAMED)
        if model.shape.vocabulary == size and model.parameters < target.parameters
    ]
    return (
        f"{draft.name} has a vocabulary of {draft.shape.vocabulary:,} and {target.name} one of {size:,}, and vLLM does "
        f"not start with such a pair: choose a draft with the target's tokenizer{', like ' * bool(drafts)}"
        f'{_listed(drafts) if drafts else ""}. (It does with "use_heterogeneous_vocab": true among the settings of '
        "speculation: then the draft proposes only tokens that both have.)"
    )


def _fits(
    inputs: DeployInputs, target: ModelInfo | None, draft: ModelInfo | None, needed: Deployment | None, gpus: int
) -> str:
    """A sentence on whether the command will work."""
    if needed is None:
        return "Whether it fits is calculated for known models only; here the GPUs are as you set, or one."
    if gpus not in splits(needed):
        what = f"The heads of {target.name} and {draft.name} cannot both" if draft else "This model's heads cannot"
        return f"{what} be split over {gpus} GPUs: choose {_listed(splits(needed))}."
    shard, wanted = sharded(needed, gpus), f"{counted(inputs.at_once, 'sequence')} at once"
    are = "are" if inputs.at_once > 1 else "is"
    each = f"{counted(gpus, 'GPU')} of {size(needed.memory)}"
    room = counted(shard.sequences("paged"), "sequence")
    if holds(shard, inputs.at_once):
        most = "at most " * (inputs.speculative == "draft" and draft is None)  # what the draft takes is not known
        return f"On {each} there is room for {most}{room}, and {wanted} {are} asked for."
    if shard.cache_bytes <= 0:
        larger = "more or larger GPUs" if gpus < max(splits(needed)) else "larger GPUs"
        ways = _listed([larger, "weights of fewer bits", *(["another draft"] if draft else [])])
        return f"Not even the weights fit on {each}: choose {ways}."
    if not shard.sequences("contiguous"):
        return f"One sequence of {inputs.longest:,} tokens does not fit on {each}, and vLLM would not start."
    return f"On {each} there is room for {room} on average, not for {wanted}: the others wait."


def _rows(needed: Deployment, at_once: int, gpus: int) -> list[dict[str, Any]]:
    """For each number of GPUs that the model can be split over, what one of them holds."""
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


def _of_models(inputs: DeployInputs, target: ModelInfo | None, draft: ModelInfo | None, gpus: int) -> Iterator[str]:
    if inputs.weights in ("int8", "int4"):
        yield (
            f"{calculator.WEIGHTS[inputs.weights]} weights come with the model: name one that was quantised that "
            "way (AWQ, GPTQ and others); vLLM reads it from its configuration. Its embedding table and head are "
            "counted in 16 bits, as most leave them."
            f"{' The draft named here is not, and its weights are counted in 16 bits.' if draft else ''}"
        )
    if draft:
        over = splits(calculator.MemoryInputs().deployment(target)) if target else (gpus,)
        if without := [count for count in over if count not in splits(calculator.MemoryInputs().deployment(draft))]:
            yield (
                f"{draft.name} cannot be split over {_listed(without)} GPUs, and vLLM splits a draft as it does the "
                "target: choose another draft, or a number of GPUs that both can be split over."
            )
    if target:
        yield from _of_layers(inputs, target, gpus)
    if target and draft:
        yield "What each GPU holds is the target's and the draft's together, weights as well as keys and values."
    elif target and inputs.speculative == "draft":
        yield "The draft's weights, keys and values come on top of what is counted here."


def _of_layers(inputs: DeployInputs, target: ModelInfo, gpus: int) -> Iterator[str]:
    """The differences in what vLLM does with layers that have no full attention."""
    if target.state_bytes:
        shape = target.shape
        layers = shape.kv_layers.total()
        token = calculator.MemoryInputs(kv_dtype=inputs.kv_dtype).deployment(target).token_bytes / layers
        tokens = target.state_bytes / (shape.layers - layers) / token
        yield (
            f"vLLM makes a hybrid's blocks large enough for a recurrent state, here about {round(tokens, -2):,.0f} "
            f"tokens whatever --block-size says: a sequence takes whole ones, and a prefix shorter than one, with "
            "speculation than two, is not found again."
        )
    if target.shape.kv_vectors == 1:
        if gpus > 1:
            yield "Every GPU keeps the whole latents: MLA has one for all heads, so that there is nothing to split."
        if inputs.kv_dtype not in ("auto", "fp8"):
            yield "vLLM's kernels for MLA store latents in the model's dtype or in FP8: choose Auto or FP8."


def _listed(ways: Iterable[Any]) -> str:
    *most, last = map(str, ways)
    return f"{', '.join(most)} or {last}" if most else last
