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


def test_changing_metrics_and_the_models_are_read(server: Server) -> None:
    first, second = complete(server.read()), complete(server.read())
    assert second.values[GENERATED] - first.values[GENERATED] == 120
    assert second.at > first.at
    assert complete(server.models()) == (MODEL,)


def test_a_model_is_asked_for_by_its_whole_name(server: Server, vllm: ScriptedVLLM) -> None:
    """A model from a folder has the folder's path for a name."""
    vllm.model = "/far" * 100 + "/model"
    assert complete(server.models()) == (vllm.model,)


def test_an_answer_streams_in_pieces_and_ends_with_its_rounds(server: Server, vllm: ScriptedVLLM) -> None:
    how = {"seed": 7, "temperature": 0.5, "top_k": 40, "top_p": 0.9, "stop": ["zz"], "ignore_eos": True}
    *pieces, end = complete(answer(server, **how))
    assert "".join(pieces) == "".join(f" {word}" for word in WORDS)
    assert end == CompletionEnd("length", 5, len(WORDS), ReportedRounds(DRAFTED, ACCEPTED))
    [asked] = vllm.asked
    expected = {"model": MODEL, "prompt": "Once", "max_tokens": 16, "min_p": 0, "repetition_penalty": 1, "stream": True}
    assert asked == expected | how | {"stream_options": {"include_usage": True}}


def test_no_sampling_is_left_to_the_models_own_defaults(server: Server, vllm: ScriptedVLLM) -> None:
    """vLLM takes what a request leaves out from the model's generation_config.json: for Qwen3 20 tokens and 0.95."""
    complete(answer(server, temperature=1.0))
    [asked] = vllm.asked
    sampling = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1}
    assert {name: asked.get(name) for name in sampling} == sampling
    assert not {"seed", "stop", "ignore_eos"} & asked.keys()


def test_an_answer_without_its_rounds_is_accepted(server: Server, vllm: ScriptedVLLM) -> None:
    vllm.spec = False
    *pieces, end = complete(answer(server))
    assert len(pieces) == len(WORDS)
    assert end.rounds is None


def test_an_answer_that_ended_before_its_first_round_has_none() -> None:
    """vLLM leaves empty lists out."""
    assert reported_rounds({"num_spec_steps": 0, "num_drafted": 0, "num_accepted": 0}) == ReportedRounds((), ())


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {"num_spec_steps": 3},  # a server that reports sums only
        {"per_step_drafted": [4]},
        {"per_step_drafted": [4], "per_step_accepted": [5]},
        {"per_step_drafted": [4, 4], "per_step_accepted": [1]},
        {"per_step_drafted": [float("inf")], "per_step_accepted": [1]},
        {"per_step_drafted": ["4"], "per_step_accepted": [1]},
        {"per_step_drafted": [True], "per_step_accepted": [True]},
        {"per_step_drafted": [4], "per_step_accepted": [-1]},
        {"per_step_drafted": [4, 4], "per_step_accepted": [1, 5]},
    ],
)
def test_malformed_rounds_are_dropped(said: object) -> None:
    assert reported_rounds(said) is None


def test_of_more_rounds_than_any_answer_has_the_first_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "MOST_ROUNDS", 2)
    said = {"per_step_drafted": [4, 4, 4], "per_step_accepted": [1, 2, 3]}
    assert reported_rounds(said) == ReportedRounds((4, 4), (1, 2))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("redirect", "not followed"),
        ("html", "Prometheus"),
        ("large", "more than 8 MiB"),
        ("key", "VLLM_API_KEY"),
        ("gone", "404"),
    ],
)
def test_an_unexpected_page_is_refused_with_the_reason(
    server: Server, vllm: ScriptedVLLM, wrong: str, says: str
) -> None:
    vllm.wrong["/metrics"] = wrong
    with pytest.raises(ServerError, match=says):
        complete(server.read())
    vllm.wrong["/v1/models"] = wrong
    if wrong != "html":
        with pytest.raises(ServerError, match=says):
            complete(server.models())


def test_why_there_is_no_connection_is_said(
    server: Server, vllm: ScriptedVLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(address: str) -> str:
        with pytest.raises(ServerError) as told:
            complete(Server(address).read())
        return str(told.value)

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


def test_a_file_without_certificates_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "missing.pem", Path(__file__)):
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        with pytest.raises(ConfigError, match=f"The file that SSL_CERT_FILE names, '{file}', has no certificates"):
            Server("https://gpu")
        assert Server("http://gpu").address == "http://gpu"  # which needs none


def test_a_silent_server_is_reported(server: Server, vllm: ScriptedVLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "READ_S", 0.1)
    vllm.wrong["/metrics"] = "silent"
    with pytest.raises(ServerError, match=r"said nothing for 0\.1 s"):
        complete(server.read())


def test_an_endless_answer_is_reported(server: Server, vllm: ScriptedVLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "WHOLE_S", 0.3)
    vllm.wrong["/metrics"] = "endless"
    with pytest.raises(ServerError, match=r"has not answered in full after 0\.3 s"):
        complete(server.read())


