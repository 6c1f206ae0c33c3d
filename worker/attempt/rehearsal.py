"""In place of the store: `credhook events run` and the test kit make attempts that write nothing."""

from collections.abc import Iterable
from datetime import datetime
from math import ceil
from typing import Any

from credhook.store import FETCH, Schedule, ending
from credhook.worker.attempt.details import Snapshots
from credhook.worker.queue.claims import Claim, Claims, Settlement
from credhook.worker.queue.failure import Failure


def first_claim(event_id: str, event_type: str, resource_id: str, received_at: datetime, now: int) -> Claim:
    """Return a claim that no store knows, of an event that no worker has had. `now`: ms since the epoch."""
    return Claim(
        event_id=event_id,
        type=event_type,
        resource_id=resource_id,
        received_at=received_at,
        now=now,
        lapses=0,
        fence=1,
        first=True,
        latest=(0, 0),
        job="",
    )


class RehearsedClaims(Claims):
    """Stands for the store: every claim stands, every place is free, and results stay in memory.

    Attributes:
        saved: handler → what it has saved by `context.progress`.
    """

    def __init__(self) -> None:
        self.lease = 3_600.0
        self.saved: dict[str, str] = {}
        self._recorded: dict[str, str] = {}

    async def settle(self, claim: Claim, settlement: Settlement, *, follow: bool = False) -> tuple[bool, None]:  # noqa: ARG002
        """Accept the result."""
        return True, None

    async def record(
        self,
        claim: Claim,  # noqa: ARG002
        handler: str,
        how: str,
        pending: Iterable[str] = (),  # noqa: ARG002
        failure: Failure | None = None,  # noqa: ARG002
    ) -> None:
        """Keep how the handler ended."""
        self._recorded[handler] = how

    async def renew(self, claims: Any) -> list[Claim]:  # noqa: ARG002
        """Lose no claim."""
        return []

    async def ended(self, claim: Claim, handler: str) -> str:  # noqa: ARG002
        """Return "": no other worker has the event."""
        return ""

    async def acquire_place(self, *_: object) -> tuple[bool, float]:
        """Give the handler a place."""
        return True, 0.0

    async def release_place(self, claim: Claim, handler: str) -> None:
        """Do nothing."""

    async def save_progress(self, claim: Claim, handler: str, progress: str) -> bool:  # noqa: ARG002
        """Keep the progress."""
        self.saved[handler] = progress
        return True

    def next_claim(self, claim: Claim, settlement: Settlement) -> Claim:
        """Return the claim of a waiting event when its next attempt is due, as the store would hand it out."""
        due = settlement.until or claim.now + max(1, ceil(settlement.wait * 1_000))
        schedules: dict[str, Schedule] = {**claim.schedules}
        for name, (attempts, wait, chosen) in settlement.schedules.items():
            schedules[name] = Schedule(attempts, 0 if wait is None else claim.now + ceil(wait * 1_000), chosen)
        if settlement.fetched:
            schedules.pop(FETCH, None)
        self._recorded.update(settlement.records)
        return claim._replace(
            now=due,
            due=due,
            first=False,
            fence=claim.fence + 1,
            latest=settlement.latest or claim.latest,
            ended={name: ending(how)[0] for name, how in self._recorded.items()},
            schedules=schedules,
            seen=claim.seen or settlement.sealed,
            causes=settlement.causes,
            progress=dict(self.saved),
        )


class RehearsedSnapshots(Snapshots):
    """Snapshots that are read and not written."""

    async def keep(self, event_id: str, fence: int, resource_id: str, details: bytes) -> None:  # noqa: ARG002
        """Keep presented data in memory."""
        self.recent.put(event_id, details)
