"""Requests to the platform and its answers, in the order of the specification.

Names are camelCase on the wire. Models are frozen, and their reprs show no personal data. Issuances and presentations
are not specified; their fields were observed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NoReturn, Self, TypeVar
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    JsonValue,
    StrictBool,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

from credhook.events import EVENT_TYPES, LONGEST_ID, Resource, Status, is_resource_id
from credhook.urls import checked_url

M = TypeVar("M", bound="ResponseModel")


def mismatch(error: ValidationError) -> str:
    """Return the place and kind of the first mistake in one line, without any value."""
    first = error.errors(include_input=False, include_context=False, include_url=False)[0]
    place = ".".join(str(step) for step in first["loc"]) or "the whole"
    return f"{place}: {first['type'].replace('_', ' ')}"


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError("details are read-only, because all handlers of the event share them: change a copy.deepcopy(…)")


class ReadOnlyDict(dict[str, Any]):
    """A JSON object. `copy()` and `copy.deepcopy` return an ordinary `dict`."""

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """A JSON array. `copy()` and `copy.deepcopy` return an ordinary `list`."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = insert = _refuse
    pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def read_only(value: Any) -> Any:
    """Return a JSON value that cannot be changed."""
    if isinstance(value, dict):  # Most values are text: a call for each would take half of the time.
        return ReadOnlyDict([(key, item if type(item) is str else read_only(item)) for key, item in value.items()])
    return ReadOnlyList(map(read_only, value)) if isinstance(value, list) else value


#: JSON in an answer, whose shape is not specified.
JsonObject = Annotated[dict[str, Any], AfterValidator(read_only)]
JsonAny = Annotated[Any, AfterValidator(read_only)]


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

    __pydantic_extra__: dict[str, JsonAny]

    @property
    def model_extra(self) -> dict[str, Any] | None:
        """The unknown fields, in a dict of the caller's own."""
        return None if self.__pydantic_extra__ is None else {**self.__pydantic_extra__}

    @property
    def raw(self) -> Any:
        """The whole JSON of the answer as it came, with `links`, `meta` and `errors` beside its data. No repr shows it.

        For an element of a list, the JSON of the element. Each access makes a copy: keep it in a variable.
        """
        return read_only(document_of(self))


#: Where a model keeps its JSON. Pydantic leaves out such names when it writes or compares models.
_DOCUMENT: Final = "_document"


def with_document(model: M, document: Any) -> M:
    """Return the model after keeping the JSON that it was read from."""
    model.__dict__[_DOCUMENT] = document
    return model


def document_of(model: ResponseModel) -> Any:
    """Return the JSON that the model was read from. It is shared: do not change it."""
    document = model.__dict__.get(_DOCUMENT, model)
    return model.model_dump(mode="json", exclude_unset=True) if document is model else document


def data_of(document: Any) -> Any:
    """Return the content of the envelope, or the document if it has none."""
    return document["data"] if isinstance(document, dict) and "data" in document else document


class RequestModel(Wire):
    """The body of a request. An unknown field is a mistake of ours."""

    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Otherwise:
    """Read a value of another form as this default. No specification shows the field, and it must not cost the rest."""

    default: Any = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_default_schema(handler(source), default=self.default, on_error="default")


if TYPE_CHECKING:  # So that editors complete it. To read a union would take longer.
    _StatusText = Status | str
else:
    _StatusText = str


class Stateful(ResponseModel):
    """A model with a `status`. Any word is valid, because the platform's pages disagree on spelling and case.

    It is empty where the answer has none.
    """

    status: Annotated[_StatusText, Otherwise("")] = ""
    """A `Status`, or a word that is not known here. It is kept as the platform wrote it."""

    def is_(self, *states: Status) -> bool:
        """Return True if the status is one of these; case is ignored.

        Type checkers refuse a misspelt word. Compare a word that they do not know with `status`.
        """
        return self.status.casefold() in {state.casefold() for state in states}


