"""Heads from files: both kinds and dialects, their traps, and heads that do not fit."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file

from lab.errors import LabError
from lab.models.checkpoint_files import ModelLoadError
from lab.models.dflash_head import DFlashHead
from lab.models.eagle3_head import Eagle3Head
from lab.models.head_files import load_head
from lab.models.language_model import LanguageModel
from lab.models.loader import load_model
from lab.models.state_head import StateHead
from lab.training import dflash  # noqa: F401 -- its attention, which computes a head without the engine
from tests import tiny_models
from tests.engine.test_windows import windowed

HIDDEN, VOCABULARY, DRAFT, LAYERS = 48, tiny_models.VOCABULARY, 100, 5
FLAT = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": VOCABULARY,
}
RAW = FLAT | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFT}
SPECULATORS = {
    "speculators_model_type": "eagle3",
    "speculators_version": "0.5.0",
    "architectures": ["Eagle3Speculator"],
    "draft_vocab_size": DRAFT,
    "norm_before_residual": True,
    "eagle_aux_hidden_state_layer_ids": None,
    "transformer_layer_config": FLAT,
}
DFLASH = FLAT | {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "head_dim": 12,
    "num_hidden_layers": 2,
    "layer_types": ["full_attention"] * 2,
    "block_size": 8,
    "num_target_layers": LAYERS,
    "dflash_config": {"mask_token_id": 9, "target_layer_ids": [1, 3]},
}
MARKOV = {"markov_rank": 3, "markov_head_type": "vanilla", "enable_confidence_head": True}
NESTED_DFLASH = {
    "speculators_model_type": "dflash",
    "speculators_version": "0.9.0",
    "architectures": ["DFlashSpeculator"],
    "draft_vocab_size": DRAFT,
    "block_size": 8,
    "mask_token_id": 9,
    "aux_hidden_state_layer_ids": [2, 4],
    "transformer_layer_config": DFLASH | {"architectures": ["Qwen3ForCausalLM"]},
}


@pytest.fixture(scope="module")
def target() -> LanguageModel:
    return LanguageModel(tiny_models.random_model("llama", num_hidden_layers=LAYERS), "the target")


def tensors(layer: str = "midlayer", **changes: Any) -> dict[str, torch.Tensor]:
    """A head's random weights. ``changes``: by name with "__" for ".", others or None for none."""
    torch.manual_seed(0)
    shapes = {f"self_attn.{name}_proj": [size, 2 * HIDDEN] for name, size in (("q", 48), ("k", 24), ("v", 24))}
    shapes |= {"self_attn.o_proj": [HIDDEN, 48], "mlp.gate_proj": [32, HIDDEN], "mlp.up_proj": [32, HIDDEN]}
    shapes |= {"mlp.down_proj": [HIDDEN, 32]} | {
        name: [HIDDEN] for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    }
    found = {f"{layer}.{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    found |= {"fc.weight": torch.randn(HIDDEN, 3 * HIDDEN), "norm.weight": torch.randn(HIDDEN)}
    found["lm_head.weight"] = torch.randn(DRAFT, HIDDEN)
    found["d2t"] = torch.arange(DRAFT)  # every other token
    found["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool)
    found |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def saved(
    folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor] | None, *, pickled: bool = False
) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if weights is not None and pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    elif weights is not None:
        save_file(weights, folder / "model.safetensors")
    return folder


def load(folder: Path, target: LanguageModel) -> StateHead:
    """A head; an MTP head with a target of its own."""
    if (folder / "config.json").is_file() and '"mimo"' in (folder / "config.json").read_text():
        return load_model(folder, name="the model", place="cpu", dtype=torch.float32).heads["mtp"]
    return load_head(folder, target, name="the head")


def output(head: Eagle3Head) -> torch.Tensor:
    """Logits of the last of three pairs, by an attention of its own."""
    head.config.layer._attn_implementation = "sdpa"
    torch.manual_seed(1)
    states, tokens = torch.randn(1, 3, head.states_width), torch.tensor([[3, 5, 7]])
    return head.logits(head(tokens, head.fuse(states), torch.arange(3)[None])[0, -1])


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, theta: float) -> torch.Tensor:
    """The output of four query heads of 12 numbers for the last of three tokens."""
    angles = torch.arange(3)[:, None] * theta ** (-torch.arange(0, 12, 2) / 12)
    cos, sin = (torch.cat([f(angles)] * 2, dim=-1)[:, None] for f in (torch.cos, torch.sin))
    q, k = (x * cos + torch.cat([-x[..., 6:], x[..., :6]], dim=-1) * sin for x in (q, k))
    return torch.cat([torch.softmax(q[2, h] @ k[:, h // 2].T / 12**0.5, -1) @ v[:, h // 2] for h in range(4)])


def by_hand(
    weights: dict[str, torch.Tensor], target: LanguageModel, *, normed_residual: bool, theta: float
) -> torch.Tensor:
    """The same as ``output``, written out."""
    w = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in weights.items()}
    torch.manual_seed(1)
    states = torch.randn(1, 3, 3 * HIDDEN)[0]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w[name]

    table = w.get("embed_tokens.weight", target.model.get_input_embeddings().weight)
    g = states @ w["fc.weight"].T
    n = norm(g, "midlayer.hidden_norm.weight")
    both = torch.cat([norm(table[[3, 5, 7]], "midlayer.input_layernorm.weight"), n], dim=-1)
    q, k, v = ((both @ w[f"midlayer.self_attn.{x}_proj.weight"].T).view(3, -1, 12) for x in "qkv")
    x = (n if normed_residual else g)[2] + attended(q, k, v, theta) @ w["midlayer.self_attn.o_proj.weight"].T
    m = norm(x, "midlayer.post_attention_layernorm.weight")
    gate, up = (m @ w[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    x = x + (torch.nn.functional.silu(gate) * up) @ w["midlayer.mlp.down_proj.weight"].T
    return norm(x, "norm.weight") @ w["lm_head.weight"].T


MIMO = FLAT | {
    "architectures": ["MiMoForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_mimo.MiMoConfig",
        "AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM",
    },
    "model_type": "mimo",
    "num_hidden_layers": 2,
    "num_nextn_predict_layers": 1,
    "head_dim": 12,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
}


def mtp_tensors(**changes: Any) -> dict[str, torch.Tensor]:
    """Random weights of MiMo's layout, an MTP head's among them. ``changes``: as in ``tensors``."""
    found = {name: torch.randn(VOCABULARY, HIDDEN) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    found["model.norm.weight"] = torch.randn(HIDDEN)
    for layer in ("model.layers.0", "model.layers.1", "model.mtp_layers.0"):
        for name, tensor in tensors(layer).items():
            if name.startswith(layer) and "hidden_norm" not in name:
                found[name] = tensor[:, :HIDDEN].contiguous() if tensor.ndim == 2 else tensor
        found[f"{layer}.mlp.down_proj.weight"] = torch.randn(HIDDEN, 32)
        found |= {f"{layer}.self_attn.{x}_proj.bias": torch.randn(n) for x, n in (("q", 48), ("k", 24), ("v", 24))}
    found["model.mtp_layers.0.input_proj.weight"] = torch.randn(HIDDEN, 2 * HIDDEN)
    found |= {f"model.mtp_layers.0.{x}_layernorm.weight": torch.randn(HIDDEN) for x in ("token", "hidden", "final")}
    found |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def test_an_mtp_head_computes_what_was_published(tmp_path, target):
    """MiMo's layer, by vLLM's and SGLang's models: hidden state first, both normed; its output too, and fed back."""
    weights = mtp_tensors()
    head = load(saved(tmp_path, MIMO, weights), target)
    w = {name.removeprefix("model.mtp_layers.0."): tensor for name, tensor in weights.items()}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w[name]

    torch.manual_seed(1)
    states = torch.randn(3, HIDDEN)  # what leaves the target's last layer
    both = [norm(norm(states, "model.norm.weight"), "hidden_layernorm.weight")]
    both.append(norm(w["model.embed_tokens.weight"][[3, 5, 7]], "token_layernorm.weight"))
    x = torch.cat(both, dim=-1) @ w["input_proj.weight"].T
    n = norm(x, "input_layernorm.weight")
    q, k, v = (
        (n @ w[f"self_attn.{one}_proj.weight"].T + w[f"self_attn.{one}_proj.bias"]).view(3, -1, 12) for one in "qkv"
    )
    heads = attended(q, k, v, theta=5e5)
    x = x[2] + heads @ w["self_attn.o_proj.weight"].T
    m = norm(x, "post_attention_layernorm.weight")
    gate, up = (m @ w[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    x = norm(x + (torch.nn.functional.silu(gate) * up) @ w["mlp.down_proj.weight"].T, "final_layernorm.weight")

    head.config.layer._attn_implementation = "sdpa"
    found = head(torch.tensor([[3, 5, 7]]), head.fuse(states[None]), torch.arange(3)[None])[0, -1]
    assert torch.allclose(head.fed_back(found), x, atol=1e-3, rtol=1e-4)
    assert torch.allclose(head.logits(found), w["lm_head.weight"] @ x, atol=1e-2, rtol=1e-4)


def test_a_checkpoint_of_mimo_without_its_mtp_head_is_a_target_without_one(tmp_path):
    weights = {name: tensor for name, tensor in mtp_tensors().items() if "mtp" not in name}
    assert not load_model(saved(tmp_path, MIMO, weights), name="m", place="cpu", dtype=torch.float32).heads


@pytest.mark.parametrize("wrong", [{"input_proj__weight": None}, {"final_layernorm__weight": torch.ones(7)}])
def test_a_mimo_whose_mtp_head_is_broken_is_a_target_without_one(tmp_path, wrong):
    weights = mtp_tensors(**{f"model__mtp_layers__0__{name}": tensor for name, tensor in wrong.items()})
    model = load_model(saved(tmp_path, MIMO, weights), name="m", place="cpu", dtype=torch.float32)
    assert not model.heads
    assert model.notes[0].startswith("m goes without its MTP head, which could not be loaded")


def test_the_first_of_several_mtp_heads_is_used(tmp_path):
    weights = mtp_tensors()
    second = {name.replace("layers.0", "layers.1"): -tensor for name, tensor in weights.items() if "mtp" in name}
    folder = saved(tmp_path, MIMO | {"num_nextn_predict_layers": 2}, weights | second)
    model = load_model(folder, name="m", place="cpu", dtype=torch.float32)
    assert torch.equal(model.heads["mtp"].layer.post_norm.weight, weights["model.mtp_layers.0.final_layernorm.weight"])
    assert model.notes == ("m has 2 MTP heads: the first drafts, and reads its own output.",)


def test_a_heads_angles_are_in_float32(tmp_path):
    """Rounded to bfloat16, they would be off by radians after a thousand tokens."""
    model = LanguageModel(tiny_models.random_model("llama", num_hidden_layers=LAYERS).bfloat16(), "the target")
    head = load(saved(tmp_path, RAW, tensors()), model)
    assert head.dtype == torch.bfloat16
    assert head.rotary.inv_freq.dtype == torch.float32


def block_tensors(**changes: Any) -> dict[str, torch.Tensor]:
    """A DFlash head's random weights. ``changes``: as in ``tensors``."""
    found = {}
    for i in range(2):
        for name, tensor in tensors(f"layers.{i}").items():
            if name.startswith("layers") and "hidden_norm" not in name:
                narrow = any(x in name for x in ("q_proj", "k_proj", "v_proj"))
                found[name] = (tensor[:, :HIDDEN] if narrow else tensor) * (i + 1) / 8
        found |= {f"layers.{i}.self_attn.{x}_norm.weight": torch.randn(12) for x in "qk"}
    found |= {"fc.weight": torch.randn(HIDDEN, 2 * HIDDEN), "hidden_norm.weight": torch.randn(HIDDEN)}
    found["norm.weight"] = torch.randn(HIDDEN)
    found |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def block_by_hand(w: dict[str, torch.Tensor], target: LanguageModel) -> torch.Tensor:
    """Logits of two masks after token 5, of which the three tokens before have random states, written out."""
    torch.manual_seed(1)
    states = torch.randn(3, 2 * HIDDEN)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w[name]

    def turned(x: torch.Tensor, first: int) -> torch.Tensor:
        angles = torch.arange(first, first + len(x))[:, None] * 5e5 ** (-torch.arange(0, 12, 2) / 12)
        cos, sin = (torch.cat([f(angles)] * 2, dim=-1)[:, None] for f in (torch.cos, torch.sin))
        return x * cos + torch.cat([-x[..., 6:], x[..., :6]], dim=-1) * sin

    text = norm(states @ w["fc.weight"].T, "hidden_norm.weight")
    x = target.model.get_input_embeddings().weight[[5, 9, 9]]
    for i in range(2):
        at, own = f"layers.{i}.self_attn.", norm(x, f"layers.{i}.input_layernorm.weight")
        q = turned(norm((own @ w[f"{at}q_proj.weight"].T).view(3, 4, 12), f"{at}q_norm.weight"), 3)
        both = torch.cat([text, own])
        k = turned(norm((both @ w[f"{at}k_proj.weight"].T).view(6, 2, 12), f"{at}k_norm.weight"), 0)
        v = (both @ w[f"{at}v_proj.weight"].T).view(6, 2, 12)
        heads = [torch.softmax(q[:, h] @ k[:, h // 2].T / 12**0.5, -1) @ v[:, h // 2] for h in range(4)]
        x = x + torch.cat(heads, -1) @ w[f"{at}o_proj.weight"].T
        m = norm(x, f"layers.{i}.post_attention_layernorm.weight")
        gate, up = (m @ w[f"layers.{i}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (torch.nn.functional.silu(gate) * up) @ w[f"layers.{i}.mlp.down_proj.weight"].T
    head = w.get("lm_head.weight", target.model.get_output_embeddings().weight)
    return norm(x[1:], "norm.weight") @ head.T


@pytest.mark.parametrize("nested", [False, True], ids=["z-lab", "speculators"])
def test_a_block_head_computes_what_its_configuration_says(tmp_path, target, nested):
    more = {"lm_head__weight": torch.randn(DRAFT, HIDDEN), "d2t": torch.arange(DRAFT), "t2d": torch.zeros(1)}
    weights = block_tensors(**more if nested else {})
    head = load(saved(tmp_path, NESTED_DFLASH if nested else DFLASH, weights), target)
    assert isinstance(head, DFlashHead)
    assert head.config.target_layers == (2, 4)  # which the outputs of 1 and 3 enter
    assert head.most_tokens == 7
    assert head.target_ids.tolist() == (list(range(0, 2 * DRAFT, 2)) if nested else list(range(VOCABULARY)))
    torch.manual_seed(1)
    states = head.fuse(torch.randn(1, 3, 2 * HIDDEN))
    text = [(k.transpose(1, 2), v.transpose(1, 2)) for k, v in head.keys_and_values(states, torch.arange(3)[None])]
    head.config.layer._attn_implementation = "blocks"
    block = head.block(torch.tensor([[5]]), 2).flatten(1)
    how = {"text": text, "seen": torch.ones(1, 1, 3, 3, dtype=torch.bool), "count": 3}
    found = head.logits(head(block, torch.arange(3, 6)[None], **how)[0, 1:])
    assert torch.allclose(found, block_by_hand(weights, target), atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("nested", [False, True], ids=["z-lab", "speculators"])
@pytest.mark.parametrize("anchored", [None, False], ids=["from the newest token", "from masks alone"])
def test_a_dspark_head_adds_a_row_for_the_token_before(tmp_path, target, nested, anchored):
    """And in the published heads the newest token's own place drafts the first token: one draft token more."""
    own = MARKOV | ({} if anchored is None else {"sample_from_anchor": anchored})
    config = {
        True: NESTED_DFLASH | own | {"speculators_model_type": "dspark", "architectures": ["DSparkSpeculator"]},
        False: block_config(projector_type="dspark", **own) | {"architectures": ["DSparkDraftModel"]},
    }[nested]
    vocabulary = DRAFT if nested else VOCABULARY
    first, second = torch.randn(VOCABULARY, 3), torch.randn(vocabulary, 3)
    more = {"markov_head__markov_w1__weight": first, "markov_head__markov_w2__weight": second}
    more |= {"confidence_head__proj__weight": torch.randn(1, HIDDEN + 3), "confidence_head__proj__bias": torch.zeros(1)}
    if nested:
        more |= {"lm_head__weight": torch.randn(DRAFT, HIDDEN), "d2t": torch.arange(DRAFT), "t2d": torch.zeros(1)}
    head = load(saved(tmp_path, config, block_tensors(**more)), target)
    assert head.most_tokens == (8 if anchored is None else 7)
    assert head.block(torch.tensor(5), 3).tolist() == ([5, 9, 9] if anchored is None else [5, 9, 9, 9])
    logits = torch.randn(2, vocabulary)
    assert torch.allclose(head.after(logits, torch.tensor([4, 7])), logits + first[[4, 7]] @ second.T, atol=1e-5)


NESTED_ROPE = SPECULATORS | {
    "transformer_layer_config": {k: v for k, v in FLAT.items() if k != "rope_theta"}
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}
}


@pytest.mark.parametrize(
    ("config", "weights", "pickled", "normed", "theta"),
    [
        (RAW, tensors(), False, False, 5e5),
        (RAW, tensors(), True, False, 5e5),
        ({k: v for k, v in RAW.items() if k != "rope_theta"}, tensors(), False, False, 1e4),
        (RAW | {"norm_before_residual": True}, tensors(), False, True, 5e5),
        (SPECULATORS, tensors("layers.0"), False, True, 5e5),
        (SPECULATORS | {"norm_before_residual": False}, tensors("layers.0"), False, False, 5e5),
        (NESTED_ROPE, tensors("layers.0", embed_tokens__weight=torch.randn(VOCABULARY, HIDDEN)), False, True, 2e4),
    ],
    ids=["raw", "a pickle", "no rope_theta", "raw, normed", "speculators", "not normed", "own embeddings and rope"],
)
def test_both_dialects_compute_what_their_configuration_says(tmp_path, target, config, weights, pickled, normed, theta):
    head = load(saved(tmp_path, config, weights, pickled=pickled), target)
    expected = by_hand(weights, target, normed_residual=normed, theta=theta)
    assert torch.allclose(output(head), expected, atol=1e-3, rtol=1e-4)
    assert head.target_ids.tolist() == list(range(0, 2 * DRAFT, 2))
    assert head.config.target_layers == (2, LAYERS // 2, LAYERS - 3)


def test_the_layers_and_norms_that_are_configured_are_used(tmp_path, target):
    more = {"eagle_aux_hidden_state_layer_ids": [0, 1, 4], "norm_before_fc": True}
    weights = tensors(input_norm__weight=torch.randn(3 * HIDDEN))
    head = load(saved(tmp_path, RAW | {"eagle_config": more}, weights), target)
    assert head.config.target_layers == (0, 1, 4)
    states = torch.randn(2, 3 * HIDDEN)
    normed = states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + 1e-5) * weights["input_norm.weight"]
    assert torch.allclose(head.fuse(states), normed @ weights["fc.weight"].T, atol=1e-4)

    each = {f"fc_norm__{i}__weight": torch.randn(HIDDEN) for i in range(3)}
    config = SPECULATORS | {"fc_norm": True, "norm_output": True}
    head = load(saved(tmp_path, config, tensors("layers.0", **each)), target)
    parts = [part * torch.rsqrt(part.pow(2).mean(-1, keepdim=True) + 1e-5) for part in states.split(HIDDEN, -1)]
    normed = torch.cat([part * norm for part, norm in zip(parts, each.values(), strict=True)], -1)
    assert torch.allclose(head.fuse(states), normed @ head.fc.weight.T, atol=1e-4)
    assert torch.equal(head.fed_back(states[:, :HIDDEN]), head.norm(states[:, :HIDDEN]))


def test_a_head_over_the_whole_vocabulary_needs_no_mapping(tmp_path, target):
    weights = tensors(d2t=None, lm_head__weight=torch.randn(VOCABULARY, HIDDEN))
    head = load(saved(tmp_path, {k: v for k, v in RAW.items() if k != "draft_vocab_size"}, weights), target)
    assert head.target_ids.tolist() == list(range(VOCABULARY))


def damaged(folder: Path) -> Path:
    (folder / "model.safetensors").write_bytes(b"\x10" * 300)
    return saved(folder, RAW, None)


def block_config(**changes: Any) -> dict[str, Any]:
    return DFLASH | {"dflash_config": DFLASH["dflash_config"] | changes}


def dspark(**changes: Any) -> dict[str, Any]:
    return block_config(projector_type="dspark", **MARKOV | changes) | {"architectures": ["DSparkDraftModel"]}


class Runs:
    """A pickle that would run code."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (Path("ran"),))


def malicious(folder: Path) -> Path:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Runs()))
    return saved(folder, RAW, None)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda at: saved(at, RAW | {"hidden_size": 64}, tensors()), "hidden states of size 64, and the target has 48"),
        (lambda at: saved(at, RAW | {"target_hidden_size": 96}, tensors()), "hidden states of size 96"),
        (lambda at: saved(at, RAW | {"vocab_size": 300}, tensors()), "a vocabulary of 300, and the target has 257"),
        (
            lambda at: saved(at, RAW | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}}, tensors()),
            "layers 2, 18, 33, and the target has 5 layers",
        ),
        (lambda at: saved(at, RAW, tensors(d2t=None)), "has no d2t"),
        (lambda at: saved(at, RAW, tensors(d2t=torch.arange(DRAFT) * 9)), "d2t gives tokens twice, or none"),
        (lambda at: saved(at, RAW, tensors(d2t=-torch.arange(DRAFT))), "d2t gives tokens twice, or none"),
        (lambda at: saved(at, RAW, tensors(fc__weight=None)), "'fc.weight' is missing"),
        (lambda at: saved(at, RAW, tensors(norm__weight=torch.ones(7))), r"the shape \[7\] and not \[48\]"),
        (lambda at: saved(at, RAW, tensors(fc__bias=torch.ones(48))), "'fc.bias' does not belong there"),
        (lambda at: saved(at, RAW, None), "There are no weights"),
        (lambda at: at, "There is no config.json"),
        (damaged, "could not be loaded"),
        (malicious, "nothing of it was run"),
        (lambda at: saved(at, SPECULATORS | {"speculators_version": "1.2.0"}, tensors("layers.0")), "version 1.2.0"),
        (lambda at: saved(at, SPECULATORS | {"speculators_model_type": "mlp"}, tensors()), "no EAGLE-3 head or a"),
        (lambda at: saved(at, FLAT | {"architectures": ["LlamaForCausalLM"]}, tensors()), "no EAGLE-3 head or a"),
        (lambda at: saved(at, DFLASH | {"architectures": ["DFlash2DraftModel"]}, tensors()), "no EAGLE-3 head or a"),
        (lambda at: saved(at, DFLASH | {"hidden_size": 64}, block_tensors()), "size 64, and the target has 48"),
        (lambda at: saved(at, dspark(markov_head_type="gated"), block_tensors()), "of the type 'gated'"),
        (lambda at: saved(at, dspark(markov_rank=0), block_tensors()), "rank 0"),
        (lambda at: saved(at, dspark(), block_tensors()), "markov_w1.weight' is missing"),
        (lambda at: saved(at, DFLASH | {"vocab_size": 300}, block_tensors()), "a vocabulary of 300"),
        (lambda at: saved(at, block_config(target_layer_ids=[1, 4]), block_tensors()), "layers 2, 5, and the target"),
        (lambda at: saved(at, block_config(target_layer_ids=None), block_tensors()), "not name the layers"),
        (lambda at: saved(at, block_config(mask_token_id=None), block_tensors()), "does not name mask_token_id"),
        (lambda at: saved(at, block_config(mask_token_id=257), block_tensors()), "the mask token 257"),
        (lambda at: saved(at, DFLASH | {"block_size": 1}, block_tensors()), "blocks of 1"),
        (lambda at: saved(at, block_config(projector_type="domino"), block_tensors()), "by those before them"),
        (lambda at: saved(at, DFLASH | {"layer_types": ["sliding_attention"] * 2}, block_tensors()), "sliding window"),
        (lambda at: saved(at, block_config(causal=True), block_tensors()), "see only those before"),
        (lambda at: saved(at, DFLASH | {"is_neox_style": False}, block_tensors()), "neighbouring"),
        (lambda at: saved(at, NESTED_DFLASH | {"speculators_version": "1.2.0"}, block_tensors()), "version 1.2.0"),
        (lambda at: saved(at, NESTED_DFLASH, block_tensors()), "has no d2t"),
        (lambda at: saved(at, DFLASH, block_tensors(hidden_norm__weight=None)), "'hidden_norm.weight' is missing"),
        (lambda at: saved(at, DFLASH | {"num_hidden_layers": 3}, block_tensors()), "blocks.2.* is missing"),
        (lambda at: saved(at, RAW | {"num_hidden_layers": 4}, tensors()), "has 4 layers"),
        (lambda at: saved(at, RAW | {"model_type": "deepseek_v3"}, tensors()), "'deepseek_v3'"),
        (lambda at: saved(at, RAW | {"num_attention_heads": "many"}, tensors()), "num_attention_heads|cannot be read"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_in_two_sentences(tmp_path, monkeypatch, target, make, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "head").mkdir()
    with pytest.raises(LabError, match=said) as caught:
        load(make(tmp_path / "head"), target)
    assert str(caught.value).rstrip(")").count(". ") >= 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["gemma3n_text", "gemma4_text", "bloom"])
def test_a_head_beside_a_target_that_shows_no_hidden_states_is_refused(tmp_path, kind):
    with pytest.raises(LabError, match="Choose a draft model"):
        load(saved(tmp_path, RAW, tensors()), windowed(kind))


def test_a_head_that_is_nowhere_is_refused(target, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError):
        load_head("nobody/nothing", target, name="the head")
