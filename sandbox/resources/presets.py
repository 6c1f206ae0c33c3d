"""Credential presets: defining what a credential of either format holds and how it is signed."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from credhook.sandbox.http.errors import Refusal
from credhook.sandbox.http.wire import ABSENT, Whole, Wire
from credhook.sandbox.resources.attributes import MdocNamespace, SdJwtAttribute
from credhook.sandbox.tenant.operations import Operation
from credhook.sandbox.tenant.state import Repository, State
from credhook.sandbox.tenant.tenant import Tenant

#: The organisation that the sandbox plays, as the first half of every preset's id.
AUTHOR = "sandbox"

CODE_PATTERN = r"^[a-z0-9-]+$"

KeyType = Literal["P-256", "Ed25519"]


class Period(Wire):
    """How long a credential is valid."""

    days: Whole = Field(ge=0)
    months: Whole = Field(ge=0)
    years: Whole = Field(ge=0)


class SdJwtValidity(Wire):
    """Until when an sd-jwt is valid, counted from its issuance or from its `validFrom`."""

    start: Literal["issuance", "validFrom"]
    future: Period


class MdocValidity(Wire):
    """Until when an mdoc is valid."""

    future: Period


class DidWebIssuer(Wire):
    """Signs with the key of a `did:web`, which has no `keyType` to choose."""

    signer: Literal["did:web"]


class CertificateIssuer(Wire):
    """Signs with the key of an imported certificate."""

    signer: Literal["certificate"]
    key_type: KeyType = ABSENT


SdJwtIssuer = Annotated[DidWebIssuer | CertificateIssuer, Field(discriminator="signer")]


class PresetFields(Wire):
    """What presets of both formats have in common."""

    template_name: str
    code: str = Field(pattern=CODE_PATTERN)
    template_description: str


class NewSdJwtPreset(PresetFields):
    """The body that creates a preset of format `sd-jwt`."""

    credential_format: Literal["sd-jwt"]
    template_attributes: dict[str, SdJwtAttribute]
    issuer_config: SdJwtIssuer = ABSENT
    valid_until: SdJwtValidity = ABSENT


class NewMdocPreset(PresetFields):
    """The body that creates a preset of format `mdoc`."""

    credential_format: Literal["mdoc"]
    type: str = Field(min_length=1)
    template_attributes: dict[str, MdocNamespace]
    valid_until: MdocValidity
    issuer_config: CertificateIssuer = ABSENT


NewPreset = Annotated[NewSdJwtPreset | NewMdocPreset, Field(discriminator="credential_format")]


class Created(PresetFields):
    """What the platform adds to a preset."""

    id: str
    author: str
    template_type: str
    created_at: datetime
    updated_at: datetime


class SdJwtPreset(Created):
    """A preset of format `sd-jwt`."""

    credential_format: Literal["sd-jwt"]
    template_attributes: dict[str, SdJwtAttribute]
    issuer_config: SdJwtIssuer
    valid_until: SdJwtValidity = ABSENT


class MdocPreset(Created):
    """A preset of format `mdoc`."""

    credential_format: Literal["mdoc"]
    template_attributes: dict[str, MdocNamespace]
    valid_until: MdocValidity
    issuer_config: CertificateIssuer | None


Preset = Annotated[SdJwtPreset | MdocPreset, Field(discriminator="credential_format")]


class PresetRecord(Wire):
    """A preset, and since when its template is archived."""

    preset: Preset
    archived_at: datetime | None


def shelf(state: State) -> Repository[PresetRecord]:
    """Return every preset."""
    return state.shelf("presets", PresetRecord)


def create(tenant: Tenant, wanted: NewPreset) -> Preset:
    """Create a preset.

    Raises:
        Refusal: With 409 for a code that is taken: credentials that follow the old one may exist.
    """
    id_ = f"{AUTHOR}:{wanted.code}"
    if shelf(tenant.state).get(id_):
        raise Refusal(409, f"There is a preset {id_} already.")
    preset = _created(wanted, id_, tenant.now())
    shelf(tenant.state).put(id_, PresetRecord(preset=preset, archived_at=None))
    return preset


def _created(wanted: NewPreset, id_: str, now: datetime) -> Preset:
    fields = {name: getattr(wanted, name) for name in wanted.model_fields_set - {"type"}}
    fields |= {"id": id_, "author": AUTHOR, "created_at": now, "updated_at": now}
    if isinstance(wanted, NewMdocPreset):
        return MdocPreset(**{"issuer_config": None, "template_type": wanted.type, **fields})
    type_uri = f"https://sandbox.example/types/{AUTHOR}/{wanted.code}"
    return SdJwtPreset(**{"issuer_config": DidWebIssuer(signer="did:web"), "template_type": type_uri, **fields})


OPERATIONS = (
    Operation(
        "POST",
        "/me-creds/api/presets/credentials",
        create,
        "Create a credential preset of either format.",
        refusals=(409,),
    ),
)
