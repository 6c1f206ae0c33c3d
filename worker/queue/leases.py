"""Keeping what a process has claimed: all leases are renewed in one round trip, until they are given back or lost.

With its first renewal RQ's tools are shown who works on an event. That is after a second, when most events are done: to
show it from the start cost Redis 6 us of the 42 that it spent on an event of a worker, measured.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from redis.exceptions import RedisError

from credhook.worker.queue.claim import Claim
from credhook.worker.queue.claims import Claims

log = structlog.get_logger("credhook.worker")

#: Renewals within the time that a lease lasts: some may fail.
_RENEWALS: Final = 4
#: Seconds that a claim is held before it is renewed for the first time. RQ's tools are then shown who works on it.
SHOWN_AFTER: Final = 1.0


@dataclass(slots=True)
class _Held:
    claim: Claim
    since: float
    until: float
    lost: Callable[[], None]
    is_new: bool = True


class Leases:
    """The claims that this process works on."""

    def __init__(self, claims: Claims, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep what is claimed by `claims`; `clock` tells monotonic seconds."""
        self._claims = claims
        self._clock = clock
        self._held: dict[str, _Held] = {}

    def hold(self, claim: Claim, lost: Callable[[], None]) -> None:
        """Keep the claim; call `lost` once it is lost, or as good as lost: Redis could not be told for so long."""
        held = self._held.get(claim.event_id)
        if held is not None and held.claim is claim:
            return
        if held is not None:  # It was taken again: the older claim stands no longer.
            held.lost()
        now = self._clock()
        self._held[claim.event_id] = _Held(claim, now, now + self._claims.lease, lost)

    def release(self, claim: Claim) -> None:
        """Keep it no longer."""
        held = self._held.get(claim.event_id)
        if held is not None and held.claim is claim:
            del self._held[claim.event_id]

    async def keep(self) -> None:
        """Renew what is held, again and again, until cancelled."""
        interval = self._claims.lease / _RENEWALS
        pause = interval / math.ceil(interval / SHOWN_AFTER)
        renewed_at = self._clock()
        while True:
            await asyncio.sleep(pause)
            if self._clock() - renewed_at > interval - pause / 2:
                renewed_at = self._clock()
                await self.renew()
            else:
                await self.show()

    async def renew(self) -> None:
        """Renew what is held, once, but for what was claimed just now."""
        await self._renew([one for one in self._held.values() if not one.is_new or one.since <= self._shown_since])

    async def show(self) -> None:
        """Renew what has been held for a while and was not renewed yet."""
        await self._renew([one for one in self._held.values() if one.is_new and one.since <= self._shown_since])

    @property
    def _shown_since(self) -> float:
        return self._clock() - min(SHOWN_AFTER, self._claims.lease / _RENEWALS)

    async def _renew(self, held: Sequence[_Held]) -> None:
        asked_at = self._clock()
        for one in held:
            one.is_new = False
        try:
            lost = {one.event_id for one in await self._claims.renew([one.claim for one in held])}
        except (RedisError, OSError) as error:
            log.warning("leases_not_renewed", error=type(error).__name__, held=len(held))
            lost = {one.claim.event_id for one in held if one.until <= self._clock()}
        else:
            for one in held:
                one.until = asked_at + self._claims.lease
        for one in held:
            if one.claim.event_id in lost and self._held.get(one.claim.event_id) is one:
                del self._held[one.claim.event_id]
                one.lost()
