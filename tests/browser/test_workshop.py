"""A workshop as its participants see it: they join by code, follow the presenter, and leave to go on by themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route

from lab.machine import describe_machine
from tests import followers
from tests.browser.conftest import OVERFLOW, Lab, background
from tests.browser.conftest import PRESENTERS_KEY as KEY
from tests.browser.test_accessibility import violations
from visualize.server.channel import END

Visit = Callable[..., Lab]


@pytest.fixture(scope="module")
def server(hosting: str) -> str:
    """Replaces the session's server: an app that hosts a workshop."""
    return hosting


@pytest.fixture(scope="module")
def presenter(browser: Browser, server: str) -> Iterator[BrowserContext]:
    """A browser context that has the presenter's key."""
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    page.goto(f"{server}/room#lead={KEY}")
    page.wait_for_selector(".room-code:not(:empty)")
    assert "lead" not in page.url, "a key in the address could be read off the projection"
    yield context
    context.close()


@pytest.fixture(scope="module")
def code(presenter: BrowserContext) -> str:
    return presenter.pages[0].inner_text(".room-code")


@pytest.fixture(scope="module")
def shown(presenter: BrowserContext, server: str) -> Lab:
    """The presenter's Lab page."""
    lab = Lab(presenter.new_page(), server).open(seed=3, max_tokens=24)
    state(lab.page, "ready")
    return lab


@pytest.fixture
def leading(shown: Lab) -> Iterator[Lab]:
    """The same page while it is shown to everyone."""
    shown.page.click("[data-act=lead]")
    state(shown.page, "leading")
    yield shown
    shown.page.click("[data-act=rest]")
    state(shown.page, "ready")


def sees(page: Page, seq: int) -> None:
    page.wait_for_selector(f".stage[data-seq='{seq}'][aria-busy=false]")


def state(page: Page, wanted: str) -> None:
    page.wait_for_selector(f".strip[data-state={wanted}]")


def test_followers_see_what_is_shown_until_they_go_their_own_way(visit: Visit, leading: Lab, code: str) -> None:
    lab = visit().open(join=code.lower())
    state(lab.page, "following")
    assert "join" not in lab.page.url
    assert lab.page.inner_text(".strip-say") == "You follow the presenter. Nothing is shown yet."
    assert lab.page.inner_text(".text .hint").startswith("What the presenter shows appears here")

    leading.choose("speculation", "Lookup")
    leading.run()
    leading.finish()
    end = leading.instant
    sees(lab.page, end)
    assert lab.seen()["text"] == leading.seen()["text"]
    assert not lab.running, "the follower's own Run stays available"

    for key in ("Home", "ArrowRight", "ArrowRight"):  # as the presenter scrubs
        leading.page.keyboard.press(key)
    for page in (leading.page, lab.page):  # a follower's page may be drawn before the presenter's own
        sees(page, 2)
    assert lab.page.inner_text(".say") == leading.page.inner_text(".say")
    assert lab.seen()["rounds"] == leading.seen()["rounds"]

    late = visit(viewport={"width": 390, "height": 844}).open(join=code)
    sees(late.page, 2)
    assert late.page.is_hidden("#controls"), "on a phone, a follower sees only the stage"
    leading.page.wait_for_function("document.querySelector('.strip-say').textContent.includes('2 follow')")

    lab.page.keyboard.press("End")  # the follower takes over the player
    state(lab.page, "alone")
    sees(lab.page, end)
    leading.page.keyboard.press("ArrowLeft")
    sees(late.page, 1)
    assert lab.instant == end
    assert lab.page.is_hidden(".strip-own"), "the run on the stage is the presenter's"
    leading.page.wait_for_function("document.querySelector('.strip-say').textContent.includes('1 person follows')")

    lab.page.click("[data-act=follow]")
    sees(lab.page, 1)
    lab.run()  # the follower's own run
    lab.finish()
    state(lab.page, "alone")
    assert lab.page.inner_text(".strip-own").startswith("your run: ")
    sees(late.page, 1)

    leading.toggle("prefix-caching")  # and has not run with it yet
    leading.page.wait_for_function("location.search.includes('prefix_caching=1')")
    leading.page.wait_for_timeout(500)
    lab.page.click("[data-act=settings]")
    lab.page.wait_for_url("**speculation=ngram**")
    assert "prefix_caching=1" in lab.page.url
    lab.ready()
    state(lab.page, "alone")
    lab.page.wait_for_selector("#speculation label.selected:has-text('Lookup')")


