"""A workshop: its parts, and the HTTP interface for its pages."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from visualize.jobs.job_queue import JobQueue
from visualize.jobs.run_store import RunStore
from visualize.pages.workshop.auth import WorkshopAuth, WorkshopAuthError, here, joining, qr_code
from visualize.pages.workshop.feed import RoomFeed
from visualize.pages.workshop.presenter import Presenter

MOST_BYTES = 64 * 1024
"""Most bytes of a request. A prompt in the presenter's address has up to 4,000 characters, each up to twelve there."""
PAUSE = 0.5
"""Seconds before a wrong code or key is answered."""
GONE = "The server no longer has this run, so it cannot show it to others. Press Run, or open its file again."
MOST_FRAMES = 2**31
NO_FRAME = (
    "A frame to show is a whole number from 0, or null for the newest; a draft token is a frame and its place there, "
    "or null."
)
NONSENSE = "This is not what the workshop's pages send: a JSON object with their fields."

SAFE = 12
"""Fewest characters of a key that nobody should find by trying: a made-up one has 22."""
SHORT = f"\nWorkshop: your key has fewer than {SAFE} characters, and anyone can try thousands a minute. Choose another."

Body = dict[str, Any]


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

    def routes(self) -> list[Route]:
        """The HTTP interface for its pages: every request and every answer is a JSON object."""
        answers = {"join": self._join, "presenter": self._presenter, "lead": self._show}
        return [Route(f"/workshop/{name}", self._route(answer), methods=["POST"]) for name, answer in answers.items()]

    def _route(self, answer: Callable[[Body], Body]) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            body = await _read(request)
            if body is None:
                return JSONResponse({"problem": NONSENSE}, 400)
            try:
                return JSONResponse(answer(body))
            except WorkshopAuthError as error:
                await asyncio.sleep(PAUSE)
                return JSONResponse({"problem": str(error)}, 403)

        return respond

    def _join(self, body: Body) -> Body:
        """{code}. Answers with the channels of the presenter and of the room, and with the presenter's settings: null
        if nobody leads."""
        self.access.join(body.get("code"))
        return {"lead": self.lead.channel.id, "room": self.room.channel.id, "query": self.lead.query}

    def _presenter(self, body: Body) -> Body:
        """{key, page}. Answers with what the presenter's screen shows: the code, how to join, how many follow, and who
        leads; and with the room's channel."""
        self.access.lead(body.get("key"))
        answer = {"code": self.access.code, "room": self.room.channel.id}
        answer |= {"followers": self.lead.followers, "leader": self.lead.leader}
        try:
            link = self._joining(str(body.get("page")))
        except WorkshopAuthError as error:
            return answer | {"problem": str(error)}
        return answer | {"link": link, "picture": qr_code(link)}

    def _show(self, body: Body) -> Body:
        """{key, run, at, guess, query, who, session, take, rest}. Shows that to all followers; with ``run``
        null, only the settings; with ``rest``, nothing, and ``who`` also stops leading, as it does when its ``session``
        ends. Answers with {followers}, and with {leader} if nothing was changed because another page than ``who`` leads
        and was not to be replaced."""
        self.access.lead(body.get("key"))
        run, at, draft_token = (body.get(name) for name in ("run", "at", "guess"))
        one = draft_token is None or (
            isinstance(draft_token, list) and len(draft_token) == 2 and _are_frames(draft_token)
        )
        if not one or not (at is None or _are_frames([at])):
            return {"followers": self.lead.followers, "problem": NO_FRAME}
        who, session, query = str(body.get("who")), str(body.get("session") or "") or None, str(body.get("query") or "")
        if not self.lead.leads(who, session, take=body.get("take") is True):
            return {"followers": self.lead.followers, "leader": self.lead.leader}
        if body.get("rest") is True:
            self.lead.rest()
        elif run is None:
            self.lead.stop(query)
        elif not self.lead.show(str(run), at, draft_token, query):
            return {"followers": self.lead.followers, "problem": GONE}
        return {"followers": self.lead.followers}


def _are_frames(numbers: Sequence[object]) -> bool:
    return all(type(number) is int and 0 <= number < MOST_FRAMES for number in numbers)


async def _read(request: Request) -> Body | None:
    """The request's JSON object; None if it has none."""
    text = b""
    async for part in request.stream():
        text += part
        if len(text) > MOST_BYTES:
            return None
    try:
        body = json.loads(text)
        json.dumps(body, ensure_ascii=False).encode()  # a lone surrogate can be sent as an escape, but not answered
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None
