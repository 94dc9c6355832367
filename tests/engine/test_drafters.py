"""Each drafter proposes what it is meant to, and none changes the text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab import EngineConfig, SamplingParams
from lab.engine.drafters import PromptLookup, lookup
from lab.trace.events import Committed, Proposed, Verified
from tests import tiny_models
from tests.tiny_models import of

PROMPT = "The king had three daughters, and the king had three"
PLAIN = EngineConfig(paged=True, block_size=4)
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


# -- prompt lookup ---------------------------------------------------------------------------------


def looked_up(tokens: list[int], count: int, shortest: int, longest: int) -> list[int]:
    """The plain definition of what a lookup proposes."""
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        ends = [i + length for i in range(len(tokens) - length) if tokens[i : i + length] == tokens[-length:]]
        if ends:
            whole = [end for end in ends if end + count <= len(tokens)]
            begin = whole[-1] if whole else ends[0]
            return tokens[begin : begin + count]
    return []


@given(TOKENS, st.integers(1, 5), st.integers(1, 3), st.integers(0, 3))
def test_lookup_finds_the_longest_suffix_that_occurred_before(tokens, count, shortest, more):
    longest = shortest + more
    assert lookup(np.array(tokens), count, shortest, longest) == looked_up(tokens, count, shortest, longest)


class Text:
    """As much of a sequence as a lookup uses."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self.tokens = tokens


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), TOKENS), min_size=1, max_size=8))
def test_a_growing_text_is_looked_up_as_if_it_were_new(rounds):
    """Three texts in turns, a few tokens at a time."""
    texts, drafter = [Text([0]) for _ in range(3)], PromptLookup(1, 3, 4, torch.device("cpu"))
    for which, window, more in rounds:
        texts[which].tokens += more
        asked = [texts[which], texts[0]] if which else [texts[0]]
        made = drafter.propose(asked, [window] * len(asked))
        found = [some.token_ids.tolist() if some else [] for some in made]
        assert found == [looked_up(text.tokens, window, 1, 3) for text in asked]


def test_lookup_reads_only_the_new_tokens_of_a_long_text():
    """Otherwise each round on a long text would lose milliseconds before it begins."""

    class Counted(Sequence):
        def __init__(self, tokens):
            self.tokens, self.read = tokens, 0

        def __len__(self):
            return len(self.tokens)

        def __getitem__(self, place):
            found = self.tokens[place]
            self.read += len(found) if isinstance(place, slice) else 1
            return found

    tokens = Counted([1, 2, 3] * 300)
    text, drafter = Text(tokens), PromptLookup(2, 4, 4, torch.device("cpu"))
    drafter.propose([text], [4])
    tokens.read = 0
    for token in [1, 2, 3] * 3:
        tokens.tokens.append(token)
        assert drafter.propose([text], [3])[0].token_ids.tolist() == [token % 3 + 1, (token + 1) % 3 + 1, token]
    assert tokens.read == 9


def all_from_the_text_itself(run, config: EngineConfig) -> bool:
    """Whether all of a run's proposals are those of the plain definition."""
    known, end = list(run.prompt_token_ids), len(run.prompt_token_ids) + run.sampling.max_tokens
    own, least, most = True, config.prompt_lookup_min, config.prompt_lookup_max
    for event in run.events:
        if isinstance(event, Proposed):
            if event.position == 0:
                found = looked_up(known, min(config.num_speculative_tokens, end - len(known) - 1), least, most)
            own &= event.token_id == found[event.position]
        elif isinstance(event, Committed):
            known += event.token_ids
    return own


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prompt_lookup_proposes_from_the_text_itself(temperature):
    lab = tiny_models.engine("llama")  # no draft model is needed
    config = replace(PLAIN, speculative="ngram", prompt_lookup_min=1, prompt_lookup_max=3)
    run = lab.generate(PROMPT, config, SamplingParams(max_tokens=60, temperature=temperature, seed=1, ignore_eos=True))
    assert {event.q for event in of(run, Proposed)} == {1}
    assert all_from_the_text_itself(run, config)
    if temperature:
        assert all(event.accepted == (event.u < event.p) for event in of(run, Verified))
    else:
        assert run.token_ids == lab.generate(PROMPT, PLAIN, SamplingParams(max_tokens=60, ignore_eos=True)).token_ids


