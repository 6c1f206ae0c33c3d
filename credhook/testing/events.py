"""`event`: any event as a worker would hand it to a handler, made by the sandbox and read by the worker's models.

`variants` lists awkward forms: what the platform may return, and what a handler rarely sees before its first bad day.
"""

import difflib
import functools
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from pydantic_core import to_json

from credhook.events import EVENT_TYPES, ISSUANCE, resource_of
from credhook.sandbox import resources, templates
from credhook.sandbox.tenant import Tenant
from credhook.testing.fake_platform import new_tenant
from credhook.worker.api import responses
from credhook.worker.api.errors import InvalidResponse
from credhook.worker.api.http.exchange import MOST_VALUES, Response, values
from credhook.worker.api.operations import reading
from credhook.worker.handlers.types import FetchedEvent

CredentialFormat = Literal["sd-jwt", "mdoc"]
Document = dict[str, Any]

_TEMPLATES: Final[Mapping[CredentialFormat, str]] = {"sd-jwt": "sandbox:membership", "mdoc": "sandbox:permit"}

#: The claims that a holder presents. An mdoc has them in namespaces.
_CLAIMS: Final[Mapping[CredentialFormat, Mapping[str, Any]]] = {
    "sd-jwt": templates.MEMBER,
    "mdoc": {
        "example.sandbox.permit": {"holder": "Ada Example", "portrait": "ZXhhbXBsZQ==", "zones": ["harbour", "depot"]}
    },
}

_DATA: Final = "openid4vc.verification.data"
_VERIFIED: Final = "openid4vc.verification.verified"
_FAILED: Final = "openid4vc.verification.failed"
_ISSUANCES: Final = tuple(one.name for one in ISSUANCE.event_types)
_REQUIRED: Final = ("id", "status")

#: Names that a database, a form or a mail program may stumble over.
SCRIPTS: Final[Mapping[str, str]] = {
    "arabic": "ليلى مثال",
    "chinese": "示例·小明",
    "emoji": "Ada 👩🏽\u200d🚀",
    "combining": "Zoe\u0308 E\u0301xample",
    "rightToLeft": "\u202eelpmaxE adA\u202c",
}

#: The part of a worker's limit that the huge details take up.
_NEAR: Final = 0.95

#: Event type → a later status that the details of the "stale" form show.
_LATER: Final[Mapping[str, str]] = {
    "openid4vc.issuance.offered": "completed",
    "openid4vc.issuance.partiallyIssued": "completed",
    "openid4vc.verification.requested": "expired",
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
    """Return an event with details that the platform might show.

    Args:
        type: one of the ten event types.
        variant: an awkward form, one of `variants(type)`.
        format: of the credential.
        attributes: the claims of the presented credential. Default: an example's.
        is_valid: whether that credential is valid.
        status: of the issuance or presentation.
        details: fields of the details in camelCase, as the platform writes them. They override the others.
        resource_id: its id. Default: generated.
        webhook_id: the delivery's id. Default: generated.
        received_at: when it was received, and when the details were last updated. Default: now.
        attempt: number of the attempt.

    Raises:
        ValueError: the type, variant or format is unknown, or a worker would not accept the details.
    """
    _one_of("event type", type, EVENT_TYPES)
    _one_of("format", format, _TEMPLATES)
    moment = datetime.now(UTC) if received_at is None else received_at
    document = _document(type, format, moment)
    if resource_id is not None:
        document["id"] = resource_id
    if variant is not None:
        document = _VARIANTS[_one_of(f"variant of {type}", variant, variants(type))].change(type, document)
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


def variants(event_type: str) -> tuple[str, ...]:
    """Return the awkward forms that an event of this type may take: values for the second argument of `event`."""
    return tuple(name for name, variant in _VARIANTS.items() if event_type in variant.types)


def _one_of(noun: str, wanted: str, known: Any) -> str:
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=1)
        listed = f"there is {', '.join(known)}" if known else "there is none"
        raise ValueError(f"{wanted!r} is no {noun}; " + (f"did you mean {near[0]!r}?" if near else listed))
    return wanted


