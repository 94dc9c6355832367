"""Models with recurrent layers (short convolutions, Gated DeltaNet, Mamba2) decode as in transformers."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import pytest
import torch

from lab import EngineConfig, SamplingParams, UnsupportedModelError
from lab.backends.torch.sampler import distribution
from lab.engine import memory_budget
from lab.engine.engine import Engine
from lab.kv_cache.recurrent_state import LayerState, RecurrentState
from lab.load import new_engine
from lab.measure.interval import g_test
from lab.models.language_model import LanguageModel
from lab.models.model_shape import STATE_LENGTH
from lab.models.numerical_check import refuse_disagreement
from lab.models.recurrent_layers import RollbackCosts
from lab.trace.events import Admitted, BlockEvicted, FellBack, Preempted, Proposed, RecurrentRolledBack
from tests import tiny_models
from tests.engine.test_acceptance import REJECT_BELOW
from tests.engine.test_windows import EXPERTS, LATENT
from tests.models.test_numerical_check import random_model

DELTA = {
    "num_hidden_layers": 5,
    "head_dim": 16,
    "linear_num_value_heads": 6,  # so that they are wider than the hidden states, as in Qwen3.5 27B
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8}
MIXED = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
KIMI = {"num_experts_per_token": 2, "head_dim": 16, "linear_head_dim": 16, "linear_num_heads": 4}
CONVOLUTIONS = {"layer_types": ["conv", "full_attention", "conv"]}
KINDS = {
    "lfm2": CONVOLUTIONS,
    "qwen3_5_text": DELTA,
    "granitemoehybrid": MAMBA | MIXED,
    "falcon_h1": MAMBA | {"mamba_d_ssm": 128},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lara_mini": DELTA | {"num_hidden_layers": 3, "sliding_window": 9},
    "kimi_linear": LATENT | EXPERTS | MIXED | KIMI,  # and latent attention
    "mamba": {"state_size": 8},  # from here on, models without attention
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 2, "chunk_size": 8},
    "falcon_mamba": {"state_size": 8},
}
CONFIGS = {
    "no cache": EngineConfig(kv_cache=False),
    "paged": EngineConfig(paged=True, block_size=4),
    "draft": EngineConfig(speculative="draft", num_speculative_tokens=5),
    "paged, early exit": EngineConfig(paged=True, block_size=4, speculative="early_exit"),
    "lookup, math": EngineConfig(speculative="ngram", prefill_attention="math"),
}
ROLLBACKS = ("recompute", "snapshots")
"""How rejected draft tokens are taken out of a state."""
DRAFTED = ("draft", "paged, early exit")
CROSSED = {
    (kind, name, ROLLBACKS[(n + m) % 2])
    for n, kind in enumerate(KINDS)
    for m, name in enumerate(CONFIGS)
    if n == 0 or name in DRAFTED or (n + m) % 2
} | {("lfm2", name, rollback) for name in DRAFTED for rollback in ROLLBACKS}
"""Every kind with both, and every drafter with both; of the first kind, all of these together; of the others every
second of those that draft nothing that is rejected."""


def hybrid(kind: str = "lfm2", *, measured: bool = False, **limits: object) -> Engine:
    """``measured``: what ways to go back take, which takes seconds."""
    model = LanguageModel(random_model(kind, **KINDS[kind]), kind)
    draft = LanguageModel(tiny_models.perturbed(model.model, 0.02), "draft")
    lab = new_engine(model, tiny_models.tokenizer(), draft, **limits)
    if not measured:
        for one in (model, draft):
            one.recurrent.costs = lambda tokens: RollbackCosts(1.0, 1.0)
    return lab


def go_back(lab: Engine, rollback: str) -> None:
    """From now on all states go back like this."""
    for model in (lab.target, lab.draft):
        model.recurrent.rollback = rollback


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_equal_those_of_generate(kind) -> None:
    """Several texts at once, one of them read in chunks, and the draft has recurrent layers as well."""
    lab = hybrid(kind, max_num_batched_tokens=33)
    refuse_disagreement(lab.target)
    prompts = ("Once upon a time there was a cat, and the cat was old", "A")
    most = 40 if kind == "lfm2" else 16
    wanted: dict[str, list[int]] = {}
    for name, rollback in sorted({(name, rollback) for of, name, rollback in CROSSED if of == kind}):
        config = CONFIGS[name]
        go_back(lab, rollback)
        sampling = SamplingParams(max_tokens=most if config.kv_cache else 8, ignore_eos=True)
        runs = [request.result() for request in [lab.submit(prompt, config, sampling) for prompt in prompts]]
        for run in runs:
            if run.prompt not in wanted:
                wanted[run.prompt] = tiny_models.continuation(lab, run.prompt_token_ids, most)
            assert run.token_ids == wanted[run.prompt][: sampling.max_tokens], (name, rollback)
        rolled = [event for run in runs for event in tiny_models.of(run, RecurrentRolledBack)]
        if config.speculative in ("draft", "early_exit"):
            assert {event.method for event in rolled} == {rollback}
            assert any(event.recomputed for event in rolled) == (rollback == "recompute")


def test_a_model_of_which_transformers_computes_one_token_otherwise_than_several_is_refused() -> None:
    """Its text would depend on how many draft tokens there are."""
    kinds = ["linear_attention", "moe", "full_attention", "mlp"]
    with pytest.raises(UnsupportedModelError, match="% off"):
        refuse_disagreement(LanguageModel(random_model("nemotron_h", layer_types=kinds), "nemotron"))


def p_value(lab: Engine, runs: int = 800) -> float:
    """Test three generated tokens, all after rounds of speculation, against their exact distribution."""
    settings = {"temperature": 1.0, "top_k": 3}
    config = EngineConfig(speculative="early_exit", num_speculative_tokens=2, paged=True, block_size=4, num_blocks=4096)
    prompt = "The old cat "
    requests = [lab.submit(prompt, config, SamplingParams(max_tokens=4, seed=i, **settings)) for i in range(runs)]
    found = [request.result() for request in requests]
    assert sum(any(isinstance(event, Proposed) for event in run.events) for run in found) > runs / 2

    expected: dict[tuple[int, ...], float] = {(): 1.0}
    ids = found[0].prompt_token_ids
    with lab.target.stock_attention() as model, torch.inference_mode():
        for _ in range(4):
            texts = torch.tensor([[*ids, *text] for text in expected])
            p = distribution(model(input_ids=texts, use_cache=False).logits[:, -1].float(), SamplingParams(**settings))
            expected = {
                (*text, token): share * row[token].item()
                for (text, share), row in zip(expected.items(), p, strict=True)
                for token in row.nonzero().flatten().tolist()
            }
    counts = dict.fromkeys(expected, 0)
    for run in found:
        if (text := tuple(run.token_ids[:4])) not in counts:
            return 0.0  # the target would never write it
        counts[text] += 1
    return g_test(torch.tensor([*counts.values()]).float(), torch.tensor([*expected.values()]))


@pytest.mark.slow
def test_samples_follow_the_target_and_would_not_without_a_rollback(monkeypatch) -> None:
    lab = hybrid(max_num_seqs=200)
    assert p_value(lab) > REJECT_BELOW
    monkeypatch.setattr(RecurrentState, "rewind", lambda state, *_: (0, 0))
    assert p_value(lab, 200) < REJECT_BELOW


@pytest.mark.slow
@pytest.mark.parametrize("found", [False, True])
def test_a_preempted_sequence_goes_on_with_its_state(found) -> None:
    """It is computed again, or was kept up to the newest token: then the drafter asks for it first."""
    lab = hybrid(measured=not found)
    size = {"block_size": 1, "num_blocks": 90} if found else {"block_size": 4, "num_blocks": 24}
    config = EngineConfig(speculative="early_exit", paged=True, enable_prefix_caching=found, **size)
    sampling = SamplingParams(max_tokens=50, ignore_eos=True)
    runs = [request.result() for request in [lab.submit(text, config, sampling) for text in ("A mouse", "The cat")]]
    assert any(tiny_models.of(run, Preempted) for run in runs)
    for run in runs:
        assert run.token_ids == continued(tuple(run.prompt_token_ids), 50)
        assert not tiny_models.of(run, FellBack)


by_transformers = functools.cache(hybrid)


@functools.cache
def continued(ids: tuple[int, ...], count: int = 12) -> list[int]:
    """What transformers writes; every engine here has the same weights."""
    return tiny_models.continuation(by_transformers(), ids, count)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "rollback"),
    [("off", "recompute"), ("early_exit", "snapshots"), ("early_exit", "recompute"), ("ngram", "snapshots")],
)
def test_prefixes_are_found_where_a_state_was_kept(drafter, rollback) -> None:
    """The same prompt again: all blocks but the one with its last token. A text that goes on after both: all of it that
    fills blocks. One that leaves it earlier finds none, though the blocks are there, since no state is."""
    lab, unit = hybrid(max_num_batched_tokens=33), 4
    go_back(lab, rollback)
    config = EngineConfig(paged=True, block_size=unit, enable_prefix_caching=True, speculative=drafter)
    sampling = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)

    def found(ids: list[int]) -> int:
        run = lab.generate(ids, config, sampling)
        assert run.token_ids == continued(tuple(ids))
        return run.metrics.cached_prompt_tokens

    for length in (5, 8, 33, 70):
        prompt = [(7 * i + length) % 250 for i in range(length)]
        assert found(prompt) == 0
        assert found(prompt) == (length - 1) // unit * unit, "the last token is computed"
        text = prompt + continued(tuple(prompt))
        assert found([*text, 5, 6, 7]) == (len(text) - 1) // unit * unit
        assert found([*prompt[: length // 2], 9, 9, 9]) == (unit if length == 8 else 0)
    assert lab.occupancy().live == 0


@pytest.mark.slow
def test_evicted_prefixes_lose_their_state_and_are_computed_again() -> None:
    lab = hybrid()
    config = EngineConfig(paged=True, block_size=4, enable_prefix_caching=True, num_blocks=30, speculative="early_exit")
    sampling = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    texts = [f"{word} upon a time there was a cat" for word in ("Once", "Twice", "Thrice")] * 3
    runs = [request.result() for request in [lab.submit(text, config, sampling) for text in texts]]
    assert any(tiny_models.of(run, BlockEvicted) for run in runs)
    assert any(run.metrics.cached_prompt_tokens for run in runs)
    for run in runs:
        assert run.token_ids == continued(tuple(run.prompt_token_ids), 20)


def test_a_drafter_with_a_state_of_its_own_turns_prefix_caching_off_with_a_word_about_it() -> None:
    """Continuations share no prompt either: each has a state of its own."""
    lab = hybrid()
    config = EngineConfig(paged=True, block_size=4, enable_prefix_caching=True, speculative="draft")
    sampling = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    requests = lab.prepare("Once upon a time", config, sampling, continuations=2)()
    for run in [request.result() for request in requests]:
        assert "Prefix caching is off" in " ".join(run.started.notes)
        assert run.metrics.cached_prompt_tokens == 0
        assert run.token_ids == tiny_models.continuation(lab, run.prompt_token_ids, 8)


def test_only_layers_with_attention_take_cache_memory() -> None:
    lab = hybrid()
    attention = 2 * lab.target.kv_heads * lab.target.head_dim * 4
    assert lab.token_bytes(EngineConfig()) == attention
    run = lab.generate("Once", EngineConfig(), SamplingParams(max_tokens=4, ignore_eos=True))
    assert run.metrics.kv_used_bytes == attention * (len(run.prompt_token_ids) + 3)


@pytest.mark.slow
def test_without_attention_blocks_hold_nothing_and_prefixes_are_found_by_their_states() -> None:
    """Of three requests, of which two run at once; then each again."""
    lab = hybrid("mamba", max_num_seqs=2)
    how = {"kv_dtype": "int8", "paged": True, "block_size": 4, "enable_prefix_caching": True, "num_blocks": 60}
    config, sampling = EngineConfig(**how, speculative="early_exit"), SamplingParams(max_tokens=16, ignore_eos=True)
    for turn in range(2):
        for run in [it.result() for it in [lab.submit(text, config, sampling) for text in ("Once upon", "A", "Mice")]]:
            assert run.token_ids == tiny_models.continuation(lab, run.prompt_token_ids, 16)
            assert run.started.block_bytes == run.metrics.kv_reserved_bytes == lab.token_bytes(config) == 0
            assert run.started.state_bytes == lab.target.recurrent.state_bytes > 0
            assert run.metrics.cached_prompt_tokens == turn * ((len(run.prompt_token_ids) - 1) // 4 * 4)
    assert lab.occupancy().live == 0
    assert lab.default_num_blocks(EngineConfig(block_size=64)) == 8 * STATE_LENGTH // 64


def test_states_of_sequences_that_run_at_once_take_memory_from_blocks() -> None:
    """Two each, and half of the memory at most: with less, fewer sequences run at once."""
    config, sampling = EngineConfig(paged=True, block_size=4), SamplingParams(max_tokens=4, ignore_eos=True)
    state, draft = (model.recurrent.state_bytes for model in (hybrid().target, hybrid().draft))
    both = state + draft
    for kv_bytes, at_once in ((20 * both, 4), (9 * both, 2)):
        lab = hybrid(max_num_seqs=4, kv_bytes=kv_bytes)
        runs = [it.result() for it in [lab.submit(f"{i}", config, sampling) for i in range(5)]]
        slot = lab.token_bytes(EngineConfig(speculative="draft"))
        assert lab.default_num_blocks(config) == (kv_bytes - at_once * 2 * both) // (4 * slot)
        assert all(len(run.token_ids) == 4 for run in runs)
        assert max(event.running for run in runs for event in tiny_models.of(run, Admitted)) == at_once
        assert runs[0].started.state_bytes == runs[0].metrics.state_bytes == state
    assert lab.generate("A", EngineConfig(speculative="draft"), sampling).started.state_bytes == both
    assert lab.generate("A", EngineConfig(kv_cache=False), sampling).started.state_bytes == 0


def test_states_kept_with_prefixes_take_memory_from_blocks() -> None:
    """A quarter of it at most."""
    config, state = EngineConfig(paged=True, block_size=4), hybrid().target.recurrent.state_bytes
    block = 4 * hybrid().token_bytes(EngineConfig(speculative="draft"))
    for kv_bytes, kept in ((700 * state, 128), (100 * state, 25)):
        lab = hybrid(max_num_seqs=1, kv_bytes=kv_bytes)
        free = kv_bytes - 2 * (state + lab.draft.recurrent.state_bytes)
        assert lab.default_num_blocks(config) == free // block
        shared = dataclasses.replace(config, enable_prefix_caching=True)
        assert lab.default_num_blocks(shared) == (free - kept * state) // block


def test_the_kept_state_that_was_used_least_recently_is_dropped(monkeypatch) -> None:
    """Then its prefix is computed again, though its blocks are still there."""
    monkeypatch.setattr(memory_budget, "KEPT_STATES", kept := 4)
    config = EngineConfig(paged=True, block_size=4, enable_prefix_caching=True)
    sampling, lab = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True), hybrid()

    def found(text: str) -> bool:
        run = lab.generate(f"{text} upon a time", config, sampling)
        assert run.token_ids == continued(tuple(run.prompt_token_ids), 1)
        return run.metrics.cached_prompt_tokens > 0

    texts = [f"{i}" for i in range(kept)]
    assert not any(map(found, texts))
    assert all(map(found, reversed(texts)))
    assert not found("one more")
    assert [found(text) for text in texts] == [True, True, True, False]
    assert lab.occupancy().free > 0, "nothing was evicted"


def test_snapshots_are_taken_only_where_their_states_have_room(monkeypatch) -> None:
    monkeypatch.setattr(RollbackCosts, "snapshots_are_cheaper", True)
    config = EngineConfig(speculative="early_exit", num_speculative_tokens=3)
    sampling = SamplingParams(max_tokens=30, ignore_eos=True)
    for at_once, methods in ((1, {"recompute"}), (3, {"snapshots"})):
        run = hybrid(max_num_seqs=at_once).generate("Once upon a time", config, sampling)
        assert {event.method for event in tiny_models.of(run, RecurrentRolledBack)} == methods
        assert run.token_ids == continued(tuple(run.prompt_token_ids), 30)


@pytest.mark.parametrize("drafter", ["draft", "early_exit"])
def test_a_drafter_keeps_states_after_its_tokens_only_where_they_have_room(monkeypatch, drafter) -> None:
    """With less it keeps one, and computes what was accepted again."""
    kept, begin = [], RecurrentState.begin_drafting

    def counted(state: RecurrentState, *how: object) -> None:
        begin(state, *how)
        kept.append(sum(bool(mark.layers) for mark in state.marks))

    monkeypatch.setattr(RecurrentState, "begin_drafting", counted)
    config = EngineConfig(speculative=drafter, num_speculative_tokens=5)
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    for at_once, most in ((1, 1), (64, 5)):
        kept.clear()
        run = hybrid(max_num_seqs=at_once).generate("Once upon a time", config, sampling)
        assert run.token_ids == continued(tuple(run.prompt_token_ids), 40)
        assert max(kept) == most


def sums(layer: int, inputs: torch.Tensor, after: LayerState) -> torch.Tensor:
    """A layer whose state is the sum of all inputs."""
    found = after.recurrent.get(0, torch.zeros(1)) + inputs[0, :, 0].cumsum(0)
    after.recurrent[0] = found[-1:]
    return found[None, :, None]


def test_sequences_that_go_on_from_one_checkpoint_roll_back_each_to_its_own() -> None:
    first = RecurrentState()
    first.begin(1, 0, "recompute")
    first.run(0, torch.ones(1, 1, 1), sums)
    both = [RecurrentState(first.marks[-1]) for _ in range(2)]
    for scale, state in enumerate(both, 1):
        state.begin(3, 2, "recompute")
        state.run(0, torch.full((1, 3, 1), 10.0 * scale), sums)
    for scale, state in enumerate(both, 1):
        state.rewind(2, 2, sums)
        assert state.marks[-1].layers[0].recurrent[0] == 1 + 10 * scale


@pytest.mark.parametrize("rollback", ["snapshots", "recompute"])
def test_a_state_goes_back_to_wherever_a_round_ended(rollback) -> None:
    """Against the sum of the tokens kept, over random rounds: of a pass's last tokens any number may be rejected."""
    state, draws, kept = RecurrentState(), torch.Generator().manual_seed(1), []

    for _ in range(300):
        count, uncertain = (int(torch.randint(1, 7, (), generator=draws)) for _ in range(2))
        uncertain = min(uncertain, count) - 1
        values = torch.randint(1, 9, (count,), generator=draws).tolist()
        state.rewind(len(kept), len(kept), sums)
        state.begin(count, uncertain, rollback)
        out = state.run(0, torch.tensor(values, dtype=torch.float32)[None, :, None], sums)
        assert out.flatten().tolist() == [sum(kept) + part for part in itertools.accumulate(values)]
        rejected = int(torch.randint(0, uncertain + 1, (), generator=draws))
        kept += values[: count - rejected]
        assert len(state.marks) <= 2 + uncertain, "nothing is kept that no round can go back to"
