"""The ways in for programs, through Gradio's own client, plain HTTP and MCP, against the running app."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from gradio_client import Client
from gradio_client.client import Job
from gradio_client.exceptions import AppError
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import EngineConfig, Run, SamplingParams, load_engine
from lab.memory.capacity import Deployment, GiB
from lab.memory.lengths import Lengths
from lab.memory.models import known
from tests import load
from tests.browser.conftest import started
from tests.coroutines import complete
from visualize.server.programs import NAMES

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the app keeps files that were sent to it."""
    return tmp_path_factory.mktemp("sent")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, sent: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """A running app; it may not have failed at anything."""
    log = tmp_path_factory.mktemp("app") / "log.txt"
    with started(log, GRADIO_TEMP_DIR=str(sent)) as running:
        yield running
    assert "Traceback" not in log.read_text(), log.read_text()


@pytest.fixture(scope="module")
def server(app: tuple[str, subprocess.Popen]) -> str:
    """Its address."""
    return app[0]


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[Client]:
    client = Client(server, verbose=False, analytics_enabled=False)
    yield client
    client.close()


def ask(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    return json.loads(client.predict(api_name=f"/{name}", **arguments))


def get(address: str) -> tuple[int, str]:
    """Status and answer, whatever they are."""
    return post(address, None)


def post(address: str, body: bytes | None, kind: str = "application/json") -> tuple[int, str]:
    """Status and answer, whatever they are."""
    request = urllib.request.Request(address, data=body, headers={"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def call(server: str, name: str, body: Any) -> tuple[str, str]:
    """By name, as with curl: the event ("complete" or "error") and its data, or a status and its detail."""
    status, answer = post(f"{server}/gradio_api/call/v2/{name}", json.dumps(body).encode())
    if status != 200:
        return str(status), answer
    with urllib.request.urlopen(f"{server}/gradio_api/call/{name}/{json.loads(answer)['event_id']}") as stream:
        event, data = stream.read().decode().strip().split("\n")[-2:]
    return event.removeprefix("event: "), data.removeprefix("data: ")


def test_three_functions_are_there_and_nothing_else(server: str) -> None:
    with urllib.request.urlopen(f"{server}/gradio_api/info") as answer:
        info = json.load(answer)
    assert list(info["named_endpoints"]) == [f"/{name}" for name in NAMES]
    assert info["unnamed_endpoints"] == {}
    run = {it["parameter_name"]: it for it in info["named_endpoints"]["/run"]["parameters"]}
    for field in (*fields(EngineConfig), *fields(SamplingParams)):
        assert run[field.name]["parameter_default"] == (list(field.default) if field.default == () else field.default)
        assert run[field.name]["type"]
    assert run["kv_dtype"]["type"] == {"enum": ["auto", "int8", "int4"]}
    assert run["seed"]["type"] == {"oneOf": [{"type": "null"}, {"type": "integer"}]}
    assert not run["prompt"]["parameter_has_default"]


def test_a_run_is_the_engines_own(client: Client, tmp_path: Path) -> None:
    how = {"max_tokens": 20, "temperature": 0.8, "seed": 4, "stop": ["nowhere"]}
    answer = ask(client, "run", prompt=PROMPT, speculative="draft", paged=True, kv_dtype="int8", events=True, **how)
    config = EngineConfig(speculative="draft", paged=True, kv_dtype="int8")
    expected = load_engine().generate(PROMPT, config, SamplingParams(**how))
    assert answer["text"] == expected.text
    assert answer["metrics"]["generated_tokens"] == len(expected.token_ids)
    assert answer["sampling"]["seed"] == 4
    (tmp_path / "run.json").write_text(json.dumps(answer["run"]), "utf-8")
    assert Run.load(tmp_path / "run.json").token_ids == expected.token_ids


def test_a_run_stops_at_one_string_as_at_several(client: Client) -> None:
    one, several = (ask(client, "run", prompt=PROMPT, max_tokens=40, stop=stop) for stop in (" a", [" a"]))
    assert one["reason"] == "stop"
    assert one["text"] == several["text"]


def test_a_comparison_has_every_settings_figures(client: Client) -> None:
    asked = {"prompt": PROMPT, "settings": ["", "speculative=draft"], "repeats": 1, "max_tokens": 12}
    answer = ask(client, "compare", **asked)
    assert list(answer["settings"]) == ["default", "speculative=draft"]
    assert answer["settings"]["default"]["speedup"]["median"] == 1
    assert answer["settings"]["speculative=draft"]["acceptance"] > 0
    assert answer["differences"] == []


def test_the_calculator_is_the_memory_pages(client: Client) -> None:
    model, lengths = known()["qwen3-8b"], Lengths(300, 2048)
    expected = Deployment(
        shape=model.shape, parameters=model.parameters, memory=48 * GiB, kv_dtype="int8", lengths=lengths
    )
    asked = {"model": "qwen3-8b", "gpu": "l40s", "kv_dtype": "int8", "mean": 300, "longest": 2048}
    answer = ask(client, "calculator", **asked)
    assert answer["sequences"] == {policy: expected.sequences(policy) for policy in ("contiguous", "paged")}
    assert ask(client, "calculator", **asked | {"memory": 48.0}) == answer


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("run", {"prompt": ""}, "The prompt is empty"),
        ("run", {"prompt": 5}, "prompt: Input should be a valid string, not 5"),
        ("run", {"prompt": "a" * 100_001}, "at most 100,000"),
        ("run", {"prompt": "\ud800"}, "half a character|valid"),
        ("run", {"prompt": PROMPT, "max_tokens": "many"}, "max_tokens: Input should be a valid integer"),
        ("run", {"prompt": PROMPT, "max_tokens": 10**6}, "from 1 to 1,000 here"),
        ("run", {"prompt": PROMPT, "max_tokens": 10**7}, "from 1 to 1,000 here"),
        ("run", {"prompt": PROMPT, "max_tokens": 0}, "from 1 to 1,000 here"),
        ("compare", {"prompt": PROMPT, "settings": ["", "paged=true"], "max_tokens": 0}, "from 2 to 500 here"),
        ("run", {"prompt": PROMPT, "temperature": float("nan")}, "temperature is a number from 0.0"),
        ("run", {"prompt": PROMPT, "temperature": 1e308}, "temperature is a number from 0.0"),
        ("run", {"prompt": PROMPT, "num_blocks": 10**30}, "num_blocks is a whole number"),
        ("run", {"prompt": PROMPT, "kv_cache": "perhaps"}, "kv_cache: Input should be a valid boolean"),
        ("run", {"prompt": PROMPT, "kv_dtype": "int2"}, "kv_dtype: Input should be 'auto'"),
        ("run", {"prompt": PROMPT, "pair": "../../etc"}, "there are matched, mismatched"),
        ("run", {"prompt": PROMPT, "kv_cache": False, "paged": True}, "no blocks to hand out"),
        ("run", {"prompt": PROMPT, "stop": [""]}, "none of them empty"),
        ("run", {"prompt": PROMPT, "stop": ""}, "none of them empty"),
        ("run", {"prompt": PROMPT, "stop": 5}, "stop: Input should be a valid tuple"),
        ("compare", {"prompt": PROMPT, "settings": "paged=true"}, "settings: Input should be a valid list"),
        ("run", {"prompt": PROMPT, "stop": ["x"] * 1000}, "at most 16 strings"),
        ("compare", {"prompt": PROMPT, "settings": ["paged=true"]}, "2 to 5 settings"),
        ("compare", {"prompt": PROMPT, "settings": [""] * 9_000}, "these are 9,000"),
        ("compare", {"prompt": PROMPT, "settings": ["paged=true", " paged=true"]}, "is there twice"),
        ("compare", {"prompt": PROMPT, "settings": ["", "x=1"]}, "there is no setting 'x'"),
        ("compare", {"prompt": PROMPT, "settings": ["", "a" * 1000]}, "at most 600"),
        ("compare", {"prompt": PROMPT, "settings": ["", "paged=true"], "repeats": 10**9}, "from 1 to 9"),
        ("calculator", {"model": ["gpt-2"]}, "model: Input should be a valid string"),
        ("calculator", {"model": "../../etc"}, "not taken as a hub id"),
        ("calculator", {"model": "gpt-2", "memory": float("inf")}, "memory is a device's GiB"),
        ("calculator", {"model": "gpt-2", "gpu": "<b>"}, "gpu is one of"),
        ("calculator", {"model": "gpt-2", "longest": 10**40}, "longest"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(server: str, name: str, arguments: dict[str, Any], says: str) -> None:
    event, data = call(server, name, arguments)
    assert event == "error"
    assert any(words in json.loads(data)["error"] for words in says.split("|"))


def test_an_error_reaches_gradios_client_as_one(client: Client) -> None:
    with pytest.raises(AppError, match="The prompt is empty"):
        ask(client, "run", prompt="")
    assert ask(client, "run", prompt=PROMPT, max_tokens=2)["reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("call/v2/nothing", b"{}", 404, "there are run, compare, calculator"),
        ("call/nothing", b'{"data": []}', 404, "there are run, compare, calculator"),
        ("call/page", b'{"data": []}', 404, "there are run, compare, calculator"),
        ("call/v2/page", b"{}", 404, "there are run, compare, calculator"),
        ("call/run/nothing", b"{}", 404, "no such event"),
        ("run/run", b'{"data": ["A fox"]}', 404, "nothing at this address"),
        ("run/run", b'{"data": [], "fn_index": -1}', 404, "nothing at this address"),
        ("api/predict", b'{"data": []}', 404, "nothing at this address"),
        ("process_recording", b"{}", 404, "nothing at this address"),
        ("vibe-edit", b'{"data": [NaN]}', 404, "nothing at this address"),
        ("stream/x", b"{}", 404, "nothing at this address"),
        ("queue/status", b"{}", 404, "nothing at this address"),
        ("run/predict", b'{"data": []}', 422, "no event"),  # where pages post, but nothing of theirs
        *[
            (path, b'{"data": [], "session_hash": "a", "fn_index": ' + number + b"}", 422, "no event")
            for path in ("run/predict", "queue/join")
            for number in (b"-1", b"99999", b"1" + b"0" * 30, b"true", b"1.0", b'"1"', b"NaN", b"[1]", b"0")
        ],
        ("queue/join", b'{"data": [], "fn_index": "\\ud800", "session_hash": "a"}', 422, "half a character"),
        ("queue/join", b'{"data": [], "session_hash": "a"}', 422, "no event"),
        ("queue/join", b'{"data": NaN, "fn_index": 1, "session_hash": "a"}', 422, "a list of them as its data"),
        ("queue/join", b'{"data": [], "fn_index": 1, "session_hash": "a"}', 422, "This event takes 27 values, not 0"),
        ("cancel", b'{"data": [NaN]}', 422, "session_hash: Field required"),
        ("reset", b'{"data": [NaN]}', 422, "event_id: Field required"),
        ("component_server", b"[]", 422, "an object of JSON"),
        (
            "component_server",
            b'{"data": 1, "component_id": 99999, "session_hash": "a", "fn_name": "x"}',
            404,
            "no such",
        ),
        ("component_server", b'{"data": 1, "component_id": 1, "session_hash": "a", "fn_name": "get_config"}', 404, ""),
        ("call/v2/run", b"{}", 422, "No value provided for required argument: prompt"),
        ("call/v2/run", b'{"prompt": "a", "nonsense": 1}', 422, "nonsense"),
        ("call/v2/run", b'{"prompt": "a", "\\ud800": 1}', 422, "not a valid key-word argument"),
        ("call/v2/run", b'{"prompt": "a", "' + b"a" * 10**6 + b'": 1}', 422, "Parameter `aaa"),
        ("call/v2/run", b"nonsense", 422, "JSON"),
        ("call/v2/run", b'{"prompt":"\xff"}', 422, "JSON"),
        ("call/v2/run", '{"prompt":"a"}'.encode("utf-16"), 422, "JSON"),
        ("call/v2/run", b"[1]", 422, "dictionary"),
        ("call/v2/run", b"[NaN]", 422, "dictionary"),
        ("call/v2/run", b'"\\ud800"', 422, "dictionary"),
        ("call/run", b'{"data": 5}', 422, "list"),
        ("call/run", b'{"data": NaN}', 422, "list"),
        ("call/run", b'{"data": "\\ud800"}', 422, "list"),
        ("call/run", b'{"data": ["A fox"]}', 422, "values in their order, not 1"),
        ("call/run/", b'{"data": ["A fox"]}', 422, "values in their order, not 1"),
        ("call/run", b'{"data": [' + b"1," * 40 + b"1]}", 422, "values in their order, not 41"),
        ("call/v2/run", b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 413, "too many values"),
        ("call/v2/run", b'{"prompt": ' + b"[" * 9_000 + b"]" * 9_000 + b"}", 422, "too deep"),
        ("call/v2/run", b'{"prompt": ' + b"[" * 100 + b"]" * 100 + b"}", 422, "too deep"),
        ("mcp/", b'{"a":' * 9_000 + b"1" + b"}" * 9_000, 422, "too deep"),
        ("call/v2/run", b'{"prompt": [' + b"1," * 10_000 + b"1]}", 413, "too many values"),
        ("call/v2/run", b'{"prompt": [' + b" " * 10**6 + b"]}", 413, "too many values"),
        ("call/v2/run", b'{"max_tokens": ' + b"9" * 5000 + b"}", 422, "thousands of digits"),
        ("call/v2/run", b'{"prompt": "' + b"a" * 100 * 2**20 + b'"}', 413, "More than 2 MiB"),
        ("mcp/", b'{"params": {"name": "run", "arguments": {"prompt": "\\ud800"}}}', 422, "half a character"),
        ("mcp/", b" " * 100 * 2**20, 413, "More than 2 MiB"),
        ("upload", b"{}", 400, "content type"),
    ],
)
def test_what_is_not_there_is_no_error_of_the_servers(
    server: str, path: str, body: bytes, status: int, says: str
) -> None:
    found, answer = post(f"{server}/gradio_api/{path}", body)
    assert found == status
    assert says in answer
    assert len(answer) < 500  # nothing of it is sent back


def test_json_that_does_not_say_so_is_no_error_of_the_servers(server: str) -> None:
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"):
        for body in (b'{"prompt":"\xff"}', b'{"prompt":"a"}'):
            found, answer = post(f"{server}/gradio_api/call/v2/run", body, kind)
            assert found == 422
            assert len(json.loads(answer)["detail"]) > 10
    form = b'--x\r\nContent-Disposition: form-data; name="files"\r\n\r\n{}\r\n--x--\r\n'
    assert post(f"{server}/gradio_api/upload", form, "multipart/form-data; boundary=x")[0] == 422


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("monitoring", 403, "not enabled"),
        ("gradio_api/call/run/nothing", 404, "no such event here"),
        ("gradio_api/call/v2/run/nothing", 404, "no such event here"),
        ("gradio_api/call/page/nothing", 404, "there are run, compare, calculator"),
        ("gradio_api/queue/data?session_hash=nobodys", 200, '"session_not_found":true'),
        ("gradio_api/queue/data", 422, "session_hash: Field required"),
        ("gradio_api/deep_link?session_hash=a", 404, "nothing at this address"),
        ("gradio_api/file=http://127.0.0.1:9/", 404, "nothing at this address"),
        ("gradio_api/file=%00", 404, "nothing at this address"),
        ("gradio_api/proxy=http://127.0.0.1:9/", 404, "nothing at this address"),
        ("gradio_api/runs", 404, "nothing at this address"),
        ("gradio_api/nothing", 404, "nothing at this address"),
        ("?page=nothing", 404, "nothing at this address"),
        ("?page=compare", 200, "<html"),
        ("assets/" + "a" * 1000, 404, "nothing at this address"),
        ("static/" + "a" * 5000, 404, "nothing at this address"),
        ("gradio_api/file=" + "a" * 5000, 404, "nothing at this address"),
    ],
)
def test_what_nobody_here_needs_is_not_there(server: str, path: str, status: int, says: str) -> None:
    found, answer = get(f"{server}/{path}")
    assert found == status
    assert says in answer


def test_no_one_body_keeps_the_others_waiting(server: str) -> None:
    """Neither those that are refused nor the largest that are not."""
    size = 2 * 2**20 - 100
    bodies = [
        b'{"data":[' + (b"[" * 60 + b"]" * 60 + b",") * 69_000 + b"1]}",
        b'{"data":[' + (b"[" * 60 + b"]" * 60 + b",") * 160 + b"1]}",
        b'{"data":[' + b"[]," * 2_790_000 + b"[]]}",
        b'{"data":[' + b'"",' * 9_900 + b'""]}',
        b'{"data":["' + b"\\u1234" * (size // 6) + b'"]}',
        b'{"data":[' + b",".join([b"9" * 4_290] * 60) + b"]}",
        b'""' * (size // 2),
    ]
    waits: list[float] = []
    with ThreadPoolExecutor() as others:
        for body in bodies:
            for path in ("call/v2/run", "call/run", "queue/join", "run/predict", "reset", "mcp/"):
                there = others.submit(post, f"{server}/gradio_api/{path}", body)
                while not there.done():
                    begun = time.monotonic()
                    get(f"{server}/health")
                    waits.append(time.monotonic() - begun)
                found, answer = there.result()
                assert 400 <= found < 500
                assert len(answer) < 500
    assert max(waits) < 3  # a tenth of that where nothing else is at work


@pytest.fixture(scope="module")
def events(server: str) -> list[dict[str, Any]]:
    """Of pages, those that wait in no queue, each with the ``values`` that a page sends at first."""
    config = json.loads(get(f"{server}/config")[1])
    first = {it["id"]: it["props"].get("value") for it in config["components"]}
    there = [it for it in config["dependencies"] if it["backend_fn"] and not it["queue"] and it["inputs"]]
    return [it | {"values": [first[number] for number in it["inputs"]]} for it in there]


FILE = {"path": "http://127.0.0.1:9/", "meta": {"_type": "gradio.FileData"}}


@pytest.mark.parametrize("junk", [5, float("nan"), [], {}, "x", 10**30, FILE, [[FILE]], None], ids=repr)
def test_a_value_that_no_page_sends_is_a_sentence(server: str, events: list[dict[str, Any]], junk: Any) -> None:
    assert events
    for event in events:
        sound = {"data": event["values"], "fn_index": event["id"], "session_hash": "abc"}
        for path in ("run/predict", "queue/join"):
            assert post(f"{server}/gradio_api/{path}", json.dumps(sound).encode())[0] == 200
            asked = sound | {"data": [junk] * len(event["values"])}
            found, answer = post(f"{server}/gradio_api/{path}", json.dumps(asked).encode())
            assert found == 422
            assert len(json.loads(answer)["detail"]) > 10


def test_only_a_file_that_was_sent_can_be_opened(server: str) -> None:
    config = json.loads(get(f"{server}/config")[1])
    number = next(it["id"] for it in config["dependencies"] if any(event == "upload" for _, event in it["targets"]))
    kind = {"_type": "gradio.FileData"}
    for file in (FILE, {"path": "/etc/passwd", "meta": kind}, {"path": "x", "meta": 5}, None, 5, [FILE], {}):
        asked = {"data": [file], "fn_index": number, "session_hash": "abc"}
        found, answer = post(f"{server}/gradio_api/queue/join", json.dumps(asked).encode())
        assert found == 422
        assert "no file that was sent here" in answer


def inside(server: str) -> int:
    """Visitors with something under way."""
    with urllib.request.urlopen(f"{server}/metrics") as answer:
        return int(float(re.search(r"^decode_lab:visits (.+)$", answer.read().decode(), re.MULTILINE)[1]))


def wait_until(so: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not so() and time.monotonic() < until:
        time.sleep(0.02)
    assert so()


def hung_on(server: str, name: str, body: Any) -> Any:
    """A call of somebody who waits for its answer, and hangs up by closing this."""
    status, answer = post(f"{server}/gradio_api/call/v2/{name}", json.dumps(body).encode())
    assert status == 200
    return urllib.request.urlopen(f"{server}/gradio_api/call/{name}/{json.loads(answer)['event_id']}")


FOREVER = {"prompt": PROMPT, "kv_cache": False, "max_tokens": 1000, "ignore_eos": True}
SLOW = [f"kv_cache=false,block_size={size}" for size in range(1, 6)]
LONG = {"prompt": PROMPT, "settings": SLOW, "repeats": 9, "max_tokens": 256, "ignore_eos": True}  # half a minute


def test_who_waits_is_told_how_many_are_before(server: str, client: Client) -> None:
    first = hung_on(server, "run", FOREVER)
    wait_until(lambda: inside(server) == 1, 10)
    jobs: list[Job] = []
    told: list[list[str]] = [[], []]

    def heard(who: int, words: str) -> bool:
        for job, its in zip(jobs, told, strict=False):
            its.extend(unit.desc for unit in job.status().progress_data or () if unit.desc not in its)
        return words in told[who]

    for who, words in enumerate(("Waiting: 1 run is before yours.", "Waiting: 2 runs are before yours.")):
        jobs.append(client.submit(api_name="/run", prompt=PROMPT, max_tokens=5))
        wait_until(lambda who=who, words=words: heard(who, words), 20)
    last = hung_on(server, "run", {"prompt": PROMPT, "max_tokens": 5})
    assert b'data: "Waiting: 3 runs are before yours."\n' in itertools.takewhile(bool, iter(last.readline, None))
    first.close()
    assert b"event: complete" in last.read()
    assert [json.loads(job.result(60))["metrics"]["generated_tokens"] for job in jobs] == [5, 5]


def test_who_hangs_up_is_noticed(server: str) -> None:
    stream = hung_on(server, "compare", LONG)
    wait_until(lambda: inside(server) == 1, 10)
    stream.close()
    wait_until(lambda: inside(server) == 0, 5)


@pytest.mark.parametrize("named", ["session_hash", "header"])
def test_who_hangs_up_is_noticed_by_whatever_name(server: str, named: str) -> None:
    body = json.dumps(FOREVER).encode()
    if named == "session_hash":
        there = json.loads(get(f"{server}/gradio_api/info")[1])["named_endpoints"]["/run"]["parameters"]
        values = [FOREVER.get(it["parameter_name"], it.get("parameter_default")) for it in there]
        asked = json.dumps({"data": values, "session_hash": "mine", "event_id": "mine"}).encode()
        request = urllib.request.Request(f"{server}/gradio_api/call/run", asked, {"Content-Type": "application/json"})
    else:
        headers = {"Content-Type": "application/json", "X-Decode-Lab-Caller": "me"}
        request = urllib.request.Request(f"{server}/gradio_api/call/v2/run", body, headers)
    with urllib.request.urlopen(request) as answer:
        event = json.load(answer)["event_id"]
    stream = urllib.request.urlopen(f"{server}/gradio_api/call/run/{event}")
    wait_until(lambda: inside(server) == 1, 10)
    stream.close()
    wait_until(lambda: inside(server) == 0, 5)


def test_an_answer_is_fetched_once(server: str) -> None:
    event = json.loads(post(f"{server}/gradio_api/call/v2/calculator", b'{"model": "gpt-2"}')[1])["event_id"]
    assert "event: complete" in get(f"{server}/gradio_api/call/calculator/{event}")[1]
    assert get(f"{server}/gradio_api/call/calculator/{event}")[0] == 404


def test_who_hangs_up_on_a_tool_is_noticed(server: str) -> None:
    pytest.importorskip("mcp")
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "compare", "arguments": LONG}}
    there = urlsplit(server)
    callers = [http.client.HTTPConnection(there.hostname, there.port) for _ in range(2)]
    for caller in callers:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        caller.request("POST", "/gradio_api/mcp/", json.dumps(asked), headers)
    wait_until(lambda: inside(server) == 2, 20)
    callers[0].sock.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: inside(server) == 1, 5)  # the other's goes on
    callers[1].sock.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: inside(server) == 0, 5)


