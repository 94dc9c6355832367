"""How a page reads the answers to its events, whatever comes first: ``answers.js`` with a scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.pages import Visit
from visualize.assets import read

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


Fresh = Callable[[], Page]


@pytest.fixture
def fresh(visit: Visit) -> Fresh:
    """Gives the page anew, to which nothing was said yet."""
    lab = visit()

    def page() -> Page:
        lab.page.goto(f"{lab.server}/health")
        lab.page.evaluate("sessionStorage.clear()")
        for script in (SERVER, read("static/answers.js"), PAGE):
            lab.page.evaluate(f"() => {{ {script} }}")
        return lab.page

    return page


def say(number: int, *texts: str) -> str:
    return "; ".join(f"say({number}, {json.dumps(text)})" for text in texts)


def done(event: str) -> str:
    return message("process_completed", event_id=event)


ASKED = ("join('a')", "taken.a(200)", "listen()")
NEWS = message("estimation", event_id="a") + message("process_generating", event_id="a") + message("heartbeat")
ALIVE = ("tick(7)", say(0, message("heartbeat")), "tick(7)", say(0, ": a proxy says that it is there\n\n"), "tick(7)")
NO_SESSION = message("unexpected_error", message="There is no such session here.")
WHOLE = done("a") + CLOSE
BREAKS = {
    "with an error": "streams[0].error(new Error('the line is dead'))",
    "as if it were over": "streams[0].close()",
    "within a message": f"{say(0, done('b')[:9])}; streams[0].close()",
    "without a word": "tick(8)",
}
# What happens; what the page hears of each stream; and how many streams were opened, answers refused, servers lost.
CASES = {
    "a stream whose end is late is followed by the next": (
        (*ASKED, say(0, done("a")), "join('b')", "taken.b(200)", say(0, CLOSE), say(1, done("b"), CLOSE)),
        ([done("a") + done("b") + CLOSE + "END"], 2, 0, False),
    ),
    "an event that was answered before it was known to be taken needs no other stream": (
        (*ASKED, "join('b')", say(0, done("a"), done("b"), CLOSE), "taken.b(200)", "listen()"),
        ([done("a") + done("b") + CLOSE + "END", CLOSE + "END"], 1, 0, False),
    ),
    "a stream ends when all is answered, in whichever order and pieces": (
        ("join('b')", *ASKED, say(0, done("b")), "taken.b(200)", say(0, WHOLE[:9], WHOLE[9:-9], WHOLE[-9:])),
        ([done("b") + WHOLE + "END"], 1, 0, False),
    ),
    "what is said of an event in progress is passed on": ((*ASKED, say(0, NEWS)), ([NEWS], 1, 0, False)),
    "a stream that says something now and then is kept": (
        (*ASKED, *ALIVE, say(0, done("a"), CLOSE)),
        ([message("heartbeat") + WHOLE + "END"], 1, 0, False),
    ),
    "of a next stream that is refused, the answer is lost": (
        (*ASKED, say(0, done("a")), "join('b')", "taken.b(200)", "refuses = true", say(0, CLOSE)),
        ([done("a") + "Error: The next stream was refused: 502."], 2, 0, True),
    ),
    "what the server says to all events ends the stream": (
        (*ASKED, say(0, NO_SESSION), "streams[0].close()"),
        ([NO_SESSION + CLOSE + "END"], 1, 0, False),
    ),
    "who leaves the page loses no server": (
        (*ASKED, "dispatchEvent(new Event('beforeunload'))", BREAKS["with an error"]),
        (None, 1, 0, False),
    ),
    "an event that the server never got is told": (("join('a')", "taken.a(0)"), ([], 0, 1, True)),
    "a refusal is told and not awaited": (
        ("join('a')", "join('b')", "taken.a(200)", "listen()", "taken.b(429)", say(0, WHOLE)),
        ([WHOLE + "END"], 1, 1, False),
    ),
    **{
        f"a stream that breaks {how} when all is answered has ended": (
            (*ASKED, say(0, done("a")), breaks),
            ([WHOLE + "END"], 1, 0, False),
        )
        for how, breaks in BREAKS.items()
    },
}


def do(page: Page, *steps: str) -> None:
    for step in steps:
        page.evaluate(f"async () => {{ {step}; await settle(); }}")


def heard(page: Page) -> list[str]:
    return ["".join(parts) for parts in page.evaluate("heard")]


def loads_again(page: Page) -> bool:
    """Whether Gradio will do that, and the next page is told so."""
    return page.evaluate("sessionStorage.getItem('decode-lab-lost')") == "yes"


def test_what_the_page_hears(fresh: Fresh) -> None:
    for name, (steps, (texts, streams, refused, lost)) in CASES.items():
        do(page := fresh(), *steps)
        assert texts is None or heard(page) == texts, name
        assert page.evaluate("[streams.length, refused]") == [streams, refused], name
        assert loads_again(page) == lost, name


def test_a_stream_that_breaks_while_an_answer_is_awaited_is_reported_to_have_broken(fresh: Fresh) -> None:
    for name, breaks in BREAKS.items():
        do(page := fresh(), *ASKED, say(0, message("estimation", event_id="a")), breaks)
        [said] = heard(page)
        assert "Error: " in said, name
        assert "END" not in said, name
        assert loads_again(page), name
        do(page, "join('b')", "taken.b(200)", "listen()", say(1, done("b"), CLOSE), "streams[1].close()")
        assert heard(page) == [said, done("b") + CLOSE + "END"], name  # what was lost is awaited no more
        assert page.evaluate("streams.length") == 2, name


def test_if_the_first_stream_is_refused_gradio_hears_that(fresh: Fresh) -> None:
    do(page := fresh(), "refuses = true", "join('a')", "taken.a(200)")
    assert page.evaluate("async () => (await fetch('http://lab/queue/data')).status") == 502
    assert loads_again(page)
