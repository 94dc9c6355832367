"""Callers of the API: they wait in line like everyone else, and their work ends when they leave."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import gradio as gr
import pytest

from lab.config import EngineConfig, SamplingParams
from lab.errors import LabError
from lab.trace.events import Event
from tests import tiny_models
from tests.coroutines import complete
from tests.visualize.scripted import ScriptedEngine
from visualize.api import endpoints as programs_module
from visualize.api.endpoints import Programs
from visualize.api.flat_results import flat
from visualize.jobs.job_queue import JobQueue

LONG = {"config": EngineConfig(), "sampling": SamplingParams(max_tokens=100_000)}
"""Longer than any test waits."""


def caller(name: str) -> gr.Request:
    return SimpleNamespace(session_hash=name, headers={})


class Asked(ScriptedEngine):
    """Records the prompts that it decodes."""

    def __init__(self) -> None:
        super().__init__(0.01)
        self.prompts: list[str] = []

    def stream(self, prompt: str, *how: object, **named: object) -> Iterator[Event]:
        self.prompts.append(prompt)
        return super().stream(prompt, *how, **named)


def programs(
    queue: JobQueue | None = None, shown: dict | None = None, engine: ScriptedEngine | None = None
) -> Programs:
    return Programs(lambda pair: engine or ScriptedEngine(0.01), queue or JobQueue(), {} if shown is None else shown)


async def until(so: Callable[[], object]) -> None:
    """Wait for a condition while other tasks go on."""
    async with asyncio.timeout(30):
        while not so():
            await asyncio.sleep(0.005)


def test_a_caller_who_leaves_ends_only_their_own_run() -> None:
    engine = Asked()
    some = programs(engine=engine)

    async def leave() -> tuple[dict, dict]:
        mine = asyncio.create_task(some.run(caller("a"), "A fox", **LONG))
        other = some.run(caller("b"), "A wolf", EngineConfig(), SamplingParams(max_tokens=4))
        others = asyncio.create_task(other)
        await until(lambda: "A fox" in engine.prompts)
        some.leave(caller("a"))
        some.leave(caller("a page, which runs nothing here"))
        return await mine, await others

    mine, others = complete(leave())
    assert mine["reason"] == "cancelled"
    assert others["reason"] == "length"
    assert "run" not in others, "the file is large, and nobody asked for it"


def test_a_chat_goes_on_with_the_answer_it_got() -> None:
    some, call = programs(engine=tiny_models.chat_engine("thinking")), {"paged": True, "enable_prefix_caching": True}
    api = flat(some.run)
    names = [name for name in inspect.signature(api).parameters if name != "request"]

    def ask(**asked: object) -> dict:
        asked = {"max_tokens": 6, "ignore_eos": True} | call | asked
        return json.loads(complete(api(caller("a"), *(asked.get(name) for name in names))))

    messages = [{"role": "user", "content": "Good morning, everybody."}]
    first = ask(messages=messages, thinking=True)
    assert first["metrics"]["cached_prompt_tokens"] == 0
    second = ask(messages=[*messages, first["answer"], {"role": "user", "content": "Why?"}], thinking=True)
    assert second["metrics"]["cached_prompt_tokens"] > len(messages[0]["content"])
    for asked, said in (
        ({"messages": messages, "prompt": "x"}, "Give one of them"),
        ({"messages": [{"role": "user", "content": "x" * 100_001}]}, "the most is 100,000"),
        ({"messages": [{"role": "user"}]}, "A chat is a list of messages"),
    ):
        with pytest.raises(gr.Error, match=said):
            ask(**asked)


def test_runs_go_together_in_a_workshop_and_those_of_a_comparison_each_in_a_turn_of_their_own() -> None:
    queue, turns = JobQueue(together=True), []

    class Counted(ScriptedEngine):
        def stream(self, *asked: object, **named: object) -> Iterator[Event]:
            turns.append((queue.turns, queue.waiting))
            return super().stream(*asked, **named)

    some, sampling = programs(queue, engine=Counted()), SamplingParams(max_tokens=4)
    with queue.turn("another's", threading.Event(), alone=False):
        assert complete(some.run(caller("a"), "A fox", EngineConfig(), sampling))["reason"] == "length"
    complete(some.compare(caller("a"), "A fox", ["", "paged=true"], sampling, repeats=1))
    assert turns == [(number, 0) for number in (2, 4, 5, 6, 7)], "the third is for loading"


def test_a_caller_who_leaves_while_waiting_never_reaches_the_engine() -> None:
    queue, cancelled = JobQueue(), threading.Event()
    some = programs(queue)

    async def leave() -> None:
        waiting = asyncio.create_task(some.run(caller("a"), "A fox", **LONG))
        await asyncio.sleep(0.05)
        some.leave(caller("a"))
        with pytest.raises(LabError, match="was stopped"):
            await waiting

    with queue.turn(object(), cancelled):
        complete(leave())


def test_a_waiting_caller_is_reported_each_change_once_and_no_status_is_kept() -> None:
    said: list[str] = []

    class Told(dict):
        def __setitem__(self, who: str, status: str) -> None:
            said.append(status)
            super().__setitem__(who, status)

    queue, cancelled, shown = JobQueue(), threading.Event(), Told()
    some = programs(queue, shown)

    async def wait() -> None:
        with queue.turn(object(), cancelled):
            how = (EngineConfig(), SamplingParams(max_tokens=20))
            waiting = asyncio.create_task(some.run(caller("a"), "A fox", *how))
            await until(lambda: shown == {"a": "Waiting: 1 run is before yours."})
            left = asyncio.create_task(some.run(caller("b"), "A fox", *how))
            await until(lambda: shown.get("b") == "Waiting: 2 runs are before yours.")
            some.leave(caller("b"))
            with pytest.raises(LabError, match="was stopped"):
                await left
            said.clear()
            await asyncio.sleep(0.1)
            assert shown == {"a": "Waiting: 1 run is before yours."}
        await waiting

    complete(wait())
    assert said == ["Under way"]
    assert (shown, some._jobs) == ({}, {}), "nothing is kept of those who were answered"


def test_a_comparison_reports_how_many_runs_are_done() -> None:
    said: list[str] = []

    class Told(dict):
        def __setitem__(self, who: str, status: str) -> None:
            said.append(status)

    some, sampling = programs(shown=Told()), SamplingParams(max_tokens=20)
    complete(some.compare(caller("a"), "A fox", ["", "paged=true"], sampling, repeats=1))
    assert said[0] == "Under way"
    assert set(said[1:]) <= {f"{done} of 4 runs done" for done in range(1, 5)}
    assert len(said) > 2


def test_waiting_callers_are_reported_that_the_server_shuts_down() -> None:
    queue, cancelled = JobQueue(), threading.Event()
    some = programs(queue)

    async def end() -> None:
        waiting = asyncio.create_task(some.run(caller("a"), "A fox", **LONG))
        await asyncio.sleep(0.05)
        queue.close(0)
        with pytest.raises(LabError, match="is shutting down"):
            await waiting

    with queue.turn(object(), cancelled):
        complete(end())


def test_a_call_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs_module, "MOST_SECONDS", 0.5)
    assert complete(programs().run(caller("a"), "A fox", **LONG))["reason"] == "cancelled"


def test_settings_become_parameters_with_their_types_and_descriptions() -> None:
    async def decode(request: gr.Request, prompt: str, sampling: SamplingParams, often: int = 2) -> dict:
        """Decode it.

        Args:
            prompt: the text
            often: how many times

        Returns:
            JSON: what it was
        """
        return {"prompt": prompt, "often": often, "seed": sampling.seed, "who": request.session_hash}

    called = flat(decode)
    parameters = list(inspect.signature(called).parameters.values())
    assert [it.name for it in parameters[:5]] == ["request", "prompt", "often", "max_tokens", "temperature"]
    assert parameters[3].default == 64
    assert "    prompt: the text\n" in called.__doc__
    assert "    often: how many times. Default: 2.\n" in called.__doc__
    assert "    seed: Fix for reproducible text" in called.__doc__
    assert complete(called(caller("a"), "x", 3, 64, 0.0, 0, 1.0, 8)) == (
        '{"prompt": "x", "often": 3, "seed": 8, "who": "a"}'
    )
    assert '"often": 3' in complete(called(caller("a"), "x", "3")), "as text"
    assert '"often": 2, "seed": null' in complete(called(caller("a"), "x", None, None)), "null: not given"
    refused = (
        (None, "prompt: Input should be a valid string, not None"),
        ("x", 0.5, "often: Input should be a valid integer"),
        ("x", 1, 0, "max_tokens must be"),
    )
    for *values, says in refused:
        with pytest.raises(gr.Error, match=says):
            complete(called(caller("a"), *values))


def test_bounds_and_what_is_wrong_are_reported_in_short_and_text_comes_back_as_it_is() -> None:
    async def say(request: gr.Request, words: str, often: int = 2) -> dict:
        """Say it.

        Args:
            words: which
            often: how many times

        Returns:
            JSON: it
        """
        if words == "no":
            raise LabError("not \u202e here")
        return {"said": words * often}

    called = flat(say, {"often": (1, 3)})
    assert "    often: how many times. From 1 to 3 here. Default: 2.\n" in called.__doc__
    assert called.__doc__.endswith("\nReturns:\n    JSON: it")
    assert complete(called(caller("a"), "é", 3)) == '{"said": "ééé"}'
    for values, says in (
        (("x", 0), r"often must be a whole number from 1 to 3 here, not 0\.$"),
        (("x", 4_000), r"from 1 to 3 here, not 4,000\.$"),
        (("no",), "^not [^\u202e]+ here$"),
        (("\u202e" * 2, "\u202e"), r"^often: Input should be a valid integer.*, not '\\u202e'\.$"),
        (("x", "a" * 1000), "^often: Input should be a valid integer.*, not 'a{79}…\\.$"),
    ):
        with pytest.raises(gr.Error) as refused:
            complete(called(caller("a"), *values))
        assert re.search(says, refused.value.message)


def test_the_calculator_calculates_with_what_it_is_given() -> None:
    given = {"weights": "int8", "kv_dtype": "int4", "set_aside": 0.3, "mean": 300, "longest": 2000, "block_size": 32}
    given |= {"kv_cache_dtype_skip_layers": "0 31"}
    usual, other = (complete(programs().calculator("llama-3.1-8b", memory=40.0, **changes)) for changes in ({}, given))
    assert {name: other[name] for name in given} == given
    assert other["memory_bytes"] == usual["memory_bytes"] == 40 * 2**30
    assert not {usual[name] for name in given} & set(given.values())
    for worked_out in ("weight_bytes", "cache_bytes", "token_bytes", "num_blocks", "sequences"):
        assert usual[worked_out] != other[worked_out]
