"""How often the receiver looks at Redis, and what it says of it."""

import asyncio
from contextlib import suppress
from typing import Any, cast

from structlog.testing import capture_logs

from credhook.receiver.command import _watch
from credhook.receiver.inbox import Inbox
from credhook.store.health import Check

WELL = Check("reachable", passed=True, remedy="")
UNWELL = Check("reachable", passed=False, remedy="start it")
WARNED = Check("maxmemory", passed=False, remedy="set it", warning=True)


class Examined:
    """Finds what is planned, and then no more."""

    def __init__(self, *found: Check) -> None:
        self._found = iter(found)
        self.unavailable = "it does not answer"

    async def examine(self) -> tuple[Check, ...]:
        if (check := next(self._found, None)) is None:
            raise asyncio.CancelledError
        return (check,)


async def test_a_redis_that_is_unwell_is_looked_at_more_often() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        assert inbox.unavailable == ("" if waits[6:] else "it does not answer")
        if len(waits) == 12:  # The inbox meets an outage that ends before the next look.
            inbox.unavailable = "it did not answer"

    inbox = Examined(*[UNWELL] * 6, WELL, WELL, UNWELL, UNWELL, WELL, WARNED, WARNED)
    with capture_logs() as logs, suppress(asyncio.CancelledError):
        await _watch(cast("Inbox", inbox), sleep)
    assert waits == [1.0] * 6 + [10.0] * 2 + [1.0] * 2 + [10.0] * 3
    events: list[Any] = [entry["event"] for entry in logs]
    assert events == [*["redis_unsafe", "redis_safe"] * 2, "redis_warning", "redis_safe"]
