"""Issuances and presentations: their details, the events that happen to them, and the wallet that accepts offers."""

import secrets
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs, quote, urlsplit
from uuid import uuid4

from pydantic import Field, JsonValue
from pydantic_core import from_json, to_json
from starlette.exceptions import HTTPException

from credhook.sandbox import templates
from credhook.sandbox.events import EVENTS, EventType, is_issuance, obstacle
from credhook.sandbox.operations import Listing, PageQuery, operation, page_of
from credhook.sandbox.tenant import Tenant
from credhook.sandbox.wire import ABSENT, StampedModel, Whole, WireModel

R = TypeVar("R", bound=StampedModel)

ISSUANCES = "/me-creds/api/credentials"
PRESENTATIONS = "/me-creds/api/presentations"

#: OpenID for Verifiable Credential Issuance, "Credential Offer".
OFFER_SCHEME = "openid-credential-offer://"
PRE_AUTHORIZED = "urn:ietf:params:oauth:grant-type:pre-authorized_code"

MAX_EVENTS = 10_000

#: Longest `vct` (specification, "Limits").
MAX_VCT = 256


class BatchCredential(WireModel):
    """One credential of an issuance."""

    id: str
    status: str
    revocable: bool


class SandboxIssuance(StampedModel):
    """An issuance, with the fields that clients of the platform have seen."""

    status: str
    exchange: str
    format: str
    credentials: list[BatchCredential]
    offer_uri: str
    offer_qr_uri: str


class IssuanceRecord(SandboxIssuance):
    """An issuance and what only the platform knows. `before` is the issuance before its latest event."""

    before: SandboxIssuance | None
    announced: list[EventType]
    template_id: str
    claims: dict[str, Any] = Field(repr=False)


class SandboxCredential(WireModel):
    """One credential that a holder has presented."""

    is_valid: bool
    name: str
    type: str
    attributes: dict[str, Any] = Field(repr=False)
    issues: list[str]


class SandboxPresentation(StampedModel):
    """A presentation, with the fields that clients of the platform have seen."""

    status: str
    error: str | None
    presentation_template_id: str
    credentials: list[SandboxCredential]
    expires_at: datetime
    authorization_request_uri: str
    authorization_request_qr_uri: str


class PresentationRecord(SandboxPresentation):
    """A presentation and what only the platform knows. `before` is the presentation before its latest event."""

    before: SandboxPresentation | None
    announced: list[EventType]


class EventRequest(WireModel):
    """The body of `POST /sandbox/events`."""

    event_type: EventType
    count: Whole = Field(1, ge=1, le=MAX_EVENTS, description="How many times, each to a resource of its own.")
    resource_id: str = Field(ABSENT, description="The resource of the event; a new resource if left out.")
    template_id: str = Field(ABSENT, description="The template of the credential.")
    attributes: dict[str, JsonValue] = Field(ABSENT, repr=False, description="The attributes of the credential.")
    is_valid: bool = Field(ABSENT, description="The validity of the presented credential; true if left out.")


class TriggeredEvent(WireModel):
    """An event that has happened, and the deliveries that announce it."""

    event_type: EventType
    resource_id: str
    webhook_ids: list[str]


class CredentialOffer(WireModel):
    """The body of the wallet's `POST /credentials`."""

    credential_offer: str = Field(pattern=rf"^{OFFER_SCHEME}")


class AcceptedCredential(WireModel):
    """A credential in the wallet (specification, "Wallet credential")."""

    id: str
    claims: dict[str, Any] = Field(repr=False)
    iat: datetime
    status: Literal["pending", "accepted", "rejected"]
    format: Literal["vc+sd-jwt"]
    vct: str = Field(max_length=MAX_VCT)
    iss: str = ABSENT


def _advance(
    tenant: Tenant,
    record: IssuanceRecord | PresentationRecord,
    event_type: str,
    credential: SandboxCredential | None = None,
) -> str:
    """Apply an event to a resource, or answer 409. Return the id. A verified presentation shows `credential`."""
    rule = EVENTS[event_type]
    if problem := obstacle(event_type, record.status, record.announced):
        raise HTTPException(409, f"This cannot happen to {record.id}: {problem}.")
    changes: dict[str, Any] = {"status": rule.status, "updated_at": tenant.now()}
    if isinstance(record, IssuanceRecord):
        pairs = zip(record.credentials, rule.credentials, strict=True)
        changes["credentials"] = [credential.model_copy(update={"status": status}) for credential, status in pairs]
    else:
        changes |= _presentation_fields(rule.status, [*record.credentials, credential][:1])
    changes |= {"before": record, "announced": [*record.announced, event_type]}
    tenant.state.put(record.id, record.model_copy(update=changes))
    return record.id