def test_a_crowd_gets_what_each_gets_alone_and_leaves_nothing(server: str) -> None:
    async def come() -> tuple[load.Found, dict[str, float]]:
        there = load.Server(server)
        alone = await load.texts_alone(there, [ask for ask in load.ASKS if ask[2] == load.ASKS[0][2]])
        found = await load.crowd(there, alone, clients=12, seconds=3, seed=1)
        left = await there.quiet()
        await there.close()
        return found, left

    found, left = complete(come())
    assert found.errors == found.crossed == []
    assert found.answers >= 12
    assert found.abandoned
    assert left == {"running": 0, "waiting": 0, "kv_usage": 0, "visits": 0}


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=5), some, max_size=3),
    max_leaves=5,
)


def values(kind: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Of a type, as the schema has it, sensible and not."""
    if "enum" in kind:
        return st.sampled_from(kind["enum"])
    if "oneOf" in kind:
        return st.one_of([values(one) for one in kind["oneOf"]])
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "integer": st.integers(-2, 40) | st.integers(),
        "number": st.floats(-0.1, 2) | st.floats(),
        "string": st.text(max_size=20),
        "array": st.lists(st.text(max_size=20), max_size=3),
    }[kind["type"]]


@pytest.fixture(scope="module")
def parameters(server: str) -> dict[str, dict[str, dict[str, Any]]]:
    """By function, what it takes, each with its type."""
    with urllib.request.urlopen(f"{server}/gradio_api/info") as answer:
        endpoints = json.load(answer)["named_endpoints"]
    return {name: {it["parameter_name"]: it["type"] for it in endpoints[f"/{name}"]["parameters"]} for name in SOUND}


SOUND = {
    "run": {"prompt": PROMPT, "max_tokens": 2},
    "compare": {"prompt": PROMPT, "settings": ["", "paged=true"], "repeats": 1, "max_tokens": 2},
    "calculator": {"model": "gpt-2"},
}


@settings(max_examples=30)
@given(data=st.data())
def test_any_value_anywhere_is_an_answer_or_a_sentence(
    server: str, parameters: dict[str, dict[str, dict[str, Any]]], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([name for name in NAMES for _ in parameters[name]]))
    places = data.draw(st.lists(st.sampled_from(list(parameters[name])), min_size=1, max_size=4, unique=True))
    asked = {place: data.draw(values(parameters[name][place]) | JUNK, place) for place in places}
    if "kernels" in asked:
        asked.pop("torch_compile", None)  # layers take half a minute
    event, answer = call(server, name, SOUND[name] | asked)
    assert event == "complete" or len(json.loads(answer)["error"]) > 10


ADDRESSES = [
    *[f"call/{version}{name}" for version in ("", "v2/") for name in (*NAMES, "page", "run/x")],
    *["run/predict", "run/run", "api/predict", "queue/join", "cancel", "reset", "component_server", "mcp/", "upload"],
    *["heartbeat/x", "queue/data", "vibe-edit", "process_recording", "stream/x", "file=x"],
]
ANY_TEXT = st.text(st.characters(codec=None), max_size=8)  # half characters, too
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.just(FILE),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(ANY_TEXT, some, max_size=3),
    max_leaves=8,
)
FIELDS = ("data", "session_hash", "event_data", "event_id", "trigger_id", "component_id", "fn_name", "batched", "model")
BODIES = st.one_of(
    st.binary(max_size=40),
    ANY.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(FIELDS), ANY).map(lambda fields: json.dumps(fields).encode()),
)


@settings(max_examples=150)
@given(
    address=st.sampled_from(ADDRESSES),
    body=BODIES,
    kind=st.sampled_from(["application/json", "text/plain", "multipart/form-data; boundary=x", ""]),
)
def test_any_body_anywhere_is_refused_in_a_sentence(server: str, address: str, body: bytes, kind: str) -> None:
    status, answer = post(f"{server}/gradio_api/{address}", body, kind)
    assert status == 200 or 400 <= status < 500
    assert len(answer) < 1000


@settings(max_examples=50)
@given(data=st.data())
def test_any_value_of_a_page_is_taken_or_refused_in_a_sentence(
    server: str, events: list[dict[str, Any]], data: st.DataObject
) -> None:
    event = data.draw(st.sampled_from(events))
    values = list(event["values"])
    values[data.draw(st.integers(0, len(values) - 1))] = data.draw(ANY)
    extra = data.draw(st.dictionaries(st.sampled_from(FIELDS[2:]), ANY))
    asked = extra | {"data": values, "fn_index": event["id"], "session_hash": "abc"}
    path = data.draw(st.sampled_from(["run/predict", "queue/join"]))
    status, answer = post(f"{server}/gradio_api/{path}", json.dumps(asked).encode())
    assert status == 200 or (status == 422 and len(json.loads(answer)["detail"]) > 10)


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
            assert tools["run"].inputSchema["required"] == ["prompt"]
            assert all(it["description"] for it in tools["run"].inputSchema["properties"].values())
            told: list[str | None] = []

            async def tell(done: float, total: float | None, message: str | None) -> None:
                told.append(message)

            answer = await session.call_tool("run", {"prompt": PROMPT, "max_tokens": 400}, progress_callback=tell)
            assert any("Under way" in (message or "") for message in told)
            assert json.loads(answer.content[0].text)["metrics"]["generated_tokens"] > 5
            answer = await session.call_tool("calculator", {"model": "gpt-2"})
            assert json.loads(answer.content[0].text)["parameters"] == known()["gpt-2"].parameters
            for name, arguments in (("run", {"prompt": ""}), ("run", {"prompt": 1}), ("nothing", {})):
                answer = await session.call_tool(name, arguments)
                assert answer.isError
                assert answer.content[0].text

    complete(use())


def test_the_end_of_the_server_is_told_and_files_that_were_sent_are_gone(
    app: tuple[str, subprocess.Popen], sent: Path
) -> None:
    """The last of these tests: there is no server after it."""
    server, process = app
    file = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.json"\r\n\r\n{}\r\n--x--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    urllib.request.urlopen(urllib.request.Request(f"{server}/gradio_api/upload", file, kind)).close()
    assert list(sent.rglob("a.json"))
    calls = [hung_on(server, "run", FOREVER) for _ in range(3)]
    with ThreadPoolExecutor() as callers:
        answers = [callers.submit(call.read) for call in calls]
        wait_until(lambda: inside(server) == 3, 20)
        process.send_signal(signal.SIGTERM)
        for answer in answers:  # of one that is at work, and of two that wait
            assert b"The server is being shut down." in answer.result()
    assert process.wait(6) == 0
    assert not list(sent.rglob("a.json"))