def _document(event_type: str, format_: CredentialFormat, moment: datetime) -> dict[str, Any]:
    """Return the details of a new resource in the state that the event announces, as the sandbox shows them."""
    tenant = replace(_organisation(), now=lambda: moment)
    issues = resource_of(event_type) is ISSUANCE
    claims: dict[str, Any] = {} if issues else {"attributes": dict(_CLAIMS[format_])}
    request = resources.EventRequest(event_type=event_type, template_id=_TEMPLATES[format_], **claims)
    (happened,) = resources.trigger_events(tenant, request)
    read = resources.read_issuance if issues else resources.read_presentation
    return read(tenant, happened.resource_id).plain()


@functools.cache
def _organisation() -> Tenant:
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
    if resource_of(event_type) is ISSUANCE:
        raise ValueError("attributes and is_valid are a presentation's; an issuance shows neither")
    shown = (document.get("credentials") or [_credential(format_).plain()])[0]
    changes: dict[str, Any] = {} if attributes is None else {"attributes": dict(attributes)}
    if is_valid is not None:
        changes |= {"isValid": is_valid, "issues": [] if is_valid else ["The signature does not match."]}
    return {**shown, **changes}


def _read(event_type: str, document: Mapping[str, Any]) -> Any:
    """Read the details as a worker does."""
    operation = reading(resource_of(event_type))["get"]
    answer = Response(200, {}, to_json({"data": document}))
    try:
        return responses.read(operation, answer, datetime.now(UTC), asked_for=str(document["id"]))
    except InvalidResponse as error:
        raise ValueError(f"a worker would not accept these details: {error}") from None


def _with_attributes(document: Document, attributes: Mapping[str, Any]) -> Document:
    return document | {"credentials": [one | {"attributes": dict(attributes)} for one in document["credentials"]]}


def _stale(event_type: str, document: Document) -> Document:
    status = _LATER[event_type]
    issued = [one | {"status": "issued"} for one in document["credentials"]]
    return document | {"status": status, "credentials": issued}


def _huge(_: str, document: Document) -> Document:
    one = document["credentials"][0]
    number = int(MOST_VALUES * _NEAR - values(to_json(document))) // (values(to_json(one)))
    named = "id" in one
    return document | {
        "credentials": [one | ({"id": f"{one['id']}-{place}"} if named else {}) for place in range(number)]
    }


def _error_object(_: str, document: Document) -> Document:
    error = {"message": document["error"], "code": "access_denied", "details": [{"step": "consent"}]}
    return document | {"error": error}


def _missing(event_type: str, document: Document) -> Document:
    bare = {name: document[name] for name in _REQUIRED}
    if event_type != _DATA:
        return bare
    return bare | {"credentials": [{"attributes": one["attributes"]} for one in document["credentials"]]}


def _nulls(event_type: str, document: Document) -> Document:
    nothing = {name: None for name in document if name not in _REQUIRED}
    if event_type != _DATA:
        return document | nothing
    kept = [dict.fromkeys(one) | {"attributes": one["attributes"]} for one in document["credentials"]]
    return document | nothing | {"credentials": kept}


class Variant(NamedTuple):
    """An awkward form: the event types that may have it, and the function that changes the details."""

    types: tuple[str, ...]
    change: Callable[[str, Document], Document]


#: No form of a `data` event lacks presented data: a worker runs no handler without it.
_VARIANTS: Final[Mapping[str, Variant]] = {
    "empty": Variant((*_ISSUANCES, _VERIFIED), lambda _, document: document | {"credentials": []}),
    "no_data": Variant((_VERIFIED,), lambda _, document: _with_attributes(document, {})),
    "stale": Variant(tuple(_LATER), _stale),
    "unknown_status": Variant(
        EVENT_TYPES, lambda _, document: document | {"status": "notYetInventedWhenThisWasWritten"}
    ),
    "huge": Variant((*_ISSUANCES, _VERIFIED, _DATA), _huge),
    "scripts": Variant((_VERIFIED, _DATA), lambda _, document: _with_attributes(document, SCRIPTS)),
    "error_object": Variant((_FAILED,), _error_object),
    "missing": Variant(EVENT_TYPES, _missing),
    "nulls": Variant(EVENT_TYPES, _nulls),
}
