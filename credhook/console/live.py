"""Live parts of pages: sent again, as server-sent events, whenever they have changed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from credhook.console.auth import Session, session_of
from credhook.console.rendering import fragment, page

#: Seconds between two renderings.
_INTERVAL_SECONDS: Final = 1.0
#: A rendering that takes long is repeated less often: it may take 1/50 of the time.
_REST_FACTOR: Final = 50
#: Seconds of silence after which a comment keeps proxies from closing the stream.
_KEEPALIVE_SECONDS: Final = 15.0
#: Streams at once: each costs a rendering every second.
_MAX_STREAMS: Final = 32

#: Renders the part, and returns whether it may change again.
Part = Callable[[], Awaitable[tuple[str, bool]]]


class Streams:
    """All live streams of the console."""

    def __init__(self, is_alive: Callable[[Session], bool]) -> None:
        """Prepare; a stream ends when `is_alive` is false for its session."""
        self._is_alive = is_alive
        self._open = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End all streams, so that the process can stop."""
        self._stopping.set()

    def stream(self, request: Request, part: Part) -> Response:
        """Send the part, and send it again whenever it changes.

        Raises:
            HTTPException: 503, there are too many streams.
        """
        if self._open >= _MAX_STREAMS:
            raise HTTPException(503, "Too many live pages are open.")
        headers = {"X-Accel-Buffering": "no"}  # For nginx.
        return StreamingResponse(self._messages(request, part), media_type="text/event-stream", headers=headers)

    async def _messages(self, request: Request, part: Part) -> AsyncIterator[str]:
        self._open += 1
        sent, silent = "", 0.0
        try:
            while self._is_alive(session_of(request)):
                began = time.monotonic()
                text, changes = await part()
                pause = min(_KEEPALIVE_SECONDS, max(_INTERVAL_SECONDS, _REST_FACTOR * (time.monotonic() - began)))
                if text != sent:
                    sent, silent = text, 0.0
                    yield f"data: {json.dumps(text)}\n\n"
                elif silent >= _KEEPALIVE_SECONDS:
                    silent = 0.0
                    yield ": still there\n\n"
                if not changes:
                    break
                if await self._stopped_within(pause):
                    return  # The browser tries again.
                silent += pause
            yield "event: end\ndata: \n\n"
        finally:
            self._open -= 1

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._stopping.wait()
        except TimeoutError:
            return False


def live_page(path: str, name: str, streams: Streams, read: Callable[[], Awaitable[dict[str, Any]]]) -> list[Route]:
    """Return the routes of a page and of its live part. `read` returns what both templates show."""

    async def part() -> tuple[str, bool]:
        return fragment(f"{name}_part.html", **await read()), True

    async def show(request: Request) -> Response:
        return page(request, f"{name}.html", title=name.capitalize(), **await read())

    async def live(request: Request) -> Response:
        return streams.stream(request, part)

    return [Route(path, show), Route(f"/live/{name}", live)]
