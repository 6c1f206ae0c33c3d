"""`event`: any event as a worker would hand it to a handler, made by the sandbox and read by the worker's models.

`variants` lists awkward forms of an event, which the platform may return although tests rarely have them.
"""

import functools
import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, Unpack, overload

from pydantic import TypeAdapter

from credhook.events import EVENT_TYPES, ISSUANCE, IssuanceType, PresentationType, Status, resource_of
from credhook.sandbox import resources, templates
from credhook.testing.fake_platform import new_tenant
from credhook.worker.api.models import Issuance, Presentation, model_of
from credhook.worker.handlers.arguments import FetchedEvent

#: pytest shows the author's lines and not ours.
__tracebackhide__ = True

CredentialFormat = Literal["sd-jwt", "mdoc"]
Document = dict[str, Any]

#: Format → the template of the credential, and the claims that a holder presents. An mdoc has them in namespaces.
_CREDENTIALS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "sd-jwt": ("sandbox:membership", templates.MEMBER),
    "mdoc": (
        "sandbox:permit",
        {
            "example.sandbox.permit": {
                "holder": "Ada Example",
                "portrait": "ZXhhbXBsZQ==",
                "zones": ["harbour", "depot"],
            }
        },
    ),
}

#: The organisation of all events.
_organisation: Final = functools.cache(new_tenant)

#: Names that a database, a form or a mail program may stumble over.
SCRIPTS: Final[Mapping[str, str]] = {
    "arabic": "ليلى مثال",
    "chinese": "示例·小明",
    "emoji": "Ada 👩🏽\u200d🚀",
    "combining": "Zoe\u0308 E\u0301xample",
    "rightToLeft": "\u202eelpmaxE adA\u202c",
}


class EventOptions(TypedDict, total=False):
    """The options of `event`, explained there."""

    format: CredentialFormat
    attributes: Mapping[str, Any] | None
    is_valid: bool
    status: Status | str | None
    details: Mapping[str, Any] | None
    resource_id: str | None
    webhook_id: str | None
    received_at: datetime | None
    attempt: int


@overload
def event(
    type: IssuanceType,
    variant: str | None = None,
    **options: Unpack[EventOptions],
) -> FetchedEvent[Issuance]: ...
@overload
def event(
    type: PresentationType,
    variant: str | None = None,
    **options: Unpack[EventOptions],
) -> FetchedEvent[Presentation]: ...
@overload
def event(
    type: str,
    variant: str | None = None,
    **options: Unpack[EventOptions],
) -> FetchedEvent: ...
def event(
    type: str,  # noqa: A002  The event's own word.
    variant: str | None = None,
    *,
    format: CredentialFormat = "sd-jwt",  # noqa: A002  The specification's own word.
    attributes: Mapping[str, Any] | None = None,
    is_valid: bool = True,
    status: str | None = None,
    details: Mapping[str, Any] | None = None,
    resource_id: str | None = None,
    webhook_id: str | None = None,
    received_at: datetime | None = None,
    attempt: int = 1,
) -> FetchedEvent:
    """Return an event with details that the platform might show. Type checkers derive the details' type from `type`.

    Args:
        type: one of the ten event types.
        variant: an awkward form, one of `variants(type)`.
        format: of the credential.
        attributes: the claims of the presented credential. Default: an example's.
        is_valid: whether that credential is valid.
        status: of the issuance or presentation.
        details: fields of the details in camelCase, as the platform writes them. They override the others. Only fields
            that the model or the sandbox has: for others, edit the file of `credhook events export`.
        resource_id: its id. Default: generated.
        webhook_id: the delivery's id. Default: generated.
        received_at: when it was received, and when the details were last updated. Default: now. An earlier time makes
            an event of that `age`.
        attempt: number of the attempt.

    Raises:
        ValueError: the type, variant, format or a field is unknown, the time has no zone, or a worker would not accept
            the details.
    """
    _check("event type", type, EVENT_TYPES)
    _check("format", format, _CREDENTIALS)
    if received_at is not None and not (isinstance(received_at, datetime) and received_at.tzinfo):
        raise ValueError("received_at= should be a datetime with a time zone, such as datetime.now(UTC)")
    moment = datetime.now(UTC) if received_at is None else received_at
    moment -= timedelta(microseconds=moment.microsecond % 1_000)  # The store has milliseconds.
    template, claims = _CREDENTIALS[format]
    request: Document = {"event_type": type, "template_id": template}
    read: Callable[..., Any] = resources.read_issuance
    shown: Any = resources.SandboxIssuance
    if resource_of(type) is not ISSUANCE:
        request |= {"attributes": claims if attributes is None else attributes, "is_valid": is_valid}
        read, shown = resources.read_presentation, resources.SandboxPresentation
    elif attributes is not None or not is_valid:
        raise ValueError("attributes and is_valid belong to a presentation; an issuance has neither")
    tenant = replace(_organisation(), now=lambda: moment)
    (triggered,) = resources.trigger_events(tenant, resources.EventRequest.model_validate(request))
    resource = read(tenant, triggered.resource_id)
    document = TypeAdapter(shown).dump_python(resource, mode="json", by_alias=True, exclude_unset=True)
    model = model_of(resource_of(type))
    fields = {field.alias or name for name, field in model.model_fields.items()} | document.keys()
    for name in details or ():
        _check("field of the details", name, sorted(fields))
    if variant is not None:
        _check(f"variant of {type}", variant, variants(type))
        document = _VARIANTS[variant][1](document)
    document |= {"id": resource_id or document["id"]} | ({} if status is None else {"status": status})
    document |= details or {}
    return FetchedEvent(
        type=type,
        resource_id=str(document["id"]),
        webhook_id=webhook_id or f"msg_{secrets.token_hex(12)}",
        received_at=moment,
        attempt=attempt,
        details=model.model_validate(document),
        age=timedelta(0) if received_at is None else _age(moment),
    )


