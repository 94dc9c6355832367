"""What programs may not ask for, or have no business with, is refused with a reason, not a server error."""

from __future__ import annotations

import functools
import json
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from tests.api.calls import PROMPT, ask, call, get, post
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("run", {"prompt": ""}, "The prompt is empty"),
        ("run", {"prompt": 5}, "prompt: Input should be a valid string, not 5"),
        ("run", {"prompt": "a" * 100_001}, "the most is 100,000"),
        ("run", {"prompt": '"' * 50_000}, "token"),  # which takes as many escapes, and is one value
        ("run", {"prompt": PROMPT, "max_tokens": "many"}, "max_tokens: Input should be a valid integer"),
        ("run", {"prompt": PROMPT, "max_tokens": 10**6}, "from 1 to 1,000 here"),
        ("compare", {"prompt": PROMPT, "settings": ["", "paged=true"], "max_tokens": 0}, "from 2 to 500 here"),
        ("run", {"prompt": PROMPT, "temperature": float("nan")}, "temperature must be a number from 0.0"),
        (
            "run",
            {"prompt": PROMPT, "num_blocks": 10**30},
            "num_blocks must be a whole number from 1 to 10,000,000, not 1000",
        ),
        ("run", {"prompt": PROMPT, "kv_cache": "perhaps"}, "kv_cache: Input should be a valid boolean"),
        (
            "run",
            {"prompt": PROMPT, "kv_dtype": "int2"},
            "kv_dtype: Input should be 'auto', 'int8', 'int4', 'fp8'",
        ),
        ("run", {"prompt": PROMPT, "pair": "../../etc"}, "pair: Input should be 'matched'"),
        ("run", {"prompt": PROMPT, "kv_cache": False, "paged": True}, "no blocks to hand out"),
        ("run", {"prompt": PROMPT, "stop": [""]}, "none of them empty"),
        ("run", {"prompt": PROMPT, "stop": ["x", 5]}, "stop.1: Input should be a valid string, not 5"),
        ("compare", {"prompt": PROMPT, "settings": "paged=true"}, "settings: Input should be a valid list"),
        ("run", {"prompt": PROMPT, "stop": ["x"] * 1000}, "at most 16 strings"),
        ("compare", {"prompt": PROMPT, "settings": ["paged=true"]}, "2 to 6 settings"),
        ("compare", {"prompt": PROMPT, "settings": ["paged=true", " paged=true"]}, "is listed twice"),
        ("compare", {"prompt": PROMPT, "settings": ["", "x=1"]}, "there is no setting 'x'"),
        ("compare", {"prompt": PROMPT, "settings": ["", "a" * 1000]}, "at most 600"),
        ("calculator", {"model": "../../etc"}, "cannot be used as a hub id"),
        ("calculator", {"model": "gpt-2", "memory": float("inf")}, "memory must be a device's GiB"),
        ("calculator", {"model": "gpt-2", "gpu": "<b>"}, "gpu: Input should be 't4'"),
        ("calculator", {"model": "gpt-2", "longest": 10**40}, "longest"),
    ],
)
def test_invalid_arguments_are_refused_with_a_reason(
    server: str, name: str, arguments: dict[str, Any], says: str
) -> None:
    event, data = call(server, name, arguments)
    assert event == "error"
    assert any(words in json.loads(data)["error"] for words in says.split("|"))