def _presentation_fields(status: str, credentials: list[Any]) -> dict[str, Any]:
    error = "The holder declined the request." if status == "rejected" else None
    return {"status": status, "error": error, "credentials": credentials if status == "verified" else []}


def _as_read(tenant: Tenant, record: R, before: R | None) -> R:
    """Return a resource as a read shows it now, or answer 404. `before` is the resource before its latest event."""
    age_ms = (tenant.now() - record.updated_at).total_seconds() * 1000
    shown = before if age_ms < tenant.faults.on.details_stale_ms else record
    if shown is None or age_ms < tenant.faults.on.details_lag_ms:
        raise HTTPException(404, "A fault of the sandbox: these details lag behind their event.")
    return shown


@operation("GET", f"{ISSUANCES}/{{id}}")
def read_issuance(tenant: Tenant, id_: str) -> SandboxIssuance:
    """Return an issuance as the API shows it."""
    record = tenant.state.find(IssuanceRecord, id_, "issuance")
    return _as_read(tenant, record, record.before)


@operation("GET", ISSUANCES)
def list_issuances(tenant: Tenant, query: PageQuery) -> Listing[list[SandboxIssuance]]:
    """Return a page of the issuances, the oldest first."""
    return page_of(tenant, IssuanceRecord, ISSUANCES, query)


@operation("GET", f"{PRESENTATIONS}/{{id}}")
def read_presentation(tenant: Tenant, id_: str) -> SandboxPresentation:
    """Return a presentation as the API shows it. With the fault `readOnce`, the first read deletes the attributes."""
    record = tenant.state.find(PresentationRecord, id_, "presentation")
    shown = _as_read(tenant, record, record.before)
    if tenant.faults.on.read_once:
        emptied = [credential.model_copy(update={"attributes": {}}) for credential in record.credentials]
        tenant.state.put(id_, record.model_copy(update={"credentials": emptied}))
    return shown


@operation("GET", PRESENTATIONS)
def list_presentations(tenant: Tenant, query: PageQuery) -> Listing[list[SandboxPresentation]]:
    """Return a page of the presentations, the oldest first."""
    return page_of(tenant, PresentationRecord, PRESENTATIONS, query)


@operation("POST", "/sandbox/events", status=201)
def trigger_events(tenant: Tenant, body: EventRequest) -> list[TriggeredEvent]:
    """Put resources into the state that an event announces, and announce it, all `count` times or not at all.

    Answer 404 for an unknown resource or template, 400 for attributes that do not fit it, 409 for an impossible event.
    """
    act = _trigger_issuance if is_issuance(body.event_type) else _trigger_presentation
    with tenant.state.transaction():
        ids = [act(tenant, body) for _ in range(body.count)]
        return [
            TriggeredEvent(
                event_type=body.event_type, resource_id=id_, webhook_ids=tenant.announce(body.event_type, id_)
            )
            for id_ in ids
        ]


def _trigger_issuance(tenant: Tenant, body: EventRequest) -> str:
    if body.resource_id is not None:
        return _advance(tenant, tenant.state.find(IssuanceRecord, body.resource_id, "issuance"), body.event_type)
    template = templates.find_template(tenant, body.template_id or templates.MEMBERSHIP, archived=False)
    id_, now, rule = f"iss_{secrets.token_hex(12)}", tenant.now(), EVENTS[body.event_type]
    uri = _offer(tenant, id_, template.id)
    record = IssuanceRecord(
        id=id_,
        created_at=now,
        updated_at=now,
        status=rule.status,
        exchange="openid4vc",
        format=template.format,
        credentials=[
            BatchCredential(id=secrets.token_hex(12), status=status, revocable=False) for status in rule.credentials
        ],
        offer_uri=uri,
        offer_qr_uri=uri,
        before=None,
        announced=[body.event_type],
        template_id=template.id,
        claims=templates.claims_of(template, body.attributes),
    )
    tenant.state.put(id_, record)
    return id_


