"""Turns events into JSON and back: the contents of a run's file, which anybody may have written."""

import functools
import json
import sys
import types
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lab.config import MOST_PROPOSED
from lab.trace.events import EVENT_TYPES, Committed, Event, Proposed, Verified

FORMER = {
    "judged": "verified",
    "copy_bytes_per_second": "read_bytes_per_second",
    "matmul_flops_per_second": "flops_per_second",
}
"""Names that kinds of events and fields had in files of earlier versions, and their present ones."""


def dump_json(document: Any, **how: Any) -> str:
    """JSON that can be written to a file: half a character (a lone surrogate) is written as its escape. ``how``:
    options of ``json.dumps``."""
    return json.dumps(document, ensure_ascii=False, **how).encode("utf-8", "backslashreplace").decode("utf-8")


def to_dict(event: Event) -> dict[str, Any]:
    """A JSON-ready dict: the fields and the event's ``kind``. Shallow: nothing is copied."""
    return {"kind": event.kind} | {field.name: getattr(event, field.name) for field in fields(event)}


def from_dict(record: Any) -> Event:
    """The event a dict describes. Raises ValueError: not an event, or a field is missing, unknown, of the wrong type or
    not a finite number."""
    kind = record.get("kind") if isinstance(record, dict) else None
    kind = FORMER.get(kind, kind) if isinstance(kind, str) else None
    if kind not in EVENT_TYPES:
        raise ValueError(f"not an event: {str(record)[:80]}")
    cls = EVENT_TYPES[kind]
    hints = _field_types(cls)
    given = {FORMER.get(name, name): value for name, value in record.items() if name != "kind"}
    needed = {field.name for field in fields(cls) if field.default is MISSING}
    if not needed <= given.keys() <= hints.keys():
        odd = ", ".join(sorted((needed - given.keys()) | (given.keys() - hints.keys())))
        raise ValueError(f"a {cls.kind} event has missing or unknown fields: {odd[:120]}")
    for name, value in given.items():
        given[name] = _tuples(value)
        if not _fits(given[name], hints[name]):
            raise ValueError(f"{name} of a {cls.kind} event is wrong: {str(value)[:80]}")
    if cls in (Proposed, Verified) and not 0 <= given["position"] < MOST_PROPOSED:  # metrics count by position
        raise ValueError(f"position of a {cls.kind} event must be from 0 to {MOST_PROPOSED - 1}")
    if cls is Committed and not given["token_ids"]:
        raise ValueError("a committed event has at least one token")
    return cls(**given)


def _tuples(value: Any) -> Any:
    """Lists, and those in them, as tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@functools.cache
def _field_types(cls: type[Event]) -> dict[str, Any]:
    names = {field.name for field in fields(cls)}
    return {name: hint for name, hint in get_type_hints(cls).items() if name in names}


def _fits(value: Any, hint: Any) -> bool:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in args
    if origin in (Union, types.UnionType):
        return any(_fits(value, arg) for arg in args)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, args[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)
