"""Which events must have happened to an issuance or a presentation, by its status and its times. Pure.

Specification: Events. The words for a status were observed and drift between pages: they are compared without case.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from credhook.events import is_resource_id
from credhook.worker.api.models.listed import ListedResource

_ISSUANCE, _VERIFICATION = "openid4vc.issuance.", "openid4vc.verification."
_OFFERED: Final = (_ISSUANCE + "offered",)
_REQUESTED: Final = (_VERIFICATION + "requested",)
#: Both tell of one state, and a platform may send either or both: where one has arrived, the other is not missing.
#: Where none has, `data` is, for it is what handlers of both need.
_VERIFIED: Final = (_VERIFICATION + "data", _VERIFICATION + "verified")

#: One state, as the types that announce it: any of them does.
Announced = tuple[str, ...]

#: Status of an issuance → the states that it has gone through, the present one last.
#:
#: Certain: nothing is accepted, declined or overdue that was not offered. Not certain, and so not here: whether a batch
#: was issued in part before it was complete, failed or expired. A `revoked` issuance was issued, in part or completely,
#: and nothing announces the revocation: only that it was offered is known.
ISSUANCE: Final[Mapping[str, tuple[Announced, ...]]] = {
    "offered": (_OFFERED,),
    "partiallyissued": (_OFFERED, (_ISSUANCE + "partiallyIssued",)),
    "completed": (_OFFERED, (_ISSUANCE + "completed",)),
    "failed": (_OFFERED, (_ISSUANCE + "failed",)),
    "expired": (_OFFERED, (_ISSUANCE + "expired",)),
    "revoked": (_OFFERED, ()),
}

#: Status of a presentation → likewise.
#:
#: Certain: nothing is answered that was not requested. Not certain: what an `answered` one came to. A declined request
#: reads `rejected` and is announced as failed.
PRESENTATION: Final[Mapping[str, tuple[Announced, ...]]] = {
    "requested": (_REQUESTED,),
    "pending": (_REQUESTED,),
    "answered": (_REQUESTED, ()),
    "verified": (_REQUESTED, _VERIFIED),
    "rejected": (_REQUESTED, (_VERIFICATION + "failed",)),
    "failed": (_REQUESTED, (_VERIFICATION + "failed",)),
    "expired": (_REQUESTED, (_VERIFICATION + "expired",)),
}


class Missable(NamedTuple):
    """An event that must have happened, and has arrived if any of its types has."""

    resource: str
    types: Announced


@dataclass(frozen=True, slots=True)
class Window:
    """The time that a reconciliation is about.

    What happened earlier may have been forgotten by the ledger, which then looks as if it had not arrived; what
    happened later may still be on its way.
    """

    since: datetime
    until: datetime

    def holds(self, moment: datetime) -> bool:
        """Whether the moment lies in it."""
        return self.since <= moment < self.until


class Untold(Exception):
    """Nothing can be said of a resource; `why` is a word for counting."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def must_have_happened(
    resource: ListedResource, states: Mapping[str, tuple[Announced, ...]], window: Window, wanted: Collection[str]
) -> Iterator[Missable]:
    """The events of the window that must have happened to the resource, in the order of its states.

    It came into its present state when it was last updated. When it went through the earlier ones is not told: they are
    of the window if it was created in it. One that was never updated has had no earlier state.

    `states` is `ISSUANCE` or `PRESENTATION`.

    Raises:
        Untold: the resource carries no time, or an id or a status that nobody knows.
    """
    gone_through = states.get(resource.status.casefold())
    if gone_through is None:
        raise Untold("unknown_status")
    if not is_resource_id(resource.id):
        raise Untold("unreadable_id")
    created, updated = _moment(resource.created_at), _moment(resource.updated_at)
    if updated is None:
        raise Untold("undated")
    if not window.holds(updated):
        return
    *earlier, present = gone_through
    in_order = [*earlier, present] if created is not None and window.since <= created < updated else [present]
    for announced in in_order:
        if types := tuple(one for one in announced if one in wanted):
            yield Missable(resource.id, types)


def _moment(observed: datetime | str | None) -> datetime | None:
    """The time, if it reads as one that says where on earth it is."""
    return observed if isinstance(observed, datetime) and observed.tzinfo else None