# -- early exit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", tiny_models.CONFIGS)
@pytest.mark.parametrize("layers", [1, 2])
def test_early_exit_proposes_what_the_first_layers_predict(architecture, layers):
    """Compared with the same model with its other layers removed."""
    lab = tiny_models.engine(architecture, shape={"num_hidden_layers": 3})
    config = replace(PLAIN, speculative="early_exit", early_exit_layer=layers, num_speculative_tokens=3)
    run = lab.generate(PROMPT, config, SamplingParams(max_tokens=24, ignore_eos=True))
    assert run.token_ids == lab.generate(PROMPT, PLAIN, SamplingParams(max_tokens=24, ignore_eos=True)).token_ids

    cut = tiny_models.engine(architecture, shape={"num_hidden_layers": 3})
    blocks = cut.target.model.get_decoder()
    name = "h" if architecture == "gpt2" else "layers"
    setattr(blocks, name, getattr(blocks, name)[:layers])
    known, checked = list(run.prompt_token_ids), 0
    with cut.target.stock_attention() as model, torch.inference_mode():
        draft_tokens: list[int] = []
        for event in run.events:
            if isinstance(event, Proposed):
                logits = model(torch.tensor([known + draft_tokens]), use_cache=False).logits[0, -1]
                assert event.token_id == logits.argmax().item()
                assert event.q == pytest.approx(logits.softmax(-1)[event.token_id].item(), abs=1e-4)
                draft_tokens.append(event.token_id)
                checked += 1
            elif event.kind == "committed":
                known, draft_tokens = known + list(event.token_ids), []
    assert checked > 20


# -- synthetic -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rate", [0.0, 0.6, 1.0])
def test_synthetic_acceptance_is_the_rate_asked_for(rate, temperature):
    """Over 1,000 coin flips: a correct rate is off by five standard deviations once in a million; one off by 0.1 is
    always seen. At rates 0 and 1 a single wrong flip is seen, so fewer suffice. The coin does not depend on the
    model's predictions: one layer is enough."""
    lab = tiny_models.engine("llama", shape={"num_hidden_layers": 1})
    config = EngineConfig(speculative="synthetic", synthetic_acceptance_rate=rate, num_speculative_tokens=4)
    samplings = [
        SamplingParams(max_tokens=200, temperature=temperature, seed=seed, ignore_eos=True)
        for seed in range(8 if 0 < rate < 1 else 1)
    ]
    asked = [[lab.submit(PROMPT, each, sampling) for sampling in samplings] for each in (config, EngineConfig())]
    runs, plain = ([request.result() for request in requests] for requests in asked)
    assert [run.token_ids for run in runs] == [run.token_ids for run in plain]
    assert {event.q for run in runs for event in of(run, Proposed)} == {1.0}
    verified = [event for run in runs for event in of(run, Verified)]
    assert {event.u for event in verified} == {None}
    assert len(verified) > 125 * len(runs)
    kept = sum(event.accepted for event in verified) / len(verified)
    assert kept == pytest.approx(rate, abs=5 * (rate * (1 - rate) / len(verified)) ** 0.5)


def test_the_time_to_prepare_a_synthetic_run_is_not_counted():
    """A run's clock starts with its first event, which comes when all of its tokens have been decoded plainly."""
    heard = []
    lab = tiny_models.engine("llama", on_event=lambda owner, seconds, event: heard.append(event))
    request = lab.submit(PROMPT, EngineConfig(speculative="synthetic"), SamplingParams(max_tokens=20, ignore_eos=True))
    steps = 0
    while not heard:
        assert lab.step()
        steps += 1
    assert steps >= 20
    assert heard[0].kind == "run_started"
    assert heard[0].config["speculative"] == "synthetic"
    assert request.result().metrics.generated_tokens == 20
    assert sum(event.kind == "prefilled" for event in heard) == 1


def test_the_preparation_of_a_synthetic_run_is_not_observable():
    """Watchers of the engine hear only of the run, and its prompt does not hit what the preparation has cached."""
    heard = []
    lab = tiny_models.engine("llama", on_event=lambda owner, seconds, event: heard.append(event))
    config = replace(PLAIN, speculative="synthetic", enable_prefix_caching=True)
    run = lab.generate(PROMPT, config, SamplingParams(max_tokens=9, ignore_eos=True))
    assert sum(len(event.token_ids) for event in heard if isinstance(event, Committed)) == 9
    assert [event.kind for event in heard].count("finished") == 1
    assert run.metrics.cached_prompt_tokens == 0
    again = lab.generate(PROMPT, config, SamplingParams(max_tokens=9, ignore_eos=True))
    assert again.metrics.cached_prompt_tokens > 0
    assert again.text == run.text