def test_followers_see_a_reopened_run_and_keep_it_when_showing_stops(
    visit: Visit, leading: Lab, code: str, tmp_path: Path
) -> None:
    leading.run()
    leading.finish()
    file = leading.save("json", tmp_path)
    lab = visit().open(join=code)
    sees(lab.page, leading.instant)
    before = leading.page.get_attribute(".stage", "data-run")
    leading.reopen(file)
    leading.page.wait_for_function("before => document.querySelector('.stage').dataset.run !== before", arg=before)
    leading.finish()
    here = leading.page.get_attribute(".stage", "data-run")
    lab.page.wait_for_function(
        "run => JSON.parse(document.querySelector('.stage').dataset.run).run === JSON.parse(run).run", arg=here
    )
    sees(lab.page, leading.instant)
    assert lab.seen()["text"] == leading.seen()["text"]
    leading.page.click("[data-act=rest]")
    lab.page.wait_for_function("document.querySelector('.strip-say').textContent.includes('the last run stays')")
    leading.page.click("[data-act=lead]")
    lab.page.wait_for_function("document.querySelector('.strip-say').textContent.includes('what you see')")


def test_of_two_presenters_the_last_to_press_lead_leads(
    visit: Visit, presenter: BrowserContext, leading: Lab, code: str
) -> None:
    leading.run()
    leading.finish()
    lab = visit().open(join=code)
    sees(lab.page, leading.instant)

    other = Lab(presenter.new_page(), leading.server).open(seed=5, max_tokens=12)
    state(other.page, "ready")
    other.run()
    other.finish()
    other.page.click("[data-act=lead]")
    state(other.page, "leading")
    other.page.keyboard.press("Home")
    sees(lab.page, 0)

    leading.page.bring_to_front()
    leading.page.keyboard.press("ArrowLeft")
    state(leading.page, "ready")  # it learns that another presenter leads
    with leading.page.expect_response("**/workshop/presenter"):
        pass  # the message survives the next poll
    leading.page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
    assert "Another presenter leads" in leading.page.inner_text(".strip-say")
    other.page.bring_to_front()
    other.page.keyboard.press("ArrowRight")
    sees(lab.page, 1)
    assert other.page.get_attribute(".strip", "data-state") == "leading"

    leading.page.bring_to_front()
    leading.page.click("[data-act=lead]")  # takes over again
    state(leading.page, "leading")
    sees(lab.page, leading.instant)
    other.page.bring_to_front()
    other.page.wait_for_selector(".strip[data-state=ready]", timeout=15_000)  # even an idle presenter is told
    leading.page.bring_to_front()
    leading.page.keyboard.press("Home")
    sees(lab.page, 0)
    other.page.close()


def test_the_last_to_press_lead_leads_even_before_any_run(presenter: BrowserContext, server: str) -> None:
    one, other = (Lab(presenter.new_page(), server).open() for _ in range(2))
    for lab in (one, other):
        lab.page.bring_to_front()
        state(lab.page, "ready")
        lab.page.click("[data-act=lead]")
        state(lab.page, "leading")
    one.page.bring_to_front()
    one.page.wait_for_selector(".strip[data-state=ready] :text('Another presenter leads')", timeout=15_000)
    other.page.bring_to_front()
    other.page.click("[data-act=rest]")
    state(other.page, "ready")
    one.page.bring_to_front()
    one.page.wait_for_selector(".strip-say:has-text('You can lead')", timeout=15_000)
    for lab in (one, other):
        lab.page.close()


def test_what_is_shown_stays_when_the_presenter_closes_the_page(
    visit: Visit, presenter: BrowserContext, shown: Lab, code: str
) -> None:
    leaving = Lab(presenter.new_page(), shown.server).open(seed=5, max_tokens=900, cache=0, paged=0)
    state(leaving.page, "ready")
    leaving.page.click("[data-act=lead]")
    state(leaving.page, "leading")
    lab = visit().open(join=code)
    leaving.run()
    leaving.wait_for_tokens(5)
    lab.wait_for_tokens(5)
    leaving.page.close()
    lab.page.wait_for_function("document.querySelector('.say').textContent.includes('it was stopped')", timeout=20_000)
    end = lab.instant
    state(lab.page, "following")
    lab.page.keyboard.press("Home")
    sees(lab.page, 0)
    late = visit().open(join=code)
    late.wait_for_instant(end)

    shown.page.bring_to_front()
    shown.run()
    shown.finish()
    shown.page.click("[data-act=lead]")  # another presenter takes over
    state(shown.page, "leading")
    late.page.wait_for_function(
        "run => JSON.parse(document.querySelector('.stage').dataset.run).run === JSON.parse(run).run",
        arg=shown.page.get_attribute(".stage", "data-run"),
    )
    shown.page.click("[data-act=rest]")
    state(shown.page, "ready")


