"""Making things happen: `POST /sandbox/events`."""

from pydantic import Field, JsonValue

from credhook.sandbox.http.errors import Refusal
from credhook.sandbox.http.wire import ABSENT, Whole, Wire
from credhook.sandbox.resources import issuances, presentations, templates
from credhook.sandbox.resources.presentations import PresentedCredential
from credhook.sandbox.tenant.events import EventType, concerns_issuance
from credhook.sandbox.tenant.lifecycle import ImpossibleError
from credhook.sandbox.tenant.operations import Operation
from credhook.sandbox.tenant.tenant import Tenant
from credhook.sandbox.triggers.fixtures import MEMBER, MEMBERSHIP

#: Events that one request may make happen.
MOST = 10_000


class Happening(Wire):
    """What is to happen."""

    event_type: EventType
    count: Whole = Field(1, ge=1, le=MOST, description="How many times, each to a resource of its own.")
    resource_id: str = Field(ABSENT, description="The resource that it happens to; a new one if left out.")
    template_id: str = Field(ABSENT, description="The template of a new issuance.")
    attributes: dict[str, JsonValue] = Field(ABSENT, repr=False, description="What the credential says.")
    is_valid: bool = Field(ABSENT, description="Whether the presented credential is valid; it is if left out.")


class Happened(Wire):
    """One thing that has happened, and the deliveries that announce it."""

    event_type: EventType
    resource_id: str
    webhook_ids: list[str]


def happen(tenant: Tenant, wanted: Happening) -> list[Happened]:
    """Make it happen: bring about the state that the event announces, and announce it.

    Raises:
        Refusal: With 404 for an unknown resource or template, with 400 for attributes that do not fit the
            template, with 409 for an event that cannot happen to the resource now.
    """
    with tenant.state.together():
        return [_happen_once(tenant, wanted) for _ in range(wanted.count)]


def _happen_once(tenant: Tenant, wanted: Happening) -> Happened:
    bring_about = _to_issuance if concerns_issuance(wanted.event_type) else _to_presentation
    try:
        resource_id = bring_about(tenant, wanted)
    except ImpossibleError as problem:
        raise Refusal(409, f"This cannot happen to {wanted.resource_id}: {problem}.") from problem
    return Happened(
        event_type=wanted.event_type,
        resource_id=resource_id,
        webhook_ids=tenant.announce(wanted.event_type, resource_id),
    )


def _to_issuance(tenant: Tenant, wanted: Happening) -> str:
    if wanted.resource_id is not None:
        issuances.move(tenant, wanted.resource_id, wanted.event_type)
        return str(wanted.resource_id)
    template = templates.usable(tenant, wanted.template_id or MEMBERSHIP)
    said = MEMBER if wanted.attributes is None and template.id == MEMBERSHIP else wanted.attributes
    return issuances.begin(
        tenant,
        wanted.event_type,
        template_id=template.id,
        template_format=template.format,
        claims=templates.claims_of(template, said),
    )


def _to_presentation(tenant: Tenant, wanted: Happening) -> str:
    credential = PresentedCredential(
        is_valid=wanted.is_valid is not False,
        name="Membership",
        type="https://sandbox.example/types/sandbox/membership",
        attributes=dict(MEMBER if wanted.attributes is None else wanted.attributes),
        issues=["The sandbox was told to find it invalid."] if wanted.is_valid is False else [],
    )
    if wanted.resource_id is not None:
        presentations.move(tenant, wanted.resource_id, wanted.event_type, credential)
        return str(wanted.resource_id)
    return presentations.begin(tenant, wanted.event_type, credential)


OPERATIONS = (
    Operation(
        "POST",
        "/sandbox/events",
        happen,
        "Make something happen to a new resource, or to an existing one.",
        status=201,
        refusals=(404, 409),
    ),
)
