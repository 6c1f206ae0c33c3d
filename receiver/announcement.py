"""Each receiver process announces itself in Redis, so that an operator can be told which there are.

A receiver and its workers know nothing of each other. Without this nobody could see that one writes to a queue that the
others do not read, or that the public URL leads elsewhere.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from uuid import uuid4

import structlog
from pydantic import BaseModel, ConfigDict
from redis.asyncio import Redis
from redis.exceptions import RedisError

from credhook.receiver.inbox import Inbox
from credhook.receiver.refusals import INSTANCE_KEY, RefusalLog
from credhook.receiver.settings import ReceiverSettings
from credhook.store import RECEIVERS
from credhook.store.announcements import ANNOUNCE, LASTS, digests, version

log = structlog.get_logger("credhook.receiver")

#: Seconds between two rounds.
EACH: Final = 10.0
#: Seconds that the farewell may take.
_FAREWELL: Final = 1.0


class Announcement(BaseModel):
    """What a receiver process says of itself. It has no secret and no path in it.

    Attributes:
        queue: that it writes to.
        version: of this package.
        host: where the process runs.
        mark: the key of the ids in its answers, see mark.py.
        strict: whether it waits for the fsync.
        tolerance: seconds that a signature's timestamp may lie in the past or the future.
        alike: digests of the settings that all receivers of a queue should have alike; older versions do not say so.
        acknowledged: deliveries that it has acknowledged in its last round.
        seconds: how long that round was.
        idle: seconds since the last that it acknowledged; None before the first.
        unauthenticated: deliveries that it has refused, since it started, for want of a signature that holds.
        outside_tolerance: how many of these for their timestamp alone; none where an older version does not say so.
        refused: seconds since the last of these; None before the first.
    """

    model_config = ConfigDict(frozen=True)

    queue: str
    version: str
    host: str
    mark: str
    strict: bool
    tolerance: int
    alike: dict[str, str] = {}
    acknowledged: int = 0
    seconds: float = EACH
    idle: float | None = None
    unauthenticated: int = 0
    outside_tolerance: int = 0
    refused: float | None = None


class Announcer:
    """Announces this process, round after round."""

    def __init__(
        self,
        redis: Redis,
        settings: ReceiverSettings,
        inbox: Inbox,
        refusals: RefusalLog,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`clock` tells monotonic seconds, the same as the inbox's and the refusals'."""
        self._script = redis.register_script(ANNOUNCE)
        self._redis = redis
        self._inbox = inbox
        self._refusals = refusals
        self._clock = clock
        self._sleep = sleep
        self._token = uuid4().hex[:12]
        self._first = Announcement(
            queue=settings.queue,
            version=version(),
            host=socket.gethostname(),
            mark=INSTANCE_KEY,
            strict=settings.durability == "strict",
            tolerance=settings.tolerance,
            # No secret is among them, not even as a digest: who has another is seen by what is refused there.
            alike=digests(
                {
                    "CREDHOOK_WEBHOOK_PATH": settings.webhook_path,
                    "CREDHOOK_TOLERANCE": settings.tolerance,
                    "CREDHOOK_RETENTION": settings.retention,
                    "CREDHOOK_DURABILITY": settings.durability,
                }
            ),
        )
        self._counted, self._at = 0, clock()

    async def keep(self) -> None:
        """Announce until cancelled, through all outages of Redis."""
        while True:
            try:
                await self.announce()
            except (RedisError, OSError) as error:
                log.debug("not_announced", error=type(error).__name__)
            await self._sleep(EACH)

    async def announce(self) -> None:
        """One round.

        Raises:
            RedisError, OSError: Redis failed.
        """
        now, (count, last) = self._clock(), self._inbox.acknowledged
        refused = self._refusals.last_unauthenticated
        figures = {
            "acknowledged": count - self._counted,
            "seconds": round(now - self._at, 3),
            "idle": None if last is None else round(now - last, 3),
            "unauthenticated": self._refusals.unauthenticated,
            "outside_tolerance": self._refusals.outside_tolerance,
            "refused": None if refused is None else round(now - refused, 3),
        }
        self._counted, self._at = count, now
        mine = self._first.model_copy(update=figures).model_dump_json()
        await self._script(keys=[RECEIVERS], args=[self._token, mine, int(LASTS * 1_000)])

    async def leave(self) -> None:
        """Announce nothing any more."""
        with suppress(RedisError, OSError):  # It is forgotten within a minute.
            async with asyncio.timeout(_FAREWELL):
                await self._redis.hdel(RECEIVERS, self._token)
                await self._redis.aclose()
