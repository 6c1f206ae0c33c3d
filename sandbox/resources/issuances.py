"""Issuances: offers of credentials to a holder, and what has become of them."""

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from pydantic import Field

from credhook.sandbox.http.errors import Refusal
from credhook.sandbox.http.wire import Wire
from credhook.sandbox.resources.resources import PageQuery, as_seen, links
from credhook.sandbox.tenant.events import EventType
from credhook.sandbox.tenant.lifecycle import STEPS, follow
from credhook.sandbox.tenant.operations import Found, Operation
from credhook.sandbox.tenant.state import Repository, State
from credhook.sandbox.tenant.tenant import Tenant

ISSUANCES = "/me-creds/api/credentials"

OFFER_SCHEME = "openid-credential-offer://"

#: Every issuance is a batch of this size, the smallest that can be issued in part.
BATCH = 2

#: Status of an issuance → the status of each of its credentials.
CREDENTIALS: Mapping[str, tuple[str, ...]] = {
    "offered": ("offered", "offered"),
    "completed": ("issued", "issued"),
    "failed": ("failed", "failed"),
    "partiallyIssued": ("issued", "failed"),
    "expired": ("expired", "expired"),
}


class IssuedCredential(Wire):
    """One credential of the batch."""

    id: str
    status: str
    revocable: bool


class Issuance(Wire):
    """An issuance, with the fields that clients of the platform have seen."""

    id: str
    created_at: datetime
    updated_at: datetime
    status: str
    exchange: str
    format: str
    credentials: list[IssuedCredential]
    offer_uri: str
    offer_qr_uri: str


class IssuanceRecord(Wire):
    """An issuance and what only the platform knows of it."""

    shown: Issuance
    before: Issuance | None
    announced: list[EventType]
    template_id: str
    claims: dict[str, Any] = Field(repr=False)


def shelf(state: State) -> Repository[IssuanceRecord]:
    """Return every issuance."""
    return state.shelf("issuances", IssuanceRecord)


def begin(
    tenant: Tenant, event_type: EventType, *, template_id: str, template_format: str, claims: dict[str, Any]
) -> str:
    """Create an issuance in the state that an event announces; return its id."""
    id_ = f"iss_{secrets.token_hex(12)}"
    now = tenant.now()
    status = STEPS[event_type].status
    offer_uri = f"{OFFER_SCHEME}?credential_offer_uri={quote(f'{tenant.base_url}/offers/{id_}', safe='')}"
    shown = Issuance(
        id=id_,
        created_at=now,
        updated_at=now,
        status=status,
        exchange="openid4vc",
        format=template_format,
        credentials=_credentials([secrets.token_hex(12) for _ in range(BATCH)], status),
        offer_uri=offer_uri,
        offer_qr_uri=offer_uri,
    )
    record = IssuanceRecord(shown=shown, before=None, announced=[event_type], template_id=template_id, claims=claims)
    shelf(tenant.state).put(id_, record)
    return id_


def move(tenant: Tenant, id: str, event_type: EventType) -> None:  # noqa: A002  The specification's own word.
    """Let an event happen to an issuance.

    Raises:
        Refusal: With 404 where there is no such issuance.
        ImpossibleError: The event cannot happen to it now.
    """
    record = find(tenant, id)
    status = follow(event_type, record.shown.status, record.announced)
    shown = record.shown.model_copy(
        update={
            "status": status,
            "updated_at": tenant.now(),
            "credentials": _credentials([credential.id for credential in record.shown.credentials], status),
        }
    )
    moved = record.model_copy(
        update={"shown": shown, "before": record.shown, "announced": [*record.announced, event_type]}
    )
    shelf(tenant.state).put(id, moved)


def find(tenant: Tenant, id: str) -> IssuanceRecord:  # noqa: A002  The specification's own word.
    """Return an issuance and what the platform knows of it.

    Raises:
        Refusal: With 404 where there is none.
    """
    record = shelf(tenant.state).get(id)
    if record is None:
        raise Refusal(404, f"There is no issuance {id}.")
    return record


def details(tenant: Tenant, id: str) -> Issuance:  # noqa: A002  The specification's own word.
    """Return an issuance as the API shows it."""
    record = find(tenant, id)
    age = tenant.now() - record.shown.updated_at
    return as_seen(record.shown, record.before, age.total_seconds() * 1000, tenant.faults.on)


def listed(tenant: Tenant, query: PageQuery) -> Found[list[Issuance]]:
    """Return a page of the issuances, the oldest first."""
    records, following = shelf(tenant.state).page(query.after, tenant.faults.on.page_size)
    return Found([record.shown for record in records], links=links(tenant, ISSUANCES, following))


def _credentials(ids: list[str], status: str) -> list[IssuedCredential]:
    return [
        IssuedCredential(id=id_, status=each, revocable=False)
        for id_, each in zip(ids, CREDENTIALS[status], strict=True)
    ]


OPERATIONS = (
    Operation("GET", ISSUANCES, listed, "List the issuances, the oldest first."),
    Operation("GET", f"{ISSUANCES}/{{id}}", details, "Read an issuance by id.", refusals=(404,)),
)
