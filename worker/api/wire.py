"""Base classes of all models, and the values that go into a path.

Names are camelCase on the wire. Models are frozen, and their reprs show no personal data.
"""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, ClassVar
from unicodedata import category
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema


def mismatch(error: ValidationError) -> str:
    """Return the place and kind of the first mistake in one line, without any value."""
    first = error.errors(include_input=False, include_context=False, include_url=False)[0]
    place = ".".join(str(step) for step in first["loc"]) or "the whole"
    return f"{place}: {first['type'].replace('_', ' ')}"


class NoneAsEmpty:
    """Read null as an empty list.

    A `BeforeValidator` would be shorter, but pydantic then builds the list twice when it reads bytes.
    """

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Describe a list, or null, for pydantic."""
        listed = core_schema.nullable_schema(handler(source))
        return core_schema.no_info_after_validator_function(lambda value: () if value is None else value, listed)


class Wire(BaseModel):
    """A frozen value with a wire form.

    A repr shows only the fields named in `shown`. A new field stays hidden until it is known to hold no personal data.
    Validation errors do not repeat the input, for the same reason.
    """

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        hide_input_in_errors=True,
    )

    #: Fields that a repr may show: identifiers, types, states.
    shown: ClassVar[tuple[str, ...]] = ()

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [(name, getattr(self, name)) for name in self.shown]


class ResponseModel(Wire):
    """An answer of the platform. Unknown fields are kept, but not shown."""

    model_config = ConfigDict(extra="allow")


class RequestModel(Wire):
    """The body of a request. An unknown field is a mistake of ours."""

    model_config = ConfigDict(extra="forbid")


class Stateful(ResponseModel):
    """A model with a `status`. Any word is valid, because the platform's pages disagree on spelling and case."""

    status: str

    def is_(self, *states: str) -> bool:
        """Return True if the status is one of these; case is ignored."""
        return self.status.casefold() in {state.casefold() for state in states}


#: A timestamp where the specification promises ISO 8601.
Timestamp = datetime

#: A timestamp that the specification does not promise: a `datetime` if it can be parsed, otherwise the text.
ObservedTimestamp = Annotated[datetime | str, Field(union_mode="left_to_right")]


#: Identifiers of the platform, in every shape seen: `cmfw…`, `iss_…`, UUIDs, `author:code`, DIDs.
_RESOURCE_ID = re.compile(r"[A-Za-z0-9._~:-]{1,128}")

#: Values that need no encoding in a path, as nearly all ids. `quote` would take ten times as long.
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]+")

#: Characters of a username or an external identifier. No rule is published; this keeps URLs within reason.
_LONGEST_NAME = 256

#: Unicode categories that have no place in a path: control characters, and surrogates that cannot be encoded.
_UNFIT = {"Cc", "Cs"}


def resource_id(value: str) -> str:
    """Return the id of a platform resource, unchanged.

    Raises:
        ValueError: It is not 1 to 128 of `A-Z a-z 0-9 . _ ~ : -`, or it is `.` or `..`, which climb a path.
    """
    if not _RESOURCE_ID.fullmatch(value) or value in {".", ".."}:
        raise ValueError("should be 1 to 128 of the characters A-Z a-z 0-9 . _ ~ : - and neither . nor ..")
    return value


def path_name(value: str) -> str:
    """Return a username or an external identifier, unchanged. It may hold `@`, `/`, `+` and spaces.

    Every one of these travels percent-encoded, inside one segment. Some servers and proxies decode `%2F` and
    then resolve `..`; a name with a part that climbs is therefore refused as well.

    Raises:
        ValueError: It is empty, longer than 256 characters, holds control characters, or has a part that is
            `.` or `..`.
    """
    if not 0 < len(value) <= _LONGEST_NAME:
        raise ValueError("should be 1 to 256 characters")
    if any(category(character) in _UNFIT for character in value):
        raise ValueError("should hold no control characters")
    if not {".", ".."}.isdisjoint(re.split(r"[/\\]", value)):
        raise ValueError("should not have . or .. as a part")
    return value


def path_segment(value: str) -> str:
    """Return the value as one segment of a path, percent-encoded."""
    return value if _UNRESERVED.fullmatch(value) else quote(value, safe="")
