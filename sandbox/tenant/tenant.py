"""The one organisation that a sandbox plays, with all that its operations work on."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from credhook.sandbox.http.tokens import Tokens
from credhook.sandbox.tenant.authority import Authority
from credhook.sandbox.tenant.events import EventType
from credhook.sandbox.tenant.faults import FaultSwitch
from credhook.sandbox.tenant.state import State


def utc_now() -> datetime:
    """Return the time of day that every record is stamped with."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Tenant:
    """What an operation is given.

    `announce` sends an event about a resource to every endpoint that wants it, and returns the `webhook-id` of each
    delivery.
    """

    base_url: str
    state: State
    tokens: Tokens
    faults: FaultSwitch
    announce: Callable[[EventType, str], list[str]]
    authority: Authority
    now: Callable[[], datetime] = utc_now
