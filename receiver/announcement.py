"""Each receiver process announces itself in Redis.

Receivers and workers do not know each other. Status and doctor compare the announcements. They find a receiver that
writes to a queue without workers, and receivers whose settings differ.
"""

import asyncio
import os
import socket
import time
from contextlib import suppress
from typing import Final
from uuid import uuid4

import structlog

from credhook.receiver.app import RefusalLog
from credhook.receiver.inbox import Inbox
from credhook.receiver.settings import ReceiverSettings
from credhook.store.announcements import ANNOUNCEMENT_SECONDS, ReceiverAnnouncement, fingerprint, version
from credhook.store.errors import STORE_ERRORS
from credhook.store.store import AsyncStore

log = structlog.get_logger("credhook.receiver")

ANNOUNCE_EVERY_SECONDS: Final = 10.0
#: Seconds that the removal of the announcement may take.
_LEAVE_SECONDS: Final = 1.0


class Announcer:
    """Announces this process every ten seconds."""

    def __init__(self, store: AsyncStore, settings: ReceiverSettings, inbox: Inbox, refusals: RefusalLog) -> None:
        self._store = store
        self._inbox = inbox
        self._refusals = refusals
        self._token = uuid4().hex[:12]
        self._identity = ReceiverAnnouncement(
            queue=settings.queue,
            version=version(),
            host=socket.gethostname(),
            pid=os.getpid(),
            durability=settings.durability,
            # Without secrets, not even as a digest. A receiver with another secret shows by its refusals.
            config_fingerprint=fingerprint(
                {
                    "CREDHOOK_WEBHOOK_PATH": settings.webhook_path,
                    "CREDHOOK_TOLERANCE": settings.tolerance,
                    "CREDHOOK_RETENTION": settings.retention,
                    "CREDHOOK_DURABILITY": settings.durability,
                }
            ),
        )
        self._counted, self._at = 0, time.monotonic()

    async def keep(self) -> None:
        """Announce until cancelled, through all outages of Redis."""
        while True:
            try:
                await self._announce()
            except STORE_ERRORS as error:
                log.debug("not_announced", error=type(error).__name__)
            await asyncio.sleep(ANNOUNCE_EVERY_SECONDS)

    async def _announce(self) -> None:
        now, (count, last) = time.monotonic(), self._inbox.acknowledged
        refused = self._refusals.last
        figures = {
            "acknowledged": count - self._counted,
            "seconds": round(now - self._at, 3),
            "idle": None if last is None else round(now - last, 3),
            "unauthenticated": self._refusals.unauthenticated,
            "outside_tolerance": self._refusals.outside_tolerance,
            "other_refusals": self._refusals.others,
            "refused": None if refused is None else round(now - refused, 3),
            "unavailable": self._inbox.unavailable,
            "conflicts": self._inbox.conflicts,
            "conflicted": round(now - self._inbox.last_conflict, 3) if self._inbox.conflicts else None,
        }
        self._counted, self._at = count, now
        mine = self._identity.model_copy(update=figures).model_dump_json()
        keys, arguments = self._store.keys, [self._token, mine, int(ANNOUNCEMENT_SECONDS * 1_000)]
        await self._store.redis.sadd("rq:queues", keys.jobs)  # `credhook status` finds the queue there.
        await self._store.run("announce", arguments, keys=[keys.receivers])

    async def leave(self) -> None:
        """Remove the announcement."""
        with suppress(*STORE_ERRORS):  # It lapses within a minute.
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._store.redis.hdel(self._store.keys.receivers, self._token)