def test_a_participant_with_a_run_is_not_pulled_into_following(visit: Visit, leading: Lab, code: str) -> None:
    leading.run()
    leading.finish()
    leading.page.click("[data-act=rest]")
    lab = visit().open(join=code)
    state(lab.page, "following")
    lab.run()
    lab.finish()
    state(lab.page, "alone")
    own = lab.page.get_attribute(".stage", "data-run")
    leading.page.click("[data-act=lead]")
    leading.page.keyboard.press("Home")
    leading.page.wait_for_function("document.querySelector('.strip-say').textContent.includes('You lead: 0')")
    assert lab.page.get_attribute(".stage", "data-run") == own

    lab.page.focus("[data-act=follow]")
    lab.page.keyboard.press("Enter")
    sees(lab.page, 0)
    lab.page.wait_for_selector("[data-act=alone]:focus")  # the button that had the focus is hidden
    assert "run=" not in lab.page.url


def test_the_presenter_is_told_of_an_unreachable_server_and_it_is_retried(
    visit: Visit, presenter: BrowserContext, leading: Lab, code: str
) -> None:
    leading.run()
    leading.finish()
    room = presenter.pages[0]
    presenter.route("**/workshop/*", lambda route: route.abort())
    leading.page.bring_to_front()
    lab = visit().open(join=code)
    leading.page.keyboard.press("Home")
    leading.page.wait_for_selector(".strip-say.problem:has-text('does not answer')", timeout=15_000)
    room.bring_to_front()
    room.reload()
    room.wait_for_selector(".sheet-say.problem:has-text('does not answer')")
    assert room.is_hidden(".room-join")
    presenter.unroute("**/workshop/*")
    room.wait_for_selector(f".room-code:has-text('{code}')")
    leading.page.bring_to_front()
    leading.page.wait_for_selector(".strip-say:not(.problem):has-text('You lead')", timeout=15_000)
    sees(lab.page, 0)  # the instant that could not be sent arrives


def test_a_wrong_code_and_a_wrong_key_are_explained(browser: Browser, server: str) -> None:
    lab = Lab(browser.new_page(), server).open(join="AAAAA")  # not ``visit``: the browser logs the refusal as an error
    lab.page.wait_for_selector(".strip-say.problem")
    assert "not this workshop's code" in lab.page.inner_text(".strip-say")
    state(lab.page, "out")
    lab.page.goto(f"{server}/#lead=nonsense")
    lab.page.wait_for_selector('.strip-say.problem:has-text("not this workshop\'s key")')
    lab.page.goto(f"{server}/room#lead=nonsense")
    lab.page.wait_for_selector(".sheet-say.problem")
    assert "not this workshop's key" in lab.page.inner_text(".sheet-say")
    assert lab.page.is_hidden(".room-join")
    assert lab.page.inner_text(".squares .hint").startswith("Join")  # outsiders do not see the room
    lab.page.close()


@pytest.mark.parametrize("path", ["", "room"])
def test_the_presenters_link_also_works_in_a_tab_that_shows_the_page(browser: Browser, server: str, path: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server}/{path}")
    page.wait_for_selector("text=Join with the code on the presenter's screen")
    page.evaluate("key => (location.hash = `lead=${key}`)", KEY)  # as a pasted address: the browser loads nothing
    page.wait_for_selector(".strip[data-state=ready], .room-code:not(:empty)")
    assert "lead" not in page.url
    context.close()


