"""Tiny random models of real architectures, and a tokenizer for them: enough to test an engine."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from lab.engine.engine import Engine
from lab.load import new_engine
from lab.models.language_model import LanguageModel
from lab.models.mtp_head import MiMoConfig, MTPHead, MTPLayers
from lab.trace.run import Run

VOCABULARY = 257  # every byte, and the end of the text
CONTEXT = 320

_LLAMA_LIKE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": 256,
    "initializer_range": 0.3,  # peaked enough that the likeliest tokens are not tied
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**_LLAMA_LIKE),
    "qwen2": Qwen2Config(**_LLAMA_LIKE),
    "qwen3": Qwen3Config(**_LLAMA_LIKE, head_dim=16),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=48,
        n_layer=2,
        n_head=4,
        n_positions=CONTEXT,
        bos_token_id=None,
        eos_token_id=256,
        initializer_range=0.3,
    ),
}


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte: its id is its place in the byte alphabet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<|end|>"])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>")


CONTROLS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|bos|>",
    "<|head|>",
    "<|/head|>",
    "<|eot|>",
    "<start_of_turn>",
    "<end_of_turn>",
)
CHATS = {
    "chatml": """{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "llama": """{{ bos_token }}{% for m in messages %}
{{- '<|head|>' + m.role + '<|/head|>\n\n' + m.content | trim + '<|eot|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\n\n' }}{% endif %}""",
    "gemma": """{{ bos_token }}{% if messages[0].role == 'system' %}
{{- raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content + '<end_of_turn>\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}""",
    "thinking": """{% for m in messages %}
{%- set said = m.content.split('</think>')[-1] if m.role == 'assistant' else m.content %}
{{- '<|im_start|>' + m.role + '\n' + said + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}""",
}
"""Chat templates in the manner of several families."""


def chat_tokenizer(style: str) -> PreTrainedTokenizerFast:
    """A byte each, control tokens, and one of ``CHATS``. It puts BOS before every text, as Llama's and Gemma's do."""
    core = Tokenizer.from_str(tokenizer().backend_tokenizer.to_str())
    core.add_special_tokens(list(CONTROLS))
    bos = "<|bos|>"
    core.post_processor = processors.TemplateProcessing(f"{bos} $A", special_tokens=[(bos, core.token_to_id(bos))])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|end|>", bos_token=bos, chat_template=CHATS[style]
    )


def chat_engine(style: str, **limits: object) -> Engine:
    model = random_model("llama", vocab_size=VOCABULARY + len(CONTROLS), max_position_embeddings=1024)
    return new_engine(LanguageModel(model, "talker"), chat_tokenizer(style), **limits)


def save_chat_model(folder: Path, style: str) -> None:
    """A model for ``load_engine`` that talks."""
    engine = chat_engine(style)
    engine.target.model.save_pretrained(folder)
    engine.tokenizer.save_pretrained(folder)


PANICS_AT = "Z"


def panicking_tokenizer(at: str = PANICS_AT, *, encoding: bool = False) -> PreTrainedTokenizerFast:
    """One whose Rust code panics as it decodes (or encodes) ``at``, a regular expression: searching there takes more
    steps than a search is given. What Python raises then is no ``Exception``."""
    panicking = copy.deepcopy(tokenizer())
    core = panicking.backend_tokenizer
    endless = Regex(at + "(?:|)" * 24 + "(?!)")  # 2 to the power of 24 ways, and none
    if encoding:
        core.normalizer = normalizers.Replace(endless, "")
    else:
        core.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(endless, "")])
    return panicking


def random_model(architecture: str, *, seed: int = 0, **changes: object) -> PreTrainedModel:
    config = copy.deepcopy(CONFIGS[architecture])
    config.update(changes)
    if getattr(config, "layer_types", None):  # one for each layer, all alike
        config.layer_types = config.layer_types[:1] * config.num_hidden_layers
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def mtp_engine(*, agrees: bool = True, **limits: object) -> Engine:
    """A MiMo-like target of four layers and its MTP head. ``agrees``: the head foretells tokens more often than not,
    since what all layers add is little beside the embedding that passes through both. Exact in bfloat16, for the
    step in C."""
    torch.manual_seed(0)
    config = MiMoConfig(**_LLAMA_LIKE | {"num_hidden_layers": 4, "head_dim": 16})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    found = MTPLayers.of(model, weights=False)
    with torch.no_grad():
        for layer in (*model.model.layers, found.layers[0].mtp_block) if agrees else ():
            layer.self_attn.o_proj.weight *= 0.003
            layer.mlp.down_proj.weight *= 0.003
        if agrees:
            found.layers[0].eh_proj.weight *= 0.003
            found.layers[0].eh_proj.weight[:, 48:] += 0.3 * torch.eye(48)
        for weight in (*model.parameters(), *found.parameters()):
            weight.copy_(weight.bfloat16().float())
    target = LanguageModel(model, "mimo")
    target.heads["mtp"] = MTPHead(model, found, "mimo")
    return new_engine(target, tokenizer(), **limits)


def perturbed(model: PreTrainedModel, noise: float, *, seed: int = 1) -> PreTrainedModel:
    """A copy that mostly agrees with the model, as a good draft does."""
    copied = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter += noise * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return copied


DRAFTS = ("good", "bad", "identical")


def engine(
    architecture: str = "llama",
    draft: str | None = None,
    *,
    seed: int = 0,
    shape: Mapping[str, object] | None = None,
    **limits: object,
) -> Engine:
    """``draft``: "identical" (the target's weights), "good" (nearly), "bad" (unrelated), or None.

    ``shape``: how their configurations differ from ``CONFIGS``. ``limits``: limits and other settings of ``Engine``.
    """
    random = functools.partial(random_model, architecture, **(shape or {}))
    model = random(seed=seed)
    drafts = {
        "identical": lambda: copy.deepcopy(model),
        "good": lambda: perturbed(model, 0.02),
        "bad": lambda: random(seed=seed + 1),
    }
    drafter = LanguageModel(drafts[draft](), draft) if draft else None
    return new_engine(LanguageModel(model, architecture), tokenizer(), drafter, **limits)


def continuation(engine: Engine, ids: Sequence[int], count: int) -> list[int]:
    """``count`` greedy tokens after ``ids``, by transformers itself. (It takes token ids, as the tokens of random
    models are not valid text: decoding and encoding them again gives others.)
    """
    ids = torch.tensor([list(ids)])
    with engine.target.stock_attention() as model:
        eos, model.generation_config.eos_token_id = model.generation_config.eos_token_id, None
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
        model.generation_config.eos_token_id = eos
    return output[0, ids.shape[1] :].tolist()


def of(run: Run, kind: type) -> list:
    """A run's events of one kind."""
    return [event for event in run.events if isinstance(event, kind)]
