"""Which state of an issuance or presentation is later than which, by what its events are called. Pure.

Events arrive in any order. Those of one resource are handled one after the other, and each is told whether a later
state has been handled before it. Specification: Events.
"""

from datetime import datetime

from credhook.events import rank_of


def version(event_type: str, updated_at: datetime | str | None) -> tuple[int, int]:
    """The rank of what the event tells, and when the resource was last updated, in ms; 0 where that is not known."""
    try:
        updated = int(updated_at.timestamp() * 1000) if isinstance(updated_at, datetime) else 0
    except (ValueError, OverflowError):  # Of a year that no clock reaches.
        updated = 0
    return rank_of(event_type), max(0, updated)


def is_stale(state: tuple[int, int], latest: tuple[int, int]) -> bool:
    """Whether handlers have seen a later version of the resource than the event and its details tell of."""
    rank, updated = state
    latest_rank, latest_update = latest
    return rank < latest_rank or (updated > 0 and updated < latest_update)
