"""Which events must have happened to an issuance or a presentation, by its status and its times. Pure.

The platform's words for a status differ in case between pages, so case is ignored.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from credhook.events import ISSUANCE, PRESENTATION, Resource, is_resource_id
from credhook.worker.api.models import ListedResource

_ISSUANCE, _VERIFICATION = "openid4vc.issuance.", "openid4vc.verification."
_OFFERED: Final = (_ISSUANCE + "offered",)
_REQUESTED: Final = (_VERIFICATION + "requested",)
#: Both announce one state, and a platform may send either or both. If one has arrived, the other is not missing. If
#: none has, `data` is accepted: handlers of both can use it.
_VERIFIED: Final = (_VERIFICATION + "data", _VERIFICATION + "verified")

#: The event types that announce one state; any of them does.
Announced = tuple[str, ...]

#: Status of an issuance → the states that it has gone through, the present one last.
#:
#: Only certain states are here: an accepted, declined or overdue resource was offered before. A batch may or may not
#: have been issued in part before it was complete, failed or expired. A revoked issuance was issued before, in part or
#: completely, and no event announces the revocation.
_ISSUANCE_STATES: Final[Mapping[str, tuple[Announced, ...]]] = {
    "offered": (_OFFERED,),
    "partiallyissued": (_OFFERED, (_ISSUANCE + "partiallyIssued",)),
    "completed": (_OFFERED, (_ISSUANCE + "completed",)),
    "failed": (_OFFERED, (_ISSUANCE + "failed",)),
    "expired": (_OFFERED, (_ISSUANCE + "expired",)),
    "revoked": (_OFFERED, ()),
}

#: Status of a presentation → the states that it has gone through, the present one last.
#:
#: Every answer was requested before; what an `answered` presentation came to is not certain. A declined request has the
#: status `rejected` and is announced as failed.
_PRESENTATION_STATES: Final[Mapping[str, tuple[Announced, ...]]] = {
    "requested": (_REQUESTED,),
    "pending": (_REQUESTED,),
    "answered": (_REQUESTED, ()),
    "verified": (_REQUESTED, _VERIFIED),
    "rejected": (_REQUESTED, (_VERIFICATION + "failed",)),
    "failed": (_REQUESTED, (_VERIFICATION + "failed",)),
    "expired": (_REQUESTED, (_VERIFICATION + "expired",)),
}
#: Resource → status → states. A backfill counts resources that are not listed here as of unknown status.
STATES: Final[Mapping[Resource, Mapping[str, tuple[Announced, ...]]]] = {
    ISSUANCE: _ISSUANCE_STATES,
    PRESENTATION: _PRESENTATION_STATES,
}


class MissableEvent(NamedTuple):
    """An event that must have happened. It has arrived if any of its types has."""

    resource: str
    types: Announced


@dataclass(frozen=True, slots=True)
class Window:
    """The time span of a backfill, `until` excluded.

    The store may have forgotten earlier events. Later events may still be on their way.
    """

    since: datetime
    until: datetime


class Untold(Exception):
    """A resource does not tell what has happened to it; `why` is a word for counting."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def must_have_happened(
    resource: ListedResource, kind: Resource, window: Window, wanted: Collection[str]
) -> list[MissableEvent]:
    """Return the wanted events of the window that must have happened to the resource, in the order of its states.

    A resource came into its present state when it was last updated. The times of earlier states are unknown: they
    count if the resource was created in the window. A resource that was never updated had no earlier state.

    Raises:
        Untold: the resource has no time, an invalid id, or an unknown status.
    """
    gone_through = STATES.get(kind, {}).get(resource.status.casefold())
    if gone_through is None:
        raise Untold("unknown_status")
    if not is_resource_id(resource.id):
        raise Untold("unreadable_id")
    created, updated = _time(resource.created_at), _time(resource.updated_at)
    if updated is None:
        raise Untold("undated")
    if not window.since <= updated < window.until:
        return []
    if created is None or not window.since <= created < updated:
        gone_through = gone_through[-1:]
    found = (tuple(name for name in announced if name in wanted) for announced in gone_through)
    return [MissableEvent(resource.id, types) for types in found if types]


def _time(observed: datetime | str | None) -> datetime | None:
    """Return the time if it is one with a time zone."""
    return observed if isinstance(observed, datetime) and observed.tzinfo else None
