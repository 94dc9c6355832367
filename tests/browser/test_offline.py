"""Nothing is ever asked of another host: every test whose pages ``visit`` opens and uses fails if one is."""

from __future__ import annotations

from collections.abc import Callable

from tests.browser.conftest import Lab
from tests.waiting import until


def test_a_request_to_another_host_is_noticed(visit: Callable[..., Lab], complaints: list[str]) -> None:
    page = visit().at("deploy")
    assert complaints == []
    page.evaluate("fetch('http://elsewhere.invalid/font').catch(() => {})")
    until(lambda: page.wait_for_timeout(20) or len(complaints) == 2)  # asked, and logged as failed
    assert complaints[0] == "asked http://elsewhere.invalid/font"
    complaints.clear()