def _age(received_at: datetime) -> timedelta:
    return max(timedelta(0), datetime.now(UTC) - received_at)


def load_event(path: str | Path) -> FetchedEvent:
    """Return the event that `credhook events export` has written, or raise `ValueError` if the file holds none."""
    try:
        case = json.loads(Path(path).read_text(encoding="utf-8"))
        details = model_of(resource_of(case["type"])).model_validate(case.pop("details"))
        received_at = datetime.fromisoformat(case["received_at"])
        return FetchedEvent(**case | {"received_at": received_at, "details": details, "age": _age(received_at)})
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold an event as `credhook events export` writes it") from error


def variants(event_type: str) -> tuple[str, ...]:
    """Return the awkward forms that an event of this type may take: values for the second argument of `event`."""
    return tuple(name for name, (types, _) in _VARIANTS.items() if event_type in types)


def _check(noun: str, wanted: str, choices: Collection[str]) -> None:
    if wanted not in choices:
        raise ValueError(f"{wanted!r} is not a known {noun}; there is {', '.join(choices)}")


def _with_attributes(document: Document, attributes: Mapping[str, Any]) -> Document:
    return document | {
        "credentials": [credential | {"attributes": attributes} for credential in document["credentials"]]
    }


_ISSUANCES: Final = tuple(event_type.name for event_type in ISSUANCE.event_types)
_VERIFIED: Final = "openid4vc.verification.verified"
_DATA: Final = "openid4vc.verification.data"

#: Awkward form → the event types that may have it, and the function that changes the details.
#: Each form of a `data` event has presented data, since a worker runs no handler without it.
_VARIANTS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Document], Document]]]] = {
    "empty": ((*_ISSUANCES, _VERIFIED), lambda document: document | {"credentials": []}),
    "no_data": ((_VERIFIED,), lambda document: _with_attributes(document, {})),
    "unknown_status": (EVENT_TYPES, lambda document: document | {"status": "notYetInventedWhenThisWasWritten"}),
    "scripts": ((_VERIFIED, _DATA), lambda document: _with_attributes(document, SCRIPTS)),
    "missing": (
        tuple(event_type for event_type in EVENT_TYPES if event_type != _DATA),
        lambda document: {name: document[name] for name in ("id", "status")},
    ),
}
