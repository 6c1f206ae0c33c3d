"""The ten event types of the specification, and the body that announces one."""

import json
from typing import Literal, get_args

EventType = Literal[
    "openid4vc.issuance.offered",
    "openid4vc.issuance.completed",
    "openid4vc.issuance.failed",
    "openid4vc.issuance.partiallyIssued",
    "openid4vc.issuance.expired",
    "openid4vc.verification.requested",
    "openid4vc.verification.verified",
    "openid4vc.verification.failed",
    "openid4vc.verification.expired",
    "openid4vc.verification.data",
]

EVENT_TYPES: tuple[EventType, ...] = get_args(EventType)

PREFIX = "openid4vc."


def concerns_issuance(event_type: EventType) -> bool:
    """Say whether the event is about an issuance; otherwise it is about a presentation."""
    return event_type.startswith(f"{PREFIX}issuance.")


def named(name: str) -> EventType | None:
    """Return the event type of a full or a short name, `issuance.completed`; None where there is none."""
    return next((known for known in EVENT_TYPES if name in {known, known.removeprefix(PREFIX)}), None)


def notice(event_type: EventType, resource_id: str) -> str:
    """Return the body of a delivery (specification, "Delivery rules", 1)."""
    reference = "openId4VcIssuanceId" if concerns_issuance(event_type) else "openId4VcPresentationId"
    return json.dumps({"eventType": event_type, "payload": {reference: resource_id}})
