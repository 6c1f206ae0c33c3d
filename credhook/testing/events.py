"""Any event, as a worker would hand it to a handler: made by the sandbox, read by the worker's models."""

import difflib
import functools
import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from pydantic_core import to_json

from credhook.events import EVENT_TYPES, concerns_issuance
from credhook.sandbox import resources, templates
from credhook.sandbox.tenant import Tenant
from credhook.testing.awkward import VARIANTS, variants
from credhook.testing.platform.sandbox import new_tenant
from credhook.worker.api.calls import responses
from credhook.worker.api.calls.errors import InvalidResponse
from credhook.worker.api.calls.operations import GET_ISSUANCE, GET_PRESENTATION, Operation
from credhook.worker.api.http.exchange import Response
from credhook.worker.handlers.types import FetchedEvent

CredentialFormat = Literal["sd-jwt", "mdoc"]

_TEMPLATES: Final[Mapping[CredentialFormat, str]] = {"sd-jwt": "sandbox:membership", "mdoc": "sandbox:permit"}

#: What a holder presents of each format. Attributes of an mdoc stand in their namespaces. Nobody is called that.
_CLAIMS: Final[Mapping[CredentialFormat, Mapping[str, Any]]] = {
    "sd-jwt": templates.MEMBER,
    "mdoc": {
        "example.sandbox.permit": {"holder": "Ada Example", "portrait": "ZXhhbXBsZQ==", "zones": ["harbour", "depot"]}
    },
}


def event(
    type: str,  # noqa: A002  The event's own word.
    variant: str | None = None,
    *,
    format: CredentialFormat = "sd-jwt",  # noqa: A002  The specification's own word.
    attributes: Mapping[str, Any] | None = None,
    is_valid: bool | None = None,
    status: str | None = None,
    details: Mapping[str, Any] | None = None,
    resource_id: str | None = None,
    webhook_id: str | None = None,
    received_at: datetime | None = None,
    attempt: int = 1,
) -> FetchedEvent:
    """An event with details that the platform might show.

    Args:
        type: one of the ten event types.
        variant: an awkward form of it, one of `variants(type)`.
        format: of the credential.
        attributes: the claims of the presented credential, in place of an example's.
        is_valid: whether that credential is valid.
        status: of the issuance or presentation.
        details: any of its fields as the platform writes them, in camelCase; they come last.
        resource_id: its id; by default one made up.
        webhook_id: the delivery's id; likewise.
        received_at: when it was received; by default now. The details were last updated then.
        attempt: which attempt it is.

    Raises:
        ValueError: there is no such type, variant or format, or a worker would not accept such details; the message
            says what there is.
    """
    _one_of("event type", type, EVENT_TYPES)
    _one_of("format", format, _TEMPLATES)
    moment = datetime.now(UTC) if received_at is None else received_at
    document = _document(type, format, moment)
    if resource_id is not None:
        document["id"] = resource_id
    if variant is not None:
        document = VARIANTS[_one_of(f"variant of {type}", variant, variants(type))].change(type, document)
    if attributes is not None or is_valid is not None:
        document["credentials"] = [_presented(type, document, format, attributes, is_valid)]
    document |= ({} if status is None else {"status": status}) | dict(details or {})
    return FetchedEvent(
        type=type,
        resource_id=str(document["id"]),
        webhook_id=webhook_id or f"msg_{secrets.token_hex(12)}",
        received_at=moment,
        attempt=attempt,
        details=_read(type, document),
    )


def _one_of(what: str, wanted: str, known: Any) -> str:
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=1)
        raise ValueError(f"{wanted!r} is no {what}; " + (f"did you mean {near[0]!r}?" if near else _list(known)))
    return wanted


def _list(known: Any) -> str:
    return f"there is {', '.join(known)}" if known else "there is none"


def _document(event_type: str, format_: CredentialFormat, moment: datetime) -> dict[str, Any]:
    """The details of a new resource in the state that the event announces, as the sandbox shows them."""
    tenant = replace(_organisation(), now=lambda: moment)
    if not concerns_issuance(event_type):
        id_ = resources.begin_presentation(tenant, event_type, _credential(format_))
        return resources.read_presentation(tenant, id_).plain()
    id_ = resources.begin_issuance(tenant, event_type, templates.read_template(tenant, _TEMPLATES[format_]), None)
    return resources.read_issuance(tenant, id_).plain()


@functools.cache
def _organisation() -> Tenant:
    """The one whose resources all events are about."""
    return new_tenant()


def _credential(format_: CredentialFormat) -> resources.SandboxCredential:
    template = templates.read_template(_organisation(), _TEMPLATES[format_])
    return resources.SandboxCredential(
        is_valid=True, name=template.name, type=template.type, attributes=dict(_CLAIMS[format_]), issues=[]
    )


def _presented(
    event_type: str,
    document: Mapping[str, Any],
    format_: CredentialFormat,
    attributes: Mapping[str, Any] | None,
    is_valid: bool | None,
) -> dict[str, Any]:
    if concerns_issuance(event_type):
        raise ValueError("attributes and is_valid are a presentation's; an issuance shows neither")
    shown = (document.get("credentials") or [_credential(format_).plain()])[0]
    changes: dict[str, Any] = {} if attributes is None else {"attributes": dict(attributes)}
    if is_valid is not None:
        changes |= {"isValid": is_valid, "issues": [] if is_valid else ["The signature does not match."]}
    return {**shown, **changes}


def _read(event_type: str, document: Mapping[str, Any]) -> Any:
    """The details as a worker reads them out of the platform's answer."""
    operation: Operation[Any] = GET_ISSUANCE if concerns_issuance(event_type) else GET_PRESENTATION
    answer = Response(200, {}, to_json({"data": document}))
    try:
        return responses.read(operation, answer, datetime.now(UTC), asked_for=str(document["id"]))
    except InvalidResponse as error:
        raise ValueError(f"a worker would not accept these details: {error}") from None