def test_a_wrong_key_or_code_does_not_displace_the_right_one(browser: Browser, server: str, code: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    for right, wrong, well in (
        (f"#lead={KEY}", "#lead=nonsense", "ready"),
        (f"?join={code}", "?join=AAAAA", "following"),
    ):
        page.goto(f"{server}/{right}")
        state(page, well)
        page.goto(f"{server}/{wrong}")
        page.wait_for_selector(".strip-say.problem")
        page.goto(server)
        state(page, well)
        page.evaluate("localStorage.removeItem('decode-lab-key')")
    context.close()


def test_a_participant_stays_in_after_leaving_in_another_tab(visit: Visit, code: str) -> None:
    lab = visit().open(join=code)
    state(lab.page, "following")
    other = lab.page.context.new_page()
    for act, then in (("follow", "following"), ("settings", "alone")):
        other.goto(f"{lab.server}/?join={code}")
        state(other, "following")
        lab.page.bring_to_front()
        lab.page.click("[data-act=alone]")
        other.bring_to_front()
        other.click("[data-act=out]")
        lab.page.bring_to_front()
        if act == "follow":
            lab.page.click("[data-act=follow]")
        else:
            with lab.page.expect_event("load"):
                lab.page.click("[data-act=settings]")
        state(lab.page, then)
    assert "join" not in lab.page.url


def test_a_workshop_needs_nothing_that_the_browser_keeps(browser: Browser, server: str, code: str) -> None:
    context = browser.new_context()
    denied = "{ get() { throw new DOMException('denied', 'SecurityError') } }"
    for store in ("localStorage", "sessionStorage"):
        context.add_init_script(f"Object.defineProperty(window, '{store}', {denied})")
    page = context.new_page()
    page.route("**/workshop/join", lambda route: route.abort(), times=1)
    page.goto(f"{server}/?join={code}")
    page.wait_for_selector(".strip-say.problem:has-text('does not answer')")
    page.wait_for_selector(".strip[data-state=following]", timeout=15_000)
    page.click("[data-act=alone]")
    page.click("[data-act=follow]")
    state(page, "following")
    page.click("[data-act=alone]")
    with page.expect_event("load"):
        page.click("[data-act=settings]")
    state(page, "following")

    page.route("**/workshop/presenter", lambda route: route.abort(), times=1)
    page.goto(f"{server}/room#lead={KEY}")
    page.wait_for_selector(".sheet-say.problem:has-text('does not answer')")
    page.wait_for_selector(".room-code:not(:empty)")
    context.close()


def test_the_presenters_settings_can_be_asked_for_again_when_the_server_did_not_answer(
    browser: Browser, server: str, code: str
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server}/?join={code}")
    state(page, "following")
    page.click("[data-act=alone]")
    page.route("**/workshop/join", lambda route: route.abort(), times=1)
    page.click("[data-act=settings]")
    page.wait_for_selector(".strip[data-state=alone] .problem:has-text('does not answer')")
    with page.expect_event("load"):
        page.click("[data-act=settings]")
    state(page, "alone")
    context.close()


def test_a_presenters_page_tries_again_until_the_server_answers(presenter: BrowserContext, server: str) -> None:
    page = presenter.new_page()
    page.route("**/workshop/presenter", lambda route: route.abort(), times=2)
    page.goto(server)
    page.wait_for_selector(".strip[data-state=out] .problem:has-text('does not answer')")
    page.wait_for_selector(".strip[data-state=ready]", timeout=20_000)
    page.close()


def test_joining_twice_leaves_one_connection(browser: Browser, server: str, code: str) -> None:
    page = browser.new_page()
    page.add_init_script(
        """window.opened = [];
        window.EventSource = class extends EventSource {
          constructor(...where) {
            super(...where);
            if (this.url.includes("/channels/")) opened.push(this);
          }
        };"""
    )
    page.goto(f"{server}/room")
    page.fill("[name=code]", code)
    page.evaluate("for (const _ of [1, 2]) document.querySelector('.strip-join').requestSubmit()")
    page.wait_for_function("opened.length === 2 && opened[1].readyState === EventSource.OPEN")
    assert page.evaluate("opened[0].readyState === EventSource.CLOSED")
    page.wait_for_selector("[data-key=followers] .value:not(:text('–'))")
    page.close()


def test_a_room_page_rejoins_after_the_server_restarts(visit: Visit, presenter: BrowserContext, code: str) -> None:
    lab = visit().open(join=code, max_tokens=40)
    lab.run()
    lab.finish()
    room = visit().page
    room.goto(f"{lab.server}/room?join={code}")
    room.wait_for_selector(".squares .square")
    background(room, True)
    over = {"content_type": "text/event-stream", "body": END}
    room.route("**/channels/*", lambda route: route.fulfill(**over))  # as if the channel were gone
    with room.expect_response("**/workshop/join"):  # so it rejoins
        background(room, False)
    room.unroute("**/channels/*")
    done = int(room.inner_text("[data-key=done] .value"))
    lab.run()
    lab.finish()
    room.wait_for_function(
        "done => Number(document.querySelector('[data-key=done] .value').textContent) > done", arg=done
    )


def test_followers_and_the_room_say_that_the_server_does_not_answer(browser: Browser, leading: Lab, code: str) -> None:
    context = browser.new_context()  # not ``visit``: the browser logs the refusals as errors
    follower, room = context.new_page(), context.new_page()
    follower.goto(f"{leading.server}/?join={code}")
    room.goto(f"{leading.server}/room?join={code}")
    for page, says, well in (follower, ".strip-say", "You follow"), (room, ".sheet-say", "Everybody's runs"):
        page.wait_for_selector(f'{says}:not(.problem):has-text("{well}")')
        background(page, True)
        page.route("**/channels/*", lambda route: route.fulfill(status=502))
        background(page, False)
        page.wait_for_selector(f"{says}.problem:has-text('The lab does not answer')")
        page.unroute("**/channels/*")
        page.wait_for_selector(f'{says}:not(.problem):has-text("{well}")')
    context.close()


def test_a_hidden_page_disconnects_and_catches_up_when_shown(visit: Visit, leading: Lab, code: str) -> None:
    """A browser allows six connections to a server, and every page needs one."""
    lab = visit().open(join=code)
    leading.run()
    leading.finish()
    leading.page.keyboard.press("Home")
    sees(lab.page, 0)
    background(lab.page, True)
    leading.page.wait_for_function("document.querySelector('.strip-say').textContent.includes('You lead: 0')")
    leading.page.keyboard.press("ArrowRight")
    leading.wait_for_instant(1)
    background(lab.page, False)
    sees(lab.page, 1)


def test_a_verdict_opened_by_the_presenter_opens_for_everyone(visit: Visit, leading: Lab, code: str) -> None:
    leading.run()
    leading.finish()
    lab = visit().open(join=code)
    sees(lab.page, leading.instant)
    leading.page.locator(".text .token:is(.accepted, .recovered)").first.click()
    leading.page.wait_for_selector(".verdict:not([hidden])")
    late = visit().open(join=code)
    first = leading.page.inner_text(".verdict h2")
    for page in (lab.page, late.page):
        page.wait_for_selector(f".verdict:not([hidden]) h2:has-text('{first}')")
        assert page.inner_text(".token.chosen") == leading.page.inner_text(".token.chosen")
    assert "guess=" not in lab.page.url, "the address is only about the follower's own run"

    lab.page.keyboard.press("Escape")  # a follower may close it and goes on following
    lab.page.wait_for_selector(".verdict", state="hidden")
    end = leading.instant
    leading.page.click("[data-do=back]")
    sees(lab.page, end - 1)
    state(lab.page, "following")
    assert lab.page.is_hidden(".verdict")
    assert late.page.is_visible(".verdict")

    leading.page.click("[data-verdict=on]")
    for page in (lab.page, late.page):
        page.wait_for_selector(f".verdict:not([hidden]) h2:has-text('{leading.page.inner_text('.verdict h2')}')")
    leading.page.keyboard.press("Home")  # it has not happened yet
    for page in (lab.page, late.page):
        page.wait_for_selector(".verdict", state="hidden")

    leading.page.click("[data-do=last]")
    sees(late.page, end)
    late.page.click("[data-act=alone]")  # a verdict opened while not following is their own
    late.page.locator(".text .token:is(.accepted, .recovered)").first.click()
    late.page.wait_for_selector(".verdict:not([hidden])")
    late.page.click("[data-act=follow]")
    late.page.wait_for_selector(".verdict", state="hidden")


def test_the_presenters_run_is_not_mistaken_for_ones_own(visit: Visit, leading: Lab, code: str) -> None:
    """It is all pale until one's own run has something to show, which may take a while when many share an engine."""
    leading.run()
    leading.finish()
    lab = visit().open(join=code)
    sees(lab.page, leading.instant)
    held: list[Route] = []
    lab.page.route("**/channels/**", lambda route: held.append(route))
    lab.run()
    opacity = "part => Number(getComputedStyle(document.querySelector(part)).opacity)"
    for part in (".readouts", ".text", ".charts"):
        lab.page.wait_for_function(f"part => ({opacity})(part) < 0.5", arg=part)
    assert lab.page.inner_text(".say") == "Waiting for the engine … Pale parts are from before."
    for route in held:
        route.continue_()
    lab.finish()
    state(lab.page, "alone")
    assert lab.page.evaluate(f"['.readouts', '.text', '.charts'].map({opacity})") == [1, 1, 1]


def test_following_again_stops_ones_own_run(visit: Visit, leading: Lab, code: str) -> None:
    leading.run()
    leading.finish()
    lab = visit().open(join=code, max_tokens=900, kernels="reference")
    state(lab.page, "following")
    lab.run()
    lab.wait_for_tokens(3)
    lab.page.click("[data-act=follow]")
    state(lab.page, "following")
    lab.page.wait_for_selector("body:not(.running)")
    lab.run()  # the follower's own run has ended
    state(lab.page, "alone")
    lab.page.keyboard.press("Escape")
    lab.finish()

    lab.page.click("[data-act=settings]")
    lab.page.wait_for_function("!location.search.includes('900')")
    lab.ready()
    asked = parse_qs(urlsplit(lab.page.url).query)
    assert asked["max_tokens"] == ["24"]
    assert not {"run", "step"} & set(asked), "settings are taken over, but no run begins"


@pytest.mark.parametrize("key", ["pass+word&x", "100%", "ä b"])
def test_any_key_works_in_the_address_as_printed(browser: Browser, server: str, key: str) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.post_data) if "presenter" in request.url else None)
    page.goto(f"{server}/room#lead={key}")
    page.wait_for_selector(".sheet-say.problem")
    assert json.loads(asked[0])["key"] == key
    page.close()


