"""The platform's lists, page after page, for as long as it takes: whatever passes by itself is waited for."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from credhook.backoff import Backoff, Waits
from credhook.worker.api.calls.errors import InvalidResponse, Unavailable
from credhook.worker.api.calls.pages import Page
from credhook.worker.api.models.listed import ListedResource

T = TypeVar("T")

#: Seconds that one page is waited for, pauses of the platform included. Whoever runs it again loses nothing.
PATIENCE: Final = 600.0
#: Waits between two tries, where the platform does not say how long.
_BACKOFF: Final = Backoff(first=0.5, longest=30.0)


async def walk(
    page: Callable[[str], Awaitable[Page[ListedResource]]],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[tuple[ListedResource, ...]]:
    """Each page of a list, of which one is in memory at a time.

    `page` reads what a query leads to, the first page for "".

    Raises:
        ApiError: the platform refuses a page, has not given it within `PATIENCE`, or leads in a circle.
    """
    query, led_to = "", {""}
    while True:
        one = await _persistently(lambda query=query: page(query), clock, sleep)  # type: ignore[misc]
        yield one.items
        if one.following is None:
            return
        query = one.following
        if query in led_to:
            raise InvalidResponse("the platform's list leads in a circle: links.next names a page that has been read")
        led_to.add(query)


async def _persistently(
    call: Callable[[], Awaitable[T]], clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]
) -> T:
    """What it comes to, once the platform answers."""
    until, waits = clock() + PATIENCE, Waits(_BACKOFF)
    while True:
        try:
            return await call()
        except Unavailable as error:
            wait = max(waits.next(), error.retry_after or 0.0)
            if clock() + wait > until:
                raise
        await sleep(wait)