#: A year and the number of a day in it.
_ORDINAL: Final = re.compile(r"(\d{4})-?(\d{3})(?=[Tt ]|\Z)")
#: A time of day: midnight at the end of a day, or a leap second.
_MIDNIGHT: Final = re.compile(r"(?<=[Tt ])24(?=(:?00){0,2}([.,]0+)?(\Z|[^\d:.,]))")
_LEAP_SECOND: Final = re.compile(r"(?<=[Tt ])(\d\d:?\d\d:?)60")


def _parsed_time(text: str) -> datetime:
    """Return the time of a text in any form of ISO 8601.

    Raises:
        ValueError: It has another form.
        OverflowError: It is beyond the years that Python knows.
    """
    try:
        return datetime.fromisoformat(text)  # Nearly all times.
    except ValueError:
        return _uncommon_time(text)


def _uncommon_time(text: str) -> datetime:
    """Return the time of a text with the number of a day in its year, midnight as 24:00, or a leap second."""
    if ordinal := _ORDINAL.match(text):
        day = datetime.strptime("".join(ordinal.groups()), "%Y%j")  # noqa: DTZ007  The zone follows.
        if day.year != int(ordinal[1]):
            raise ValueError("no day of this year")
        text = f"{day:%Y-%m-%d}{text[ordinal.end() :]}"
    text, midnights = _MIDNIGHT.subn("00", text)
    text, leap_seconds = _LEAP_SECOND.subn(r"\g<1>59", text)
    return datetime.fromisoformat(text) + timedelta(days=midnights, seconds=leap_seconds)


def _time(value: object, read: ValidatorFunctionWrapHandler) -> datetime:
    """Read a time of ISO 8601, in its extended or its basic form. Without a zone it is in UTC."""
    moment: datetime
    if isinstance(value, str) and not (value.isdigit() and len(value) not in _LENGTHS_OF_DATES):
        try:
            moment = _parsed_time(value)
        except (ValueError, OverflowError):
            moment = read(value)
    else:
        moment = read(value)
    # In the first and the last year a zone may lead to a year that Python does not have.
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None or moment.year in {1, 9_999} else moment


#: Digits of `20261121` and of `2026325`. Texts with other numbers of digits are seconds or milliseconds.
_LENGTHS_OF_DATES: Final = (8, 7)

Timestamp = Annotated[datetime, WrapValidator(_time)]
#: Fields that no specification shows. A timestamp is a `datetime` if it can be parsed, otherwise the text.
ObservedTimestamp = Annotated[Timestamp | str | None, Field(union_mode="left_to_right"), Otherwise()]
ObservedText = Annotated[str | None, Field(coerce_numbers_to_str=True), Otherwise()]
ObservedFlag = Annotated[bool | None, Otherwise()]
#: The id of a resource that was asked for by its id. An answer without one gets that id from `responses.read`.
ObservedId = Annotated[str, Field(coerce_numbers_to_str=True), Otherwise("")]
#: JSON has one type of number, so `1.0` is a whole number.
WHOLE: Final = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)


def path_segment(value: str) -> str:
    """Return a value that can be one segment of a path, or raise ValueError. `..` would climb the path."""
    if not is_resource_id(value):
        raise ValueError(
            f"should be 1 to {LONGEST_ID} bytes, hold no control characters, and not have . or .. as a part"
        )
    return value


class _Attribute(RequestModel):
    name: str | None = None
    description: str | None = None
    required: StrictBool | None = None


class SdJwtAttribute(_Attribute):
    """An attribute of an SD-JWT credential. An object has `properties`; an array may have `items`."""

    type: Literal["string", "number", "boolean", "date", "object", "array"]
    always_disclosed: StrictBool | None = None
    properties: "dict[str, SdJwtAttribute] | None" = None
    items: "SdJwtAttribute | None" = None

    @model_validator(mode="after")
    def _has_the_parts_of_its_type(self) -> Self:
        if (self.properties is None) == (self.type == "object") or (self.items is not None and self.type != "array"):
            raise ValueError("should have properties if it is an object, and items only if it is an array")
        return self


class MdocAttribute(_Attribute):
    """An attribute of an mdoc credential. There is no `alwaysDisclosed` in mdoc."""

    type: Literal["string", "number", "boolean", "date", "binary", "array"]
    items: "MdocAttribute | None" = None