def test_the_room_shows_everyones_blocks_and_nobodys_text(visit: Visit, presenter: BrowserContext, code: str) -> None:
    room = presenter.pages[0]
    room.bring_to_front()
    prompt = "A certain king had a beautiful garden"
    long = {"join": code, "max_tokens": 900, "kernels": "reference"}  # takes seconds, long enough to observe
    one, other = visit().open(**long, prompt=prompt), visit().open(**long)
    for lab in (one, other):
        lab.run()
    room.wait_for_function(
        "new Set([...document.querySelectorAll('.squares .square.own')].map((square) => square.textContent)).size === 2"
    )
    assert room.inner_text("[data-key=running] .value") == "2"
    assert room.locator(".chips[data-state=running] li").count() == 2
    for lab in (one, other):
        lab.wait_for_tokens(3)
    numbers = {lab.page.inner_text(".strip-own").removeprefix("your run: ") for lab in (one, other)}
    assert numbers == set(room.locator(".chips[data-state=running] b").all_inner_texts())
    assert "garden" not in room.content()
    for lab in (one, other):
        lab.page.keyboard.press("Escape")  # does nothing if the run is over
        lab.finish()
    room.wait_for_function("document.querySelector('[data-key=running] .value').textContent === '0'")
    assert room.locator(".squares .square.own").count() == 0

    own = one.page.context.new_page()  # in the same browser, the room marks one's own blocks
    own.goto(f"{one.server}/room")
    own.wait_for_selector(".squares .square")
    one.run()
    own.wait_for_selector(".squares .square.chosen")
    assert own.is_hidden(".room-join")


def test_the_pages_fit_the_screen_and_are_accessible(browser: Browser, server: str, code: str) -> None:
    page = browser.new_page()
    for address in (f"{server}/?join={code}", f"{server}/room"):
        page.set_viewport_size({"width": 1280, "height": 720})
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        page.wait_for_selector(".strip[data-state=following], .room .squares")
        assert max(page.evaluate(OVERFLOW)) <= 0, address
        page.set_viewport_size({"width": 1366, "height": 625})
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_function("document.querySelector('.say').getBoundingClientRect().bottom <= innerHeight")
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_function(f"{OVERFLOW}[0] <= 0")
        assert violations(page) == [], address
    page.close()


def test_the_cost_of_followers_is_measured_while_they_follow(browser: Browser, server: str) -> None:
    """``python -m tests.followers`` in small. Of instants shown in quick succession, only the last may arrive."""
    found = followers.measure(server, psutil.Process(), KEY, browser, followers=3, hz=5, seconds=1, rounds=1)
    assert 0.5 < found["messages_arrived"] <= 1
    assert found["machine"] == describe_machine("cpu")
