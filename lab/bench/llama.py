"""The engine against llama.cpp on a CPU: the same weights, prompts, number of tokens and threads, in one process.

llama.cpp (https://github.com/ggml-org/llama.cpp, through llama-cpp-python) is called as its own programs call it: a
prompt in one batch, then token by token, greedily. Unlike the engine, it neither turns its tokens into text nor emits
events. Its cache holds float16, its default.
"""

import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path

import torch
from transformers import PreTrainedModel

from lab.bench.ladder import UNIT, drafting, lab_generate, speculation, time_rows
from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.errors import LabError, UnsupportedModelError
from lab.measure.measuring import refuse_failure
from lab.measure.workload import PROMPTS, refuse_cut

DTYPES = ("bf16", "f16", "f32")
"""Of llama.cpp's matrices. With the first it multiplies the same numbers as the engine on a processor with bfloat16."""
GAMMA = 6
"""When the ladder was recorded (docs/bench/ladder-cpu.json), 8 was the fastest of its windows and 6 the next, well
within the spread over prompts."""

Decode = Callable[[list[int], int], list[int]]
"""Prompt and number of tokens -> the tokens that follow."""


def run_llama(engine: Engine, max_tokens: int, repeats: int, report: Callable[[str], None]) -> dict[str, object]:
    """Time the engine and llama.cpp in turns. ``alike``: for each of llama.cpp's rows and each prompt, the number of
    tokens before the first that is not the engine's. Raises LabError: llama.cpp is not installed, the target is not on
    a CPU, more tokens than its context leaves, a run failed, or part of its setting was given up;
    UnsupportedModelError: the target cannot be written as GGUF."""
    if engine.device != "cpu":
        raise LabError(f"this bench compares on a CPU, and the model is on {engine.device}. Add --device cpu.")
    refuse_cut(engine, PROMPTS, max_tokens)
    version = _version()
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    configs = {"cache": EngineConfig()} | ({speculation(GAMMA): drafting(GAMMA)} if engine.draft else {})

    def theirs(decode: Decode) -> Callable[[str], int]:
        return lambda prompt: len(decode(engine.tokenizer(prompt)["input_ids"], max_tokens))

    rows = {name: lab_generate(engine, config, sampling) for name, config in configs.items()}
    alike: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for dtype in DTYPES:
            report(f"llama.cpp {version}, weights as {dtype}:")
            path = Path(folder) / f"target-{dtype}.gguf"
            write_gguf(engine.target.model, path, dtype)
            decode = stack.enter_context(llama_cpp(path, engine.context_length, torch.get_num_threads()))
            rows[f"llama.cpp, {dtype}"] = theirs(decode)
            alike[dtype] = [_alike(engine, decode, prompt, sampling) for prompt in PROMPTS]
            report(f"  the engine's first tokens too: {', '.join(map(str, alike[dtype]))} of {max_tokens}")
        measured = time_rows(engine, rows, PROMPTS, repeats, report)
    medians = {row["name"]: row["median"] for row in measured}
    pairs = [(ours, other) for ours in configs for other in rows if other not in configs]
    return {
        "prompts": len(PROMPTS),
        "llama_cpp_python": version,
        "unit": UNIT,
        "rows": measured,
        "alike": alike,
        "ratios": {f"{ours} / {other}": medians[ours] / medians[other] for ours, other in pairs},
    }


def _version() -> str:
    """llama-cpp-python's. Raises LabError: it or gguf is not installed."""
    try:
        import gguf  # noqa: F401
        from llama_cpp import __version__
    except ImportError as error:
        raise LabError(
            f"llama.cpp cannot be imported ({error}). `pip install -r requirements-optional.txt` installs it, which "
            "takes a C++ compiler and some minutes."
        ) from error
    return __version__


@functools.cache
def _begin() -> object:
    """Initialise the library, once and silently. Returns the log callback, which has to be kept alive."""
    import llama_cpp as library

    silent = library.llama_log_callback(lambda *_: None)
    library.llama_log_set(silent, None)
    library.llama_backend_init()
    return silent


@contextmanager
def llama_cpp(path: Path, context: int, threads: int) -> Iterator[Decode]:
    """llama.cpp with a model from a GGUF file, decoding greedily; end of text is a token like any other. Raises
    LabError: it cannot load the file, or a step fails."""
    import llama_cpp as library

    _begin()
    model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
    if not model:
        raise LabError(f"llama.cpp cannot load {path.name}.")
    settings = library.llama_context_default_params()
    settings.n_ctx = settings.n_batch = context
    settings.n_threads = settings.n_threads_batch = threads
    state = library.llama_init_from_model(model, settings)
    if not state:
        library.llama_model_free(model)
        raise LabError(f"llama.cpp cannot make a context of {context:,} tokens for {path.name}.")
    greedy = library.llama_sampler_init_greedy()

    def decode(prompt: list[int], count: int) -> list[int]:
        library.llama_memory_clear(library.llama_get_memory(state), False)  # forgotten, not overwritten with zeros
        new, tokens = (library.llama_token * len(prompt))(*prompt), []
        while True:
            if failed := library.llama_decode(state, library.llama_batch_get_one(new, len(new))):
                raise LabError(f"llama.cpp could not compute a step ({failed}).")
            tokens.append(library.llama_sampler_sample(greedy, state, -1))
            if len(tokens) == count:
                return tokens
            new = (library.llama_token * 1)(tokens[-1])

    try:
        yield decode
    finally:
        library.llama_sampler_free(greedy)
        library.llama_free(state)
        library.llama_model_free(model)


def _alike(engine: Engine, decode: Decode, prompt: str, sampling: SamplingParams) -> int:
    run = engine.generate(prompt, EngineConfig(), sampling)
    refuse_failure(run, engine)
    theirs = decode(list(run.prompt_token_ids), sampling.max_tokens)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(run.token_ids, theirs, strict=True)))


def write_gguf(model: PreTrainedModel, path: Path, dtype: str) -> None:
    """Write a Llama's matrices in ``dtype`` ("bf16", "f16" or "f32"), its norms in float32. Raises
    UnsupportedModelError: it is not a Llama, it has biases, or its rotary embedding is scaled."""
    import gguf

    config = model.config
    plain = config.model_type == "llama" and not (config.attention_bias or config.mlp_bias)
    if not plain or config.rope_parameters.get("rope_type", "default") != "default":
        raise UnsupportedModelError(
            "only plain Llama models, with neither biases nor a scaled rotary embedding, are written as GGUF here. "
            "Compare with the embedded target."
        )
    writer, head_dim = gguf.GGUFWriter(path, "llama"), config.head_dim
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")

    kind = gguf.GGMLQuantizationType[dtype.upper()]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.named_parameters():  # tied ones once, as the embedding: llama.cpp ties them again
        numbers = weight.detach().float()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            numbers = _rotary_pairs(numbers, head_dim)
        form = kind if numbers.ndim == 2 else gguf.GGMLQuantizationType.F32
        stored = gguf.quantize(numbers.numpy(), form)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), stored, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _rotary_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """[heads * head_dim, hidden]: makes the two numbers that are rotated together, half a head apart, adjacent."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2).contiguous()
