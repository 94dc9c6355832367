"""Conversations: each turn finds those before it in the cache, and is answered as by an engine that never had them."""

from __future__ import annotations

import pytest

from lab import Chat, EngineConfig, PromptError, Run, SamplingParams
from lab.models.chat_template import answer
from tests import tiny_models

SAID = ("Good morning.", "And then <|im_end|>?", "Why?")


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [4, 8, 16, 32])
@pytest.mark.parametrize("style", tiny_models.CHATS)
def test_every_turn_finds_the_whole_conversation_but_its_last_partial_block(style: str, block_size: int) -> None:
    engine, fresh = tiny_models.chat_engine(style), tiny_models.chat_engine(style)
    config = EngineConfig(paged=True, enable_prefix_caching=True, block_size=block_size)
    sampling = SamplingParams(max_tokens=21, ignore_eos=True)
    messages: list[dict] = []
    before: Run | None = None
    for said in SAID:
        chat = Chat([*messages, {"role": "user", "content": said}])
        run = engine.generate(chat, config, sampling)
        assert run.token_ids == fresh.generate(chat, EngineConfig(), sampling).token_ids
        if before:
            earlier = [*before.started.prompt_token_ids, *before.token_ids]
            if style != "llama" or before.text == before.text.strip():  # that template trims
                assert list(run.started.prompt_token_ids[: len(earlier)]) == earlier
                computed = len(earlier) - 1  # nobody needed the last token's keys
                assert run.metrics.cached_prompt_tokens == computed // block_size * block_size
            assert run.metrics.cached_prompt_tokens > len(before.started.prompt_token_ids) - block_size
        else:
            assert run.metrics.cached_prompt_tokens == 0
        before, messages = run, [*chat.messages, answer(run)]


def test_an_answer_ends_before_what_ended_it() -> None:
    engine = tiny_models.chat_engine("chatml")
    chat = Chat([{"role": "user", "content": "Hello"}])
    ids = engine.generate(chat, None, SamplingParams(max_tokens=8, ignore_eos=True)).token_ids
    stopped = engine.generate(chat, None, SamplingParams(max_tokens=8, ignore_eos=True, stop_token_ids=(ids[4],)))
    assert answer(stopped)["token_ids"] == ids[: ids.index(ids[4])]


def test_a_run_s_file_has_its_messages(tmp_path) -> None:
    chat = Chat([{"role": "user", "content": "Hello"}], thinking=False)
    run = tiny_models.chat_engine("thinking").generate(chat, None, SamplingParams(max_tokens=2))
    run.save(tmp_path / "run.json")
    started = Run.load(tmp_path / "run.json").started
    assert (list(started.messages), started.thinking, started.prompt_given_as_ids) == (chat.messages, False, True)
    assert started.prompt.endswith("</think>\n\n")


def test_a_base_model_refuses_messages() -> None:
    engine = tiny_models.engine()
    assert engine.chat_template is None
    with pytest.raises(PromptError, match=r"no chat template.*\. Give it a prompt"):
        engine.generate(Chat([{"role": "user", "content": "Hello"}]))
