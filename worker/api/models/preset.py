"""Credential presets, in two formats. Specification: Credential preset, format `sd-jwt` and format `mdoc`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from credhook.worker.api.models.attribute import AnyAttribute, AttributeNamespace, MdocNamespace, SdJwtAttribute
from credhook.worker.api.models.base import RequestModel, ResponseModel, Timestamp

Code = Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
Count = Annotated[int, Field(strict=True, ge=0)]
KeyType = Literal["P-256", "Ed25519"]


class Future(RequestModel):
    """A span of time. All three parts are needed, each zero or more."""

    days: Count
    months: Count
    years: Count


class SdJwtValidUntil(RequestModel):
    """Until when an SD-JWT credential is valid: a span from its issuance, or from its `validFrom`."""

    start: Literal["issuance", "validFrom"]
    future: Future


class MdocValidUntil(RequestModel):
    """Until when an mdoc credential is valid: a span, without a choice of where it starts."""

    future: Future


class DidSigner(RequestModel):
    """The tenant's `did:web` signs. It has one key, so no key type is chosen."""

    signer: Literal["did:web"]


class CertificateSigner(RequestModel):
    """A certificate of the tenant signs, optionally with a key of the type named."""

    signer: Literal["certificate"]
    key_type: KeyType | None = None


class _PresetRequest(RequestModel):
    shown: ClassVar = ("credential_format", "code")

    template_name: str
    code: Code
    template_description: str


class SdJwtPresetRequest(_PresetRequest):
    """A preset for SD-JWT credentials."""

    credential_format: Literal["sd-jwt"] = "sd-jwt"
    template_attributes: dict[str, SdJwtAttribute]
    issuer_config: Annotated[DidSigner | CertificateSigner, Field(discriminator="signer")] | None = None
    valid_until: SdJwtValidUntil | None = None


class MdocPresetRequest(_PresetRequest):
    """A preset for mdoc credentials. `type` is the document type, such as `org.iso.18013.5.1.mDL`."""

    credential_format: Literal["mdoc"] = "mdoc"
    type: Annotated[str, Field(min_length=1)]
    template_attributes: dict[str, MdocNamespace]
    valid_until: MdocValidUntil
    issuer_config: CertificateSigner | None = None


PresetRequest = Annotated[SdJwtPresetRequest | MdocPresetRequest, Field(discriminator="credential_format")]


class Span(ResponseModel):
    """The `future` of an answer."""

    days: int
    months: int
    years: int


class ValidUntil(ResponseModel):
    """Until when credentials of a preset are valid. `start` is absent for mdoc."""

    start: str | None = None
    future: Span


class IssuerConfig(ResponseModel):
    """Who signs, and with which type of key."""

    shown: ClassVar = ("signer", "key_type")

    signer: str
    key_type: str | None = None


class _Preset(ResponseModel):
    shown: ClassVar = ("credential_format", "id")

    #: `<author>:<code>`.
    id: str
    author: str
    template_name: str
    template_type: str
    code: str
    template_description: str
    created_at: Timestamp
    updated_at: Timestamp


class SdJwtPreset(_Preset):
    """A preset for SD-JWT credentials, as kept. `template_type` is a URI derived from author and code."""

    credential_format: Literal["sd-jwt"]
    template_attributes: dict[str, AnyAttribute]
    issuer_config: IssuerConfig
    valid_until: ValidUntil | None = None


class MdocPreset(_Preset):
    """A preset for mdoc credentials, as kept. `template_type` is the document type of the request."""

    credential_format: Literal["mdoc"]
    template_attributes: dict[str, AttributeNamespace]
    issuer_config: IssuerConfig | None
    valid_until: ValidUntil


Preset = Annotated[SdJwtPreset | MdocPreset, Field(discriminator="credential_format")]
