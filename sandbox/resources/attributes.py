"""Attribute definitions of both credential formats, and whether what a credential says fits them."""

import base64
import binascii
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import Field

from credhook.sandbox.http.wire import ABSENT, Wire


class Definition(Wire):
    """What every attribute definition may say."""

    name: str = ABSENT
    description: str = ABSENT
    required: bool = ABSENT


class SdJwtValue(Definition):
    """A plain value in an sd-jwt."""

    type: Literal["string", "number", "boolean", "date"]
    always_disclosed: bool = ABSENT


class SdJwtObject(Definition):
    """Attributes within an attribute."""

    type: Literal["object"]
    properties: dict[str, "SdJwtAttribute"]
    always_disclosed: bool = ABSENT


class SdJwtArray(Definition):
    """Any number of values; anything where `items` is left out."""

    type: Literal["array"]
    items: "SdJwtAttribute" = ABSENT
    always_disclosed: bool = ABSENT


class MdocValue(Definition):
    """A plain value in an mdoc, which knows no `alwaysDisclosed`."""

    type: Literal["string", "number", "boolean", "date", "binary"]


class MdocArray(Definition):
    """Any number of values; anything where `items` is left out."""

    type: Literal["array"]
    items: "MdocAttribute" = ABSENT


SdJwtAttribute = Annotated[SdJwtValue | SdJwtObject | SdJwtArray, Field(discriminator="type")]
MdocAttribute = Annotated[MdocValue | MdocArray, Field(discriminator="type")]


class MdocNamespace(Wire):
    """The attributes of one namespace."""

    properties: dict[str, MdocAttribute]


#: An attribute, or all that stand together under a name.
Defined = SdJwtValue | SdJwtObject | SdJwtArray | MdocValue | MdocArray | MdocNamespace
Group = Mapping[str, Defined]

#: Values for a credential about which nobody has said anything, by the type of the attribute.
EXAMPLES: Mapping[str, Any] = {
    "string": "example",
    "number": 7,
    "boolean": True,
    "date": "2020-02-20",
    "binary": "ZXhhbXBsZQ==",
}


def fit(claims: Any, group: Group) -> bool:
    """Say whether claims are the attributes that a template defines, and no others.

    The answer is one bit, because the platform's is: a 400 names the template and not the attribute
    (specification, "Errors", rule 1).
    """
    if not isinstance(claims, Mapping) or not claims.keys() <= group.keys():
        return False
    return all(
        _fits(claims[key], definition) if key in claims else not _is_required(definition)
        for key, definition in group.items()
    )


def example(group: Group) -> dict[str, Any]:
    """Return claims that fit."""
    return {key: _example(definition) for key, definition in group.items()}


def _is_required(definition: Defined) -> bool:
    if isinstance(definition, MdocNamespace):
        return any(_is_required(each) for each in definition.properties.values())
    return definition.required is True


def _fits(value: Any, definition: Defined) -> bool:
    match definition:
        case SdJwtObject() | MdocNamespace():
            return fit(value, definition.properties)
        case SdJwtArray() | MdocArray():
            items = definition.items
            return isinstance(value, list) and (items is None or all(_fits(each, items) for each in value))
        case SdJwtValue() | MdocValue():
            return _is_of(definition.type, value)


def _is_of(kind: str, value: Any) -> bool:
    match kind:
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "date":
            return _reads(date.fromisoformat, value)
        case "binary":
            return _reads(lambda text: base64.b64decode(text, validate=True), value)
    return isinstance(value, str)


def _reads(read: Any, value: Any) -> bool:
    try:
        read(value)
    except (ValueError, TypeError, binascii.Error):
        return False
    return isinstance(value, str)


def _example(definition: Defined) -> Any:
    match definition:
        case SdJwtObject() | MdocNamespace():
            return example(definition.properties)
        case SdJwtArray() | MdocArray():
            return [] if definition.items is None else [_example(definition.items)]
        case SdJwtValue() | MdocValue():
            return EXAMPLES[definition.type]
