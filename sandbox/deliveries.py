"""Webhook endpoints, the deliveries on their way to them, and the log of attempts."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import uuid4

from pydantic import AfterValidator, Field

from credhook.sandbox.events import EVENT_TYPES, EventType
from credhook.sandbox.operations import Listing, operation
from credhook.sandbox.tenant import StateFile, Tenant
from credhook.sandbox.wire import ABSENT, ID_PATTERN, SandboxError, StampedModel, WireModel

ENDPOINTS = "/me-creds/api/endpoints"

_HEX = "[0-9A-Fa-f]{1,4}"
_HOST = rf"[A-Za-z0-9](?:[A-Za-z0-9.-]{{0,251}}[A-Za-z0-9])?|\[(?:::|(?:{_HEX}:){{7}}|(?:{_HEX}:){{1,6}}:){_HEX}\]"
#: A host, a port, a path and a query: no user name, no fragment, nothing outside printable ASCII.
URL_PATTERN = (
    rf"^https://(?:{_HOST})(?::(?:[1-9][0-9]{{0,3}}|[1-5][0-9]{{4}}|6[0-5][0-9]{{3}}))?(?:/[!$-;=?-Z_a-z~]*)?$"
)

#: Attempts that are remembered: about 20 MB.
LOG_LENGTH = 50_000

Outcome = Literal["acknowledged", "retrying", "givenUp", "forged"]
FilterTypes = Annotated[list[EventType], Field(min_length=1), AfterValidator(lambda types: list(dict.fromkeys(types)))]


class NewEndpoint(WireModel):
    """The body of `POST /endpoints`."""

    url: str = Field(pattern=URL_PATTERN, max_length=2048)
    id: str = Field(ABSENT, pattern=ID_PATTERN)
    filter_types: FilterTypes = ABSENT


class SandboxEndpoint(StampedModel):
    """A webhook endpoint (specification, "Webhook endpoint")."""

    url: str
    filter_types: list[EventType]


class Registration(WireModel):
    """An endpoint and its health, which the platform does not show."""

    endpoint: SandboxEndpoint
    failing_since: datetime | None
    switched_off_at: datetime | None


class DeliveryFields(WireModel):
    """The fields that a pending delivery and its attempts share."""

    webhook_id: str
    event_type: EventType
    resource_id: str
    endpoint_id: str
    url: str


class PendingDelivery(DeliveryFields):
    """A delivery that is neither acknowledged nor given up."""

    body: str
    copies: int
    acknowledged: int = 0
    attempts: int = 0
    failures: int = 0

    @property
    def waits_for_retry(self) -> bool:
        """Return True if it has failed before and no attempt is under way."""
        return 0 < self.failures == self.attempts - self.acknowledged


class DeliveryAttempt(DeliveryFields):
    """One attempt, as the log shows it.

    Attributes:
        attempt: Counts from 1 over all attempts of the delivery.
        status: Status of the receiver's answer, or None if there was none.
        error: Why there was no answer.
        answer: The receiver's `credhook-outcome` header, if it sends one.
        outcome: What follows from it.
        forged: The kind of forgery, or None.
    """

    attempt: int
    started_at: datetime
    milliseconds: float
    status: int | None
    error: str | None
    answer: str | None
    outcome: Outcome
    forged: str | None


class AttemptsQuery(WireModel):
    """The attempts to list."""

    webhook_id: str = ABSENT
    limit: int = Field(LOG_LENGTH, ge=1, le=LOG_LENGTH, description="Show the newest attempts only.")


@operation("POST", ENDPOINTS, status=201)
def register(tenant: Tenant, body: NewEndpoint) -> SandboxEndpoint:
    """Register an endpoint, or answer 409 for a taken id: a DELETE must free it before another URL gets the events."""
    id_ = body.id or str(uuid4())
    if tenant.state.of(Registration).get(id_):
        raise SandboxError(409, f"There is an endpoint {id_} already; delete it first to replace it.")
    now = tenant.now()
    endpoint = SandboxEndpoint(
        id=id_,
        url=body.url,
        filter_types=body.filter_types or list(EVENT_TYPES),
        created_at=now,
        updated_at=now,
    )
    registration = Registration(endpoint=endpoint, failing_since=None, switched_off_at=None)
    tenant.state.of(Registration).put(id_, registration)
    return endpoint


@operation("GET", ENDPOINTS, enveloped=False)
def list_endpoints(tenant: Tenant) -> list[SandboxEndpoint]:
    """Return all endpoints of the organisation."""
    return [registration.endpoint for registration in tenant.state.of(Registration).all()]


@operation("GET", "/sandbox/endpoints")
def list_registrations(tenant: Tenant) -> list[Registration]:
    """Return all endpoints with their health."""
    return tenant.state.of(Registration).all()


@operation("DELETE", f"{ENDPOINTS}/{{id}}", status=204)
def remove_endpoint(tenant: Tenant, id_: str) -> None:
    """Remove an endpoint and abandon the deliveries on their way to it."""
    if not tenant.state.of(Registration).remove(id_):
        raise SandboxError(404, f"There is no endpoint {id_}.")


def listening(state: StateFile, event_type: str) -> list[SandboxEndpoint]:
    """Return the endpoints that receive an event of this type."""
    return [
        registration.endpoint
        for registration in state.of(Registration).all()
        if event_type in registration.endpoint.filter_types and registration.switched_off_at is None
    ]


@operation("GET", "/sandbox/deliveries")
def list_attempts(tenant: Tenant, query: AttemptsQuery) -> Listing[list[DeliveryAttempt]]:
    """Return the attempts, the oldest first, and the number of deliveries under way."""
    found = [
        attempt
        for attempt in reversed(tenant.state.of(DeliveryAttempt).latest(query.limit))
        if query.webhook_id is None or attempt.webhook_id == query.webhook_id
    ]
    return Listing(found, {"underWay": tenant.state.of(PendingDelivery).count()})
