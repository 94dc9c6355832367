"""Helpers to call the app with."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any

from gradio_client import Client

PROMPT = "Once upon a time"
FILE = {"path": "http://127.0.0.1:9/", "meta": {"_type": "gradio.FileData"}}


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
    """Call by name, as with curl: the event ("complete" or "error") and its data, or a status and its detail."""
    status, answer = post(f"{server}/gradio_api/call/v2/{name}", json.dumps(body).encode())
    if status != 200:
        return str(status), answer
    with urllib.request.urlopen(f"{server}/gradio_api/call/{name}/{json.loads(answer)['event_id']}") as stream:
        event, data = stream.read().decode().strip().split("\n")[-2:]
    return event.removeprefix("event: "), data.removeprefix("data: ")


def inside(server: str) -> int:
    """Visitors with something under way."""
    with urllib.request.urlopen(f"{server}/metrics") as answer:
        return int(float(re.search(r"^decode_lab:visits (.+)$", answer.read().decode(), re.MULTILINE)[1]))


def hung_on(server: str, name: str, body: Any) -> Any:
    """The stream of a call whose caller waits for the answer, and hangs up by closing it."""
    status, answer = post(f"{server}/gradio_api/call/v2/{name}", json.dumps(body).encode())
    assert status == 200
    return urllib.request.urlopen(f"{server}/gradio_api/call/{name}/{json.loads(answer)['event_id']}")


FOREVER = {"prompt": PROMPT, "kv_cache": False, "max_tokens": 1000, "ignore_eos": True}
