"""MTP heads in checkpoints as DeepSeek, GLM and Qwen3.5 publish them: read, computed, and drafted with."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from lab.config import EngineConfig, SamplingParams
from lab.load import load_engine
from lab.models.loader import load_model
from lab.trace.events import FellBack, Proposed
from tests import tiny_models
from tests.engine.test_recurrent import DELTA
from tests.engine.test_windows import EXPERTS, LATENTS
from tests.models.test_numerical_check import random_model
from tests.tiny_models import of

KINDS = {
    "glm4_moe": EXPERTS | {"head_dim": 16, "num_hidden_layers": 4},
    "deepseek_v3": LATENTS["deepseek_v3"] | {"num_hidden_layers": 4},
    "glm4_moe_lite": LATENTS["glm4_moe_lite"] | {"num_hidden_layers": 4},
    "qwen3_5_text": DELTA | {"num_hidden_layers": 5, "layer_types": ["linear_attention", "full_attention"] * 2},
}
KINDS["qwen3_5_text"]["layer_types"] += ["full_attention"]
NAMES = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "shared_head.norm": "norm"}
"""DeepSeek's, and Qwen3.5's."""
PROMPTS = "Once upon a time there was", "The miller's cat"


def saved(folder: Path, kind: str, *, without: str = "nothing") -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    """Write a checkpoint whose target has a layer less than the model that is returned, and that layer as its MTP
    layer. Also returns the layer's own weights, by DeepSeek's names."""
    model = random_model(kind, **KINDS[kind])
    with torch.no_grad():
        for name, weight in model.model.layers.named_parameters():
            if any(part in name for part in ("o_proj", "out_proj", "down_proj")):
                weight *= 0.01  # what a layer adds is little, so that the head agrees with the target
    model.save_pretrained(folder)
    tiny_models.tokenizer().save_pretrained(folder)
    layers, hidden = model.config.num_hidden_layers - 1, 64
    own = {name: 1 + 0.1 * torch.randn(hidden) for name in ("enorm", "hnorm", "shared_head.norm")}
    own["eh_proj"] = 0.01 * torch.randn(hidden, 2 * hidden) + torch.eye(hidden, 2 * hidden)
    if kind == "qwen3_5_text":  # whose norms add one
        own |= {name: weight - 1 for name, weight in own.items() if "norm" in name}
    weights = load_file(folder / "model.safetensors")
    prefix, names = f"model.layers.{layers}.", {name: name for name in NAMES}
    if kind == "qwen3_5_text":
        weights = {name.replace(prefix, "mtp.layers.0."): weight for name, weight in weights.items()}
        prefix, names = "mtp.", NAMES
    weights |= {f"{prefix}{names[name]}.weight": weight for name, weight in own.items()}
    save_file({name: weight for name, weight in weights.items() if without not in name}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = layers
    for each in ("layer_types", "mlp_layer_types"):
        if config.get(each):
            config[each] = config[each][:layers]
    config |= {"mtp_num_hidden_layers": 1} if kind == "qwen3_5_text" else {"num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    return model, own


@pytest.mark.parametrize("kind", KINDS)
def test_the_head_computes_the_models_own_layer_over_embedding_and_hidden_state(tmp_path, kind):
    model, own = saved(tmp_path, kind)
    loaded = load_model(tmp_path, name="m", place="cpu", dtype=torch.float32)
    assert not loaded.notes
    head, layer, norm = loaded.heads["mtp"], model.model.layers[-1], type(model.model.norm)

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        found = norm(64, eps=model.config.rms_norm_eps)
        found.weight = nn.Parameter(own[name])
        return found(x)

    torch.manual_seed(1)
    states, tokens, positions = torch.randn(1, 5, 64), torch.tensor([[3, 5, 7, 11, 2]]), torch.arange(5)[None]
    pair = [normed(model.get_input_embeddings()(tokens), "enorm"), normed(model.model.norm(states), "hnorm")]
    x = torch.cat(pair, dim=-1) @ own["eh_proj"].T
    model.set_attn_implementation("eager")
    mask = torch.full((5, 5), -torch.inf).triu(1)[None, None]
    angles = model.model.rotary_emb(x, positions)
    x = normed(layer(x, position_embeddings=angles, attention_mask=mask, position_ids=positions), "shared_head.norm")
    head.config.layer._attn_implementation = "sdpa"
    with torch.inference_mode():
        found = head(tokens, head.fuse(states), positions)
    assert torch.allclose(found, x, atol=1e-4)
    assert torch.allclose(head.logits(found), model.lm_head(x), atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [EngineConfig(), EngineConfig(paged=True, enable_prefix_caching=True)])
def test_the_text_is_that_of_plain_decoding(tmp_path, kind, config):
    saved(tmp_path, kind)
    engine = load_engine(tmp_path, max_num_batched_tokens=33)
    greedy = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    drafted = EngineConfig(**vars(config) | {"speculative": "mtp", "num_speculative_tokens": 3})
    expected = [engine.generate(prompt, config, greedy).token_ids for prompt in PROMPTS]
    runs = [request.result() for request in [engine.submit(prompt, drafted, greedy) for prompt in PROMPTS]]
    assert [run.token_ids for run in runs] == expected
    assert all(of(run, Proposed) and not of(run, FellBack) for run in runs)
    assert sum(run.metrics.mean_acceptance_length for run in runs) > 2 * 1.2


@pytest.mark.slow
def test_after_a_prefix_of_a_hybrid_its_head_needs_a_block_more(tmp_path):
    """As users of vLLM found (issue 54360): a hit is a block short, since the head reads a token with the hidden states
    of the one before, and states to compute those from are kept where blocks end."""
    saved(tmp_path, "qwen3_5_text")
    unit, engine = 4, load_engine(tmp_path, max_num_batched_tokens=33)
    config = EngineConfig(paged=True, block_size=unit, enable_prefix_caching=True)
    drafted = replace(config, speculative="mtp", num_speculative_tokens=3)
    greedy = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
    for length in (3, 8, 9, 34, 70):
        prompt = [(7 * i + length) % 250 for i in range(length)]
        plain, again, first, *others = (engine.generate(prompt, it, greedy) for it in (config,) * 2 + (drafted,) * 3)
        assert {tuple(run.token_ids) for run in (again, first, *others)} == {tuple(plain.token_ids)}
        assert first.metrics.cached_prompt_tokens == 0
        assert again.metrics.cached_prompt_tokens == (length - 1) // unit * unit
        for run in others:
            assert run.metrics.cached_prompt_tokens == max(0, (length - 1) // unit - 1) * unit
    assert engine.occupancy().live == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_without_its_mtp_layer_is_a_target_without_one(tmp_path, kind):
    saved(
        tmp_path, kind, without="mtp." if kind == "qwen3_5_text" else f"layers.{KINDS[kind]['num_hidden_layers'] - 1}."
    )
    loaded = load_model(tmp_path, name="m", place="cpu", dtype=torch.float32)
    assert not loaded.heads
    assert not loaded.notes


@pytest.mark.parametrize("kind", ["glm4_moe", "qwen3_5_text"])
def test_a_broken_mtp_layer_leaves_the_target_whole(tmp_path, kind):
    saved(tmp_path, kind, without="hnorm" if kind == "glm4_moe" else "pre_fc_norm_hidden")
    loaded = load_model(tmp_path, name="m", place="cpu", dtype=torch.float32)
    assert not loaded.heads
    assert "goes without its MTP head" in loaded.notes[0]
