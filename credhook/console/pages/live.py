"""Parts of pages that are sent again when they have changed, as server-sent events, for as long as somebody looks."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from credhook.console.auth.sessions import Session, session_of

#: Seconds between two looks, or so many times as long as the last has taken, if that is longer: what is looked for may
#: be rare in a large ledger.
_EACH: Final = 1.0
_REST: Final = 50
#: Seconds of silence after which a proxy is told that the stream is still there.
_SILENCE: Final = 15.0
#: Streams at once: each costs a rendering every second.
_MOST: Final = 32

#: Renders the part, and says whether it may change again.
Part = Callable[[], Awaitable[tuple[str, bool]]]


class Streams:
    """All streams of the console."""

    def __init__(self, goes_on: Callable[[Session], bool]) -> None:
        """Begin with none; a stream ends with its session."""
        self._goes_on = goes_on
        self._open = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End all, so that the process can."""
        self._stopping.set()

    def stream(self, request: Request, part: Part) -> Response:
        """Send the part to whoever makes the request, again whenever it has changed.

        Raises:
            HTTPException: 503, there are too many.
        """
        if self._open >= _MOST:
            raise HTTPException(503, "Too many pages are watching already.")
        headers = {"X-Accel-Buffering": "no"}  # For nginx.
        return StreamingResponse(self._messages(request, part), media_type="text/event-stream", headers=headers)

    async def _messages(self, request: Request, part: Part) -> AsyncIterator[str]:
        self._open += 1
        sent, silent = "", 0.0
        try:
            while self._goes_on(session_of(request)):
                began = time.monotonic()
                text, changes = await part()
                pause = min(_SILENCE, max(_EACH, _REST * (time.monotonic() - began)))
                if text != sent:
                    sent, silent = text, 0.0
                    yield f"data: {json.dumps(text)}\n\n"
                elif silent >= _SILENCE:
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
