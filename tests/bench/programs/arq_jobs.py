"""arq. Run as a program, it enqueues."""

# mypy: disable-error-code="import-not-found"
# (arq is not among our requirements; this runs in an environment of its own.)

import asyncio
import os
from typing import Any, ClassVar

from arq import create_pool
from arq.connections import RedisSettings
from bench.programs.fetching import event_ids, fetch_async

REDIS = RedisSettings.from_dsn(os.environ["REDIS_URL"])

#: By default arq logs two lines for each job; the others are held to warnings as well.
QUIET = {"version": 1, "disable_existing_loggers": False, "root": {"level": "WARNING"}}

#: Jobs that are enqueued at once.
BLOCK = 100


async def handle(context: dict[str, Any], event_id: str) -> None:
    await fetch_async(event_id)


class Worker:
    functions: ClassVar = [handle]
    redis_settings = REDIS
    max_jobs = int(os.environ["SLOTS"])
    keep_result = 0
    poll_delay = 0.01  # Its default of half a second leaves slots empty.


async def fill() -> None:
    pool, ids = await create_pool(REDIS), event_ids()
    for start in range(0, len(ids), BLOCK):
        block = ids[start : start + BLOCK]
        await asyncio.gather(*(pool.enqueue_job("handle", event_id, _job_id=event_id) for event_id in block))


if __name__ == "__main__":
    asyncio.run(fill())
