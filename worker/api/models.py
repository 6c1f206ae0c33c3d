"""Requests to the platform and its answers, in the order of the specification.

Issuances and presentations are not specified; their fields were observed.
"""

from base64 import b64decode
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, ConfigDict, FailFast, Field, JsonValue, model_validator

from credhook.events import EVENT_TYPES, ISSUANCE, PRESENTATION, resource_of
from credhook.worker.api.wire import (
    NoneAsEmpty,
    ObservedTimestamp,
    RequestModel,
    ResponseModel,
    Stateful,
    Timestamp,
    resource_id,
)

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
    """An attribute definition in an answer. Its type may be unknown to us."""

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


class Template(ResponseModel):
    """A credential template of either format. The second one's shape is not specified: little is required."""

    shown: ClassVar = ("id", "type", "format")

    id: str
    name: str
    #: `sd-jwt-vc` was observed.
    format: str
    type: str
    description: str | None = None
    attributes: dict[str, AnyAttribute] | None = None
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    archived_at: Timestamp | None = None

    @property
    def archived(self) -> bool:
        """True once the template has been archived."""
        return self.archived_at is not None


class UserRequest(RequestModel):
    """Someone to create, or to resolve if they exist already. One of `email` and `username` is needed."""

    email: Annotated[str, Field(min_length=1)] | None = None
    username: Annotated[str, Field(min_length=1)] | None = None
    first_name: str | None = None
    last_name: str | None = None
    external_identifier: str | None = None

    @model_validator(mode="after")
    def _names_someone(self) -> Self:
        if self.email is None and self.username is None:
            raise ValueError("should name at least one of email and username")
        return self


class OnboardingResult(ResponseModel):
    """The account behind a `UserRequest`. `temp_password` is empty when the account existed before."""

    email: str | None = None
    temp_password: str

    @property
    def existed(self) -> bool:
        """True if the account was there before the request."""
        return not self.temp_password


class User(ResponseModel):
    """A user of the tenant. Names and addresses stay out of the repr."""

    shown: ClassVar = ("id", "enabled")

    id: str
    username: str | None = None
    email: str | None = None
    first_name: str | None = None
    last_name: str | None = None
    enabled: bool | None = None


class IdentityLinkRequest(RequestModel):
    """Whether the user should be linked to the tenant's identity provider."""

    shown: ClassVar = ("enabled",)

    enabled: Annotated[bool, Field(strict=True)]


class IdentityLink(ResponseModel):
    """The link between a user and the tenant's identity provider, as it now is."""

    shown: ClassVar = ("linked",)

    username: str
    idp_alias: str
    linked: bool


class ExternalIdentifier(ResponseModel):
    """What the tenant calls a user elsewhere."""

    external_identifier: str


class OfferRequest(RequestModel):
    """A credential offer to accept. Who holds it can take the credential: never logged."""

    credential_offer: Annotated[str, Field(min_length=1)]


class WalletCredential(Stateful):
    """A credential in the wallet. States: pending, accepted, rejected."""

    shown: ClassVar = ("id", "status", "format", "vct")

    id: UUID
    claims: dict[str, Any]
    iat: Timestamp
    format: str
    vct: Annotated[str, Field(min_length=1, max_length=256)]
    #: A DID for SD-JWT credentials, an X.509 distinguished name for mdoc credentials.
    iss: Annotated[str, Field(min_length=1, max_length=512)] | None = None


_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def _one_certificate(value: str) -> str:
    """Accept one PEM certificate. Anything else, a private key above all, does not leave the machine."""
    text = value.strip()
    body = "".join(text.removeprefix(_BEGIN).removesuffix(_END).split())
    try:
        fits = text.startswith(_BEGIN) and text.endswith(_END) and bool(b64decode(body, validate=True))
    except ValueError:
        fits = False
    if not fits:
        raise ValueError("should be one PEM-encoded certificate, from BEGIN CERTIFICATE to END CERTIFICATE")
    return value


PemCertificate = Annotated[str, AfterValidator(_one_certificate)]


class CertificateRequest(RequestModel):
    """A certificate for a signing request, and its intermediates from leaf-adjacent to root-adjacent."""

    certificate: PemCertificate
    parent_certificates: tuple[PemCertificate, ...] | None = None


class CertificateRecord(ResponseModel):
    """An imported certificate. The formats of its fields are not specified, so they stay text."""

    shown: ClassVar = ("id", "certificate_id")

    id: str
    certificate_id: str
    certificate_signing_request: str
    subject_key_identifier: str
    expires_at: str
    created_at: str
    updated_at: str


class TrustedDidRequest(RequestModel):
    """A DID to trust, and what to call it."""

    did: str
    name: str


class TrustedEntityRequest(RequestModel):
    """An issuer to trust, by DIDs or certificates. The shape of a certificate is not specified."""

    name: str
    dids: tuple[TrustedDidRequest, ...] | None = None
    certificates: tuple[JsonValue, ...] | None = None


class TrustedDid(ResponseModel):
    """A DID that is trusted."""

    did: str
    name: str


class TrustedEntity(ResponseModel):
    """A trusted issuer."""

    shown: ClassVar = ("id",)

    id: str
    name: str
    dids: tuple[TrustedDid, ...] | None = None
    certificates: tuple[Any, ...] | None = None
    created_at: Timestamp
    updated_at: Timestamp


