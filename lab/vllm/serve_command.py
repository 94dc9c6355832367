"""A command that starts vLLM with the settings found in this lab, on as many GPUs as its model needs.

Flags are those of vLLM 0.33. Where it has no counterpart to a setting, or one that differs, ``differences`` says so.
"""

import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.config import EngineConfig, gamma_table, require_whole
from lab.errors import ConfigError
from lab.memory.capacity import Deployment
from lab.memory.catalogue import GiB
from lab.util.messages import counted
from lab.vllm.completion import ROUND_METRICS_FLAG

TENSOR_PARALLEL = (1, 2, 4, 8)
"""Numbers of GPUs in one machine over which every layer may be split."""
MAX_GPUS = 1024
MAX_TOKENS = 2**31 - 1
MIN_OWN_LIMIT = 2048
"""The least that ``own_limit`` can be."""
DTYPES = ("auto", "bfloat16", "float16", "float32")
KV_CACHE_DTYPES = {"auto": None, "int8": "int8_per_token_head", "int4": "int4_per_token_head"}
"""``EngineConfig.kv_dtype`` as ``--kv-cache-dtype``, where vLLM has another name. None: no flag."""
DEFAULT_BLOCK_SIZE = 16
"""Tokens of a block if no size is asked for. Most of vLLM's attention back ends take multiples of this."""
HOME = "~/"
"""How the name of a folder below the user's home folder begins."""
DRAFTERS_WITHOUT_COUNTERPART = ("early_exit", "synthetic", "eagle3", "dflash", "dspark")
"""Drafters of this lab that vLLM does not have, or of which it needs a checkpoint that is not named here."""


def serve_command(
    config: EngineConfig,
    target: str,
    draft: str | None = None,
    tensor_parallel: int = 1,
    *,
    dtype: str = "auto",
    max_model_len: int | None = None,
    gpu_memory_utilization: float | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    limit: int = MIN_OWN_LIMIT,
) -> str:
    """The ``vllm serve`` command for a POSIX shell, one flag per line.

    Args:
        config: settings without a counterpart are left out (``differences``).
        target, draft: hub ids or folders on the server's machine. A draft is needed for ``speculative="draft"`` only.
        limit: vLLM's own limit of tokens per step (``own_limit``). It does not start with more sequences than that,
            which therefore bring a limit with which a step advances them all.
        The others are vLLM's flags of these names.

    Raises:
        ConfigError: a model's name, a number or a step that vLLM refuses, or no draft where one is needed.
    """
    require_whole("tensor_parallel", tensor_parallel, 1, MAX_GPUS)
    sizes = {"max_model_len": max_model_len, "max_num_seqs": max_num_seqs}
    for name, number in (sizes | {"max_num_batched_tokens": max_num_batched_tokens}).items():
        if number is not None:
            require_whole(name, number, 1, MAX_TOKENS)
    if gpu_memory_utilization is not None and not 0 < gpu_memory_utilization <= 1:
        raise ConfigError(f"gpu_memory_utilization must be a share above 0, at most 1, not {gpu_memory_utilization!r}.")
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}.")
    if max_num_seqs and max_num_batched_tokens and max_num_batched_tokens < max_num_seqs:
        raise ConfigError(
            f"A step of {counted(max_num_batched_tokens, 'token')} has no room for one from each of {max_num_seqs:,} "
            "sequences: allow at least as many tokens as sequences."
        )
    gamma = config.num_speculative_tokens
    if config.speculative == "draft" and max_num_batched_tokens and max_num_batched_tokens <= gamma:
        raise ConfigError(
            f"vLLM does not start with a step of {counted(max_num_batched_tokens, 'token')} and "
            f"{counted(gamma, 'draft token')} per round: allow at least {gamma + 1} tokens."
        )
    if max_num_batched_tokens is None and max_num_seqs and max_num_seqs > limit:
        max_num_batched_tokens = max_num_seqs * tokens_of_each(config)
    speculative, skipped = _speculative(config, draft), config.kv_cache_dtype_skip_layers.split() or None
    values = {
        "vllm serve": _name("target", target),
        "--tensor-parallel-size": None if tensor_parallel == 1 else tensor_parallel,
        "--dtype": None if dtype == "auto" else dtype,
        "--max-model-len": max_model_len,
        "--gpu-memory-utilization": None if gpu_memory_utilization is None else f"{gpu_memory_utilization:.3g}",
        "--max-num-seqs": max_num_seqs,
        "--max-num-batched-tokens": max_num_batched_tokens,
        "--kv-cache-dtype": KV_CACHE_DTYPES.get(config.kv_dtype, config.kv_dtype),
        "--kv-cache-dtype-skip-layers": None if config.kv_dtype == "auto" else skipped,
        "--block-size": config.block_size if keeps_block_size(config) else None,
        "--enable-prefix-caching" if config.enable_prefix_caching else "--no-enable-prefix-caching": "",
        "--speculative-config": json.dumps(speculative) if speculative else None,
        ROUND_METRICS_FLAG: "" if speculative else None,
    }
    flags = [(flag, _words(value)) for flag, value in values.items() if value is not None]
    return " \\\n    ".join(" ".join(filter(None, flag)) for flag in flags)


