"""What a prompt's tokens are, which of them are special, and which tokens end a run."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from lab import ConfigError, EngineConfig, PromptError, SamplingParams
from lab.engine.engine import Engine
from lab.engine.prompt_encoder import PromptEncoder
from lab.load import new_engine
from lab.trace.run import Run
from tests.scripted_model import ScriptedModel
from tests.tiny_models import VOCABULARY, engine, tokenizer

END = "<|end|>"
A, B, LAST = 64, 65, 256


@pytest.fixture
def begins() -> PreTrainedTokenizerFast:
    """A tokenizer that begins every text with <|end|>."""
    core = copy.deepcopy(tokenizer().backend_tokenizer)
    core.post_processor = TemplateProcessing(single=f"{END} $A", special_tokens=[(END, LAST)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token=END, eos_token=END)


def test_names_of_special_tokens_are_text_or_tokens_by_choice_and_none_is_doubled_silently(begins) -> None:
    spelled = tokenizer()(END, split_special_tokens=True)["input_ids"]
    assert len(spelled) == len(END)
    cases = [  # adds one, prompt, parse_special, tokens, a word of the note
        (False, f"a{END}b", False, [A, *spelled, B], None),
        (False, f"a{END}b", True, [A, LAST, B], None),
        (True, "ab", True, [LAST, A, B], None),
        (True, f"{END}a", False, [LAST, *spelled, A], None),
        (True, f"{END}a", True, [LAST, A], "once"),
        (False, f"{END}{END}a", True, [LAST, LAST, A], "twice"),
        (True, [LAST, LAST, A], False, [LAST, LAST, A], "twice"),
        (True, (A, B), True, [A, B], None),
    ]
    for adds, prompt, parse_special, ids, word in cases:
        encoder = PromptEncoder(begins if adds else tokenizer(), "m", VOCABULARY)
        found = encoder.encode(prompt, parse_special)
        assert found.token_ids == ids, prompt
        assert [word in note for note in found.notes] == ([True] if word else []), prompt
        pieces = encoder.pieces(found.token_ids)
        assert "".join(pieces) == found.text if isinstance(prompt, tuple) else END in "".join(pieces) or not adds
        assert all((pieces[i] == END) == (token == LAST) for i, token in enumerate(ids))


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        ([], "empty"),
        ([-1], "whole numbers"),
        ([1.5], "whole numbers"),
        ([True], "whole numbers"),
        (["a"], "whole numbers"),
        (None, "NoneType"),
        (b"ab", "bytes"),
        ([VOCABULARY], "knows only 257"),
    ],
)
def test_odd_ids_are_refused(prompt, word) -> None:
    with pytest.raises(PromptError, match=word):
        engine().generate(prompt)


def test_a_run_by_ids_is_that_of_their_text_and_its_file_says_so() -> None:
    lab, sampling = engine(), SamplingParams(max_tokens=4, stop_token_ids=[3])
    by_text, by_ids = lab.generate("ab", sampling=sampling), lab.generate([A, B], sampling=sampling)
    assert by_ids.token_ids == by_text.token_ids
    assert (by_ids.prompt, by_ids.started.prompt_given_as_ids, by_text.started.prompt_given_as_ids) == (
        "ab",
        True,
        False,
    )
    special = lab.generate([A, LAST, B], sampling=sampling)
    assert special.started.special_positions == (1,)
    assert special.started.prompt_pieces == ("a", END, "b")
    assert Run.of(json.loads(special.to_json())).started == special.started


def says(*tokens: int) -> Engine:
    """Its model says these tokens after an "a", one after the other."""
    table = torch.zeros(VOCABULARY, VOCABULARY)
    table[[A, *tokens[:-1]], list(tokens)] = 9
    return new_engine(ScriptedModel(table), tokenizer())


@pytest.mark.parametrize(
    ("sampling", "reason", "count", "text"),
    [
        ({"stop": END, "ignore_eos": True}, "stop", 3, "bc"),
        ({"stop": END}, "eos", 3, "bc"),
        ({"stop_token_ids": 66}, "stop", 2, "bc"),
        ({"stop_token_ids": [LAST], "ignore_eos": True}, "stop", 3, "bc"),
        ({"stop_token_ids": (1, 2), "ignore_eos": True}, "length", 5, "bcd!"),
        ({"stop": f"c{END}", "ignore_eos": True}, "length", 5, "bcd!"),
    ],
    ids=str,
)
@pytest.mark.parametrize("speculative", ["off", "ngram"])
def test_a_run_ends_at_the_token_that_stops_it(sampling, reason, count, text, speculative) -> None:
    lab = says(B, 66, LAST, 67, 0)
    run = lab.generate("a", EngineConfig(speculative=speculative), SamplingParams(max_tokens=5, **sampling))
    assert (run.reason, len(run.token_ids), run.text) == (reason, count, text)
    assert any("cannot match" in note for note in run.started.notes) == (sampling.get("stop") == f"c{END}")


def test_a_stop_token_that_the_model_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="ids from 0 to 256"):
        engine().generate("a", sampling=SamplingParams(stop_token_ids=[VOCABULARY]))
