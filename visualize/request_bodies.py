"""What may be posted to Gradio. Gradio checks only after parsing everything, and some things never: these checks come
first, cost little, and say in a sentence what is wrong."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.block_function import BlockFunction
from starlette.responses import JSONResponse

MOST_BYTES = 2 * 2**20
"""Most bytes of a document. The most that a page sends is what a browser keeps of a lesson, 1.5 million characters;
the most that a program sends is a prompt of 100,000 characters of up to twelve bytes each."""
MOST_VALUES = 10_000
"""Most values in a document. A page sends about thirty; a program may have up to a thousand stop strings."""
MOST_BETWEEN = 2**18
"""Most characters of a document outside strings: numbers, brackets, blanks."""
DEEPEST = 64
"""Most lists and objects nested within each other."""
STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A JSON string; also an unterminated one, at which parsing fails."""
SESSION = re.compile(r"[\w-]{1,64}", re.ASCII)

Document = dict[str, Any]


class Refusal(Exception):
    """A refused request, answered with a status and a sentence."""

    def __init__(self, status: int, detail: str) -> None:
        self.detail = detail
        self.answer = JSONResponse({"detail": detail}, status)


def parsed(body: bytes) -> Any:
    """The JSON document. Raises Refusal if it is not JSON, or larger or deeper than anything a caller needs to send."""
    try:
        text = body.decode()
        # Counted before parsing: first the quotation marks of names and values, then what is between them.
        if text.count('"') - text.count('\\"') > 4 * MOST_VALUES:
            raise Refusal(413, _TOO_MANY)
        between = STRING.sub("", text)
        if len(between) > MOST_BETWEEN or sum(map(between.count, ",[{")) > MOST_VALUES:
            raise Refusal(413, _TOO_MANY)
        document = json.loads(text)
    except RecursionError:
        raise Refusal(422, _TOO_DEEP) from None
    except ValueError:
        raise Refusal(422, "What was sent is not JSON in UTF-8, or has a number with thousands of digits.") from None
    level = [document]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _within(outer)]
    if level:
        raise Refusal(422, _TOO_DEEP)
    return document


_TOO_DEEP = f"The JSON is too deep: lists and objects may be nested at most {DEEPEST} deep."
_TOO_MANY = f"The JSON has too many values: no function here takes more than {MOST_VALUES:,}."


