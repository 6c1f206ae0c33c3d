"""Background work beside a worker or a receiver: it ends with it, and starts again if it fails."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from credhook.store.errors import STORE_ERRORS

log = structlog.get_logger("credhook")

#: Seconds before background work that failed starts again.
_RESTART_SECONDS: Final = 1.0


@asynccontextmanager
async def beside(*works: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run background work during the block."""
    tasks = [asyncio.create_task(_restarted(work)) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_RESTART_SECONDS)


async def _restarted(work: Callable[[], Awaitable[None]]) -> None:
    """Run background work until cancelled, through all outages of Redis."""
    while True:
        try:
            await work()
        except STORE_ERRORS:
            pass  # Claims and deliveries log the outage.
        except Exception as error:
            log.error("background_task_failed", exc_info=error)  # noqa: TRY400  Our processor keeps the message out.
        await asyncio.sleep(_RESTART_SECONDS)
