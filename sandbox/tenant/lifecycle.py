"""Which event may follow which state, and the state that it announces."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from credhook.sandbox.tenant.events import EventType


class ImpossibleError(Exception):
    """This event cannot happen to a resource in its present state; the message says why."""


@dataclass(frozen=True)
class Step:
    """What an event means for its resource.

    Attributes:
        status: The status that its details show from then on.
        after: The statuses that it may follow; an event that follows none begins a resource.
    """

    status: str
    after: frozenset[str] = frozenset()


#: A failed verification reads `rejected`, as the platform's own pages have it. Data is what comes with a
#: verified presentation, so `data` and `verified` may follow each other in either order.
STEPS: Mapping[EventType, Step] = {
    "openid4vc.issuance.offered": Step("offered"),
    "openid4vc.issuance.completed": Step("completed", frozenset({"offered", "partiallyIssued"})),
    "openid4vc.issuance.failed": Step("failed", frozenset({"offered", "partiallyIssued"})),
    "openid4vc.issuance.partiallyIssued": Step("partiallyIssued", frozenset({"offered"})),
    "openid4vc.issuance.expired": Step("expired", frozenset({"offered"})),
    "openid4vc.verification.requested": Step("requested"),
    "openid4vc.verification.verified": Step("verified", frozenset({"requested", "verified"})),
    "openid4vc.verification.failed": Step("rejected", frozenset({"requested"})),
    "openid4vc.verification.expired": Step("expired", frozenset({"requested"})),
    "openid4vc.verification.data": Step("verified", frozenset({"requested", "verified"})),
}


def follow(event_type: EventType, status: str, announced: Collection[EventType]) -> str:
    """Return the status of a resource once this event has happened to it, after those announced so far.

    Raises:
        ImpossibleError: It cannot happen in this status, or has happened already.
    """
    step = STEPS[event_type]
    if event_type in announced:
        raise ImpossibleError(f"{event_type} has been announced for it already")
    if status not in step.after:
        raise ImpossibleError(f"{event_type} cannot follow the status {status}")
    return step.status


def possible(kind: str, status: str, announced: Collection[EventType]) -> list[EventType]:
    """Return the events that may happen next to a resource of a kind, `issuance` or `verification`."""
    return [
        event_type
        for event_type, step in STEPS.items()
        if f".{kind}." in event_type and status in step.after and event_type not in announced
    ]
