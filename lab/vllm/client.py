"""A client of one vLLM server: its metrics, its models, and a prompt sent to it.

It connects to the address it was made with and no other: redirects and the environment's proxies are not followed, and
no user of the page can name an address. Answers are limited in size and time, and every failure becomes a sentence.
"""

import asyncio
import json
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from lab.config import SamplingParams
from lab.errors import ConfigError, LabError
from lab.vllm.completion import CompletionEnd, CompletionReader, error_message
from lab.vllm.server_metrics import MetricsError, ServerMetrics, parse

CONNECT_SECONDS, READ_SECONDS, PAGE_SECONDS, ANSWER_SECONDS = 2.0, 5.0, 10.0, 120.0
"""Seconds to connect, between parts of a page, for a whole page, and between parts of an answer: a busy server lets a
prompt wait."""
MAX_LINE_BYTES = 2**18
"""Bytes of one message of an answer."""
MAX_BYTES = 8 * 2**20
"""Bytes of one answer. A server's metrics are 50 KB."""
MAX_MODELS, MAX_NAME = 16, 4096
"""Models that are listed, and characters of a name: vLLM calls a model from a folder by its path."""
UNKNOWN_SIGNER, OTHER_NAME = (18, 19, 20, 21), (62, 64)
"""OpenSSL's codes for certificates that no authority trusted here has signed, and for those of another host."""
ALERTS = ("SSLV3_ALERT_", "TLSV1_", "TLSV13_ALERT_")
"""How OpenSSL's names for what the other side says begin: it speaks TLS, then."""


class ServerError(LabError):
    """The server did not answer as a vLLM server does. The message says what to do."""