def test_gradios_client_raises_errors_and_stays_usable(client: Client) -> None:
    with pytest.raises(AppError, match="The prompt is empty"):
        ask(client, "run", prompt="")
    assert ask(client, "run", prompt=PROMPT, max_tokens=2)["reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("call/nothing", b'{"data": []}', 404, "there are run, compare, calculator"),
        ("call/v2/page", b"{}", 404, "there are run, compare, calculator"),
        ("call/run/nothing", b"{}", 405, "Call with POST"),
        ("run/run", b'{"data": ["A fox"]}', 404, "nothing at this address"),
        ("api/predict", b'{"data": []}', 404, "nothing at this address"),
        ("process_recording", b"{}", 404, "nothing at this address"),
        ("vibe-edit", b'{"data": [NaN]}', 404, "nothing at this address"),
        ("run/predict", b'{"data": []}', 422, "fn_index"),  # the pages' route, but no event of theirs
        *[
            (path, b'{"data": [], "session_hash": "a", "fn_index": ' + number + b"}", 422, "")
            for path in ("run/predict", "queue/join")
            for number in (b"-1", b"1" + b"0" * 30, b"true", b"1.0", b"NaN", b"0")
        ],
        ("queue/join", b'{"data": [], "fn_index": "\\ud800", "session_hash": "a"}', 422, "half a character"),
        ("queue/join", b'{"data": NaN, "fn_index": RUN, "session_hash": "a"}', 422, "data: "),
        ("queue/join", b'{"data": [], "fn_index": RUN, "session_hash": "a"}', 422, " values, not 0"),
        ("cancel", b'{"data": [NaN]}', 422, "session_hash: Field required"),
        ("reset", b'{"data": [NaN]}', 422, "event_id: Field required"),
        ("component_server", b"[]", 422, "a JSON object"),
        (
            "component_server",
            b'{"data": 1, "component_id": 99999, "session_hash": "a", "fn_name": "x"}',
            404,
            "no such",
        ),
        ("component_server", b'{"data": 1, "component_id": 1, "session_hash": "a", "fn_name": "get_config"}', 404, ""),
        ("call/v2/calculator", b"{}", 422, "No value provided for required argument: model"),
        ("call/v2/run", b'{"prompt": "a", "nonsense": 1}', 422, "nonsense"),
        ("call/v2/run", b'{"prompt": "a", "' + b"a" * 10**6 + b'": 1}', 422, "Parameter `aaa"),
        ("call/v2/run", b"nonsense", 422, "JSON"),
        ("call/v2/run", b'{"prompt":"\xff"}', 422, "JSON"),
        ("call/v2/run", '{"prompt":"a"}'.encode("utf-16"), 422, "JSON"),
        ("call/v2/run", b"[1]", 422, "dictionary"),
        ("call/run", b'{"data": 5}', 422, "list"),
        ("call/run", b'{"data": ["A fox"]}', 422, "values in their order, not 1"),
        ("call/run/", b'{"data": ["A fox"]}', 422, "values in their order, not 1"),
        ("call/v2/run", b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 422, "too deep"),
        ("call/v2/run", b'{"prompt": ' + b"[" * 9_000 + b"]" * 9_000 + b"}", 422, "too deep"),
        ("call/v2/run", b'{"prompt": ' + b"[" * 100 + b"]" * 100 + b"}", 422, "too deep"),
        ("mcp/", b'{"a":' * 9_000 + b"1" + b"}" * 9_000, 422, "too deep"),
        ("call/v2/run", b'{"prompt": [' + b"1," * 10_000 + b"1]}", 413, "too many values"),
        ("call/v2/run", b'{"max_tokens": ' + b"9" * 5000 + b"}", 422, "thousands of digits"),
        ("call/v2/run", b'{"prompt": "' + b"a" * 100 * 2**20 + b'"}', 413, "More than 2 MiB"),
        ("mcp/", b'{"params": {"name": "run", "arguments": {"prompt": "\\ud800"}}}', 422, "half a character"),
        ("upload", b"{}", 400, "content type"),
    ],
)
def test_invalid_requests_get_a_client_error_with_a_reason(
    server: str, path: str, body: bytes, status: int, says: str
) -> None:
    found, answer = post(f"{server}/gradio_api/{path}", body.replace(b"RUN", str(number_of_run(server)).encode()))
    assert found == status
    assert says in answer
    assert len(answer) < 500  # the body is not echoed back


@functools.cache
def number_of_run(server: str) -> int:
    """The number of the event of the Lab's Run button."""
    config = json.loads(get(f"{server}/config")[1])
    button = next(it["id"] for it in config["components"] if it["props"].get("elem_id") == "run")
    return next(it["id"] for it in config["dependencies"] if [button, "click"] in it["targets"])


def test_a_body_of_another_kind_gets_a_client_error(server: str) -> None:
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        for body in (b'{"prompt":"\xff"}', b'{"prompt":"a"}'):
            found, answer = post(f"{server}/gradio_api/call/v2/run", body, kind)
            assert found == 422
            assert len(json.loads(answer)["detail"]) > 10
    form = b'--x\r\nContent-Disposition: form-data; name="files"\r\n\r\n{}\r\n--x--\r\n'
    assert post(f"{server}/gradio_api/upload", form, "multipart/form-data; boundary=x")[0] == 422


