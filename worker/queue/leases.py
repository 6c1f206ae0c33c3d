"""Leases of a process: all are renewed in one round trip, until they are released or lost."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from redis.exceptions import RedisError

from credhook.worker.queue.claim import Claim
from credhook.worker.queue.claims import Claims

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
        """Renew claims by `claims`; `clock` returns monotonic seconds."""
        self._claims = claims
        self._clock = clock
        self._held: dict[str, _Held] = {}

    def hold(self, claim: Claim, lost: Callable[[], None]) -> None:
        """Renew the claim from now on. Call `lost` if it was lost, or if Redis was away until it had to end."""
        held = self._held.get(claim.event_id)
        if held is not None and held.claim is claim:
            return
        if held is not None:  # It was taken again: the older claim stands no longer.
            held.lost()
        self._held[claim.event_id] = _Held(claim, self._clock() + self._claims.lease, lost)

    def release(self, claim: Claim) -> None:
        """Stop renewing the claim."""
        held = self._held.get(claim.event_id)
        if held is not None and held.claim is claim:
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
            lost = {claim.event_id for claim in await self._claims.renew([one.claim for one in held])}
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
