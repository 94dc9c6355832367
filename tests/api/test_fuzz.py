"""Any value and any body gets an answer or an explanation."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.registry import LISTED
from tests.api.calls import FILE, PROMPT, call, post
from visualize.api.endpoints import NAMES

pytestmark = pytest.mark.slow

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=5), some, max_size=3),
    max_leaves=5,
)


def values(kind: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a type of the schema, sensible and not."""
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


@pytest.fixture(scope="package")
def parameters(server: str) -> dict[str, dict[str, dict[str, Any]]]:
    """The parameters of each function, with their types."""
    with urllib.request.urlopen(f"{server}/gradio_api/info") as answer:
        endpoints = json.load(answer)["named_endpoints"]
    return {name: {it["parameter_name"]: it["type"] for it in endpoints[f"/{name}"]["parameters"]} for name in SOUND}


SOUND = {
    "run": {"prompt": PROMPT, "max_tokens": 2},
    "compare": {"prompt": PROMPT, "settings": ["", "paged=true"], "repeats": 1, "max_tokens": 2},
    "calculator": {"model": "gpt-2"},
}


@settings(max_examples=20)
@given(data=st.data())
def test_any_argument_gets_an_answer_or_an_explanation(
    server: str, parameters: dict[str, dict[str, dict[str, Any]]], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([name for name in NAMES for _ in parameters[name]]))
    places = data.draw(st.lists(st.sampled_from(list(parameters[name])), min_size=1, max_size=4, unique=True))
    asked = {place: data.draw(values(parameters[name][place]) | JUNK, place) for place in places}
    if "kernels" in asked:
        asked.pop("torch_compile", None)  # compiling the layers takes half a minute
    if str(asked.get("pair")) in LISTED:
        del asked["pair"]  # it would be fetched
    event, answer = call(server, name, SOUND[name] | asked)
    assert event == "complete" or len(json.loads(answer)["error"]) > 10


ADDRESSES = [
    *[f"call/{version}{name}" for version in ("", "v2/") for name in (*NAMES, "page", "run/x")],
    *["run/predict", "run/run", "api/predict", "queue/join", "cancel", "reset", "component_server", "mcp/", "upload"],
    *["heartbeat/x", "queue/data", "vibe-edit", "process_recording", "stream/x", "file=x"],
]
ANY_TEXT = st.text(st.characters(codec=None), max_size=8)  # including lone surrogates
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


@settings(max_examples=100)
@given(
    address=st.sampled_from(ADDRESSES),
    body=BODIES,
    kind=st.sampled_from(["application/json", "text/plain", "multipart/form-data; boundary=x", ""]),
)
def test_any_body_at_any_route_gets_no_server_error(server: str, address: str, body: bytes, kind: str) -> None:
    status, answer = post(f"{server}/gradio_api/{address}", body, kind)
    assert status == 200 or 400 <= status < 500
    assert len(answer) < 1000


@settings(max_examples=30)
@given(data=st.data())
def test_any_value_sent_as_by_a_page_is_accepted_or_refused_with_a_reason(
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