def _known_type(value: str) -> str:
    """Accept the ten types that a registration may name. Specification, Events."""
    if value not in EVENT_TYPES:
        raise ValueError(f"should be one of {', '.join(EVENT_TYPES)}")
    return value


EventType = Annotated[str, AfterValidator(_known_type)]


def _https_url(value: str) -> str:
    """Accept an absolute https URL; its path may be our secret, so no message repeats it."""
    try:
        parts = urlsplit(value)
        fits = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("should be an https:// URL")
    return value


class EndpointRequest(RequestModel):
    """Where deliveries should go, and which.

    `filter_types` left out means every type. An empty list is refused: it could mean all or none.
    """

    shown: ClassVar = ("id", "filter_types")

    url: Annotated[str, AfterValidator(_https_url)]
    id: Annotated[str, AfterValidator(resource_id)] | None = None
    filter_types: Annotated[tuple[EventType, ...], Field(min_length=1)] | None = None


class Endpoint(ResponseModel):
    """A registered endpoint. Its types are open words: the platform may know more than ten."""

    shown: ClassVar = ("id", "filter_types")

    id: str
    url: str
    filter_types: tuple[str, ...] | None = None
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None


class IssuedCredential(ResponseModel):
    """One credential of an issuance."""

    shown: ClassVar = ("id", "status")

    id: str | None = None
    status: str | None = None
    revocable: bool | None = None


class Issuance(Stateful):
    """An issuance. Seen as states: offered, completed, partiallyIssued, failed, expired, revoked."""

    shown: ClassVar = ("id", "status", "format", "credentials")

    id: str
    credentials: Annotated[tuple[IssuedCredential, ...], FailFast(), NoneAsEmpty] = ()
    format: str | None = None
    exchange: str | None = None
    #: Who holds the offer can take the credential: never logged.
    offer_uri: str | None = None
    offer_qr_uri: str | None = None
    created_at: ObservedTimestamp | None = None
    updated_at: ObservedTimestamp | None = None


def _only_a_boolean(value: object) -> bool | None:
    """Read `true` and `false`, and anything else as no statement: trust must not come from a coercion."""
    return value if isinstance(value, bool) else None


def _none_as_no_attributes(value: object) -> object:
    return {} if value is None else value


class PresentationError(ResponseModel):
    """Why a presentation failed. Some answers give a string, some an object with a `message`."""

    message: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, str):
            return {"message": value}
        return value if isinstance(value, dict) else {"detail": value}


class PresentedCredential(ResponseModel):
    """One credential that the holder presented. `attributes` holds personal data."""

    shown: ClassVar = ("type", "is_valid")

    is_valid: Annotated[bool | None, BeforeValidator(_only_a_boolean)] = None
    name: str | None = None
    type: str | None = None
    #: Empty where there are none, or where they can no longer be read.
    attributes: Annotated[dict[str, Any], BeforeValidator(_none_as_no_attributes)] = Field(default_factory=dict)
    issues: Annotated[tuple[Any, ...], NoneAsEmpty] = ()

    @model_validator(mode="before")
    @classmethod
    def _attributes_by_either_name(cls, value: object) -> object:
        """Take `presentedAttributes`, a sibling product's word, where `attributes` has nothing."""
        if not isinstance(value, dict) or "presentedAttributes" not in value or value.get("attributes"):
            return value
        rest = {key: item for key, item in value.items() if key != "presentedAttributes"}
        return rest | {"attributes": value["presentedAttributes"]}


class Presentation(Stateful):
    """A presentation. Seen as states: requested, verified, rejected, expired; PENDING, ANSWERED, REJECTED."""

    shown: ClassVar = ("id", "status", "presentation_template_id", "credentials")

    id: str
    error: PresentationError | None = None
    presentation_template_id: str | None = None
    credentials: Annotated[tuple[PresentedCredential, ...], FailFast(), NoneAsEmpty] = ()
    expires_at: ObservedTimestamp | None = None
    authorization_request_uri: str | None = None
    authorization_request_qr_uri: str | None = None
    created_at: ObservedTimestamp | None = None
    updated_at: ObservedTimestamp | None = None

    @property
    def trusted(self) -> bool:
        """True only if the status is verified, there is a credential, and every credential is valid."""
        credentials = self.credentials
        return self.is_("verified") and bool(credentials) and all(each.is_valid is True for each in credentials)

    @property
    def has_data(self) -> bool:
        """True if any attribute can still be read. "Verified, but no attributes" is an outcome of its own."""
        return any(credential.attributes for credential in self.credentials)


class ListedResource(Stateful):
    """An issuance or a presentation, without the personal data that a list may show of it."""

    model_config = ConfigDict(extra="ignore")

    shown: ClassVar = ("id", "status")

    id: str
    created_at: ObservedTimestamp | None = None
    updated_at: ObservedTimestamp | None = None


#: Resource → the model of its details. A new resource is a row in `credhook.events` and a row here.
MODELS: Final[Mapping[str, type[Issuance | Presentation]]] = {ISSUANCE.name: Issuance, PRESENTATION.name: Presentation}


def model_of(event_type: str) -> type[Issuance | Presentation]:
    """Return the model of the details that events of a known type refer to."""
    return MODELS[resource_of(event_type).name]