def _within(value: Any) -> Collection[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def an_object(document: Any) -> Document:
    """``document``. Raises Refusal if it is not an object."""
    if not isinstance(document, dict):
        raise Refusal(422, "Post a JSON object (a dictionary) here, with a name for each value.")
    return document


def of_tool(document: Any) -> Any:
    """A call of a tool. Raises Refusal. A call with an id is then answered as JSON-RPC has it: at an HTTP error, MCP's
    clients would end the session and tell no reason."""
    try:
        return _without_files(_whole(document))
    except Refusal as refusal:
        call = document.get("id") if isinstance(document, dict) else None
        if type(call) is int or (isinstance(call, str) and call.isascii()):
            error = {"code": -32602, "message": refusal.detail}  # invalid parameters
            refusal.answer = JSONResponse({"jsonrpc": "2.0", "id": call, "error": error})
        raise


def by_name(document: Any) -> Document:
    """A program's call, each value with its name. Raises Refusal."""
    return _without_files(an_object(document))


def in_order(document: Any, function: BlockFunction) -> Document:
    """A program's call, its values in order, and nothing else: a session that the caller names would outlive the
    caller. Raises Refusal."""
    values, wanted, name = _values(document), len(function.inputs), function.api_name
    if len(values) != wanted:
        raise Refusal(
            422, f"{name} takes {wanted} values in their order, not {len(values)}. By name, at call/v2, fewer will do."
        )
    return {"data": _without_files(values)}


def of_event(document: Any, pages: gr.Blocks, programs: Collection[str]) -> Document:
    """A page's event, or a call by Gradio's own client, reduced to what Gradio uses. Raises Refusal."""
    number = _whole(an_object(document)).get("fn_index")
    function = pages.fns.get(number) if type(number) is int else None  # not a bool, which is an int too
    if function is None or function.fn is None:
        raise Refusal(422, "There is no event with this number here: the page is out of date. Load it again.")
    values, wanted = _values(document), len(function.inputs)
    if len(values) < wanted:
        raise Refusal(422, f"This event takes {wanted} values, not {len(values)}.")
    values = values[:wanted]
    given = document.get("event_data")
    given = given if isinstance(given, dict) else {}
    if any(event == "upload" for _, event in function.targets):
        for block, value in zip(function.inputs, values, strict=True):
            _check_file(block, value, pages.upload_file_set)
        given = {}
    else:
        _without_files([values, given])
        if function.api_name not in programs:  # which check for themselves
            values = [_checked(block, value) for block, value in zip(function.inputs, values, strict=True)]
    return {
        "data": values,
        "fn_index": number,
        "session_hash": _session(document),
        "event_data": given,
        "trigger_id": document.get("trigger_id"),  # checked by Gradio
    }


def of_component(document: Any, pages: gr.Blocks) -> Document:
    """A component's call of its server function. Raises Refusal."""
    number, name = an_object(document).get("component_id"), document.get("fn_name")
    component = pages.blocks.get(number) if type(number) is int else None
    if not getattr(getattr(component, str(name), None), "_is_server_fn", False):
        raise Refusal(404, "There is no such function of a page here: the page is out of date. Load it again.")
    data = _without_files(document.get("data"))
    return {"component_id": number, "fn_name": name, "session_hash": _session(document), "data": data}


def _whole(document: Any) -> Any:
    """``document``. Raises Refusal if it has a lone surrogate, which a JSON escape can express but not what Gradio
    passes on and sends back."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refusal(
            422, "What was sent is not valid text: it contains half a character (a lone surrogate)."
        ) from None
    return document


def _values(document: Any) -> list[Any]:
    values = an_object(document).get("data")
    if not isinstance(values, list):
        raise Refusal(422, "The values are missing: send a JSON object, with a list of them as its data.")
    return values


def _session(document: Document) -> str:
    session = document.get("session_hash")
    if not (isinstance(session, str) and SESSION.fullmatch(session)):
        raise Refusal(422, "session_hash is missing: the caller makes it up, of at most 64 letters and digits.")
    return session


def _without_files(value: Any) -> Any:
    """``value``. Raises Refusal if Gradio would take something in it for a file, which it would fetch from wherever the
    path says."""
    level = [value]
    while level:
        if any(isinstance(it, dict) and {"path", "meta"} <= it.keys() for it in level):
            raise Refusal(422, "One of the values is a file, and none is taken here.")
        level = [inner for outer in level for inner in _within(outer)]
    return value


def _check_file(block: Any, value: Any, uploaded: Collection[str]) -> None:
    try:
        path = block.data_model.model_validate(value, context={"validate_meta": True}).path
    except (ValueError, TypeError, AttributeError):  # from Gradio, for what does not resemble a file
        path = ""
    if path not in uploaded or not Path(path).is_file():
        raise Refusal(422, "This file was not sent here, or is no longer kept. Open it again.")


def _checked(block: Any, value: Any) -> Any:
    """``value``; a slider's within its bounds, where the browser puts it once its box is left: while somebody types
    300, 3 and 30 come first. One that is emptied has its first value, as an emptied number does on all pages."""
    try:
        if isinstance(block, gr.Radio) and value is None:  # a radio that was clicked has a value
            raise ValueError
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
        if isinstance(block, gr.Slider):
            value = block.value if value is None else min(max(value, block.minimum), block.maximum)
        block.preprocess(value)
    except Exception:  # every component raises its own for a value it rejects
        label = f"“{block.label}”" if block.label else "This"
        if isinstance(block, gr.Slider):
            raise Refusal(422, f"{label} must be a number from {block.minimum:g} to {block.maximum:g}.") from None
        raise Refusal(422, f"{label} does not take this value: choose one that the page offers.") from None
    return value
