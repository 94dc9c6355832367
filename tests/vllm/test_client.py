"""The client of a vLLM server, tested with a scripted one: what it requests, and how it reports failures."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from lab.config import SamplingParams
from lab.errors import ConfigError
from lab.vllm import client as remote
from lab.vllm import completion
from lab.vllm.client import Server, ServerError
from lab.vllm.completion import CompletionEnd, CompletionReader, ReportedRounds, reported_rounds
from lab.vllm.server_metrics import GENERATED
from tests.coroutines import complete
from tests.vllm.scripted_vllm import ACCEPTED, DRAFTED, MODEL, WORDS, ScriptedVLLM, serving
from tests.waiting import until


@pytest.fixture
def vllm() -> ScriptedVLLM:
    return ScriptedVLLM()


@pytest.fixture
def server(vllm: ScriptedVLLM) -> Iterator[Server]:
    with serving(vllm) as address:
        yield Server(address)


async def answer(server: Server, **sampling: float) -> list[str | CompletionEnd]:
    asked = SamplingParams(**{"max_tokens": 16} | sampling)
    return [piece async for piece in server.complete(MODEL, "Once", asked)]


def test_changing_metrics_and_the_models_are_read(server: Server, vllm: ScriptedVLLM) -> None:
    first, second = complete(server.read()), complete(server.read())
    assert second.values[GENERATED] - first.values[GENERATED] == 120
    assert second.at > first.at
    assert complete(server.models()) == (MODEL,)
    vllm.model = "/far" * 100 + "/model"  # a model from a folder has the folder's path for a name
    assert complete(server.models()) == (vllm.model,)
    vllm.model = "tiny \ud83d"  # which could not be sent back
    with pytest.raises(ServerError, match="not a list of models"):
        complete(server.models())


def test_an_answer_streams_in_pieces_and_ends_with_its_rounds(server: Server, vllm: ScriptedVLLM) -> None:
    how = {"seed": 7, "temperature": 0.5, "top_k": 40, "top_p": 0.9, "stop": ["zz"], "ignore_eos": True}
    *pieces, end = complete(answer(server, **how))
    assert "".join(pieces) == "".join(f" {word}" for word in WORDS)
    assert end == CompletionEnd("length", 5, len(WORDS), ReportedRounds(DRAFTED, ACCEPTED))
    [asked] = vllm.asked
    expected = {"model": MODEL, "prompt": "Once", "max_tokens": 16, "min_p": 0, "repetition_penalty": 1, "stream": True}
    assert asked == expected | how | {"stream_options": {"include_usage": True}}
    # vLLM takes what a request leaves out from the model's generation_config.json: for Qwen3 20 tokens and 0.95.
    vllm.spec = False
    *_, end = complete(answer(server, temperature=1.0))
    assert end.rounds is None
    sampling = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1}
    assert {name: vllm.asked[-1].get(name) for name in sampling} == sampling
    assert not {"seed", "stop", "ignore_eos"} & vllm.asked[-1].keys()
    assert CompletionReader().take({"choices": [{"text": " half \ud83d here"}]}) == " half ? here"


@pytest.mark.parametrize(
    ("given", "rounds"),
    [
        ({"num_spec_steps": 0, "num_drafted": 0}, ReportedRounds((), ())),  # vLLM leaves empty lists out
        ({"per_step_drafted": [4, 4, 4], "per_step_accepted": [1, 2, 3]}, ReportedRounds((4, 4), (1, 2))),  # too many
        *((none, None) for none in (None, [], {"num_spec_steps": 3}, {"per_step_drafted": [4]})),
        ({"per_step_drafted": [4], "per_step_accepted": [5]}, None),
        ({"per_step_drafted": [4, 4], "per_step_accepted": [1]}, None),
        ({"per_step_drafted": [float("inf")], "per_step_accepted": [1]}, None),
        ({"per_step_drafted": ["4"], "per_step_accepted": [1]}, None),
        ({"per_step_drafted": [True], "per_step_accepted": [True]}, None),
        ({"per_step_drafted": [4], "per_step_accepted": [-1]}, None),
    ],
)
def test_rounds_are_kept_if_they_make_sense(monkeypatch, given: object, rounds: ReportedRounds | None) -> None:
    monkeypatch.setattr(completion, "MAX_ROUNDS", 2)
    assert reported_rounds(given) == rounds


@pytest.mark.parametrize(
    ("path", "wrong", "word"),
    [
        ("/metrics", "redirect", "not followed"),
        ("/metrics", "html", "Prometheus"),
        ("/metrics", "large", "more than 8 MiB"),
        ("/metrics", "key", "VLLM_API_KEY"),
        ("/metrics", "gone", "404"),
        ("/metrics", "silent", "0.1 s"),
        ("/metrics", "endless", "in full"),
        ("/v1/models", "redirect", "not followed"),
        ("/v1/models", "key", "VLLM_API_KEY"),
        ("/v1/models", "html", "not a list of models"),
        ("/v1/completions", "long", "maximum context length is 1024 tokens"),
        ("/v1/completions", "gone", "404"),
        ("/v1/completions", "unnamed", "The model `tiny` does not exist"),
        ("/v1/completions", "large", "a line without an end"),
        ("stream", "error", "the engine died"),
        ("stream", "garbage", "not stream JSON"),
    ],
)
def test_a_failure_is_reported_with_its_reason(server: Server, vllm, monkeypatch, path, wrong, word) -> None:
    if wrong in ("silent", "endless"):
        monkeypatch.setattr(remote, "READ_SECONDS" if wrong == "silent" else "PAGE_SECONDS", 0.1)
    vllm.wrong[path] = wrong
    ask = {"/metrics": Server.read, "/v1/models": Server.models}.get(path, answer)
    with pytest.raises(ServerError) as refused:
        complete(ask(server))
    assert word in str(refused.value)


def test_why_there_is_no_connection_is_said(
    server: Server, vllm: ScriptedVLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(address: str) -> str:
        with pytest.raises(ServerError) as reported:
            complete(Server(address).read())
        return str(reported.value)

    assert "no host of this name" in refused("http://no-such-host.invalid:8000")
    assert "does not speak https. Try http" in refused(server.address.replace("http", "https"))
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        assert "is the server running there?" in refused(f"http://127.0.0.1:{taken.getsockname()[1]}")
    authority, whole = trustme.CA(), tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(whole))
    with serving(vllm, certificate=whole) as address:
        assert "certificate is not trusted here" in refused(address)
        assert "Does it speak https?" in refused(address.replace("https", "http"))
        authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        assert GENERATED in complete(Server(address).read()).values
        by_another_name = refused(address.replace("127.0.0.1", "localhost"))
        assert "not valid for 'localhost'). Give the address with a name that is in the certificate." in by_another_name
        assert "SSL_CERT_FILE" not in by_another_name  # it would not help


@pytest.mark.parametrize("alert", [40, 70, 112], ids=["no common cipher", "another version", "unknown name"])
def test_a_server_that_refuses_to_speak_https_is_not_said_to_speak_http(alert: int) -> None:
    """Whoever then tried http would send the key for all to read."""

    def refuse(listening: socket.socket) -> None:
        with listening.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(bytes([21, 3, 3, 0, 2, 2, alert]))  # a fatal alert

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=refuse, args=[listening], daemon=True).start()
        with pytest.raises(ServerError, match=r"it refused to speak https \(\w+\)\."):
            complete(Server(f"https://127.0.0.1:{listening.getsockname()[1]}").read())


def test_an_answer_that_goes_on_after_all_its_tokens_is_ended(server: Server, vllm: ScriptedVLLM) -> None:
    """What was held back, for it may have begun a stop string, may come as one piece more."""
    vllm.words = ("a",) * 17
    assert len(complete(answer(server))) == 17 + 1
    vllm.endless = True
    with pytest.raises(ServerError, match="goes on after 16 tokens, all it was asked for"):
        complete(answer(server))


class Portions(httpx.AsyncBaseTransport):
    """A server that sends these bytes, in these portions, and then keeps the connection open if it ``holds``."""

    def __init__(self, *portions: bytes, status: int = 200, holds: bool = False, **headers: str) -> None:
        self.portions, self.status, self.holds = portions, status, holds
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(self.status, headers=self.headers, content=self._said())

    async def _said(self) -> AsyncIterator[bytes]:
        for portion in self.portions:
            yield portion
        if self.holds:
            await asyncio.sleep(60)


def serving_portions(*portions: bytes, **how: Any) -> Server:
    return Server("http://vllm", transport=Portions(*portions, **how))


FIRST = b'data: {"choices": [{"text": " one", "finish_reason": null}], "error": null}'
LAST = b'data: {"choices": [{"text": " two", "finish_reason": "length"}]}'


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@given(cuts=st.sets(st.integers(0, len(FIRST + LAST) + 40), max_size=6), done=st.booleans())
def test_lines_end_as_in_the_standard_wherever_the_stream_is_cut(end: bytes, cuts: set[int], done: bool) -> None:
    """https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream; here the last line may
    also end with the connection."""
    stream = end.join([b": a remark", FIRST, b"event: message", b"data:", LAST] + [b"data: [DONE]", b""] * done)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    portions = [stream[begin:finish] for begin, finish in pairwise(places)]
    *pieces, last = complete(answer(serving_portions(*portions)))
    assert pieces == [" one", " two"]
    assert last.finish_reason == "length"


def test_a_finished_stream_is_not_waited_for() -> None:
    began = time.monotonic()
    *pieces, _ = complete(answer(serving_portions(FIRST + b"\n\n" + LAST + b"\n\ndata: [DONE]\n\n", holds=True)))
    assert pieces == [" one", " two"]
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "stream",
    [FIRST + b"\n\n", FIRST + b"\n\n" + LAST[:20], b'{"choices": [{"text": " one"}]}', b"<html>hello</html>", b""],
    ids=["no end", "cut", "no stream", "a page", "nothing"],
)
def test_an_answer_without_a_finish_reason_is_refused(stream: bytes) -> None:
    with pytest.raises(ServerError, match=r"http://vllm/v1/completions (ended without a reason|does not stream JSON)"):
        complete(answer(serving_portions(stream)))


@pytest.mark.parametrize(
    ("status", "body", "word"),
    [
        (503, b'{"error": {"message": "the model is asleep"}}', "503: the model is asleep."),
        (429, b'{"message": "too many"}', "429: too many."),
        (401, b'{"error": "Unauthorized"}', "VLLM_API_KEY. It says: Unauthorized"),
        (422, b'{"detail": [{"loc": ["body", "top_k"], "msg": "Input should be an integer"}]}', "top_k: Input should"),
        (422, b'{"detail": "no such thing"}', "422: no such thing."),
        (500, b"<html>", "status 500."),
        (500, b'{"detail": [7, {"loc": 3}]}', "status 500."),
        (200, b"\x1f\x8b\x08", "compressed as gzip"),
    ],
)
def test_the_reason_a_server_gives_for_a_refusal_is_reported(status: int, body: bytes, word: str) -> None:
    packed = {"content_encoding": "gzip"} if status == 200 else {}
    for ask in (answer, Server.read, Server.models):
        with pytest.raises(ServerError) as refused:
            complete(ask(serving_portions(body, status=status, **packed)))
        assert word in str(refused.value)


def test_cancelling_an_answer_ends_the_request(server: Server, vllm: ScriptedVLLM) -> None:
    vllm.endless, vllm.pause = True, 0.01

    async def listen_for_a_while() -> None:
        listening = asyncio.ensure_future(answer(server))
        async with asyncio.timeout(30):
            while not vllm.asked:
                await asyncio.sleep(0.01)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    complete(listen_for_a_while())
    until(lambda: vllm.left == 1)


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch, vllm: ScriptedVLLM) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with serving(vllm) as address:
        assert complete(Server(f"{address}/v1/", key="secret").models()) == (MODEL,)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "http://a:b@host",
        "http://host:99999",
        "http://h/?a=1",
        "file:///etc",
        "http://é..:8000",
        "http://xn--/",
        "http://[v1.x]:1",
        "http://256.1.1.1",
    ],
)
def test_an_invalid_address_is_refused_with_the_reason(address: str) -> None:
    with pytest.raises(ConfigError, match="address of a vLLM server"):
        Server(address)
