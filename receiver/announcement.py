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
        now, inbox, refused = time.monotonic(), self._inbox, self._refusals.counts
        figures = {
            "acknowledged": inbox.acknowledged - self._counted,
            "seconds": round(now - self._at, 3),
            "idle": round(now - inbox.last_acknowledged, 3) if inbox.acknowledged else None,
            "unauthenticated": refused["signature"] + refused["clock"],
            "outside_tolerance": refused["clock"],
            "other_refusals": {rule: refused[rule] for rule in refused.keys() - {"signature", "clock"}},
            "refused": round(now - self._refusals.last, 3) if refused else None,
            "unavailable": inbox.unavailable,
            "conflicts": inbox.conflicts,
            "conflicted": round(now - inbox.last_conflict, 3) if inbox.conflicts else None,
        }
        self._counted, self._at = inbox.acknowledged, now
        mine = self._identity.model_copy(update=figures).model_dump_json()
        keys, arguments = self._store.keys, [self._token, mine, int(ANNOUNCEMENT_SECONDS * 1_000)]
        await self._store.redis.sadd("rq:queues", keys.jobs)  # `credhook status` finds the queue there.
        await self._store.run("announce", arguments, keys=[keys.receivers])

    async def leave(self) -> None:
        """Remove the announcement."""
        with suppress(*STORE_ERRORS):  # It lapses within a minute.
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._store.redis.hdel(self._store.keys.receivers, self._token)
