"""The answers that programs get through Gradio's client and MCP."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import fields
from pathlib import Path

import pytest
from gradio_client import Client

from lab import EngineConfig, Run, SamplingParams, load_engine
from lab.kv_cache.storage import FORMATS
from lab.memory.capacity import Deployment, Lengths
from lab.memory.catalogue import GPU_KEYS, GiB
from lab.memory.model_memory import known_models
from tests.api.calls import PROMPT, ask
from tests.coroutines import complete
from visualize.api.endpoints import NAMES

pytestmark = pytest.mark.slow


def test_the_api_has_three_functions_with_typed_parameters(server: str) -> None:
    with urllib.request.urlopen(f"{server}/gradio_api/info") as answer:
        info = json.load(answer)
    assert list(info["named_endpoints"]) == [f"/{name}" for name in NAMES]
    assert info["unnamed_endpoints"] == {}
    run = {it["parameter_name"]: it for it in info["named_endpoints"]["/run"]["parameters"]}
    for field in (*fields(EngineConfig), *fields(SamplingParams)):
        assert run[field.name]["parameter_default"] == (list(field.default) if field.default == () else field.default)
        assert run[field.name]["type"]
    assert run["kv_dtype"]["type"] == {"enum": list(FORMATS)}
    assert run["seed"]["type"] == {"oneOf": [{"type": "null"}, {"type": "integer"}]}
    assert (run["prompt"]["parameter_default"], run["messages"]["parameter_default"]) == ("", None)
    compare, fits = (
        {it["parameter_name"]: it for it in info["named_endpoints"][f"/{name}"]["parameters"]}
        for name in ("compare", "calculator")
    )
    assert run["pair"]["type"] == compare["pair"]["type"]
    assert run["pair"]["type"]["enum"][:2] == ["matched", "mismatched"]  # and what fits this machine
    assert fits["gpu"]["type"] == {"enum": list(GPU_KEYS)}
    assert not {"stop", "stop_token_ids", "ignore_eos", "logprobs"} & compare.keys(), (
        "fixed, so that all outputs have the same length"
    )
    assert compare["seed"]["parameter_default"] == 0


def test_a_run_gives_the_same_result_as_the_engine(client: Client, tmp_path: Path) -> None:
    how = {"max_tokens": 20, "temperature": 0.8, "seed": 4, "stop": ["nowhere"]}
    answer = ask(client, "run", prompt=PROMPT, speculative="draft", paged=True, kv_dtype="int8", events=True, **how)
    config = EngineConfig(speculative="draft", paged=True, kv_dtype="int8")
    expected = load_engine().generate(PROMPT, config, SamplingParams(**how))
    assert answer["text"] == expected.text
    assert answer["metrics"]["generated_tokens"] == len(expected.token_ids)
    assert answer["sampling"]["seed"] == 4
    (tmp_path / "run.json").write_text(json.dumps(answer["run"]), "utf-8")
    assert Run.load(tmp_path / "run.json").token_ids == expected.token_ids


def test_a_prompt_may_be_token_ids_and_a_token_may_end_a_text(client: Client) -> None:
    ids = load_engine().tokenizer(PROMPT)["input_ids"]
    how = {"max_tokens": 8, "temperature": 0}
    answer = ask(client, "run", prompt=str(ids), token_ids=True, **how)
    assert answer["text"] == ask(client, "run", prompt=PROMPT, **how)["text"]
    expected = load_engine().generate(PROMPT, sampling=SamplingParams(**how))
    ended = ask(client, "run", prompt=PROMPT, stop_token_ids=expected.token_ids[2], **how)
    assert (ended["reason"], ended["metrics"]["generated_tokens"]) == (
        "stop",
        expected.token_ids.index(expected.token_ids[2]) + 1,
    )


def test_a_comparison_has_figures_for_every_setting(client: Client) -> None:
    asked = {"prompt": PROMPT, "settings": ["", "speculative=draft"], "repeats": 1, "max_tokens": 12}
    answer = ask(client, "compare", **asked)
    assert list(answer["settings"]) == ["default", "speculative=draft"]
    assert answer["settings"]["default"]["speedup"]["median"] == 1
    assert answer["settings"]["speculative=draft"]["acceptance"] > 0
    assert answer["differences"] == []
    config = EngineConfig(**answer["settings"]["speculative=draft"]["config"])
    assert config == EngineConfig(speculative="draft", num_blocks=config.num_blocks)
    assert (answer["sampling"]["seed"], answer["sampling"]["max_tokens"], answer["device"]) == (0, 12, "cpu")
    assert "CPU core" in answer["hardware"]
    engine = load_engine()
    assert (answer["target"], answer["draft"], answer["dtype"]) == (engine.target.name, engine.draft.name, engine.dtype)
    again = engine.generate(PROMPT, config, SamplingParams(**answer["sampling"]))
    assert again.text == answer["settings"]["speculative=draft"]["text"]


def test_the_calculator_agrees_with_the_memory_page(client: Client) -> None:
    model, lengths = known_models()["qwen3-8b"], Lengths(300, 2048)
    expected = Deployment(
        shape=model.shape, parameters=model.parameters, memory=48 * GiB, kv_dtype="int8", lengths=lengths
    )
    asked = {"model": "qwen3-8b", "gpu": "l40s", "kv_dtype": "int8", "mean": 300, "longest": 2048}
    answer = ask(client, "calculator", **asked)
    assert answer["sequences"] == {policy: expected.sequences(policy) for policy in ("contiguous", "paged")}
    assert ask(client, "calculator", **asked | {"memory": 48.0}) == answer
    assert {name: answer[name] for name in ("kv_dtype", "mean", "longest")} == {
        name: asked[name] for name in ("kv_dtype", "mean", "longest")
    }
    assert (answer["weights"], answer["set_aside"], answer["block_size"]) == ("bfloat16", 0.1, 16)


def test_an_mcp_client_finds_and_uses_the_tools(server: str) -> None:
    pytest.importorskip("mcp")
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async def use() -> None:
        where = f"{server}/gradio_api/mcp/"
        async with streamable_http_client(where) as (read, write, _), ClientSession(read, write) as session:
            await session.initialize()
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            assert list(tools) == list(NAMES)
            assert tools["calculator"].inputSchema["required"] == ["model"]
            about = {name: it["description"] for name, it in tools["run"].inputSchema["properties"].items()}
            assert all(about.values())
            assert about["max_tokens"].endswith("From 1 to 1,000 here. Default: 64.")
            assert about["paged"].endswith("Default: false.")
            assert about["stop"].endswith("Default: [].")
            assert about["events"].endswith("Default: false.")
            about = {name: it["description"] for name, it in tools["compare"].inputSchema["properties"].items()}
            assert about["seed"].endswith("Default: 0.")
            assert about["repeats"].endswith("From 1 to 9 here. Default: 3.")
            about = {name: it["description"] for name, it in tools["calculator"].inputSchema["properties"].items()}
            assert about["memory"].endswith("Default: null.")
            assert about["model"] == f"{', '.join(known_models())}, or a hub id, whose config.json is fetched"
            reported: list[str | None] = []

            async def tell(done: float, total: float | None, message: str | None) -> None:
                reported.append(message)

            answer = await session.call_tool("run", {"prompt": PROMPT, "max_tokens": 400}, progress_callback=tell)
            assert any("Under way" in (message or "") for message in reported)
            assert json.loads(answer.content[0].text)["metrics"]["generated_tokens"] > 5
            answer = await session.call_tool("calculator", {"model": "gpt-2"})
            assert json.loads(answer.content[0].text)["parameters"] == known_models()["gpt-2"].parameters
            for name, arguments in (("run", {"prompt": ""}), ("run", {"prompt": 1}), ("nothing", {})):
                answer = await session.call_tool(name, arguments)
                assert answer.isError
                assert answer.content[0].text

    complete(use())
