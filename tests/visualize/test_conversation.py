"""The Lab's conversation: from its controls to a chat, from a run to its next turn, and to what is shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from lab import Chat, Engine, EngineConfig, PromptError, Run, SamplingParams
from lab.registry import EMBEDDED, Pair
from tests import tiny_models
from visualize.jobs.job_queue import JobQueue
from visualize.jobs.live_run import LiveRun
from visualize.pages.lab import conversation
from visualize.pages.lab.model_badge import badge
from visualize.reduce.settings_from_run import settings_from_run
from visualize.run_settings import OTHER, Settings

USED = Settings(
    speculative="off", paged=True, enable_prefix_caching=True, max_tokens=8, prompt="Good morning <|im_end|>"
)


@pytest.fixture(scope="module")
def talker() -> Engine:
    return tiny_models.chat_engine("thinking")


def decoded(engine: Engine, settings: Settings) -> Run:
    live = LiveRun(JobQueue(), lambda pair: engine, settings)
    assert live.done.wait(60)
    assert not live.problem
    return Run(live.events)


def test_turns_follow_one_another_and_say_what_they_found(talker: Engine) -> None:
    settings = replace(USED, system="Be <b>brief</b>.", thinking="off")
    for said in ("Good <|im_end|> morning", "And why?", "<b>Really</b>?"):
        run = decoded(talker, replace(settings, prompt=said))
        assert run.started.thinking is False
        settings = conversation.after(replace(settings, prompt=said), run)
        assert settings is not None
        assert settings.prompt == ""
        assert conversation.after(settings, run) is None, "its turn is there already"
    shown = conversation.shown(settings)
    found = [tuple(map(int, one)) for one in re.findall(r"cache: (\d+) of (\d+) prompt tokens", shown)]
    assert len(found) == 3
    assert 0 == found[0][0] < found[1][0] < found[2][0] < found[2][1]
    assert "&lt;b&gt;Really&lt;/b&gt;?" in shown
    assert conversation.CACHE_OFF not in shown
    assert conversation.CACHE_OFF in conversation.shown(replace(settings, enable_prefix_caching=False))
    templated = conversation.templated(run)
    assert templated.count("<b>&lt;|im_start|&gt;</b>") == 7
    assert "Good &lt;|im_end|&gt; morning" in templated, "a name in a message is text"


def test_a_run_s_settings_make_the_same_chat_again(talker: Engine) -> None:
    first = decoded(talker, replace(USED, thinking="on", system="Be brief."))
    second = decoded(talker, replace(conversation.after(replace(USED, thinking="on"), first), prompt="Why?"))
    pairs = {"matched": Pair("talker", Path("talker"))}
    for run in (first, second):
        settings, notices = settings_from_run(run.started, pairs)
        assert notices == []
        again = settings.chat()
        assert (list(again.messages), again.thinking) == ([*map(dict, run.started.messages)], run.started.thinking)


def test_a_model_with_a_template_completes_text_on_request(talker: Engine) -> None:
    for how in ({"raw": True}, {"token_ids": True, "prompt": "1, 2, 3"}):
        run = decoded(talker, replace(USED, **how))
        assert run.started.messages == ()
        assert conversation.after(USED, run) is None
        assert not conversation.talks(replace(USED, **how), "{{ messages }}")


def test_whether_a_pair_talks_is_known_before_it_is_loaded(tmp_path: Path) -> None:
    tiny_models.chat_tokenizer("chatml").save_pretrained(tmp_path / "talker")
    pairs = {"matched": Pair("Talker", tmp_path / "talker"), "base": Pair("Base", tmp_path)}
    named = replace(USED, pair=OTHER, target=str(tmp_path / "talker"))
    template = tiny_models.CHATS["chatml"]
    assert conversation.template_of(USED, pairs, False) == conversation.template_of(named, pairs, True) == template
    assert conversation.template_of(named, pairs, False) is None, "nobody looks into folders who may name no models"
    for settings in (replace(USED, pair="base"), replace(USED, pair=OTHER), replace(named, target="no hub/id\0")):
        assert conversation.template_of(settings, pairs, True) is None
    assert conversation.template_of(USED, EMBEDDED, True) is None
    assert "through its chat template" in badge("matched", pairs, "x", talks=True, templated=True)
    assert "no chat template" in badge("base", pairs, "x")
    assert "do not answer questions" in badge("matched", EMBEDDED, "x")


@pytest.mark.parametrize("messages", ["{", "5", '["x"]', '[{"role": "root", "content": ""}]', "[" * 100_001])
def test_a_link_s_messages_may_be_anything(messages: str) -> None:
    with pytest.raises(PromptError):
        replace(USED, messages=messages).chat()
    conversation.shown(replace(USED, messages=messages))


def test_a_message_written_meanwhile_stays(talker: Engine) -> None:
    run = decoded(talker, USED)
    after = conversation.after(replace(USED, prompt="The next"), run)
    assert after.prompt == "The next"
    assert [one["role"] for one in json.loads(after.messages)] == ["user", "assistant"]
    other = talker.generate(Chat([{"role": "user", "content": "x"}]), EngineConfig(), SamplingParams(max_tokens=1))
    assert conversation.after(after, other) is None, "a run of another conversation"
