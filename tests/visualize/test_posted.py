"""What of a document that is posted reaches Gradio, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from visualize import request_bodies as posted
from visualize.request_bodies import Refusal

FILE = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}


def event(inputs: Sequence[Any], values: list[Any], *, target: str = "click", **more: Any) -> dict[str, Any]:
    """What reaches Gradio of an event with these values. ``/tmp/sent`` and the files that exist were uploaded."""
    function = SimpleNamespace(fn=print, inputs=inputs, targets=[(1, target)], api_name="page")
    pages = SimpleNamespace(
        fns={3: function}, upload_file_set={value["path"] for value in values if target == "upload"}
    )
    return posted.of_event({"data": values, "fn_index": 3, "session_hash": "abc"} | more, pages, ("run",))


def refusal(call: Any, *args: Any, **more: Any) -> tuple[int, str]:
    """Status and sentence of a refusal."""
    with pytest.raises(Refusal) as refused:
        call(*args, **more)
    return refused.value.answer.status_code, refused.value.answer.body.decode()


def test_of_an_event_only_what_gradio_uses_is_passed_on() -> None:
    got = event([gr.Number()], [5, "more"], event_data={"index": 2}, trigger_id=7, username="somebody", request={})
    assert got == {"data": [5], "fn_index": 3, "session_hash": "abc", "event_data": {"index": 2}, "trigger_id": 7}
    assert event([gr.Number()], [5], event_data="no object")["event_data"] == {}


def test_no_file_comes_in_but_by_an_upload() -> None:
    component = SimpleNamespace(asks=lambda: None)
    component.asks._is_server_fn = True
    asked = {"component_id": 4, "fn_name": "asks", "session_hash": "abc", "data": [FILE]}
    for call, args, more in (
        (event, ([gr.JSON()], [FILE]), {}),
        (event, ([gr.Number()], [5]), {"event_data": {"value": FILE}}),
        (posted.of_component, (asked, SimpleNamespace(blocks={4: component})), {}),
    ):
        status, said = refusal(call, *args, **more)
        assert (status, "a file, and none is taken here" in said) == (422, True)
    assert posted.of_component(asked | {"data": [5]}, SimpleNamespace(blocks={4: component}))["data"] == [5]


def test_an_upload_brings_its_file_as_long_as_that_is_kept_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.touch()
    file = FILE | {"path": str(path)}
    got = event([gr.UploadButton()], [file], target="upload", event_data={"value": FILE})
    assert (got["data"], got["event_data"]) == ([file], {})
    path.unlink()
    status, said = refusal(event, [gr.UploadButton()], [file], target="upload")
    assert (status, "no longer kept" in said) == (422, True)


def test_what_a_page_may_send_while_somebody_types_is_put_within_bounds_and_other_values_are_refused() -> None:
    slider, radio = gr.Slider(2, 10, value=4, label="Block size"), gr.Radio(["a", "b"])
    assert [event([slider], [value])["data"] for value in (3, 30, 0, None)] == [[3], [10], [2], [4]]
    assert event([radio], ["b"])["data"] == ["b"]
    assert event([gr.State(5)], [None])["data"] == [None], "kept on the server"
    for block, value, says in (
        (slider, float("nan"), "“Block size” must be a number from 2 to 10."),
        (gr.Number(label="Seed"), float("inf"), "“Seed” does not take this value"),
        (radio, "c", "This does not take this value"),
        (radio, None, "This does not take this value"),
    ):
        status, said = refusal(event, [block], [value])
        assert (status, says in said) == (422, True)