def _trigger_presentation(tenant: Tenant, body: EventRequest) -> str:
    valid = body.is_valid is not False
    template = templates.find_template(tenant, body.template_id or templates.MEMBERSHIP)
    credential = SandboxCredential(
        is_valid=valid,
        name=template.name,
        type=template.type,
        attributes=dict(templates.MEMBER if body.attributes is None else body.attributes),
        issues=[] if valid else ["The sandbox was told to find it invalid."],
    )
    if body.resource_id is not None:
        record = tenant.state.find(PresentationRecord, body.resource_id, "presentation")
        return _advance(tenant, record, body.event_type, credential)
    id_, now = f"cm{secrets.token_hex(11)}", tenant.now()
    uri = f"openid4vp://?request_uri={quote(f'{tenant.base_url}/requests/{id_}', safe='')}"
    record = PresentationRecord(
        id=id_,
        created_at=now,
        updated_at=now,
        presentation_template_id=templates.MEMBERSHIP,
        expires_at=now + timedelta(minutes=15),
        authorization_request_uri=uri,
        authorization_request_qr_uri=uri,
        before=None,
        announced=[body.event_type],
        **_presentation_fields(EVENTS[body.event_type].status, [credential]),
    )
    tenant.state.put(id_, record)
    return id_


def _offer(tenant: Tenant, id_: str, template_id: str) -> str:
    """Return the URI of an issuance's offer: by reference, or by value if that fault is on."""
    if not tenant.faults.on.offers_by_value:
        return f"{OFFER_SCHEME}?credential_offer_uri={quote(f'{tenant.base_url}/offers/{id_}', safe='')}"
    offer = {
        "credential_issuer": tenant.base_url,
        "credential_configuration_ids": [template_id],
        "grants": {PRE_AUTHORIZED: {"pre-authorized_code": id_}},
    }
    return f"{OFFER_SCHEME}?credential_offer={quote(to_json(offer), safe='')}"


def _offered_issuance(tenant: Tenant, uri: str) -> str:
    """Return the id of an offered issuance, or answer 400. An offer of another issuer gives an unknown id."""
    query = parse_qs(urlsplit(uri).query)
    try:
        if "credential_offer" in query:
            (value,) = query["credential_offer"]
            return str(from_json(value)["grants"][PRE_AUTHORIZED]["pre-authorized_code"])
        (reference,) = query["credential_offer_uri"]
        return reference.removeprefix(f"{tenant.base_url}/offers/")
    except (ValueError, LookupError, TypeError):
        raise HTTPException(400, "The credential offer cannot be read.") from None


@operation("POST", "/me-wallet/api/credentials", status=201, enveloped=False)
def accept_offer(tenant: Tenant, body: CredentialOffer) -> list[AcceptedCredential]:
    """Take an offer of the sandbox. Consent completes its issuance, refused consent fails it, each with its event.

    Answer 404 for an offer of another issuer or an archived template, 400 for an offer that was used or has expired.
    """
    record = tenant.state.get(IssuanceRecord, _offered_issuance(tenant, body.credential_offer))
    if record is None:
        raise HTTPException(404, "This sandbox has not made this offer.")
    template = templates.find_template(tenant, record.template_id, archived=False)
    if len(template.type) > MAX_VCT:
        raise HTTPException(400, f"The type of the credential is longer than {MAX_VCT} characters.")
    consent = tenant.faults.on.consent
    event_type = f"openid4vc.issuance.{'failed' if consent == 'rejected' else 'completed'}"
    if obstacle(event_type, record.status, record.announced):
        raise HTTPException(400, "The offer has been used or has expired.")
    if consent != "pending":
        with tenant.state.transaction():
            _advance(tenant, record, event_type)
            tenant.announce(event_type, record.id)
    issuer = {"iss": "CN=Sandbox Issuer" if template.format == "mdoc" else "did:web:sandbox.example"}
    return [
        AcceptedCredential(
            id=str(uuid4()),
            claims=record.claims,
            iat=tenant.now(),
            status=consent,
            format="vc+sd-jwt",
            vct=template.type,
            **({} if tenant.faults.on.no_iss else issuer),
        )
        for _ in record.credentials
    ]
