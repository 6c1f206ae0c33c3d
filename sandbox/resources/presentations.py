"""Presentations: requests to a holder to show credentials, and what was shown."""

import secrets
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from pydantic import Field

from credhook.sandbox.http.errors import Refusal
from credhook.sandbox.http.wire import ABSENT, Wire
from credhook.sandbox.resources.resources import PageQuery, as_seen, links
from credhook.sandbox.tenant.events import EventType
from credhook.sandbox.tenant.faults import Faults
from credhook.sandbox.tenant.lifecycle import STEPS, follow
from credhook.sandbox.tenant.operations import Found, Operation
from credhook.sandbox.tenant.state import Repository, State
from credhook.sandbox.tenant.tenant import Tenant

PRESENTATIONS = "/me-creds/api/presentations"

REQUEST_SCHEME = "openid4vp://"

#: How long a request may be answered.
OPEN_FOR = timedelta(minutes=15)

DECLINED = "The holder declined the request."


class PresentedCredential(Wire):
    """One credential that was shown."""

    is_valid: bool
    name: str
    type: str
    attributes: dict[str, Any] = Field(repr=False)
    issues: list[str]


class Presentation(Wire):
    """A presentation, with the fields that clients of the platform have seen."""

    id: str
    created_at: datetime
    updated_at: datetime
    status: str
    error: str | None
    presentation_template_id: str
    credentials: list[PresentedCredential]
    expires_at: datetime
    authorization_request_uri: str
    authorization_request_qr_uri: str


class PresentationRecord(Wire):
    """A presentation and what only the platform knows of it."""

    shown: Presentation
    before: Presentation | None
    announced: list[EventType]
    attributes_read: bool


class PresentationsQuery(PageQuery):
    """Which presentations to list; those with certain ids are on one page."""

    ids: str = Field(ABSENT, alias="filter[id]", description="Ids, separated by commas.")


def shelf(state: State) -> Repository[PresentationRecord]:
    """Return every presentation."""
    return state.shelf("presentations", PresentationRecord)


def begin(tenant: Tenant, event_type: EventType, shown_credential: PresentedCredential) -> str:
    """Create a presentation in the state that an event announces; return its id. The credential shows once verified."""
    id_ = f"cm{secrets.token_hex(11)}"
    now = tenant.now()
    uri = f"{REQUEST_SCHEME}?request_uri={quote(f'{tenant.base_url}/requests/{id_}', safe='')}"
    blank = Presentation(
        id=id_,
        created_at=now,
        updated_at=now,
        status="requested",
        error=None,
        presentation_template_id="sandbox:membership",
        credentials=[],
        expires_at=now + OPEN_FOR,
        authorization_request_uri=uri,
        authorization_request_qr_uri=uri,
    )
    record = PresentationRecord(
        shown=_in_status(blank, STEPS[event_type].status, now, shown_credential),
        before=None,
        announced=[event_type],
        attributes_read=False,
    )
    shelf(tenant.state).put(id_, record)
    return id_


def move(tenant: Tenant, id: str, event_type: EventType, shown_credential: PresentedCredential) -> None:  # noqa: A002  The specification's own word.
    """Let an event happen to a presentation.

    Raises:
        Refusal: With 404 where there is no such presentation.
        ImpossibleError: The event cannot happen to it now.
    """
    record = find(tenant, id)
    status = follow(event_type, record.shown.status, record.announced)
    moved = record.model_copy(
        update={
            "shown": _in_status(record.shown, status, tenant.now(), shown_credential),
            "before": record.shown,
            "announced": [*record.announced, event_type],
        }
    )
    shelf(tenant.state).put(id, moved)


def find(tenant: Tenant, id: str) -> PresentationRecord:  # noqa: A002  The specification's own word.
    """Return a presentation and what the platform knows of it.

    Raises:
        Refusal: With 404 where there is none.
    """
    record = shelf(tenant.state).get(id)
    if record is None:
        raise Refusal(404, f"There is no presentation {id}.")
    return record


def details(tenant: Tenant, id: str) -> Presentation:  # noqa: A002  The specification's own word.
    """Return a presentation as the API shows it; this read may be the only one that sees the attributes."""
    record = find(tenant, id)
    age = tenant.now() - record.shown.updated_at
    seen = as_seen(record.shown, record.before, age.total_seconds() * 1000, tenant.faults.on)
    shown = _as_read(seen, record.attributes_read, tenant.faults.on)
    if seen.credentials and not record.attributes_read:
        shelf(tenant.state).put(id, record.model_copy(update={"attributes_read": True}))
    return shown


def listed(tenant: Tenant, query: PresentationsQuery) -> Found[list[Presentation]]:
    """Return a page of the presentations, the oldest first."""
    if query.ids is None:
        records, following = shelf(tenant.state).page(query.after, tenant.faults.on.page_size)
    else:
        wanted = set(query.ids.split(","))
        records, following = [one for one in shelf(tenant.state).all() if one.shown.id in wanted], None
    shown = [_as_read(record.shown, record.attributes_read, tenant.faults.on) for record in records]
    return Found(shown, links=links(tenant, PRESENTATIONS, following))


def _in_status(
    presentation: Presentation, status: str, now: datetime, shown_credential: PresentedCredential
) -> Presentation:
    changes: dict[str, Any] = {"status": status, "updated_at": now}
    if status == "verified" and not presentation.credentials:
        changes["credentials"] = [shown_credential]
    if status == "rejected":
        changes["error"] = DECLINED
    return presentation.model_copy(update=changes)


def _as_read(presentation: Presentation, read_before: bool, faults: Faults) -> Presentation:
    if not (faults.read_once and read_before):
        return presentation
    emptied = [credential.model_copy(update={"attributes": {}}) for credential in presentation.credentials]
    return presentation.model_copy(update={"credentials": emptied})


OPERATIONS = (
    Operation("GET", PRESENTATIONS, listed, "List the presentations, the oldest first."),
    Operation("GET", f"{PRESENTATIONS}/{{id}}", details, "Read a presentation by id.", refusals=(404,)),
)