class MdocNamespace(RequestModel):
    """The attributes of one mdoc namespace."""

    properties: dict[str, MdocAttribute]


Code = Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, ge=0), WHOLE]


class Future(RequestModel):
    """A span of time."""

    days: Count
    months: Count
    years: Count


class MdocValidUntil(RequestModel):
    """Until when an mdoc credential is valid: a span, without a choice of where it starts."""

    future: Future


class SdJwtValidUntil(MdocValidUntil):
    """Until when an SD-JWT credential is valid: a span from its issuance, or from its `validFrom`."""

    start: Literal["issuance", "validFrom"]


class DidSigner(RequestModel):
    """The tenant's `did:web` signs. It has one key, so no key type is chosen."""

    signer: Literal["did:web"]


class CertificateSigner(RequestModel):
    """A certificate of the tenant signs, optionally with a key of the type named."""

    signer: Literal["certificate"]
    key_type: Literal["P-256", "Ed25519"] | None = None


class _PresetRequest(RequestModel):
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
    type: Text
    template_attributes: dict[str, MdocNamespace]
    valid_until: MdocValidUntil
    issuer_config: CertificateSigner | None = None


PresetRequest = Annotated[SdJwtPresetRequest | MdocPresetRequest, Field(discriminator="credential_format")]


class Preset(ResponseModel):
    """A preset of either format. Its `template_type` is a URI for SD-JWT, and the `type` of the request for mdoc."""

    shown: ClassVar = ("credential_format", "id")

    credential_format: str
    id: str
    """`<author>:<code>`."""
    author: str
    template_name: str
    template_type: str
    code: str
    template_description: str
    template_attributes: JsonObject
    issuer_config: JsonObject | None = None
    valid_until: JsonObject | None = None
    created_at: Timestamp
    updated_at: Timestamp


class Template(ResponseModel):
    """A credential template of either format. The second one's shape is not specified: only its id is required."""

    shown: ClassVar = ("id", "type", "format")

    id: Annotated[str, Field(coerce_numbers_to_str=True)]
    name: ObservedText = None
    format: ObservedText = None
    """`sd-jwt-vc` was observed."""
    type: ObservedText = None
    description: ObservedText = None
    attributes: JsonAny = None
    """Attribute definitions by key in the first format."""
    created_at: ObservedTimestamp = None
    updated_at: ObservedTimestamp = None
    archived_at: ObservedTimestamp = None


class UserRequest(RequestModel):
    """Someone to create, or to resolve if they exist already. One of `email` and `username` is needed."""

    email: Text | None = None
    username: Text | None = None
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

    enabled: StrictBool


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

    credential_offer: Text


class WalletCredential(Stateful):
    """A credential in the wallet. States: pending, accepted, rejected."""

    shown: ClassVar = ("id", "status", "format", "vct")

    id: UUID
    status: str
    claims: JsonObject
    iat: Timestamp
    format: str
    vct: Annotated[str, Field(min_length=1, max_length=256)]
    iss: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """A DID for SD-JWT credentials, an X.509 distinguished name for mdoc credentials."""


#: One certificate in base64. Tools write text before it, and editors a byte order mark.
_PEM: Final = re.compile(
    r"-----BEGIN CERTIFICATE-----\s+[A-Za-z0-9+/=][A-Za-z0-9+/=\s]*-----END CERTIFICATE-----(?:\r?\n)?"
)


def certificates_in(text: str) -> list[str]:
    """Return the PEM certificates of a text. What stands around them, a private key above all, is left out.

    Raises:
        ValueError: There is none, or one is damaged.
    """
    certificates = _PEM.findall(text)
    if not certificates or len(certificates) != text.count("-----BEGIN CERTIFICATE-----"):
        raise ValueError("should hold PEM-encoded certificates, each from BEGIN CERTIFICATE to END CERTIFICATE")
    return certificates


def _one_certificate(value: str) -> str:
    """Accept one PEM certificate, and leave out what stands around it."""
    certificates = certificates_in(value)
    if len(certificates) > 1:
        raise ValueError("should be one PEM-encoded certificate; the others belong to parent_certificates")
    return certificates[0]


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


