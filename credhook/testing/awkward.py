"""The awkward ones: what the platform may say of a resource, and a handler seldom sees before its first bad day. Pure.

Each changes details as the platform writes them, in camelCase, before they are read.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from credhook.events import EVENT_TYPES, concerns_issuance
from credhook.worker.api.http.json_size import MOST_VALUES, values

Document = dict[str, Any]

_DATA: Final = "openid4vc.verification.data"
_VERIFIED: Final = "openid4vc.verification.verified"
_FAILED: Final = "openid4vc.verification.failed"
_ISSUANCES: Final = tuple(name for name in EVENT_TYPES if concerns_issuance(name))

#: Names that a database, a form or a mail program may stumble over. Nobody is called that.
SCRIPTS: Final[Mapping[str, str]] = {
    "arabic": "ليلى مثال",
    "chinese": "示例·小明",
    "emoji": "Ada 👩🏽\u200d🚀",
    "combining": "Zoe\u0308 E\u0301xample",
    "rightToLeft": "\u202eelpmaxE adA\u202c",
}

#: How much of what a worker reads of one resource the huge ones take up.
_NEAR: Final = 0.95

#: Fields that the models cannot do without.
_REQUIRED: Final = ("id", "status")

#: What overtakes an event before the last in the life of its resource: a status that its details show by then.
_LATER: Final[Mapping[str, str]] = {
    "openid4vc.issuance.offered": "completed",
    "openid4vc.issuance.partiallyIssued": "completed",
    "openid4vc.verification.requested": "expired",
}


def _empty(_: str, document: Document) -> Document:
    return document | {"credentials": []}


def _no_data(_: str, document: Document) -> Document:
    return document | {"credentials": [one | {"attributes": {}} for one in document["credentials"]]}


def _stale(event_type: str, document: Document) -> Document:
    status = _LATER[event_type]
    issued = [one | {"status": "issued"} for one in document["credentials"]]
    return document | {"status": status, "credentials": issued}


def _unknown_status(_: str, document: Document) -> Document:
    return document | {"status": "notYetInventedWhenThisWasWritten"}


def _huge(_: str, document: Document) -> Document:
    one = document["credentials"][0]
    number = int(MOST_VALUES * _NEAR - values(to_json(document))) // (values(to_json(one)))
    named = "id" in one
    return document | {
        "credentials": [one | ({"id": f"{one['id']}-{place}"} if named else {}) for place in range(number)]
    }


def _scripts(_: str, document: Document) -> Document:
    return document | {"credentials": [one | {"attributes": dict(SCRIPTS)} for one in document["credentials"]]}


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
    """One awkward form: the event types that a worker may meet it with, and what makes details so."""

    types: tuple[str, ...]
    change: Callable[[str, Document], Document]


#: By name. Presented data is missing from none that announces it: a worker runs no handler then.
VARIANTS: Final[Mapping[str, Variant]] = {
    "empty": Variant((*_ISSUANCES, _VERIFIED), _empty),
    "no_data": Variant((_VERIFIED,), _no_data),
    "stale": Variant(tuple(_LATER), _stale),
    "unknown_status": Variant(EVENT_TYPES, _unknown_status),
    "huge": Variant((*_ISSUANCES, _VERIFIED, _DATA), _huge),
    "scripts": Variant((_VERIFIED, _DATA), _scripts),
    "error_object": Variant((_FAILED,), _error_object),
    "missing": Variant(EVENT_TYPES, _missing),
    "nulls": Variant(EVENT_TYPES, _nulls),
}


def variants(event_type: str) -> tuple[str, ...]:
    """The awkward forms that an event of this type may take: each a second argument of `event`."""
    return tuple(name for name, variant in VARIANTS.items() if event_type in variant.types)
