"""Checks of what is sent to Gradio, before Gradio parses it: sizes, shapes, files, and values that a page offers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import gradio as gr
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse, Response

from visualize.text import visible

MOST_BYTES = 2 * 2**20
"""Most bytes of a document. A page sends at most what a browser keeps of a lesson, 1.5 million characters; a program at
most a prompt of 100,000 characters of up to twelve bytes each."""
MOST_VALUES = 10_000
"""Most values in a document. A page sends about thirty; a program may have up to a thousand stop strings."""
MOST_BETWEEN = 2**18
"""Most characters of a document outside strings: numbers, brackets, blanks."""
DEEPEST = 64
"""Most lists and objects nested within each other."""
STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A JSON string; also an unterminated one, at which parsing fails."""
TOO_DEEP = f"The JSON is too deep: lists and objects may be nested at most {DEEPEST} deep."
TOO_MANY = f"The JSON has too many values: no function here takes more than {MOST_VALUES:,}."
SERVER_FUNCTIONS = ("take_away",)
"""The names of the functions that components of pages call (``gr.HTML(server_functions=)``)."""

Document = dict[str, Any]


class Refusal(Exception):
    """A refused request: a status, and a sentence that may quote what the client sent. ``call``: the id of a call of a
    tool, which is answered as JSON-RPC has it: at an HTTP error, MCP's clients would end the session."""

    def __init__(self, status: int, detail: str, call: int | str | None = None) -> None:
        self.status, self.detail, self.call = status, visible(detail[:300]), call

    def response(self) -> Response:
        if self.call is None:
            return JSONResponse({"detail": self.detail}, self.status)
        error = {"code": -32602, "message": self.detail}  # invalid parameters
        return JSONResponse({"jsonrpc": "2.0", "id": self.call, "error": error})


class PageEvent(BaseModel):
    """An event that a page, or Gradio's own client, posts."""

    model_config = ConfigDict(strict=True)

    data: list[Any]
    fn_index: int
    session_hash: Annotated[str, Field(pattern=r"^[\w-]{1,64}$")]
    trigger_id: int | None = None
    event_data: Any = None


def parse(body: bytes) -> Any:
    """The JSON document in ``body``. Raises Refusal if it is no JSON, or larger or deeper than any client needs."""
    try:
        text = body.decode()
        # Counted before parsing: first the quotation marks of names and values, then what is between them.
        if text.count('"') - text.count('\\"') > 4 * MOST_VALUES:
            raise Refusal(413, TOO_MANY)
        between = STRING.sub("", text)
        if len(between) > MOST_BETWEEN or sum(map(between.count, ",[{")) > MOST_VALUES:
            raise Refusal(413, TOO_MANY)
        document = json.loads(text)
        level = [document]
        for _ in range(DEEPEST):
            level = [inner for outer in level for inner in _within(outer)]
        if level:
            raise Refusal(422, TOO_DEEP)
        json.dumps(document, ensure_ascii=False).encode()
    except RecursionError:
        raise Refusal(422, TOO_DEEP) from None
    except UnicodeEncodeError:
        raise Refusal(422, "What was sent is no valid text: it contains half a character (a lone surrogate).") from None
    except ValueError:
        raise Refusal(422, "What was sent is not JSON in UTF-8, or has a number with thousands of digits.") from None
    return document


def as_object(document: Any) -> Document:
    if not isinstance(document, dict):
        raise Refusal(422, "Post a JSON object (a dictionary) here, with a name for each value.")
    return document


def values_in_order(document: Any, function: Any) -> Document:
    """A program's call with its values in order, and nothing else: a session that the client names would outlive it."""
    values, wanted, name = as_object(document).get("data"), len(function.inputs), function.api_name
    if not isinstance(values, list):
        raise Refusal(422, "The values are missing: send a JSON object, with a list of them as its data.")
    if len(values) != wanted:
        raise Refusal(
            422, f"{name} takes {wanted} values in their order, not {len(values)}. By name, at call/v2, fewer will do."
        )
    return {"data": without_files(values)}


def tool_call(document: Any) -> Any:
    """A call of an MCP tool."""
    try:
        return without_files(document)
    except Refusal as refusal:
        call = document.get("id") if isinstance(document, dict) else None
        raise Refusal(refusal.status, refusal.detail, call if type(call) in (int, str) else None) from None


def page_event(document: Any, pages: gr.Blocks, programs: Collection[str], uploads: Path) -> Document:
    """A page's event, reduced to what Gradio uses, with every value one that its component takes."""
    try:
        event = PageEvent.model_validate(as_object(document))
    except ValidationError as error:
        first = error.errors()[0]
        raise Refusal(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
    function: Any = pages.fns.get(event.fn_index)
    if function is None or function.fn is None:
        raise Refusal(422, "There is no event with this number here: the page is out of date. Load it again.")
    wanted = len(function.inputs)
    if len(event.data) < wanted:
        raise Refusal(422, f"This event takes {wanted} values, not {len(event.data)}.")
    given = list(zip(function.inputs, event.data[:wanted], strict=True))
    event_data = event.event_data if isinstance(event.event_data, dict) else {}
    if any(kind == "upload" for _, kind in function.targets):
        values, event_data = [_uploaded(value, uploads) for _, value in given], {}
    else:
        without_files([event.data[:wanted], event_data])
        checks_itself = function.api_name in programs
        values = [value if checks_itself else _offered(block, value) for block, value in given]
    return {**event.model_dump(), "data": values, "event_data": event_data}


def component_call(document: Any, pages: gr.Blocks) -> Document:
    """A component's call of one of ``SERVER_FUNCTIONS``."""
    number, name = as_object(document).get("component_id"), document.get("fn_name")
    component = pages.blocks.get(number) if type(number) is int else None
    if name not in SERVER_FUNCTIONS or not hasattr(component, name):
        raise Refusal(404, "There is no such function of a page here: the page is out of date. Load it again.")
    return without_files({"session_hash": "", "data": None} | document)


def without_files(value: Any) -> Any:
    """``value``. Raises Refusal for what Gradio would take for a file, and fetch from its path."""
    level = [value]
    while level:
        if any(isinstance(it, dict) and {"path", "meta"} <= it.keys() for it in level):
            raise Refusal(422, "One of the values is a file, and none is taken here.")
        level = [inner for outer in level for inner in _within(outer)]
    return value


def _within(value: Any) -> Collection[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _uploaded(value: Any, uploads: Path) -> Any:
    path = value.get("path") if isinstance(value, dict) and isinstance(value.get("meta"), dict) else None
    try:
        if isinstance(path, str) and Path(path).resolve(strict=True).is_relative_to(uploads.resolve()):
            return {"path": path, "meta": {"_type": "gradio.FileData"}}
    except (OSError, ValueError):
        pass
    raise Refusal(422, "This file was not sent here, or is no longer kept. Open it again.")


def _offered(block: Any, value: Any) -> Any:
    """``value`` if the component takes it; a slider's is put within its bounds, as the browser does once its box is
    left: while 300 is typed, 3 and 30 come first. One that is emptied has its first value."""
    slider = isinstance(block, gr.Slider)
    try:
        if (isinstance(block, gr.Radio) and value is None) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError
        if slider:
            value = block.value if value is None else min(max(value, block.minimum), block.maximum)
        block.preprocess(value)
    except Exception:  # every component raises its own for a value it rejects
        label = f"“{block.label}”" if block.label else "This"
        wanted = (
            f"must be a number from {block.minimum:g} to {block.maximum:g}" if slider else "does not take this value"
        )
        raise Refusal(422, f"{label} {wanted}: choose one that the page offers.") from None
    return value