class TrustedEntity(ResponseModel):
    """A trusted issuer."""

    shown: ClassVar = ("id",)

    id: str
    name: str
    dids: tuple[JsonObject, ...] | None = None
    certificates: tuple[JsonAny, ...] | None = None
    created_at: Timestamp
    updated_at: Timestamp


def _known_type(value: str) -> str:
    """Accept the ten types that a registration may name. Specification, Events."""
    if value not in EVENT_TYPES:
        raise ValueError(f"should be one of {', '.join(EVENT_TYPES)}")
    return value


EventType = Annotated[str, AfterValidator(_known_type)]


class EndpointRequest(RequestModel):
    """Where deliveries should go, and which.

    `filter_types` left out means every type. An empty list is refused: it could mean all or none.
    """

    url: Annotated[str, AfterValidator(lambda value: checked_url(value, "https", query=True))]
    id: Annotated[str, AfterValidator(path_segment)] | None = None
    filter_types: Annotated[tuple[EventType, ...], Field(min_length=1)] | None = None


class Endpoint(ResponseModel):
    """A registered endpoint. Its types are open words: the platform may know more than ten."""

    shown: ClassVar = ("id", "filter_types")

    id: Annotated[str, Field(coerce_numbers_to_str=True)]
    url: str
    filter_types: tuple[str, ...] | None = None
    created_at: Annotated[Timestamp | None, Otherwise()] = None
    updated_at: Annotated[Timestamp | None, Otherwise()] = None


def _listed(value: object) -> object:
    """Read one credential, or credentials by name, as a list, and null as an empty list."""
    if isinstance(value, dict):
        return [value] if _OF_CREDENTIALS & value.keys() else list(value.values())
    return _several(value)


def _several(value: object) -> Sequence[object]:
    """Read null as nothing, and a value that is no list as the only one."""
    return () if value is None else value if isinstance(value, list | tuple) else (value,)


#: Fields that tell one credential from credentials by name.
_OF_CREDENTIALS: Final = {"id", "status", "type", "isValid", "attributes", "presentedAttributes"}


class _ResourceDetails(Stateful):
    """The details of a resource. No specification shows their shape, so every JSON is read.

    Fields of another form are None, and `raw` has them. An `id` is refused only if it is another one.
    """

    id: ObservedId = ""
    created_at: ObservedTimestamp = None
    updated_at: ObservedTimestamp = None

    @model_validator(mode="before")
    @classmethod
    def _from_anything(cls, value: object) -> object:
        """Read an object that is alone in a list as that object, and JSON of another form as one without fields."""
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        return value if isinstance(value, dict | Wire) else {}

    @property
    def is_empty(self) -> bool:
        """True if the answer holds nothing about the resource but its id."""
        data = data_of(self.__dict__.get(_DOCUMENT))
        return not (self.model_fields_set - {"id"} or self.__pydantic_extra__ or (data and not isinstance(data, dict)))


#: Characters of a text that can be the id of a credential.
_LONGEST_CREDENTIAL_ID: Final = 128


class IssuedCredential(ResponseModel):
    """One credential of an issuance."""

    shown: ClassVar = ("id", "status")

    id: ObservedText = None
    status: ObservedText = None
    revocable: ObservedFlag = None

    @model_validator(mode="before")
    @classmethod
    def _from_id(cls, value: object) -> object:
        """Read a text as an id, unless it may be the credential itself, and other JSON as one without fields."""
        if isinstance(value, dict | Wire):
            return value
        return {"id": value} if isinstance(value, str) and len(value) <= _LONGEST_CREDENTIAL_ID else {}


class Issuance(_ResourceDetails):
    """An issuance. Seen as states: offered, completed, partiallyIssued, failed, expired, revoked."""

    shown: ClassVar = ("id", "status", "format", "credentials")

    credentials: Annotated[tuple[IssuedCredential, ...], BeforeValidator(_listed)] = ()
    format: ObservedText = None
    exchange: ObservedText = None
    offer_uri: ObservedText = None
    """Who holds the offer can take the credential: never logged."""
    offer_qr_uri: ObservedText = None


