"""Attribute definitions. Specification: SD-JWT attribute definition, Mdoc attribute definition."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from credhook.worker.api.models.base import RequestModel, ResponseModel

Flag = Annotated[bool, Field(strict=True)]


class _Definition(RequestModel):
    shown: ClassVar = ("type",)

    name: str | None = None
    description: str | None = None
    required: Flag | None = None


class _SdJwtDefinition(_Definition):
    always_disclosed: Flag | None = None


class SdJwtValue(_SdJwtDefinition):
    """An attribute of one value."""

    type: Literal["string", "number", "boolean", "date"]


class SdJwtObject(_SdJwtDefinition):
    """An attribute made of attributes."""

    type: Literal["object"] = "object"
    properties: dict[str, "SdJwtAttribute"]


class SdJwtArray(_SdJwtDefinition):
    """An attribute of many values, each as `items` says."""

    type: Literal["array"] = "array"
    items: "SdJwtAttribute | None" = None


SdJwtAttribute = Annotated[SdJwtValue | SdJwtObject | SdJwtArray, Field(discriminator="type")]


class MdocValue(_Definition):
    """An mdoc attribute of one value. There is no `alwaysDisclosed` in mdoc."""

    type: Literal["string", "number", "boolean", "date", "binary"]


class MdocArray(_Definition):
    """An mdoc attribute of many values, each as `items` says."""

    type: Literal["array"] = "array"
    items: "MdocAttribute | None" = None


MdocAttribute = Annotated[MdocValue | MdocArray, Field(discriminator="type")]


class MdocNamespace(RequestModel):
    """The attributes of one mdoc namespace."""

    properties: dict[str, MdocAttribute]


class AnyAttribute(ResponseModel):
    """An attribute definition in an answer, of whatever type the platform knows by then."""

    shown: ClassVar = ("type",)

    type: str | None = None
    name: str | None = None
    description: str | None = None
    required: bool | None = None
    always_disclosed: bool | None = None
    properties: "dict[str, AnyAttribute] | None" = None
    items: "AnyAttribute | None" = None


class AttributeNamespace(ResponseModel):
    """The attributes of one mdoc namespace, in an answer."""

    properties: dict[str, AnyAttribute]
