"""The event types of the specification: one table. A new event type is a new row."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

PREFIX = "openid4vc."


@dataclass(frozen=True)
class EventRule:
    """The effect of an event on its resource.

    Attributes:
        status: The status of the resource from then on.
        after: The statuses that it may follow. Every event may also begin a resource.
        credentials: The status of each credential of an issuance. Two credentials are the smallest batch that can be
            issued in part.
    """

    status: str
    after: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()


#: A failed verification reads `rejected`, as the platform's own pages have it. `data` and `verified` may follow each
#: other in either order, because data comes with a verified presentation.
EVENTS: Mapping[str, EventRule] = {
    "openid4vc.issuance.offered": EventRule("offered", (), ("offered", "offered")),
    "openid4vc.issuance.completed": EventRule("completed", ("offered", "partiallyIssued"), ("issued", "issued")),
    "openid4vc.issuance.failed": EventRule("failed", ("offered", "partiallyIssued"), ("failed", "failed")),
    "openid4vc.issuance.partiallyIssued": EventRule("partiallyIssued", ("offered",), ("issued", "failed")),
    "openid4vc.issuance.expired": EventRule("expired", ("offered",), ("expired", "expired")),
    "openid4vc.verification.requested": EventRule("requested"),
    "openid4vc.verification.verified": EventRule("verified", ("requested", "verified")),
    "openid4vc.verification.failed": EventRule("rejected", ("requested",)),
    "openid4vc.verification.expired": EventRule("expired", ("requested",)),
    "openid4vc.verification.data": EventRule("verified", ("requested", "verified")),
}

EVENT_TYPES: tuple[str, ...] = tuple(EVENTS)


def _event_type(name: str) -> str:
    if name not in EVENTS:
        raise ValueError("this is not an event type")
    return name


EventType = Annotated[str, AfterValidator(_event_type), WithJsonSchema({"type": "string", "enum": [*EVENTS]})]


def is_issuance(event_type: str) -> bool:
    """Return True if an event reports on an issuance, False if it reports on a presentation."""
    return event_type.startswith(f"{PREFIX}issuance.")


def delivery_body(event_type: str, resource_id: str) -> str:
    """Return the body of a delivery (specification, "Delivery rules", 1)."""
    key = "openId4VcIssuanceId" if is_issuance(event_type) else "openId4VcPresentationId"
    return json.dumps({"eventType": event_type, "payload": {key: resource_id}})


def obstacle(event_type: str, status: str, announced: Collection[str]) -> str:
    """Return the reason why an event cannot happen to a resource, empty if it can.

    `status` is the resource's, `announced` are the events that have happened to it.
    """
    if event_type in announced:
        return f"{event_type} has been announced for it already"
    return "" if status in EVENTS[event_type].after else f"{event_type} cannot follow the status {status}"


def possible(status: str, announced: Collection[str]) -> list[str]:
    """Return the events that may happen next to a resource."""
    return [event_type for event_type in EVENTS if not obstacle(event_type, status, announced)]