def keeps_block_size(config: EngineConfig) -> bool:
    """True if the command asks for this block size; otherwise vLLM takes ``DEFAULT_BLOCK_SIZE``."""
    return config.kv_cache and config.block_size % DEFAULT_BLOCK_SIZE == 0


def tokens_of_each(config: EngineConfig) -> int:
    """Tokens of a step that each sequence takes for a whole round of vLLM 0.33 (``Scheduler.schedule``): its last
    and its draft tokens, which are verified, and one more place if a draft model proposes them."""
    if config.speculative in ("off", *DRAFTERS_WITHOUT_COUNTERPART):
        return 1
    return config.num_speculative_tokens + 1 + (config.speculative == "draft")


def own_limit(memory: int, a100: bool = False) -> int:
    """vLLM 0.33's limit of a step's tokens on a GPU of ``memory`` bytes, where none is given
    (``EngineArgs.get_batch_defaults``). A GB10 is not told apart: it gets the fewest."""
    if memory >= 160 * GiB:
        return 16384
    return 8192 if memory >= 70 * GiB and not a100 else MIN_OWN_LIMIT


def left_behind(config: EngineConfig, sequences: int, max_num_batched_tokens: int | None, limit: int) -> Iterator[str]:
    """One sentence if a step does not advance all sequences by a round; the numbers are those of ``serve_command``."""
    each, tokens = tokens_of_each(config), max_num_batched_tokens or limit
    if tokens >= sequences * each or (max_num_batched_tokens is None and sequences > limit):
        return
    yield (
        f"A step of {tokens:,} tokens{'' if max_num_batched_tokens else ', which is what this GPU gets,'} advances "
        f"{tokens // each:,} of {sequences:,} sequences by a whole round: each takes {each} tokens of it, for its last "
        f"one and its draft tokens{', and for the draft' if config.speculative == 'draft' else ''}. The others wait, "
        f"or have fewer draft tokens verified; {sequences * each:,} tokens per step would advance all."
    )


DIFFERENCES = tomllib.loads(Path(__file__).with_name("differences.toml").read_text("utf-8"))["differences"]


def differences(config: EngineConfig) -> Iterator[str]:
    yield from unavoidable_differences(config.kv_cache, config.paged)
    facts = vars(config) | {
        "odd_block_size": config.kv_cache and not keeps_block_size(config),
        "sized": config.num_blocks is not None,
        "computed_otherwise": config.kernels != "auto" or config.torch_compile or not config.cuda_graphs,
        "default_block_size": DEFAULT_BLOCK_SIZE,
    }
    for one in DIFFERENCES:
        if all(facts[name] in values for name, values in one["when"].items()):
            yield re.sub(r"{(\w+)}", lambda found: str(facts[found[1]]), one["say"])


def unavoidable_differences(kv_cache: bool, paged: bool) -> Iterator[str]:
    """Differences that no flag of vLLM removes (``EngineConfig``)."""
    if not kv_cache:
        yield "vLLM always keeps keys and values: the cache cannot be turned off."
    elif not paged:
        yield "vLLM always hands out blocks as they fill: contiguous sequences have no counterpart."


@dataclass(frozen=True, kw_only=True)
class WithDraft(Deployment):
    """A model and its draft: vLLM keeps the weights of both, and what each keeps of a sequence.

    ``draft``: on the same device. ``state_bytes``: of both.
    """

    draft: Deployment

    @property
    def _token_bytes(self) -> Counter[int | None]:
        return Counter(super()._token_bytes) + Counter(self.draft._token_bytes)

    @property
    def weight_bytes(self) -> int:
        return super().weight_bytes + self.draft.weight_bytes