class Server:
    """A vLLM server at ``address`` (http or https; a path before /metrics and /v1 may be part of it).

    Args:
        address: as a person writes it, such as http://127.0.0.1:8000; a trailing /v1 is dropped.
        key: the server's ``--api-key``, if it has one. It is sent to that address and never shown.
        transport: how requests travel; None: over the network.

    Raises:
        ConfigError: not an address of this kind, a key that cannot be sent, or no certificates in ``SSL_CERT_FILE``.
    """

    def __init__(self, address: str, key: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.address = _checked(address)
        key = (key or "").strip()  # a key read from a file ends with a line break
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("The key of a vLLM server, in the variable VLLM_API_KEY, must be printable ASCII.")
        self._headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._transport = transport
        # Certificates are read once; http has none to check.
        self._verify = trusted() if self.address.startswith("https") else False

    async def read(self) -> ServerMetrics:
        """Its metrics now. Raises ServerError: it cannot be reached, or is no vLLM server."""
        page = await self._get("/metrics")
        try:
            return parse(page.decode("utf-8", "replace"), time.monotonic())
        except MetricsError as error:
            raise ServerError(f"{self.address}: {error}") from error

    async def models(self) -> tuple[str, ...]:
        """The models it serves, by name. Raises ServerError, as ``read``."""
        try:
            listed = json.loads(await self._get("/v1/models"))["data"]
            names = tuple(str(model["id"])[:MAX_NAME] for model in listed[:MAX_MODELS])
            "".join(names).encode()  # a lone surrogate, which JSON can express, could not be sent back with a prompt
            return names
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServerError(f"{self.address}/v1/models is not a list of models: is this a vLLM server?") from error

    async def complete(self, model: str, prompt: str, sampling: SamplingParams) -> AsyncIterator[str | CompletionEnd]:
        """Send a prompt; yields pieces of the answer's text as they come, then how it ended. Leaving early, or
        cancelling, closes the connection, and vLLM then ends the request. Raises ServerError, as ``read``, or if the
        server refused the prompt or broke off."""
        names = ("max_tokens", "temperature", "top_k", "top_p")
        asked = {"model": model, "prompt": prompt} | {name: getattr(sampling, name) for name in names}
        asked |= {"min_p": 0.0, "repetition_penalty": 1.0}  # like all of these, else as in generation_config.json
        asked |= {"stream": True, "stream_options": {"include_usage": True}}  # the last message then has the metrics
        others = {"seed": sampling.seed, "stop": list(sampling.stop) or None, "ignore_eos": sampling.ignore_eos or None}
        others["stop_token_ids"] = list(sampling.stop_token_ids) or None
        asked |= {name: value for name, value in others.items() if value is not None}
        answer, pieces = CompletionReader(), 0
        async with self._asked("POST", "/v1/completions", ANSWER_SECONDS, json=asked) as response:
            async for message in self._messages(response):
                if text := answer.take(message):
                    yield text
                    pieces += 1
                if pieces > sampling.max_tokens + 1:  # a piece has a token or more, but for what was held back at last
                    raise ServerError(
                        f"{self.address} goes on after {sampling.max_tokens:,} tokens, all it was asked for."
                    )
        end = answer.completed()
        if not end.finish_reason:
            raise ServerError(f"{self.address}/v1/completions ended without a reason: the answer may be cut short.")
        yield end

    async def _get(self, path: str) -> bytes:
        try:
            async with asyncio.timeout(PAGE_SECONDS), self._asked("GET", path, READ_SECONDS) as response:
                return b"".join([part async for part in self._limited(response)])
        except TimeoutError as error:  # it keeps sending, but never finishes
            raise ServerError(f"{self.address}{path} has not answered in full after {PAGE_SECONDS:g} s.") from error

    @asynccontextmanager
    async def _asked(self, method: str, path: str, patience: float, **body: Any) -> AsyncIterator[httpx.Response]:
        timeout, answered = httpx.Timeout(patience, connect=CONNECT_SECONDS), False
        how = {"verify": self._verify, "transport": self._transport, "timeout": timeout, "headers": self._headers}
        try:
            async with (
                httpx.AsyncClient(**how, trust_env=False) as client,
                client.stream(method, self.address + path, **body) as response,
            ):
                answered = True
                if response.status_code != 200:
                    raise ServerError(await self._refusal(response, path))
                if (packed := response.headers.get("Content-Encoding", "identity")) != "identity":
                    raise ServerError(
                        f"{self.address}{path} comes compressed as {packed[:20]}, which was not asked for: is "
                        "there a proxy in front of the server?"
                    )
                yield response
        except httpx.ConnectTimeout as error:
            late = f"{self.address} did not answer within {CONNECT_SECONDS:g} s: is the address right?"
            raise ServerError(late) from error
        except httpx.ConnectError as error:
            raise ServerError(f"There is no connection to {self.address}: {_trouble(error)}") from error
        except httpx.TimeoutException as error:
            raise ServerError(f"{self.address}{path} sent nothing for {patience:g} s.") from error
        except httpx.HTTPError as error:
            hint = "" if answered or self._verify else " Does it speak https? Then its address begins so."
            raise ServerError(f"{self.address}{path} broke off ({type(error).__name__}).{hint}") from error

    async def _refusal(self, response: httpx.Response, path: str) -> str:
        status, where = response.status_code, self.address + path
        if 300 <= status < 400:
            return f"{where} redirects ({status}), which is not followed: give the address it leads to."
        reason = error_message(b"".join([part async for part in self._limited(response)]))
        if status in (401, 403):
            wants = f"{where} needs a key: start the lab with the server's own in the variable VLLM_API_KEY."
            return f"{wants} It says: {reason}." if reason else wants
        if status == 404 and reason in ("", "Not Found"):  # all that FastAPI says about an unknown path
            return f"{where} does not exist (404): is this the address of a vLLM server?"
        return f"{where} refused with status {status}{f': {reason}' if reason else ''}."

    async def _limited(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The content as it arrives, not decompressed: a few compressed bytes can expand to many."""
        size = 0
        async for part in response.aiter_raw():
            size += len(part)
            if size > MAX_BYTES:
                raise ServerError(f"{response.url} sent more than {MAX_BYTES >> 20} MiB: that is not a vLLM answer.")
            yield part

    async def _messages(self, response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        """The messages of server-sent events, up to "[DONE]" or the end."""
        async for line in self._lines(response):
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return  # the connection may stay open
            if not data or data == line.strip():
                continue
            try:
                message = json.loads(data)
            except (ValueError, RecursionError) as error:
                raise ServerError(f"{response.url} does not stream JSON: is this a vLLM server?") from error
            if not isinstance(message, dict) or message.get("error") is not None:
                raise ServerError(
                    f"{self.address} broke the answer off: {error_message(data) or 'it gives no reason'}."
                )
            yield message

    async def _lines(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Lines as they come, with their line ends. The second byte of a CRLF may become a line of its own."""
        rest = b""
        async for part in self._limited(response):
            lines = (rest + part).splitlines(keepends=True)
            rest = lines.pop() if lines and not lines[-1].endswith((b"\n", b"\r")) else b""
            if len(rest) > MAX_LINE_BYTES:  # otherwise every part would be appended to all before it
                raise ServerError(f"{response.url} sends a line without an end: is this a vLLM server?")
            for line in lines:
                yield line
        yield rest


def _trouble(error: BaseException) -> str:
    """Why there is no connection, and what to do. The reason is somewhere among the causes."""
    causes = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            problem = f"its certificate is not trusted here ({cause.verify_message.strip('.')})."
            if cause.verify_code in OTHER_NAME:
                return f"{problem} Give the address with a name that is in the certificate."
            if cause.verify_code in UNKNOWN_SIGNER:
                signer = "a file with the certificate of whoever signed it"
                return f"{problem} Start the lab with the variable SSL_CERT_FILE: {signer}."
            return problem
        if isinstance(cause, ssl.SSLError) and (cause.reason or "").startswith(ALERTS):
            return f"it refused to speak https ({cause.reason}). Some servers do unless the address has their name."
        if isinstance(cause, ssl.SSLError):
            return "what answers there does not speak https. Try http."
        if isinstance(cause, socket.gaierror):
            return "no host of this name was found."
    return "is the server running there?"


def trusted() -> ssl.SSLContext:
    """The certificates that are trusted here. Raises ConfigError: there are none in ``SSL_CERT_FILE``."""
    try:
        return httpx.create_ssl_context()
    except OSError as error:  # as OpenSSL's own are
        raise ConfigError(
            f"The file that SSL_CERT_FILE names, {os.environ.get('SSL_CERT_FILE')!r}, has no certificates that can be "
            f"read ({error.strerror})."
        ) from error


def _checked(address: str) -> str:
    try:
        parts = urlsplit(address.strip())
        _ = parts.port, httpx.URL(address.strip()).host  # the two reject different malformed parts
    except (ValueError, httpx.InvalidURL):
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or not address.strip().isprintable():
        raise ConfigError(f"The address of a vLLM server is like http://127.0.0.1:8000, not {address[:80]!r}.")
    if parts.username or parts.password:
        raise ConfigError(
            "The address of a vLLM server must not hold a name and password: use the variable VLLM_API_KEY."
        )
    if parts.query or parts.fragment:
        raise ConfigError(f"The address of a vLLM server must have no ? or #: {address[:80]!r}.")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
