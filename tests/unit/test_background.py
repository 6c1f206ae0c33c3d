"""Background work starts again if it fails, on a clock of the test's own."""

import asyncio
from unittest.mock import AsyncMock

from redis.exceptions import RedisError
from structlog.testing import capture_logs

from credhook.background import beside
from support.virtual_time import on_own_clock


@on_own_clock
async def test_background_work_begins_again_whatever_ends_it() -> None:
    work = AsyncMock(side_effect=[ValueError(), RedisError("away"), ValueError(), asyncio.CancelledError()])
    with capture_logs() as lines:
        async with beside(work):
            await asyncio.sleep(60)
    assert work.await_count == 4
    assert [line["event"] for line in lines] == ["background_task_failed"] * 2  # An outage is logged elsewhere.
