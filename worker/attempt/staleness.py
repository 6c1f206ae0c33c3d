"""Which state of an issuance or presentation is later than which, by what its events are called. Pure.

Events arrive in any order. Those of one resource are handled one after the other, and each is told whether a later
state has been handled before it. Specification: Events.
"""

from datetime import datetime
from typing import Final

#: Event types by how far they are in the life of their resource. Those of equal rank do not precede each other: a
#: presentation that is verified has its data, and an offer that has failed will not be completed.
_RANKS: Final = {
    "openid4vc.issuance.offered": 1,
    "openid4vc.issuance.partiallyIssued": 2,
    "openid4vc.issuance.completed": 3,
    "openid4vc.issuance.failed": 3,
    "openid4vc.issuance.expired": 3,
    "openid4vc.verification.requested": 1,
    "openid4vc.verification.verified": 3,
    "openid4vc.verification.data": 3,
    "openid4vc.verification.failed": 3,
    "openid4vc.verification.expired": 3,
}


def version(event_type: str, updated_at: datetime | str | None) -> tuple[int, int]:
    """The rank of what the event tells, and when the resource was last updated, in ms; 0 where that is not known."""
    try:
        updated = int(updated_at.timestamp() * 1000) if isinstance(updated_at, datetime) else 0
    except (ValueError, OverflowError):  # Of a year that no clock reaches.
        updated = 0
    return _RANKS.get(event_type, 0), max(0, updated)


def is_stale(state: tuple[int, int], latest: tuple[int, int]) -> bool:
    """Whether handlers have seen a later version of the resource than the event and its details tell of."""
    rank, updated = state
    latest_rank, latest_update = latest
    return rank < latest_rank or (updated > 0 and updated < latest_update)
