"""The heads' training: the unrolled steps are a chain's, and blocks see only what they will see when they are used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from lab.models.eagle3_head import Eagle3Head
from lab.models.head_files import load_head
from lab.models.language_model import LanguageModel
from lab.training import dflash
from lab.training.distillation import TEMPERATURE
from lab.training.eagle3 import export_head, export_speculators, frequent_tokens, new_head, unroll, unrolled_loss
from lab.training.training import draft_shape, restore, train

VOCABULARY, LENGTH = 64, 12


@pytest.fixture
def target() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 6,
        "head_dim": 16,
        "vocab_size": VOCABULARY,
    }
    shape = (
        draft_shape().to_dict() | sizes | {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    )
    return LlamaForCausalLM(LlamaConfig(**shape)).eval()


@pytest.fixture
def head(target: LlamaForCausalLM) -> Eagle3Head:
    return new_head(target, torch.arange(1, VOCABULARY, 2)).eval()


@torch.no_grad()
def test_each_step_equals_a_chain_that_goes_on_alone(target, head):
    """At every position: true pairs first, then its own output, in one plain causal pass."""
    tokens = torch.randint(VOCABULARY, (1, LENGTH + 1))
    results = unroll(target, head, tokens, 3)
    states = target(tokens, output_hidden_states=True).hidden_states
    fused = head.fuse(torch.cat([states[layer] for layer in head.config.target_layers], dim=-1))
    log_p = F.log_softmax(target(tokens).logits / TEMPERATURE, dim=-1)[..., 1::2]
    positions = torch.arange(LENGTH)[None]
    for step, (divergence, shared) in enumerate(results):
        for last in range(step, LENGTH):
            hidden = fused[:, : last - step + 1]
            for _ in range(step + 1):
                count = hidden.shape[1]
                out = head(tokens[:, 1 : count + 1], hidden, positions[:, :count], earlier=[])
                hidden = torch.cat([hidden, out[:, -1:]], dim=1)
            log_q = F.log_softmax(head.logits(out[0, -1]) / TEMPERATURE, dim=-1)
            here = log_p[0, last + 1]
            assert torch.allclose(shared[0, last - step], torch.minimum(here.exp(), log_q.exp()).sum(), atol=1e-4)
            assert torch.allclose(divergence[0, last - step], (here.exp() * (here - log_q)).sum(), atol=1e-3)


@pytest.mark.slow
def test_training_raises_what_head_and_target_share_and_leaves_the_embeddings(tmp_path, target, head):
    text = np.random.default_rng(0).integers(VOCABULARY, size=4000).astype(np.uint16)
    parts, tokens = [(text, 1.0)], torch.from_numpy(text[:256].astype(np.int64)).view(8, 32)
    before = [shared.mean() for _, shared in unroll(target, head, tokens, 3)]
    options = {"tokens": 12 * 1024, "tokens_a_step": 1024, "peak_lr": 2e-2, "device": "cpu", "compiled": False}
    trained = train(lambda: head, parts, unrolled_loss(target), checkpoint=tmp_path / "eagle3.pt", **options)
    after = [shared.mean() for _, shared in unroll(target, trained, tokens, 3)]
    assert all(b > a + 0.05 for a, b in zip(before, after, strict=True)), (before, after)
    again, record = restore(new_head(target, torch.arange(32)), tmp_path / "eagle3.pt")
    assert record.steps == 12
    assert torch.equal(again.target_ids, torch.arange(1, VOCABULARY, 2))
    assert torch.equal(trained.embed_tokens.weight, target.get_input_embeddings().weight)


@torch.no_grad()
def test_a_block_depends_on_the_text_before_it_and_on_no_other_block(target):
    head = dflash.new_head(target).eval()
    tokens, count = torch.randint(1, VOCABULARY - 1, (2, LENGTH)), 3
    anchors = torch.tensor([[1, 4, 8], [2, 3, 5]])
    together = dflash.draft_blocks(target, head, tokens, anchors, count).log_q
    for row, block in np.ndindex(2, 3):
        anchor = anchors[row, block].item()
        changed = tokens.clone()
        changed[row, anchor + 1 :] = 0  # none of what it is to draft
        alone = dflash.draft_blocks(target, head, changed, anchors[row, block].expand(2, 1), count).log_q[row, 0]
        assert torch.allclose(alone, together[row, block], atol=1e-4)
        changed[row, anchor - 1] += 1
        other = dflash.draft_blocks(target, head, changed, anchors[row, block].expand(2, 1), count).log_q[row, 0]
        assert (other - alone).abs().amax() > 1e-3


@pytest.mark.slow
def test_training_on_blocks_raises_what_head_and_target_share(tmp_path, target):
    text = np.random.default_rng(0).integers(VOCABULARY, size=4000).astype(np.uint16)
    parts, tokens = [(text, 1.0)], torch.from_numpy(text[:256].astype(np.int64)).view(8, 32)
    head, anchors = dflash.new_head(target), torch.arange(1, 25, 6).expand(8, -1)
    before = dflash.draft_blocks(target, head, tokens, anchors, 4).shared.mean((0, 1))
    options = {"tokens": 12 * 1024, "tokens_a_step": 1024, "peak_lr": 2e-2, "device": "cpu", "compiled": False}
    trained = train(lambda: head, parts, dflash.block_loss(target), checkpoint=tmp_path / "dflash.pt", **options)
    after = dflash.draft_blocks(target, trained, tokens, anchors, 4).shared.mean((0, 1))
    assert (after > before + 0.05).all(), (before, after)
    assert torch.equal(trained.embed_tokens.weight, target.get_input_embeddings().weight)


@pytest.mark.parametrize(("length", "count"), [(256, 7), (256, 1), (20, 7)])
def test_anchors_leave_a_token_before_them_and_a_block_after(length, count):
    anchors = dflash.random_anchors(length, count, rows=50)
    assert anchors.min() == 1
    assert anchors.max() + count == length
    assert all(len(row.unique()) == max(1, length // dflash.TEXT_PER_BLOCK) for row in anchors)


def test_the_draft_vocabulary_is_what_is_written_most():
    books, samples = np.array([5, 5, 5, 1, 1, 3, 2, 2], np.uint16), np.array([3, 3], np.uint16)
    assert frequent_tokens([(books, 1.0)], 8, 3).tolist() == [1, 2, 5]
    assert frequent_tokens([(books, 0.5), (samples, 0.5)], 8, 2).tolist() == [3, 5]


def test_both_dialects_are_the_same_head(target, head, tmp_path):
    export_head(head, tmp_path / "raw")
    export_speculators(head, tmp_path / "speculators", target=tmp_path / "target")
    model = LanguageModel(target, "the target")
    raw, speculators = (load_head(tmp_path / name, model, name=name) for name in ("raw", "speculators"))
    assert speculators.config.target_layers == raw.config.target_layers == head.config.target_layers
    assert speculators.config.layer.rope_parameters == raw.config.layer.rope_parameters
    for name, weight in raw.state_dict().items():
        assert torch.equal(weight, speculators.state_dict()[name])
        assert torch.allclose(weight.float(), head.state_dict()[name].float(), rtol=1e-2), "rounded to bfloat16"
