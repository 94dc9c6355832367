"""Checks of what is sent to Gradio, before Gradio parses it: sizes, shapes, files, and values that a page offers."""

import json
import math
from collections.abc import Collection, Mapping
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
DEEPEST = 64
"""Most lists and objects nested within each other."""
TOO_DEEP = f"The JSON is too deep: lists and objects may be nested at most {DEEPEST} deep."
SERVER_FUNCTIONS = ("take_away",)
"""The names of the functions that components of pages call (``gr.HTML(server_functions=)``)."""

Document = dict[str, Any]


class Refusal(Exception):
    """A refused request: a status, and a sentence that may quote what the client sent."""

    def __init__(self, status: int, detail: str) -> None:
        self.status, self.detail = status, visible(detail[:300])

    @classmethod
    def of(cls, error: Mapping[str, Any]) -> "Refusal":
        """The same of an error of pydantic's."""
        return cls(422, f"{'.'.join(map(str, error['loc']))}: {error['msg']}.")

    def response(self) -> Response:
        return JSONResponse({"detail": self.detail}, self.status)


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
        document = json.loads(body.decode())
        level, values = [document], 0
        for _ in range(DEEPEST):
            level = [inner for outer in level for inner in _within(outer)]
            values += len(level)
        if values > MOST_VALUES:
            raise Refusal(413, f"The JSON has too many values: no function here takes more than {MOST_VALUES:,}.")
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


def page_event(document: Any, pages: gr.Blocks, programs: Collection[str], uploads: Path) -> Document:
    """A page's event, reduced to what Gradio uses, with every value one that its component takes."""
    try:
        event = PageEvent.model_validate(as_object(document))
    except ValidationError as error:
        raise Refusal.of(error.errors()[0]) from None
    function: Any = pages.fns.get(event.fn_index)
    if function is None or function.fn is None:
        raise Refusal(422, "There is no event with this number here: the page is out of date. Load it again.")
    wanted = len(function.inputs)
    if len(event.data) < wanted:
        raise Refusal(422, f"This event takes {wanted} values, not {len(event.data)}.")
    data, event_data = event.data[:wanted], event.event_data if isinstance(event.event_data, dict) else {}
    if any(kind == "upload" for _, kind in function.targets):
        data, event_data = [_uploaded(value, uploads) for value in data], {}
    else:
        without_files([data, event_data])
        if function.api_name not in programs:  # which check themselves
            data = [_offered(block, value) for block, value in zip(function.inputs, data, strict=True)]
    return event.model_dump() | {"data": data, "event_data": event_data}


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
        bounds = f"be a number from {block.minimum:g} to {block.maximum:g}" if slider else "have another value"
        label = f"“{block.label}”" if block.label else "This"
        raise Refusal(422, f"{label} must {bounds}: choose one that the page offers.") from None
    return value
