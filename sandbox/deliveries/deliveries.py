"""Deliveries: what is on its way, how long to wait before the next attempt, and the log of attempts."""

from datetime import datetime, timedelta
from typing import Literal

from pydantic import Field

from credhook.sandbox.http.wire import ABSENT, Wire
from credhook.sandbox.tenant.events import EventType
from credhook.sandbox.tenant.operations import Found, Operation
from credhook.sandbox.tenant.state import Repository, State
from credhook.sandbox.tenant.tenant import Tenant

#: Seconds from a failed attempt to the next, as a common sender has them; multiplied by the time scale.
WAITS = (5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 10 * 3600)

#: How long an endpoint may fail without one success before it is switched off; multiplied by the time scale.
PATIENCE = timedelta(days=5)

#: Attempts that are remembered; about 20 MB.
LOG_LENGTH = 50_000

Outcome = Literal["acknowledged", "retrying", "givenUp", "forged"]


class Delivery(Wire):
    """An event on its way to one endpoint, until it is acknowledged or given up."""

    webhook_id: str
    event_type: EventType
    resource_id: str
    endpoint_id: str
    url: str
    body: str
    copies: int
    acknowledged: int
    attempts: int
    failures: int

    @property
    def waits_for_retry(self) -> bool:
        """Whether it has failed before and no attempt is being made now."""
        return 0 < self.failures == self.attempts - self.acknowledged


class Attempt(Wire):
    """One attempt, as the log shows it.

    Attributes:
        attempt: Counts from 1 over all attempts of the delivery.
        status: Status of the receiver's answer; None where there was none.
        error: Why there was no answer.
        answer: `data.status` of the answer's body, where the receiver says one.
        outcome: What follows from it.
        forged: The kind of forgery, where this was one.
    """

    webhook_id: str
    event_type: EventType
    resource_id: str
    endpoint_id: str
    url: str
    attempt: int
    started_at: datetime
    milliseconds: float
    status: int | None
    error: str | None
    answer: str | None
    outcome: Outcome
    forged: str | None


class AttemptsQuery(Wire):
    """Which attempts to list."""

    webhook_id: str = ABSENT
    limit: int = Field(LOG_LENGTH, ge=1, le=LOG_LENGTH, description="No more than the newest so many.")


def under_way(state: State) -> Repository[Delivery]:
    """Return the deliveries that are neither acknowledged nor given up."""
    return state.shelf("deliveries", Delivery)


def log(state: State) -> Repository[Attempt]:
    """Return the log of attempts."""
    return state.shelf("attempts", Attempt)


def wait_after(failures: int, time_scale: float) -> float | None:
    """Return the seconds to wait after this many failed attempts; None once the schedule is exhausted."""
    return WAITS[failures - 1] * time_scale if failures <= len(WAITS) else None


def attempts(tenant: Tenant, query: AttemptsQuery) -> Found[list[Attempt]]:
    """Return the attempts, the oldest first, and how many deliveries are still under way."""
    found = [
        attempt
        for attempt in reversed(log(tenant.state).latest(query.limit))
        if query.webhook_id is None or attempt.webhook_id == query.webhook_id
    ]
    return Found(found, {"underWay": under_way(tenant.state).count()})


OPERATIONS = (
    Operation(
        "GET",
        "/sandbox/deliveries",
        attempts,
        "List the attempts, the oldest first; `meta.underWay` counts deliveries that are not settled.",
    ),
)