def test_an_answer_that_goes_on_after_all_its_tokens_is_ended(server: Server, vllm: ScriptedVLLM) -> None:
    """What was held back, for it may have begun a stop string, may come as one piece more."""
    vllm.words = ("a",) * 17
    assert len(complete(answer(server))) == 17 + 1
    vllm.endless = True
    with pytest.raises(ServerError, match="goes on after 16 tokens, all it was asked for"):
        complete(answer(server))


@pytest.mark.parametrize(("wrong", "model"), [("html", MODEL), ("", "tiny \ud83d")])
def test_a_malformed_list_of_models_is_refused_with_the_reason(
    server: Server, vllm: ScriptedVLLM, wrong: str, model: str
) -> None:
    vllm.wrong["/v1/models"], vllm.model = wrong, model
    with pytest.raises(ServerError, match="not a list of models"):
        complete(server.models())


@pytest.mark.parametrize(
    ("path", "wrong", "says"),
    [
        ("/v1/completions", "long", "maximum context length is 1024 tokens"),
        ("/v1/completions", "gone", "404.*is this the address"),
        ("/v1/completions", "unnamed", "The model `tiny` does not exist"),
        ("/v1/completions", "large", "a line without an end"),
        ("stream", "error", "the engine died"),
        ("stream", "garbage", "not stream JSON"),
    ],
)
def test_a_failed_completion_is_reported_with_the_reason_given(
    server: Server, vllm: ScriptedVLLM, path: str, wrong: str, says: str
) -> None:
    vllm.wrong[path] = wrong
    with pytest.raises(ServerError, match=says):
        complete(answer(server))


class Told(httpx.AsyncBaseTransport):
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


def told(*portions: bytes, **how: Any) -> Server:
    return Server("http://vllm", transport=Told(*portions, **how))


FIRST = b'data: {"choices": [{"text": " one", "finish_reason": null}], "error": null}'
LAST = b'data: {"choices": [{"text": " two", "finish_reason": "length"}]}'


def test_an_answer_that_broke_off_after_it_began_is_told_without_a_guess_why() -> None:
    class Breaks(Told):
        async def _said(self) -> AsyncIterator[bytes]:
            yield FIRST + b"\n\n"
            raise httpx.ReadError("reset")

    with pytest.raises(ServerError, match=r"broke off \(ReadError\)\.$"):
        complete(answer(Server("http://vllm", transport=Breaks())))


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@given(cuts=st.sets(st.integers(0, len(FIRST + LAST) + 40), max_size=6), done=st.booleans())
def test_lines_end_as_in_the_standard_wherever_the_stream_is_cut(end: bytes, cuts: set[int], done: bool) -> None:
    """https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream; here the last line may
    also end with the connection."""
    stream = end.join([b": a remark", FIRST, b"event: message", b"data:", LAST] + [b"data: [DONE]", b""] * done)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    portions = [stream[begin:finish] for begin, finish in pairwise(places)]
    *pieces, last = complete(answer(told(*portions)))
    assert pieces == [" one", " two"]
    assert last.finish_reason == "length"


def test_a_finished_stream_is_not_waited_for() -> None:
    began = time.monotonic()
    *pieces, _ = complete(answer(told(FIRST + b"\n\n" + LAST + b"\n\ndata: [DONE]\n\n", holds=True)))
    assert pieces == [" one", " two"]
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "stream",
    [FIRST + b"\n\n", FIRST + b"\n\n" + LAST[:20], b'{"choices": [{"text": " one"}]}', b"<html>hello</html>", b""],
    ids=["no end", "cut", "no stream", "a page", "nothing"],
)
def test_an_answer_without_a_finish_reason_is_refused(stream: bytes) -> None:
    with pytest.raises(ServerError, match=r"http://vllm/v1/completions (ended without a reason|does not stream JSON)"):
        complete(answer(told(stream)))


def test_a_compressed_answer_is_refused_with_its_encoding() -> None:
    for asked in (answer, Server.read, Server.models):
        with pytest.raises(ServerError, match="compressed as gzip"):
            complete(asked(told(b"\x1f\x8b\x08", content_encoding="gzip")))


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (503, b'{"error": {"message": "the model is asleep"}}', "status 503: the model is asleep."),
        (429, b'{"message": "too many"}', "status 429: too many."),
        (401, b'{"error": "Unauthorized"}', "VLLM_API_KEY. It says: Unauthorized"),
        (422, b'{"detail": [{"loc": ["body", "top_k"], "msg": "Input should be an integer"}]}', "top_k: Input should"),
        (422, b'{"detail": "no such thing"}', "status 422: no such thing."),
        (500, b"<html>", r"status 500\."),
        (500, b'{"detail": [7, {"loc": 3}]}', r"status 500\."),
    ],
)
def test_the_reason_a_server_gives_for_a_refusal_is_reported(status: int, body: bytes, says: str) -> None:
    with pytest.raises(ServerError, match=says):
        complete(answer(told(body, status=status)))


def test_an_address_without_a_server_is_reported() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = Server(f"http://127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(ServerError, match="is the server running there"):
            complete(server.read())


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


def test_a_lone_surrogate_in_an_answer_is_replaced() -> None:
    """The page is sent as UTF-8, which cannot encode it."""
    assert CompletionReader().take({"choices": [{"text": " half \ud83d here"}]}) == " half ? here"
