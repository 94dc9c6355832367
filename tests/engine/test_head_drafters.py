"""Drafting with a head: the same text with every toggle, and drafts that are the head's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from lab import ConfigError, EngineConfig, SamplingParams, load_engine
from lab.engine.engine import Engine
from lab.kv_cache import kv_cache
from lab.kv_cache.storage import KVStorage
from lab.models.dflash_head import DFlashConfig, DFlashHead
from lab.models.dspark_head import DSparkConfig, DSparkHead
from lab.models.eagle3_head import Eagle3Config, Eagle3Head
from lab.models.mtp_head import MTPHead
from lab.models.state_head import HEADS, StateHead
from lab.trace.events import BlockCopied, Committed, FellBack, Preempted, Proposed, RunStarted
from lab.trace.run import Run
from lab.training import eagle3  # noqa: F401 -- its attention, which computes a head without the engine
from lab.training.dflash import draft_blocks
from tests import tiny_models
from tests.tiny_models import of

PROMPTS = (
    "Once upon a time there was a little girl who lived near the forest, and every morning she went",
    "The king",
    "Once upon a time there was a little girl who lived near the forest, and one day",
)
GREEDY = SamplingParams(max_tokens=20, ignore_eos=True)
PAGED = EngineConfig(paged=True, block_size=4, speculative="eagle3")
CONFIGS = {
    "contiguous": EngineConfig(speculative="eagle3"),
    "paged": PAGED,
    "prefixes": replace(PAGED, enable_prefix_caching=True),
    "no cache": EngineConfig(kv_cache=False, speculative="eagle3"),
    "int8": replace(PAGED, kv_dtype="int8"),
    "int4": EngineConfig(kv_dtype="int4", speculative="eagle3"),
    "one draft token": replace(PAGED, num_speculative_tokens=1),
    "adaptive": replace(PAGED, num_speculative_tokens=8, adaptive_window=True),
    "a tight pool": replace(PAGED, num_blocks=14),
    "reference": replace(PAGED, kernels="reference"),
    "an attention of torch's": EngineConfig(speculative="eagle3", prefill_attention="math"),
}

POISONED = ("contiguous", "int8", "int4")
"""On memory that held no numbers before."""
SAME_DRAFTS = ("paged", "prefixes", "no cache", "a tight pool", "reference")
"""Found in the cache, preempted, never kept, in C or in torch: a head reads a token with the same states."""


@pytest.fixture(scope="module")
def lab() -> Engine:
    return load_engine(max_num_batched_tokens=33, kernels="auto", dtype="float32")  # the longer prompts are in chunks


def drafts(run: Run) -> list[int]:
    return [event.token_id for event in of(run, Proposed)]


KINDS = ("eagle3", "mtp", "dflash", "dspark")


@pytest.fixture(scope="module")
def labs(lab) -> dict[str, tuple[Engine, tuple[str, ...]]]:
    """An engine for each kind of head, and prompts. A token of the one with an MTP head is a byte."""
    tiny = tiny_models.mtp_engine(max_num_batched_tokens=33, kernels="auto")
    return dict.fromkeys(KINDS, (lab, PROMPTS)) | {"mtp": (tiny, tuple(prompt[:20] for prompt in PROMPTS))}


@pytest.fixture(scope="module")
def alone(labs) -> Callable[[str, EngineConfig], list[Run]]:
    """The runs of a kind's prompts one by one, each setting's made once."""
    return functools.cache(lambda kind, config: [labs[kind][0].generate(it, config, GREEDY) for it in labs[kind][1]])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for name in CONFIGS if name not in POISONED for kind in KINDS])
def test_the_text_is_that_of_plain_decoding_alone_and_in_a_batch(labs, alone, kind, name):
    """And the drafts are the same, however keys and values are kept."""
    lab, prompts = labs[kind]
    config = replace(CONFIGS[name], speculative=kind)
    plain = replace(config, speculative="off", enable_prefix_caching=False, adaptive_window=False)
    plain = replace(plain, num_speculative_tokens=4, num_blocks=None)
    expected = [run.token_ids for run in alone("mtp" if kind == "mtp" else "eagle3", plain)]
    for _ in range(1 + config.enable_prefix_caching):
        runs = [request.result() for request in [lab.submit(prompt, config, GREEDY) for prompt in prompts]]
        assert [run.token_ids for run in runs] == expected
        assert [event.reason for run in runs for event in of(run, FellBack)] == []
    pays = (kind, name) != ("mtp", "adaptive")  # that head takes as long as a pass of its tiny target
    assert not pays or sum(run.metrics.mean_acceptance_length for run in runs) > 3 * 1.2
    assert any(of(run, Preempted) for run in runs) == (name == "a tight pool")
    if name in SAME_DRAFTS:
        assert [drafts(run) for run in runs] == [drafts(run) for run in alone(kind, EngineConfig(speculative=kind))]
    if name == "prefixes":
        assert all(run.metrics.cached_prompt_tokens for run in runs if len(run.prompt_token_ids) > 4)
        # These compute the token before again, for its hidden states.
        assert any(of(run, BlockCopied) for run in runs) == (kind in ("eagle3", "mtp"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_reads_no_slot_that_was_never_written(labs, alone, kind, monkeypatch):
    """Whatever the memory held before: here no numbers at all."""
    new_storage = kv_cache.new_storage

    def poisoned(*given: object) -> KVStorage:
        storage = new_storage(*given)
        for tensor in (tensor for layer in storage.layers for tensor in layer.tensors):
            tensor.fill_(torch.nan if tensor.is_floating_point() else 77)
        return storage

    monkeypatch.setattr(kv_cache, "new_storage", poisoned)
    lab, prompts = labs[kind]
    for name in (*POISONED, "paged", "reference"):
        config = replace(
            CONFIGS[name], speculative=kind, num_blocks=60
        )  # as of no other test, so that the cache is new
        plain = replace(config, speculative="off", num_blocks=None)
        expected = [run.token_ids for run in alone("mtp" if kind == "mtp" else "eagle3", plain)]
        runs = [request.result() for request in [lab.submit(prompt, config, GREEDY) for prompt in prompts]]
        assert [event.reason for run in runs for event in of(run, FellBack)] == [], name
        assert [run.token_ids for run in runs] == expected
        assert sum(run.metrics.mean_acceptance_length for run in runs) > 3 * 1.2


def test_two_heads_read_the_hidden_states_of_one_pass(lab):
    kinds = ("eagle3", "dflash", "dspark", "off", "draft")
    configs = [replace(PAGED, speculative=kind) for kind in kinds]
    alone = [lab.generate(PROMPTS[0], config, GREEDY) for config in configs]
    together = [request.result() for request in [lab.submit(PROMPTS[0], config, GREEDY) for config in configs]]
    assert [drafts(run) for run in together] == [drafts(run) for run in alone]


@pytest.mark.parametrize("kind", KINDS)
def test_continuations_of_a_prompt_share_it_and_draft_as_alone(labs, kind):
    lab, (prompt, *_) = labs[kind]
    config = replace(PAGED, speculative=kind)
    sampling = SamplingParams(max_tokens=24, temperature=0.8, seed=3, ignore_eos=True)
    runs = [request.result() for request in lab.prepare(prompt, config, sampling, continuations=3)()]
    for i, run in enumerate(runs):
        alone = lab.generate(prompt, config, replace(sampling, seed=3 + i))
        assert (run.token_ids, drafts(run)) == (alone.token_ids, drafts(alone))


# -- the drafts, computed again without the engine --------------------------------------------------


def tiny(architecture: str, kind: str, *, anchored: bool = False) -> Engine:
    """A target of four layers with a random head; EAGLE-3's has every norm and a vocabulary of its own, and MTP's is
    the first of two."""
    if kind == "mtp":
        return tiny_models.mtp_engine(agrees=False, kernels="reference")
    torch.manual_seed(0)
    engine = tiny_models.engine(architecture, shape={"num_hidden_layers": 4}, kernels="reference")
    layer = tiny_models.CONFIGS["qwen3" if architecture == "qwen3" else "llama"]
    layers = 1 if kind == "eagle3" else 2
    layer = type(layer).from_dict(layer.to_dict() | {"num_hidden_layers": layers, "layer_types": None})
    layer._attn_implementation = "decode_lab"
    sizes = {"layer": layer, "target_hidden_size": 48, "target_layers": (0, 2, 3)}
    tables = engine.target.model.get_input_embeddings(), engine.target.model.get_output_embeddings()
    if kind == "eagle3":
        more = {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True}
        head = Eagle3Head(Eagle3Config(draft_vocab_size=100, **sizes, **more), tables[0]).eval()
        head.d2t += 50
    else:
        sizes |= {"draft_vocab_size": layer.vocab_size, "block_size": 4, "mask_token_id": 7}
        head = DFlashHead(DFlashConfig(**sizes), *tables).eval()
        if kind == "dspark":
            head = DSparkHead(DSparkConfig(**sizes, markov_rank=8, sample_from_anchor=anchored), *tables).eval()
    for weight in head.parameters():
        weight.requires_grad_(False)
        if weight.ndim == 2 and all(weight is not table.weight for table in tables):
            weight.normal_(std=0.3)
    engine.target.heads[kind] = head
    return engine


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2", "mimo"])
@pytest.mark.parametrize("config", [EngineConfig(), PAGED, EngineConfig(kv_cache=False)], ids=["run", "blocks", "none"])
def test_drafts_are_the_heads_chain(architecture, config):
    kind = "mtp" if architecture == "mimo" else "eagle3"
    engine = tiny(architecture, kind)
    config = replace(config, speculative=kind, num_speculative_tokens=3)
    run = engine.generate("There was once", config, SamplingParams(max_tokens=12, temperature=1.0, seed=1))
    head, checked, known, draft_tokens = engine.target.heads[kind], 0, list(run.prompt_token_ids), []
    layer = head.config.layer
    for event in run.events:
        if isinstance(event, Proposed):
            with engine.target.stock_attention() as model, torch.inference_mode():
                states = model(torch.tensor([known]), output_hidden_states=True).hidden_states
            if kind == "mtp":
                hidden = states[-1][:, :-1]  # transformers has normed them
            else:
                hidden = head.fuse(torch.cat([states[one] for one in head.config.target_layers], dim=-1))[:, :-1]
            layer._attn_implementation = "unrolled"
            for _ in range(len(draft_tokens) + 1):
                tokens = known[1:] + draft_tokens[: hidden.shape[1] - len(known) + 1]
                out = head(torch.tensor([tokens]), hidden, torch.arange(len(tokens))[None], earlier=[])
                hidden = torch.cat([hidden, head.fed_back(out[:, -1:])], dim=1)
            layer._attn_implementation = "decode_lab"
            q = head.logits(out[0, -1]).softmax(-1)
            assert event.token_id in head.target_ids
            assert event.q == pytest.approx(q[event.token_id - head.d2t[0]].item(), abs=1e-4)
            draft_tokens.append(event.token_id)
            checked += 1
        elif isinstance(event, Committed):
            known, draft_tokens = known + list(event.token_ids), []
    assert checked > 10
    assert not of(run, FellBack)


@pytest.mark.parametrize(
    ("architecture", "kind", "anchored"),
    [
        ("llama", "dflash", False),
        ("qwen3", "dflash", False),
        ("gpt2", "dflash", False),
        ("llama", "dspark", False),
        ("llama", "dspark", True),
    ],
)
@pytest.mark.parametrize("config", [EngineConfig(), PAGED, EngineConfig(kv_cache=False)], ids=["run", "blocks", "none"])
def test_drafts_are_the_heads_block(architecture, kind, anchored, config):
    """As in its training, where a whole text's blocks are computed at once. More draft tokens are asked for than it
    was trained for."""
    engine, most = tiny(architecture, kind, anchored=anchored), 3 + anchored
    config = replace(config, speculative=kind, num_speculative_tokens=5)
    run = engine.generate("There was once", config, SamplingParams(max_tokens=12, temperature=0.8, seed=1))
    assert any(f"at most {most} tokens in a pass" in note for note in of(run, RunStarted)[0].notes)
    head, checked, known, proposed = engine.target.heads[kind], 0, list(run.prompt_token_ids), []
    for event in run.events:
        if isinstance(event, Proposed):
            proposed.append((event.token_id, event.q))
        elif isinstance(event, Committed):
            assert len(proposed) <= most
            with engine.target.stock_attention() as model, torch.inference_mode():
                head.config.layer._attn_implementation = "blocks"
                text = torch.tensor([known + [token for token, _ in proposed]])
                anchors = torch.tensor([[len(known) - 1]])
                log_q = draft_blocks(model, head, text, anchors, len(proposed)).log_q if proposed else None
                head.config.layer._attn_implementation = "decode_lab"
            for place, (token, q) in enumerate(proposed):
                assert q == pytest.approx(log_q[0, 0, place, token].exp().item(), abs=1e-4)
                checked += 1
            known, proposed = known + list(event.token_ids), []
    assert checked > 10
    assert not of(run, FellBack)


# -- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "words"), [*HEADS.items(), ("mtp", "an MTP head in the model's own checkpoint")])
def test_a_target_without_a_head_says_so(kind, words):
    with pytest.raises(ConfigError, match=f"needs {words}"):
        tiny_models.engine("llama").generate("A", EngineConfig(speculative=kind))


@pytest.mark.parametrize(("head", "part"), [(Eagle3Head, "normed"), (MTPHead, "fuse"), (DFlashHead, "block")])
def test_a_head_that_fails_is_left(labs, monkeypatch, head, part):
    lab, prompts = labs[head.kind]

    def fail(self: StateHead, *_: object) -> torch.Tensor:
        raise ValueError("broken")

    expected = lab.generate(prompts[1], EngineConfig(), GREEDY).token_ids
    monkeypatch.setattr(head, part, fail)
    run = lab.generate(prompts[1], EngineConfig(speculative=head.kind), GREEDY)
    assert run.token_ids == expected
    assert [event.part for event in of(run, FellBack)] == ["drafter"]
