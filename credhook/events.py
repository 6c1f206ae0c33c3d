"""The platform's events (specification, section Events): the table of resources, and the parser of a delivery."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

import jiter


@dataclass(frozen=True, slots=True)
class EventType:
    """One event type.

    Attributes:
        name: as deliveries and `filterTypes` write it.
        rank: how far the resource has come; types of equal rank do not precede each other.
        urgent: True if the details may be readable only once or for minutes; workers take these events first.
        repeatable: True if it can happen more than once to one resource.
    """

    name: str
    rank: int
    urgent: bool = False
    repeatable: bool = False


#: The event types that announce one state; any of them does.
Announced: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    """A kind of resource that events refer to.

    Attributes:
        name: in the singular.
        namespace: its attribute of the API client, for example `api.issuances`.
        model: the class of its details in credhook/worker/api/models.py.
        payload_keys: the payload fields that may hold its id.
        path: the default path of its details, a guess: no specification shows the paths.
        event_types: all types, in the order of the specification.
        states: its status, in lower case → the states that it has gone through for certain, the present one last.
            A backfill leaves a resource of another status.
    """

    name: str
    namespace: str
    model: str
    payload_keys: tuple[str, ...]
    path: str
    event_types: tuple[EventType, ...]
    states: Mapping[str, tuple[Announced, ...]]


_OFFERED: Final = ("openid4vc.issuance.offered",)
_REQUESTED: Final = ("openid4vc.verification.requested",)
ISSUANCE: Final = Resource(
    name="issuance",
    namespace="issuances",
    model="Issuance",
    payload_keys=("openId4VcIssuanceId",),
    path="/me-creds/api/credentials/{id}",
    event_types=(
        EventType("openid4vc.issuance.offered", rank=1),
        EventType("openid4vc.issuance.completed", rank=3),
        EventType("openid4vc.issuance.failed", rank=3, repeatable=True),
        EventType("openid4vc.issuance.partiallyIssued", rank=2, repeatable=True),
        EventType("openid4vc.issuance.expired", rank=3),
    ),
    # An accepted, declined or overdue resource was offered before. A batch may or may not have been issued in part
    # before it was complete, failed or expired. A revoked issuance was issued before, in part or completely. No event
    # announces the revocation.
    states={
        "offered": (_OFFERED,),
        "partiallyissued": (_OFFERED, ("openid4vc.issuance.partiallyIssued",)),
        "completed": (_OFFERED, ("openid4vc.issuance.completed",)),
        "failed": (_OFFERED, ("openid4vc.issuance.failed",)),
        "expired": (_OFFERED, ("openid4vc.issuance.expired",)),
        "revoked": (_OFFERED, ()),
    },
)
PRESENTATION: Final = Resource(
    name="presentation",
    namespace="presentations",
    model="Presentation",
    # The second name is a sibling product's.
    payload_keys=("openId4VcPresentationId", "openId4VcVerificationId"),
    path="/me-creds/api/presentations/{id}",
    event_types=(
        EventType("openid4vc.verification.requested", rank=1),
        EventType("openid4vc.verification.verified", rank=3, urgent=True),
        EventType("openid4vc.verification.failed", rank=3),
        EventType("openid4vc.verification.expired", rank=3),
        EventType("openid4vc.verification.data", rank=3, urgent=True),
    ),
    # Every answer was requested before; what an `answered` presentation came to is not certain. A declined request has
    # the status `rejected` and is announced as failed.
    states={
        "requested": (_REQUESTED,),
        "pending": (_REQUESTED,),
        "answered": (_REQUESTED, ()),
        # The platform may send either or both. If neither has arrived, `data` is accepted: handlers of both can use it.
        "verified": (_REQUESTED, ("openid4vc.verification.data", "openid4vc.verification.verified")),
        "rejected": (_REQUESTED, ("openid4vc.verification.failed",)),
        "failed": (_REQUESTED, ("openid4vc.verification.failed",)),
        "expired": (_REQUESTED, ("openid4vc.verification.expired",)),
    },
)
RESOURCES: Final = (ISSUANCE, PRESENTATION)

#: The same names for type checkers, which derive the type of a handler's details from them.
IssuanceType = Literal[
    "openid4vc.issuance.offered",
    "openid4vc.issuance.completed",
    "openid4vc.issuance.failed",
    "openid4vc.issuance.partiallyIssued",
    "openid4vc.issuance.expired",
]
PresentationType = Literal[
    "openid4vc.verification.requested",
    "openid4vc.verification.verified",
    "openid4vc.verification.failed",
    "openid4vc.verification.expired",
    "openid4vc.verification.data",
]

#: Words that the platform and its siblings were seen to write as a `status`. There may be others.
Status = Literal[
    "offered", "partiallyIssued", "completed", "failed", "expired", "revoked",
    "requested", "answered", "verified", "PENDING", "ANSWERED", "REJECTED",
    "pending", "accepted", "rejected",
]  # fmt: skip

_TYPES: Final = {event_type.name: event_type for resource in RESOURCES for event_type in resource.event_types}
_RESOURCE_OF: Final = {event_type.name: resource for resource in RESOURCES for event_type in resource.event_types}

#: The names of all event types, in the order of the specification.
EVENT_TYPES: Final = cast("tuple[IssuanceType | PresentationType, ...]", tuple(_TYPES))
URGENT: Final = tuple(event_type.name for event_type in _TYPES.values() if event_type.urgent)
REPEATABLE: Final = tuple(event_type.name for event_type in _TYPES.values() if event_type.repeatable)

#: One page of the vendor says `presentation` where the specification says `verification`.
_ALIAS, _CANONICAL = "openid4vc.presentation.", "openid4vc.verification."
_BY_PLAIN_NAME: Final = {name.casefold(): name for name in EVENT_TYPES}

#: Maximum bytes in UTF-8 of a resource's id and of a webhook-id.
LONGEST_ID: Final = 512
#: An id that fits into one segment of a URL path, encoded. Some servers and proxies decode `%2F`, then resolve `..`.
#: So no part between slashes may be `.` or `..`. Control characters and surrogates are not allowed.
_SEGMENT: Final = re.compile(r"(?!(.*[/\\])?\.{1,2}([/\\]|\Z))[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+")

#: Half of a character beyond U+FFFF: UTF-8 cannot encode it.
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

#: An unknown type is stored and logged under its own name, so the name must be harmless.
_TYPE_NAME: Final = re.compile(r"[!-~]{1,128}")


class Malformed(Exception):
    """The delivery is not a notification of the specification. The message names the broken rule."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to one resource.

    Attributes:
        type: the canonical event type; one of `EVENT_TYPES`, or a name that this version does not know.
        resource_id: the id of the issuance or presentation, any text; empty if the delivery names none.
    """

    type: str
    resource_id: str

    @property
    def fetchable(self) -> bool:
        """Return True if this version knows the type, and the id can stand in the URL of the details."""
        return self.type in _TYPES and is_resource_id(self.resource_id)

    @classmethod
    def parse(cls, body: bytes) -> "Event":
        """Read a delivery's body.

        An event with an unknown type, or an id of an unusual form, is kept, but not `fetchable`.

        Raises:
            Malformed: the body is not a JSON object, or it does not say what happened to which resource. Other fields
                are not checked.
        """
        notification = _parsed(body)
        if not isinstance(notification, dict):
            raise Malformed("the body should be a JSON object")
        event_type, payload = notification.get("eventType"), notification.get("payload")
        if not isinstance(event_type, str) or not _TYPE_NAME.fullmatch(event_type):
            raise Malformed("eventType should be one word of visible ASCII, of 128 characters at most")
        if event_type.startswith(_ALIAS):
            event_type = _CANONICAL + event_type.removeprefix(_ALIAS)
        if event_type not in _TYPES:
            return cls(event_type, _resource_of_unknown_type(payload))
        if not isinstance(payload, dict):
            raise Malformed("payload should be one object")
        return cls(event_type, _resource_id(payload, resource_of(event_type).payload_keys))


def canonical_type(name: str) -> str:
    """Return the name as `EVENT_TYPES` has it, if it is another spelling of one of them."""
    plain = name.strip().casefold()
    if plain.startswith(_ALIAS):
        plain = _CANONICAL + plain.removeprefix(_ALIAS)
    return _BY_PLAIN_NAME.get(plain, name)


def resource_of(event_type: str) -> Resource:
    """Return the resource that events of a known type refer to.

    Raises:
        KeyError: the type is unknown.
    """
    return _RESOURCE_OF[event_type]


def path_advice(*kinds: str) -> str:
    """Return which settings to check if every fetch of these kinds of resources gets a 404."""
    settings = " and ".join(f"CREDHOOK_{kind.upper()}_PATH" for kind in kinds)
    return f"check {settings}, whose default is a guess, and CREDHOOK_API_URL"


def rank_of(event_type: str) -> int:
    """Return how far the resource of such an event has come; 0 for an unknown type."""
    return _TYPES[event_type].rank if event_type in _TYPES else 0


def is_resource_id(value: object) -> bool:
    """Return True if the value can be the id of a resource, so that the resource can be fetched by it."""
    return isinstance(value, str) and bool(_SEGMENT.fullmatch(value)) and len(value.encode()) <= LONGEST_ID


def _resource_id(payload: dict[str, Any], keys: tuple[str, ...]) -> str:
    """Return the id, or an empty string if it is not text. Such an event is kept, but cannot be fetched."""
    present = [payload[key] for key in keys if key in payload]
    if not present:
        raise Malformed(f"payload should hold {keys[0]}")
    ids = [value for value in present if value is not None]
    if _AMBIGUOUS in ids or any(value != ids[0] for value in ids[1:]):
        raise Malformed(f"payload should hold one {keys[0]}")
    return _storable(ids[0]) if ids else ""


def _resource_of_unknown_type(payload: object) -> str:
    """Return the one known id in the payload, or an empty string. An unknown type is never refused for its payload."""
    keys = [key for resource in RESOURCES for key in resource.payload_keys]
    ids = [payload[key] for key in keys if key in payload] if isinstance(payload, dict) else []
    return _storable(ids[0]) if len(ids) == 1 else ""


def _storable(resource_id: object) -> str:
    """Return the id, cut if it is too long, or an empty string if it is not text that UTF-8 can encode.

    A cut id is still longer than any valid id, so it is never mistaken for another id.
    """
    if not isinstance(resource_id, str) or _SURROGATE.search(resource_id):
        return ""
    encoded = resource_id.encode()
    cut = encoded[:LONGEST_ID].decode(errors="ignore") + "…[cut]"
    return cut if len(encoded) > LONGEST_ID else resource_id


def _parsed(body: bytes) -> Any:
    with suppress(ValueError):  # It reads most bodies, in a quarter of the time.
        return jiter.from_json(body, catch_duplicate_keys=True, cache_mode="keys")
    with suppress(ValueError, RecursionError):
        return _DECODER.decode(body.decode("utf-8-sig"))
    raise Malformed("the body should be JSON in UTF-8")


def _with_ambiguities(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object. A name that has several different values gets the value `_AMBIGUOUS`."""
    parsed = dict(pairs)
    for name, value in pairs if len(parsed) != len(pairs) else ():
        if value != parsed[name]:
            parsed[name] = _AMBIGUOUS
    return parsed


#: Made once, since `json.loads` with these arguments makes a decoder for each body. As floats, integers of any length
#: can be read; we use no number of a delivery.
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_with_ambiguities, parse_int=float)
#: Stands for a value that is not clear.
_AMBIGUOUS: Final = object()


def event_ids(webhook_id: str, event_type: str, resource_id: str) -> dict[str, str]:
    """Return the fields that name an event in log lines."""
    return {"webhook_id": webhook_id, "event_type": event_type, "resource_id": resource_id}
