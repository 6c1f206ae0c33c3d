"""Webhook endpoints: registering, listing and removing where events go."""

from datetime import datetime
from typing import Annotated
from uuid import uuid4

from pydantic import AfterValidator, Field

from credhook.sandbox.http.errors import Refusal
from credhook.sandbox.http.wire import ABSENT, ID_PATTERN, Wire
from credhook.sandbox.tenant.events import EVENT_TYPES, EventType
from credhook.sandbox.tenant.operations import Operation
from credhook.sandbox.tenant.state import Repository, State
from credhook.sandbox.tenant.tenant import Tenant

PORT = r"(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
GROUP = "[0-9A-Fa-f]{1,4}"
NAME = "[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
IPV6 = rf"\[(?:(?:{GROUP}:){{7}}{GROUP}|(?:{GROUP}:){{1,6}}:{GROUP}|::{GROUP})\]"

#: A name or an address, a port, a path and a query: no user name, no fragment, nothing outside printable ASCII.
URL_PATTERN = rf"^https://(?:{NAME}|{IPV6})(?::{PORT})?(?:/[!$-;=?-Z_a-z~]*)?$"


#: Without repetition.
FilterTypes = Annotated[list[EventType], Field(min_length=1), AfterValidator(lambda types: list(dict.fromkeys(types)))]


class NewEndpoint(Wire):
    """The body of `POST /endpoints`."""

    url: str = Field(pattern=URL_PATTERN, max_length=2048)
    id: str = Field(ABSENT, pattern=ID_PATTERN)
    filter_types: FilterTypes = ABSENT


class Endpoint(Wire):
    """A webhook endpoint (specification, "Webhook endpoint")."""

    id: str
    url: str
    filter_types: list[EventType]
    created_at: datetime
    updated_at: datetime


class Registration(Wire):
    """An endpoint and how its receiver has been doing."""

    endpoint: Endpoint
    failing_since: datetime | None
    switched_off_at: datetime | None


def shelf(state: State) -> Repository[Registration]:
    """Return every registration."""
    return state.shelf("endpoints", Registration)


def register(tenant: Tenant, wanted: NewEndpoint) -> Endpoint:
    """Register where events go.

    Raises:
        Refusal: With 409 for an id that is taken: replacing what receives events should be said, by a DELETE.
    """
    id_ = wanted.id or str(uuid4())
    if shelf(tenant.state).get(id_):
        raise Refusal(409, f"There is an endpoint {id_} already; delete it first to replace it.")
    now = tenant.now()
    endpoint = Endpoint(
        id=id_,
        url=wanted.url,
        filter_types=wanted.filter_types or list(EVENT_TYPES),
        created_at=now,
        updated_at=now,
    )
    shelf(tenant.state).put(id_, Registration(endpoint=endpoint, failing_since=None, switched_off_at=None))
    return endpoint


def registered(tenant: Tenant) -> list[Endpoint]:
    """Return all endpoints of the organisation."""
    return [registration.endpoint for registration in shelf(tenant.state).all()]


def registrations(tenant: Tenant) -> list[Registration]:
    """Return all endpoints, with what the platform does not show: whether they fail or are switched off."""
    return shelf(tenant.state).all()


def remove(tenant: Tenant, id: str) -> None:  # noqa: A002  The specification's own word.
    """Remove an endpoint; what was on its way to it is abandoned.

    Raises:
        Refusal: With 404 where there is none.
    """
    if not shelf(tenant.state).remove(id):
        raise Refusal(404, f"There is no endpoint {id}.")


def listening(state: State, event_type: EventType) -> list[Endpoint]:
    """Return the endpoints that receive an event of this type."""
    return [
        registration.endpoint
        for registration in shelf(state).all()
        if event_type in registration.endpoint.filter_types and registration.switched_off_at is None
    ]


OPERATIONS = (
    Operation("POST", "/me-creds/api/endpoints", register, "Register a webhook endpoint.", status=201, refusals=(409,)),
    Operation(
        "GET", "/me-creds/api/endpoints", registered, "List the webhook endpoints, as a bare array.", enveloped=False
    ),
    Operation(
        "DELETE", "/me-creds/api/endpoints/{id}", remove, "Remove a webhook endpoint.", status=204, refusals=(404,)
    ),
    Operation("GET", "/sandbox/endpoints", registrations, "List the webhook endpoints with their health."),
)