class PresentationError(ResponseModel):
    """Why a presentation failed. Some answers give a string, some an object with a `message`."""

    message: ObservedText = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, str):
            return {"message": value}
        return value if isinstance(value, dict) else {"detail": value}


def _mapped(value: object) -> object:
    """Read attributes that are no object as one. A handler that expects another form then fails instead of guessing."""
    return value if isinstance(value, dict) else {str(place): each for place, each in enumerate(_several(value))}


class PresentedCredential(ResponseModel):
    """One credential that the holder presented. `attributes` holds personal data."""

    shown: ClassVar = ("type", "is_valid")

    #: Anything but `true` and `false` is no statement: trust must not come from a coercion.
    is_valid: Annotated[bool | None, BeforeValidator(lambda value: value if isinstance(value, bool) else None)] = None
    name: ObservedText = None
    type: ObservedText = None
    attributes: Annotated[JsonObject, BeforeValidator(_mapped)] = Field(default_factory=ReadOnlyDict)
    """Empty where there are none, or where they can no longer be read. A list is read with its places as names."""
    issues: Annotated[tuple[JsonAny, ...], BeforeValidator(_several)] = ()

    @model_validator(mode="before")
    @classmethod
    def _attributes_by_either_name(cls, value: object) -> object:
        """Take `presentedAttributes`, a sibling product's word, where `attributes` has nothing."""
        if value is None:
            return {}
        if not isinstance(value, dict | PresentedCredential):
            return {"attributes": value}  # The credential as it was presented, undecoded.
        if not isinstance(value, dict) or "presentedAttributes" not in value or value.get("attributes"):
            return value
        rest = {key: item for key, item in value.items() if key != "presentedAttributes"}
        return rest | {"attributes": value["presentedAttributes"]}

    @property
    def has_data(self) -> bool:
        """True if there are attributes, or unknown fields in their place."""
        return bool(self.attributes) or ("attributes" not in self.model_fields_set and _any(self.__pydantic_extra__))


def _any(fields: Mapping[str, Any] | None) -> bool:
    """Return True if one of the unknown fields holds something that may be presented data."""
    return any(value not in (None, "", [], {}) and name not in _NO_DATA for name, value in (fields or {}).items())


#: Names of fields that hold no presented data.
_NO_DATA: Final = frozenset({"id", "type", "status", "isValid", "links", "meta"})


class Presentation(_ResourceDetails):
    """A presentation. Seen as states: requested, verified, rejected, expired; PENDING, ANSWERED, REJECTED."""

    shown: ClassVar = ("id", "status", "presentation_template_id", "credentials")

    error: PresentationError | None = None
    presentation_template_id: ObservedText = None
    credentials: Annotated[tuple[PresentedCredential, ...], BeforeValidator(_listed)] = ()
    expires_at: ObservedTimestamp = None
    authorization_request_uri: ObservedText = None
    authorization_request_qr_uri: ObservedText = None

    @property
    def trusted(self) -> bool:
        """True only if the status is verified, there is a credential, and every credential is valid."""
        credentials = self.credentials
        return self.is_("verified") and bool(credentials) and all(each.is_valid is True for each in credentials)

    @property
    def has_data(self) -> bool:
        """True if data was presented and can still be read, in `attributes` or in a form that only `raw` shows."""
        if "credentials" in self.model_fields_set:
            return any(credential.has_data for credential in self.credentials)
        if self.is_("requested", "pending"):  # The holder has presented nothing yet.
            return False
        data = data_of(self.__dict__.get(_DOCUMENT))  # The data may have another name or nesting, or be no object.
        return _any(self.__pydantic_extra__) or (bool(data) and not isinstance(data, dict))


class ListedResource(_ResourceDetails):
    """An issuance or a presentation, without the personal data that a list may show of it."""

    model_config = ConfigDict(extra="ignore")

    shown: ClassVar = ("id", "status")


def model_of(resource: Resource) -> type[Issuance | Presentation]:
    """Return the model of a resource's details. The row has its name, because credhook/events.py imports no worker."""
    model: type[Issuance | Presentation] = globals()[resource.model]
    return model