def sharded(deployment: Deployment, tensor_parallel: int) -> Deployment:
    """The share of one of ``tensor_parallel`` GPUs: its part of every weight and recurrent state, and its KV heads, at
    least one. A draft is split like its target. Raises ConfigError: vLLM cannot split a model's heads like that."""
    require_whole("tensor_parallel", tensor_parallel, 1, MAX_GPUS)
    shape, full = deployment.shape, deployment.shape.full_attention
    fewer, more = sorted((shape.kv_heads, tensor_parallel))
    if shape.heads % tensor_parallel or more % fewer:
        raise ConfigError(
            f"{counted(shape.heads, 'query head')} and {counted(shape.kv_heads, 'KV head')} cannot be split over "
            f"{tensor_parallel} GPUs."
        )
    part = {
        "heads": shape.heads // tensor_parallel,
        "kv_heads": max(1, shape.kv_heads // tensor_parallel),
        "vocabulary": -(-shape.vocabulary // tensor_parallel),
        "layer_table": -(-shape.layer_table // tensor_parallel),
        "full_attention": full and (max(1, full[0] // tensor_parallel), full[1]),
    }
    sizes = {name: -(-getattr(deployment, name) // tensor_parallel) for name in ("parameters", "state_bytes")}
    draft = {"draft": sharded(deployment.draft, tensor_parallel)} if isinstance(deployment, WithDraft) else {}
    return replace(deployment, shape=replace(shape, **part), **sizes, **draft)


def splits(deployment: Deployment) -> dict[int, Deployment]:
    """``sharded`` over each number of GPUs that vLLM can split the heads over, the draft's included."""
    found = {}
    for gpus in TENSOR_PARALLEL:
        try:
            found[gpus] = sharded(deployment, gpus)
        except ConfigError:
            continue
    return found


def fewest_gpus(deployment: Deployment, sequences: int) -> int | None:
    """The fewest GPUs on which so many paged sequences fit beside the weights. None: not even on the most."""
    return next((gpus for gpus, shard in splits(deployment).items() if holds(shard, sequences)), None)


def holds(deployment: Deployment, sequences: int) -> bool:
    """True if so many paged sequences fit, and also the longest one: vLLM refuses to start if that does not."""
    return deployment.sequences("paged") >= sequences and deployment.sequences("contiguous") >= 1


def _speculative(config: EngineConfig, draft: str | None) -> dict[str, Any]:
    if config.speculative in ("off", *DRAFTERS_WITHOUT_COUNTERPART):
        return {}
    gamma = config.num_speculative_tokens
    rule: dict[str, Any] = {"rejection_sample_method": "block"} if config.rejection_sample_method == "block" else {}
    if rows := gamma_table(config.num_speculative_tokens_per_batch_size):
        rule["num_speculative_tokens_per_batch_size"] = [(a, b, min(g, gamma)) for a, b, g in rows]
    if config.speculative == "ngram":
        window = {"prompt_lookup_min": config.prompt_lookup_min, "prompt_lookup_max": config.prompt_lookup_max}
        return {"method": "ngram", "num_speculative_tokens": gamma, **window, **rule}
    if config.speculative == "mtp":
        return {"method": "mtp", "num_speculative_tokens": gamma, **rule}
    if draft is None:
        raise ConfigError("speculative='draft' needs the name of a draft model with the target's tokenizer.")
    if draft.startswith(HOME):
        raise ConfigError(
            f"Give the draft's folder as an absolute path, not {draft[:80]!r}: no shell expands ~ among the "
            "settings of speculation."
        )
    return {"method": "draft_model", "model": _name("draft", draft), "num_speculative_tokens": gamma, **rule}


def _words(value: object) -> str:
    """A flag's value as words for the shell, each of a list by itself."""
    words = value if isinstance(value, list) else [str(value)] * (value != "")
    return " ".join(map(_quoted, words))


def _name(what: str, name: str) -> str:
    if not name or name.startswith("-") or not name.isprintable() or name != name.strip():
        raise ConfigError(f"The {what} must be a hub id, like Qwen/Qwen3-8B, or a folder, not {name[:80]!r}.")
    return name


def _quoted(word: str) -> str:
    """Quote a word for the shell, which expands ~ only outside quotes."""
    if word.startswith(HOME):
        return HOME + shlex.quote(word.removeprefix(HOME))
    return shlex.quote(word)
