"""Who may join, who may lead, and at which address others join."""

from __future__ import annotations

import pytest

from visualize.jobs.job_queue import JobQueue
from visualize.options import known_hosts, read_options
from visualize.pages.workshop import auth as access
from visualize.pages.workshop.auth import LENGTH, LETTERS, WorkshopAuth, WorkshopAuthError, joining
from visualize.workshop import Workshop


def test_the_code_is_accepted_as_people_type_it() -> None:
    door = WorkshopAuth()
    assert len(door.code) == LENGTH
    assert set(door.code) <= set(LETTERS)
    for typed in (door.code, door.code.lower(), f" {door.code[:2]} {door.code[2:]}\n"):
        door.join(typed)


def test_a_code_has_no_letters_that_look_alike() -> None:
    for alike in ("0O", "1IL", "5S", "2Z", "8B", "6G", "UV"):
        assert len(set(LETTERS) & set(alike)) <= 1, alike
    assert len(LETTERS) == len(set(LETTERS))
    assert len(LETTERS) ** LENGTH > 5_000_000  # each wrong guess costs half a second


@pytest.mark.parametrize("typed", ["", "XXXXXX", None, ["B"], "ÄÖÜßé", "\ud800", "x" * 100_000])
def test_a_wrong_code_or_key_is_refused(typed: object) -> None:
    door = WorkshopAuth()
    with pytest.raises(WorkshopAuthError, match="not this workshop's code"):
        door.join(typed)
    with pytest.raises(WorkshopAuthError, match="not this workshop's key"):
        door.lead(typed)


@pytest.mark.parametrize(
    ("key", "address"),
    [("Correct horse", "Correct%20horse"), ("ä b", "%C3%A4%20b"), ("a%41b", "a%41b"), ("100%", "100%")],
)
def test_a_key_must_match_exactly_or_as_a_browser_has_it_in_an_address(key: str, address: str) -> None:
    door = WorkshopAuth(key)
    door.lead(address)
    for near in (f"x{key}", f"{key} ", f"{address}x", door.code):
        with pytest.raises(WorkshopAuthError):
            door.lead(near)


def test_a_chosen_key_always_gives_the_same_code() -> None:
    assert WorkshopAuth("Correct horse").code == "CRYTF", "of another version, too: it may be on a slide"
    others = [WorkshopAuth(key) for key in (None, None, "key 1", "key 2")]
    assert len({it.key for it in others}) == len({it.code for it in others}) == 4


def test_the_joining_link_has_an_address_that_others_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    assert joining("https://space.example/", "BCDFG", "0.0.0.0") == "https://space.example/?join=BCDFG"
    assert joining("https://host.example/lab/?old=1#x", "BCDFG", "::") == "https://host.example/lab/?join=BCDFG"
    own: dict[str, str | None] = {"0.0.0.0": "10.1.2.3", "::": "2001:db8::5"}
    monkeypatch.setattr(access, "_own_address", own.get)
    for page in ("http://127.0.0.1:7860/", "http://[::1]:7860/", "http://0.0.0.0:7860/", "http://[::]:7860/"):
        assert joining(page, "BCDFG", "0.0.0.0") == "http://10.1.2.3:7860/?join=BCDFG"
        assert joining(page, "BCDFG", "::") == "http://[2001:db8::5]:7860/?join=BCDFG"
        with pytest.raises(WorkshopAuthError, match="Others cannot connect yet"):
            joining(page, "BCDFG", "127.0.0.1")
    own.clear()
    for page, host in (("http://localhost:7860/", "0.0.0.0"), ("http://[::]:7860/", "::")):
        with pytest.raises(WorkshopAuthError, match="open this page by the address that they use"):
            joining(page, "BCDFG", host)


def test_others_are_sent_to_no_address_that_the_server_would_not_answer_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_own_address", lambda host: "10.1.2.3")
    options = read_options(["--host", "0.0.0.0", "--allowed-hosts", "lab.example.org", "--device", "cpu"], {})
    names = known_hosts(options, {})
    said = Workshop(JobQueue(together=True), options.host, "KEY", names).announcement("http://0.0.0.0:7860/")
    assert "http://10.1.2.3" not in said
    assert "only by the names in --allowed-hosts: lead from the address at which a proxy serves it" in said
    page = "https://lab.example.org/"
    assert joining(page, "BCDFG", options.host, names) == f"{page}?join=BCDFG"
    known = (*names, "10.1.2.3")
    assert joining("http://localhost:7860/", "BCDFG", options.host, known) == "http://10.1.2.3:7860/?join=BCDFG"


@pytest.mark.parametrize(
    "page",
    [
        "",
        "javascript:alert(1)",
        "javascript://lab.example.org/%0Aalert(1)",
        "http://",
        "http://[",
        f"http://a/{'a' * 5000}",
    ],
)
def test_an_invalid_page_address_is_refused(page: str) -> None:
    with pytest.raises(WorkshopAuthError, match="is not a page's address"):
        joining(page, "BCDFG", "0.0.0.0")
