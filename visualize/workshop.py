"""A workshop, put together from its parts."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from starlette.routing import Route

from visualize.jobs.job_queue import JobQueue
from visualize.jobs.run_store import RunStore
from visualize.pages.workshop.auth import WorkshopAuth, WorkshopAuthError, here, joining
from visualize.pages.workshop.feed import RoomFeed
from visualize.pages.workshop.presenter import Presenter
from visualize.pages.workshop.routes import WorkshopRoutes

SAFE = 12
"""Fewest characters of a key that nobody should find by trying: a made-up one has 22."""
SHORT = f"\nWorkshop: your key has fewer than {SAFE} characters, and anyone can try thousands a minute. Choose another."


class Workshop:
    """A workshop, whose runs share turns of ``queue``, which was made for it.

    Args:
        host: what the server listens on.
        key: the presenter's. None: one is generated.
        names: those that the server answers to. None: any.

    Attributes:
        store: the runs of the Lab's visitors.
    """

    def __init__(self, queue: JobQueue, host: str, key: str | None, names: Collection[str] | None = None) -> None:
        self.access, self.store = WorkshopAuth(key), RunStore()
        self.lead = Presenter(self.store)
        self.room = RoomFeed(queue, self.lead)
        self._made_up = not key
        self._joining = partial(joining, code=self.access.code, host=host, names=names)
        self._routes = WorkshopRoutes(self.access, self.lead, self.room, self._joining)

    def routes(self) -> list[Route]:
        return self._routes.routes()

    def announcement(self, address: str) -> str:
        """The lines to print at the start. A key that was chosen is not repeated. A line ends with its address: a full
        stop would be copied with it."""
        address = here(address.rstrip("/") + "/")
        try:
            how = f"Others join at {self._joining(address)}"
        except WorkshopAuthError as error:
            how = str(error)
        key, whose = (self.access.key, "") if self._made_up else ("KEY", " (KEY stands for the key that you chose)")
        return (
            f"Workshop: the code is {self.access.code}. {how}\n"
            f"Workshop: anyone with your address can lead, so keep it to yourself{whose}: lead from "
            f"{address}room#lead={key}{'' if len(self.access.key) >= SAFE else SHORT}"
        )
