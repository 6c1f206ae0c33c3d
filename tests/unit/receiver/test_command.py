"""What the receiver's process does beside its requests: it looks at Redis."""

import asyncio
from contextlib import suppress
from typing import Any
from unittest.mock import AsyncMock, Mock

from structlog.testing import capture_logs

from credhook.receiver.command import _watch
from credhook.store.health import Check

WELL = Check("reachable", passed=True, remedy="")
UNWELL = Check("reachable", passed=False, remedy="start it")
WARNED = Check("maxmemory", passed=False, remedy="set it", warning=True)


async def test_a_redis_that_is_unwell_is_looked_at_more_often() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        assert inbox.unavailable == ("" if waits[6:] else "it does not answer")
        if len(waits) == 12:  # The inbox meets an outage that ends before the next look.
            inbox.unavailable = "it did not answer"

    found = [(check,) for check in (*[UNWELL] * 6, WELL, WELL, UNWELL, UNWELL, WELL, WARNED, WARNED)]
    examine = AsyncMock(side_effect=[*found, asyncio.CancelledError])
    inbox = Mock(unavailable="it does not answer", denied=False, examine=examine)
    inbox.end_outage.side_effect = lambda: setattr(inbox, "unavailable", "")
    with capture_logs() as logs, suppress(asyncio.CancelledError):
        await _watch(inbox, sleep)
    assert waits == [1.0] * 6 + [5.0] * 2 + [1.0] * 2 + [5.0] * 3
    events: list[Any] = [entry["event"] for entry in logs]
    assert events == [*["redis_unsafe", "redis_safe"] * 2, "redis_warning"]
