"""Leases of processes: renewed while a process works, and reclaimed when it has died.

A supervisor sees its worker die, notes the death in Redis and puts the events back. If a whole host dies, other workers
miss its heartbeat. No event is blamed for such a death, and no attempt of a handler is spent: the event counts one more
claim that ended without a settlement. If no process has seen a death, the leases lapse.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, cast
from zlib import crc32

import structlog

from credhook.store import Death
from credhook.store.bulk import BATCH, batched
from credhook.store.errors import STORE_ERRORS
from credhook.store.job import job_fields, job_id
from credhook.store.store import SyncStore
from credhook.worker.queue.claims import Claim, Claims
from credhook.worker.queue.failure import WORKER_DIED

log = structlog.get_logger("credhook.worker")

#: Renewals within the length of a lease: some may fail.
_RENEWALS: Final = 4


@dataclass(slots=True)
class _Held:
    claim: Claim
    until: float
    lost: Callable[[], None]


class Leases:
    """The claims that this process works on."""

    def __init__(self, claims: Claims, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._claims = claims
        self._clock = clock
        self._held: dict[str, _Held] = {}

    def hold(self, claim: Claim, lost: Callable[[], None]) -> None:
        """Renew the claim from now on. Call `lost` if it was lost, or if Redis was away until it had to end."""
        if older := self._held.get(claim.event_id):  # It was taken again: the older claim stands no longer.
            older.lost()
        self._held[claim.event_id] = _Held(claim, self._clock() + self._claims.lease, lost)

    def release(self, claim: Claim) -> None:
        """Stop renewing the claim."""
        held = self._held.get(claim.event_id)
        if held and held.claim is claim:
            del self._held[claim.event_id]

    async def keep(self) -> None:
        """Renew all claims again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._claims.lease / _RENEWALS)
            await self.renew()

    async def renew(self) -> None:
        """Renew all claims once."""
        asked_at, held = self._clock(), list(self._held.values())
        try:
            lost = {claim.event_id for claim in await self._claims.renew([lease.claim for lease in held])}
        except STORE_ERRORS as error:
            log.warning("leases_not_renewed", error=type(error).__name__, held=len(held))
            lost = {lease.claim.event_id for lease in held if lease.until <= self._clock()}
        else:
            for lease in held:
                lease.until = asked_at + self._claims.lease
        for lease in held:
            if lease.claim.event_id in lost and self._held.get(lease.claim.event_id) is lease:
                del self._held[lease.claim.event_id]
                lease.lost()


#: Leases that one script looks at.
PAGE: Final = 500
#: Events of a dead process that the log line names.
NAMED: Final = 3
#: Time that an event may be in no list: popped by RQ but not claimed yet, settled but not scheduled yet.
IN_TRANSIT_MS: Final = 5_000


def put_back(store: SyncStore, event_id: str, *, in_transit: int = IN_TRANSIT_MS, first: bool = False) -> int | bytes:
    """Put one event back into RQ's queue, to its head if it is `first`.

    Returns:
        1; 0 if it is in a list, moved less than `in_transit` ms ago, or has to wait; -1 if its record has vanished; or
        why it cannot be read.
    """
    name = event_id.encode(errors="surrogateescape")
    # The same in all rounds, but different for each event: events that died together should not return together.
    chance = crc32(name) / 2**32
    fields = itertools.chain.from_iterable(job_fields(store.queue, datetime.now(UTC)).items())
    push = "LPUSH" if first else "RPUSH"
    arguments = [name, job_id(store.queue, event_id), in_transit, chance, store.retention, push, *fields]
    return cast("int | bytes", store.run("put_back", arguments))


def note_death(store: SyncStore, name: str, how: Death) -> list[bytes]:
    """Note the death in the events that the process held, and let go of them. Return their webhook-ids."""
    death, held = json.dumps(WORKER_DIED.described()), list[bytes]()
    # A lease that is renewed meanwhile changes its place, so the places do not serve to read a page.
    ends = dict(store.redis.zscan_iter(store.keys.leases, count=PAGE))
    leased = sorted(ends, key=lambda event_id: ends[event_id])
    for page in batched(leased, PAGE):
        held += store.run("reclaim", [name, "look", death, store.retention, 0, *page])
    for batch in batched(held, BATCH):
        store.run("reclaim", [name, how, death, store.retention, len(held), *batch])
    return held


def reclaim(store: SyncStore, name: str, how: Death) -> bool:
    """Put the events of a dead process at the head of the queue. Return True if Redis has noted the death."""
    try:
        store.redis.zrem(store.keys.heartbeats, name)
        held = note_death(store, name, how)
        outcomes = [
            put_back(store, event_id.decode(errors="surrogateescape"), in_transit=0, first=True) for event_id in held
        ]
    except STORE_ERRORS as error:
        log.warning("death_not_noted", error=type(error).__name__)
        return False
    if how != "host":  # Its supervisor replaces it. A host's workers are missed until others start.
        with suppress(*STORE_ERRORS):  # It lapses by itself.
            store.redis.hdel(store.keys.announcements, name)
    log.info(
        "death_noted",
        events=len(held),
        webhook_ids=[event_id.decode(errors="replace") for event_id in held[:NAMED]],
        put_back=outcomes.count(1),
        own_fault=how == "own",
    )

    from credhook.worker import metrics

    metrics.RECLAIMED.add(by=outcomes.count(1))
    return True