def test_an_upload_that_is_too_large_or_broken_off_leaves_nothing(server: str, sent: Path) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="files"; filename="1.json"\r\n\r\n{}\r\n'
    kind, there = "multipart/form-data; boundary=x", set(sent.rglob("*"))
    found, answer = post(f"{server}/gradio_api/upload", part + b" " * 17 * 2**20 + b"\r\n--x--\r\n", kind)
    assert (found, "at most 16 MiB" in answer) == (413, True)
    host, port = server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as line:
        head = f"POST /gradio_api/upload HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\nContent-Length: 9000000"
        line.sendall(f"{head}\r\n\r\n".encode() + part + b" " * 2**22)
    time.sleep(0.5)
    until(lambda: set(sent.rglob("*")) == there)


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("monitoring", 403, "not enabled"),
        ("gradio_api/call/run/nothing", 404, "no such event here"),
        ("gradio_api/call/v2/run/nothing", 404, "no such event here"),
        ("gradio_api/call/v2/run", 405, "Call with POST"),  # for Gradio: a function "v2", and its event "run"
        ("gradio_api/call/page/nothing", 404, "there are run, compare, calculator"),
        ("gradio_api/queue/data?session_hash=nobodys", 200, '"session_not_found":true'),
        ("gradio_api/queue/data", 422, "session_hash: Field required"),
        ("pwa_icon/0", 404, "nothing at this address"),
        ("gradio_api/deep_link?session_hash=a", 404, "nothing at this address"),
        ("gradio_api/file=http://127.0.0.1:9/", 404, "nothing at this address"),
        ("gradio_api/proxy=http://127.0.0.1:9/", 404, "nothing at this address"),
        ("gradio_api/run-history/buckets", 404, "nothing at this address"),  # asks with a saved token: CVE-2026-134825
        ("gradio_api/mcp/sse", 404, "nothing at this address"),  # a call by this transport would outlive its caller
        ("gradio_api/mcp/messages/?session_id=a", 404, "nothing at this address"),
        ("gradio_api/mcp/schema", 200, '"name":"calculator"'),
        ("?page=nothing", 404, "nothing at this address"),
        ("?page=compare&page=nothing", 404, "nothing at this address"),  # of several, Gradio reads the last
        ("?page=nothing&page=compare", 200, "<html"),
        ("assets/" + "a" * 1000, 404, "nothing at this address"),
        ("static/" + "%C3%A9" * 200, 404, "nothing at this address"),  # a name's length is in bytes
    ],
)
def test_routes_that_the_lab_does_not_need_are_closed(server: str, path: str, status: int, says: str) -> None:
    found, answer = get(f"{server}/{path}")
    assert found == status
    assert says in answer


def test_a_file_that_cannot_be_stored_is_refused_with_the_reason(server: str, sent: Path) -> None:
    (folder,) = sent.glob("decode-lab-uploads-*")
    folder.rename(aside := sent / "aside")
    folder.touch()  # where no file can be made, as on a full disk
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.json"\r\n\r\n{}\r\n--x--\r\n'
    try:
        found, answer = post(f"{server}/gradio_api/upload", body, "multipart/form-data; boundary=x")
    finally:
        folder.unlink()
        aside.rename(folder)
    assert found == 507
    assert json.loads(answer)["detail"].startswith("The server cannot store this file: ")
    assert post(f"{server}/gradio_api/upload", body, "multipart/form-data; boundary=x")[0] == 200


def test_no_request_body_keeps_others_waiting(app: tuple[str, subprocess.Popen]) -> None:
    """Neither those over a limit nor the largest within. A wait is the CPU time that the server spent meanwhile."""
    server, process = app[0], psutil.Process(app[1].pid)
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
            for path in ("call/v2/run", "queue/join", "mcp/"):
                there = others.submit(post, f"{server}/gradio_api/{path}", body)
                while not there.done():
                    begun = sum(process.cpu_times()[:2])
                    get(f"{server}/health")
                    waits.append(sum(process.cpu_times()[:2]) - begun)
                found, answer = there.result()
                assert 400 <= found < 500
                assert len(answer) < 500
    assert max(waits) < 3  # a tenth of that on an idle machine


def test_no_two_parts_of_a_page_have_one_id(server: str) -> None:
    """Scripts and styles find the parts by it. A setting once had the Stop button's, which then stopped nothing."""
    config = json.loads(get(f"{server}/config")[1])
    ids = {it["id"]: it["props"].get("elem_id") for it in config["components"]}
    for name, page in config["page"].items():
        shown = [ids[number] for number in page["components"] if ids.get(number)]
        assert shown, name
        assert len(shown) == len(set(shown)), name
