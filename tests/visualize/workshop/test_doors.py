"""The HTTP routes of a workshop: what they accept, and how everything else is refused."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coroutines import complete
from tests.tiny_models import engine as tiny_engine
from tests.visualize.workshop.conftest import KEY, Room
from tests.waiting import until
from visualize import workshop as doors
from visualize.jobs.job_queue import JobQueue
from visualize.jobs.live_run import LiveRun
from visualize.jobs.sse_channel import Channel, find
from visualize.pages.workshop import presenter
from visualize.reduce.frames import head, line
from visualize.run_settings import Settings


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Room]:
    """One room for many requests."""
    room = Room()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doors, "PAUSE", 0.0)
        yield room
    room.queue.close(1)


def test_only_the_right_code_opens_the_channels(room: Room) -> None:
    status, answer = room.ask("join", code=room.workshop.access.code.lower())
    assert status == 200
    assert find(answer["lead"]) is room.workshop.lead.channel
    assert find(answer["room"]) is room.workshop.room.channel
    status, answer = room.ask("join", code="AAAAA")
    assert (status, list(answer)) == (403, ["problem"])


def test_a_wrong_code_costs_time_and_an_oversized_request_is_refused(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "PAUSE", 0.2)
    began = time.monotonic()
    assert room.ask("join", code="AAAAA")[0] == 403
    assert time.monotonic() - began >= 0.2
    at_most = room.workshop.access.code.ljust(doors.MOST_BYTES - len(json.dumps({"code": ""}, separators=(",", ":"))))
    assert room.ask("join", code=at_most)[0] == 200
    assert room.ask("join", code=f"{at_most} ") == (400, {"problem": doors.NONSENSE})


def test_the_presenters_screen_shows_how_to_join(room: Room) -> None:
    status, answer = room.ask("presenter", key=KEY, page="https://lab.example/")
    assert status == 200
    assert answer["link"] == f"https://lab.example/?join={room.workshop.access.code}"
    assert answer["picture"].startswith("data:image/svg+xml")
    assert KEY not in str(answer)
    status, answer = room.ask("presenter", key=room.workshop.access.code, page="https://lab.example/")
    assert (status, list(answer)) == (403, ["problem"])


def test_followers_are_reported_what_is_shown(room: Room) -> None:
    run = Channel()
    assert room.shown() == {"run": None, "at": None, "guess": None}
    assert room.ask("lead", key=KEY, run=run.id, at=None, query="?num_speculative_tokens=2") == (200, {"followers": 0})
    assert room.shown() == {"run": run.id, "at": None, "guess": None}
    room.ask("lead", key=KEY, run=run.id, at=12, guess=[9, 0], query="?num_speculative_tokens=3")
    assert room.shown() == {"run": run.id, "at": 12, "guess": [9, 0]}
    assert room.ask("join", code=room.workshop.access.code)[1]["query"] == "?num_speculative_tokens=3"
    room.ask("lead", key=KEY, run=None)
    assert room.shown() == {"run": None, "at": None, "guess": None}
    assert room.ask("join", code=room.workshop.access.code)[1]["query"] == ""


def test_the_settings_of_whoever_leads_are_known_before_any_run_and_of_nobody_there_are_none(room: Room) -> None:
    def query() -> str | None:
        return room.ask("join", code=room.workshop.access.code)[1]["query"]

    assert query() is None
    room.ask("lead", key=KEY, run=None, who="ann", take=True, query="speculative=ngram")
    assert query() == "speculative=ngram"
    room.ask("lead", key=KEY, run=Channel().id, who="ann", query="num_speculative_tokens=3")  # which is gone
    assert query() == "num_speculative_tokens=3"
    room.ask("lead", key=KEY, run=None, who="ann", rest=True)
    assert query() is None


def test_nobody_leads_without_the_key(room: Room) -> None:
    run = Channel()
    for key in (None, "", room.workshop.access.code, KEY.upper(), [KEY]):
        status, answer = room.ask("lead", key=key, run=run.id, at=1)
        assert (status, list(answer)) == (403, ["problem"])
    assert room.shown() == {"run": None, "at": None, "guess": None}


def test_a_lone_surrogate_is_refused_in_any_field_and_others_still_join(room: Room) -> None:
    run, code = Channel(), room.workshop.access.code
    room.ask("lead", key=KEY, run=run.id, at=1, query="?num_speculative_tokens=3")
    sound = {"key": KEY, "code": code, "page": "https://lab.example/", "run": run.id, "at": 2, "query": ""}
    for field in ("page", "query", "run", "code"):
        for door in ("join", "presenter", "lead"):
            body = json.dumps(sound | {field: "https://lab.example/\ud800"}).encode()
            answer = room.client.post(f"/workshop/{door}", content=body)
            assert (answer.status_code, answer.json()) == (400, {"problem": doors.NONSENSE})
    assert room.shown() == {"run": run.id, "at": 1, "guess": None}
    status, answer = room.ask("join", code=code)
    assert (status, answer["query"]) == (200, "?num_speculative_tokens=3")


def test_leading_to_what_is_not_there_is_reported_and_changes_nothing(room: Room) -> None:
    run = Channel()
    room.ask("lead", key=KEY, run=run.id, at=5, guess=[4, 1], who="ann", take=True)
    channels = room.ask("join", code=room.workshop.access.code)[1]
    for gone in ("0" * 32, channels["room"], channels["lead"]):  # the last two are of no run
        assert room.ask("lead", key=KEY, run=gone, at=1, who="ann")[1]["problem"] == doors.GONE
    frames = [{"at": at} for at in (-1, True, 1.5, 2.0, 2**31, 10**400, "3", [3])]
    tokens = [{"at": 5, "guess": it} for it in (0, [], [1], [1, -1], [1, True], [1, 2.0], [1, "2"], {"0": 1, "1": 2})]
    for asked in (*frames, *tokens):
        answer = room.ask("lead", key=KEY, run=run.id, who="ben", take=True, **asked)
        assert answer == (200, {"followers": 0, "problem": doors.NO_FRAME})
    for said in (None, 1, "true", []):  # nobody takes over or ends it but by true
        room.ask("lead", key=KEY, run=run.id, at=5, guess=[4, 1], who="ann", rest=said)
        assert room.ask("lead", key=KEY, run=run.id, at=2, who="ben", take=said)[1]["leader"] == "ann"
    assert room.shown() == {"run": run.id, "at": 5, "guess": [4, 1]}
    assert room.workshop.lead.leader == "ann"


def test_of_several_presenters_the_last_to_take_over_leads(room: Room) -> None:
    one, other = Channel(), Channel()
    for run, at, who in ((one, 1, "ann"), (other, 2, "ben")):
        asked = {"run": run.id, "at": at, "who": who, "session": f"{who}'s", "take": True}
        assert room.ask("lead", key=KEY, **asked)[1] == {"followers": 0}
    room.workshop.lead.left("ann's")  # who does not lead any more
    for run in (one.id, None):  # ann can neither show a run nor end what ben shows
        assert room.ask("lead", key=KEY, run=run, at=1, who="ann")[1] == {"followers": 0, "leader": "ben"}
        assert room.shown() == {"run": other.id, "at": 2, "guess": None}
    assert room.ask("presenter", key=KEY, page="https://lab.example/")[1]["leader"] == "ben"
    room.ask("lead", key=KEY, run=None, who="ben", rest=True)
    assert room.ask("lead", key=KEY, run=one.id, at=1, who="ann")[1] == {"followers": 0}
    assert room.shown() == {"run": one.id, "at": 1, "guess": None}
    room.ask("lead", key=KEY, run=None, who="ben", take=True)  # with nothing to show yet
    assert room.ask("lead", key=KEY, run=None, who="ann", rest=True)[1] == {"followers": 0, "leader": "ben"}


def test_followers_learn_that_the_page_that_leads_has_closed(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Channel()
    sound = {"key": KEY, "run": run.id, "at": 1, "who": "ann", "session": "ann's", "query": "?num_speculative_tokens=3"}
    room.ask("lead", **sound)
    for visitor in (None, "somebody's"):
        room.workshop.lead.left(visitor)
        assert room.shown() == {"run": run.id, "at": 1, "guess": None}
    room.workshop.lead.left("ann's")
    assert room.shown() == {"run": run.id, "at": 1, "guess": None, "left": True}, "what was shown stays"
    assert room.ask("join", code=room.workshop.access.code)[1]["query"] == "?num_speculative_tokens=3"
    assert room.ask("presenter", key=KEY, page="https://lab.example/")[1]["leader"] is None
    room.ask("lead", **sound | {"at": 2})  # it was under way when the page was closed
    assert room.shown()["left"]
    monkeypatch.setattr(presenter, "LATE_S", 0)
    room.ask("lead", **sound | {"at": 2})  # its connection was only lost
    assert room.shown() == {"run": run.id, "at": 2, "guess": None}
    room.ask("lead", **sound | {"run": None, "rest": True})
    room.workshop.lead.left("ann's")
    assert room.shown() == {"run": None, "at": None, "guess": None}


def test_a_run_stays_available_while_it_is_shown(room: Room) -> None:
    queue = JobQueue()
    run = LiveRun(queue, lambda pair: tiny_engine(), Settings(max_tokens=3, speculative="off", prompt="A fox"))
    assert run.done.wait(20)
    while not run.channel.closed:
        time.sleep(0.01)
    id = run.id
    room.ask("lead", key=KEY, run=id, at=1)
    del run
    gc.collect()
    assert find(id)
    room.ask("lead", key=KEY, run=None)

    def is_gone() -> bool:
        gc.collect()
        return find(id) is None

    until(is_gone)


def test_the_events_of_what_was_shown_last_are_kept_when_the_presenter_leaves(room: Room) -> None:
    shelf, runs = room.workshop.store, [Channel() for _ in range(3)]
    for run in runs:
        shelf.put("ann's", run.id, [f"an event of {run.id}"])
        for at in (0, 1):
            room.ask("lead", key=KEY, run=run.id, at=at, who="ann", session="ann's")
    shelf.clear("ann's")
    room.workshop.lead.left("ann's")
    assert shelf.events(runs[0].id) == ()
    for run in runs[1:]:
        assert shelf.events(run.id) == [f"an event of {run.id}"]


def heard(run: str, begin: int = 0) -> list[str]:
    async def hear() -> list[str]:
        return [message async for _, message in find(run).read(begin)]

    return complete(hear())


def test_a_run_from_a_file_can_be_shown(room: Room) -> None:
    begun, ended = line({"seq": 0}), line({"seq": 1, "finished": {}})
    room.workshop.lead.opened("presenter", head("abc") + begun + ended)
    room.workshop.lead.opened("presenter", head("refused") + line({"problem": "This is not a run's file."}))
    assert room.ask("lead", key=KEY, run="abc", at=1) == (200, {"followers": 0})
    assert "".join(heard("abc")) == begun + ended
    for other in range(10):
        room.workshop.lead.opened(f"visitor {other}", head(f"other {other}") + begun)
    assert find("abc"), "files opened by others do not displace it"
    assert json.loads("".join(heard("other 4")).splitlines()[-1]) == {"cut": True}, "it ends before its run"
    room.workshop.lead.left("visitor 3")
    assert find("other 3") is None
    assert find("other 4")


def test_a_long_run_from_a_file_comes_in_portions_over_a_slow_line_and_whole(room: Room) -> None:
    frames = [line({"seq": seq, "say": "x" * 1000}) for seq in range(1000)] + [line({"seq": 1000, "finished": {}})]
    room.workshop.lead.opened("presenter", head("long") + "".join(frames))
    portions = heard("long")
    assert len(portions) > 10
    assert max(map(len, portions)) < 70_000
    assert "".join(portions) == "".join(frames)
    assert all(portion.endswith("}\n") for portion in portions), "no frame is cut"
    assert heard("long", 3) == portions[3:], "who lost the connection goes on from there"


def test_with_too_many_runs_from_files_the_first_is_dropped(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visualize.pages.workshop.presenter.MOST_OPENED", 25)
    for id in ("one", "two", "three"):
        room.workshop.lead.opened(f"who opened {id}", f'{{"run": "{id}"}}\n{{"seq": 0}}\n')
    assert room.ask("lead", key=KEY, run="one", at=0)[1]["problem"] == doors.GONE
    assert room.ask("lead", key=KEY, run="two", at=0)[1] == {"followers": 0}
    room.workshop.lead.opened("who opened two", '{"run": "two again"}\n{"seq": 0}\n')
    room.workshop.lead.opened("somebody", '{"run": "four"}\n{"seq": 0}\n')
    assert not find("three"), "opened before the other two"
    assert find("two again")
    assert room.ask("lead", key=KEY, run="two", at=0)[1] == {"followers": 0}, "a run being shown is kept"
    room.workshop.lead.opened("somebody", head("long") + line({"seq": 0, "say": "x" * 100}))
    assert find("long")
    assert not find("two again")


@settings(max_examples=80)
@given(
    st.sampled_from(["join", "presenter", "lead"]),
    st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
        st.fixed_dictionaries(
            {
                "key": st.sampled_from([KEY, "no"]),
                "run": st.one_of(st.none(), st.text(max_size=40), st.integers()),
                "at": st.one_of(st.none(), st.floats(), st.integers(), st.text(max_size=4)),
                "guess": st.one_of(st.none(), st.lists(st.integers() | st.none(), max_size=3)),
                "page": st.text(max_size=40),
                "query": st.text(max_size=20),
            }
        ).map(lambda value: json.dumps(value).encode()),
    ),
)
def test_any_request_gets_a_json_answer_and_no_server_error(fuzzed: Room, door: str, body: bytes) -> None:
    answer = fuzzed.client.post(f"/workshop/{door}", content=body)
    assert answer.status_code in (200, 400, 403)
    assert isinstance(answer.json(), dict)
    if answer.status_code != 200:
        assert answer.json()["problem"]
