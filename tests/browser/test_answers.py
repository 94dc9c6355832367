"""How a page reads the answers to its events, whatever comes first: ``answers.js`` with a scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Lab
from visualize.assets import read

Visit = Callable[..., Lab]
SERVER = """
window.streams = [];
window.taken = {};
window.fetch = async (address) => {
  if (address.endsWith("/queue/data")) {
    let to;
    const body = new ReadableStream({ start: (controller) => { to = controller; } }, { highWaterMark: 100 });
    streams.push(to);
    return new Response(body);
  }
  const id = new URL(address).searchParams.get("id");
  const status = await new Promise((resolve) => { taken[id] = resolve; });
  return new Response(JSON.stringify({ event_id: id }), { status });
};
window.say = (number, text) => streams[number].enqueue(new TextEncoder().encode(text));
window.settle = () => new Promise((resolve) => setTimeout(resolve, 20));
"""
PAGE = """
window.heard = [];
window.refused = 0;
document.addEventListener("decode-lab-refused", () => { refused += 1; });
window.join = (id) => { fetch(`http://lab/queue/join?id=${id}`).catch(() => {}); };
window.listen = async () => {
  const stream = (await fetch("http://lab/queue/data")).body.pipeThrough(new TextDecoderStream());
  const reader = stream.getReader();
  const all = [];
  heard.push(all);
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) all.push(part.value);
    all.push("END");
  } catch (error) { all.push(String(error)); }
};
"""


def message(msg: str, event: str | None = None) -> str:
    return f"data: {json.dumps({'msg': msg, 'event_id': event}, separators=(',', ':'))}\n\n"


CLOSE = message("close_stream")


@pytest.fixture
def page(visit: Visit) -> Page:
    lab = visit()
    lab.page.goto(f"{lab.server}/health")
    for script in (SERVER, read("answers.js"), PAGE):
        lab.page.evaluate(f"() => {{ {script} }}")
    return lab.page


def do(page: Page, *steps: str) -> None:
    for step in steps:
        page.evaluate(f"async () => {{ {step}; await settle(); }}")


def say(number: int, text: str) -> str:
    return f"say({number}, {json.dumps(text)})"


def done(event: str) -> str:
    return message("process_completed", event)


def heard(page: Page) -> list[str]:
    return ["".join(parts) for parts in page.evaluate("heard")]


def test_a_stream_whose_end_is_late_is_followed_by_the_next(page: Page) -> None:
    do(page, "join('a')", "taken.a(200)", "listen()", say(0, done("a")), "join('b')", "taken.b(200)", say(0, CLOSE))
    assert page.evaluate("streams.length") == 2
    do(page, say(1, done("b")), say(1, CLOSE), "streams[1].close()")
    assert heard(page) == [done("a") + done("b") + CLOSE + "END"]
    assert page.evaluate("streams.length") == 2


def test_a_stream_ends_when_all_is_answered_in_whichever_order(page: Page) -> None:
    """An answer may come before the news that its event was taken; and messages in pieces."""
    do(page, "join('a')", "join('b')", "taken.a(200)", "listen()", say(0, done("b")), "taken.b(200)")
    said = done("a") + CLOSE
    do(page, say(0, said[:9]), say(0, said[9:-9]), say(0, said[-9:]), "streams[0].close()")
    assert heard(page) == [done("b") + said + "END"]
    assert page.evaluate("streams.length") == 1


def test_what_is_said_of_an_event_in_progress_is_passed_on(page: Page) -> None:
    said = message("estimation", "a") + message("process_generating", "a") + message("heartbeat")
    do(page, "join('a')", "taken.a(200)", "listen()", say(0, said))
    assert heard(page) == [said]


def test_answers_lost_with_the_server_are_not_awaited_in_later_streams(page: Page) -> None:
    do(page, "join('a')", "taken.a(200)", "listen()", "streams[0].error(new Error('the line is dead'))")
    do(page, "join('b')", "taken.b(200)", "listen()", say(1, done("b")), say(1, CLOSE), "streams[1].close()")
    assert heard(page) == ["Error: the line is dead", done("b") + CLOSE + "END"]
    assert page.evaluate("streams.length") == 2


def test_a_refusal_is_told_and_not_awaited(page: Page) -> None:
    do(page, "join('a')", "join('b')", "taken.a(200)", "listen()", "taken.b(429)", say(0, done("a") + CLOSE))
    assert page.evaluate("refused") == 1
    assert heard(page) == [done("a") + CLOSE]
    assert page.evaluate("streams.length") == 1
