"""How a page reads the answers to its events, whatever comes first: ``answers.js`` with a scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.pages import Lab
from visualize.assets import read

Visit = Callable[..., Lab]
SERVER = """
window.streams = [];
window.taken = {};
window.refuses = false;
window.ticking = [];
window.setInterval = (tick) => ticking.push(tick);
window.clearInterval = (number) => { ticking[number - 1] = () => {}; };
window.tick = (times) => { for (let i = 0; i < times; i += 1) ticking.forEach((tick) => tick()); };
window.fetch = async (address) => {
  if (address.endsWith("/queue/data")) {
    let to;
    const body = new ReadableStream({ start: (controller) => { to = controller; } }, { highWaterMark: 100 });
    streams.push(to);
    return refuses ? new Response("", { status: 502 }) : new Response(body);
  }
  const id = new URL(address).searchParams.get("id");
  const status = await new Promise((resolve, reject) => {
    taken[id] = (status) => (status ? resolve(status) : reject(new TypeError("Failed to fetch")));
  });
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


def message(msg: str, **more: str) -> str:
    return f"data: {json.dumps({'msg': msg, **more}, separators=(',', ':'))}\n\n"


CLOSE = message("close_stream")


@pytest.fixture
def page(visit: Visit) -> Page:
    lab = visit()
    lab.page.goto(f"{lab.server}/health")
    for script in (SERVER, read("static/answers.js"), PAGE):
        lab.page.evaluate(f"() => {{ {script} }}")
    return lab.page


def do(page: Page, *steps: str) -> None:
    for step in steps:
        page.evaluate(f"async () => {{ {step}; await settle(); }}")


def say(number: int, text: str) -> str:
    return f"say({number}, {json.dumps(text)})"


def done(event: str) -> str:
    return message("process_completed", event_id=event)


def heard(page: Page) -> list[str]:
    return ["".join(parts) for parts in page.evaluate("heard")]


def loads_again(page: Page) -> bool:
    """Whether Gradio will do that, and the next page is told so."""
    return page.evaluate("sessionStorage.getItem('decode-lab-lost')") == "yes"


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
    said = message("estimation", event_id="a") + message("process_generating", event_id="a") + message("heartbeat")
    do(page, "join('a')", "taken.a(200)", "listen()", say(0, said))
    assert heard(page) == [said]


BREAKS = {
    "with an error": "streams[0].error(new Error('the line is dead'))",
    "as if it were over": "streams[0].close()",
    "within a message": f"{say(0, done('b')[:9])}; streams[0].close()",
    "without a word": "tick(8)",
}


@pytest.mark.parametrize("breaks", BREAKS.values(), ids=BREAKS)
def test_a_stream_that_breaks_while_an_answer_is_awaited_is_told_to_have_broken(page: Page, breaks: str) -> None:
    do(page, "join('a')", "taken.a(200)", "listen()", say(0, message("estimation", event_id="a")), breaks)
    [said] = heard(page)
    assert "Error: " in said
    assert "END" not in said
    assert loads_again(page)
    do(page, "join('b')", "taken.b(200)", "listen()", say(1, done("b")), say(1, CLOSE), "streams[1].close()")
    assert heard(page) == [said, done("b") + CLOSE + "END"]  # what was lost is awaited no more
    assert page.evaluate("streams.length") == 2


@pytest.mark.parametrize("breaks", BREAKS.values(), ids=BREAKS)
def test_a_stream_that_breaks_when_all_is_answered_is_told_to_have_ended(page: Page, breaks: str) -> None:
    do(page, "join('a')", "taken.a(200)", "listen()", say(0, done("a")), breaks)
    assert heard(page) == [done("a") + CLOSE + "END"]
    assert not loads_again(page)


def test_a_stream_that_says_something_now_and_then_is_kept(page: Page) -> None:
    do(page, "join('a')", "taken.a(200)", "listen()", "tick(7)", say(0, message("heartbeat")), "tick(7)")
    do(page, say(0, ": a proxy says that it is there\n\n"), "tick(7)", say(0, done("a")), say(0, CLOSE))
    assert heard(page) == [message("heartbeat") + done("a") + CLOSE + "END"]


def test_if_the_first_stream_is_refused_gradio_hears_that(page: Page) -> None:
    do(page, "refuses = true", "join('a')", "taken.a(200)")
    assert page.evaluate("async () => (await fetch('http://lab/queue/data')).status") == 502
    assert loads_again(page)


def test_if_the_next_stream_is_refused_the_answer_is_told_to_be_lost(page: Page) -> None:
    do(page, "join('a')", "taken.a(200)", "listen()", say(0, done("a")), "join('b')", "taken.b(200)", "refuses = true")
    do(page, say(0, CLOSE))
    [said] = heard(page)
    assert said == done("a") + "Error: The next stream was refused: 502."
    assert loads_again(page)


def test_what_the_server_says_to_all_events_ends_the_stream(page: Page) -> None:
    said = message("unexpected_error", message="There is no such session here.")
    do(page, "join('a')", "taken.a(200)", "listen()", say(0, said), "streams[0].close()")
    assert heard(page) == [said + CLOSE + "END"]


def test_who_leaves_the_page_breaks_its_streams_and_loses_no_server(page: Page) -> None:
    do(page, "join('a')", "taken.a(200)", "listen()", "dispatchEvent(new Event('beforeunload'))")
    do(page, BREAKS["with an error"])
    assert not loads_again(page)


def test_an_event_that_the_server_never_got_is_told(page: Page) -> None:
    do(page, "join('a')", "taken.a(0)")
    assert page.evaluate("refused") == 1
    assert loads_again(page)


def test_a_refusal_is_told_and_not_awaited(page: Page) -> None:
    do(page, "join('a')", "join('b')", "taken.a(200)", "listen()", "taken.b(429)", say(0, done("a") + CLOSE))
    assert page.evaluate("refused") == 1
    assert heard(page) == [done("a") + CLOSE + "END"]
    assert page.evaluate("streams.length") == 1
    assert not loads_again(page)
