"""Credential presets, the templates that they become, and whether claims fit a template."""

import base64
from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter
from starlette.exceptions import HTTPException

from credhook.sandbox.operations import operation
from credhook.sandbox.tenant import Tenant
from credhook.sandbox.wire import ABSENT, StampedModel, Whole, WireModel

#: The organisation that the sandbox plays, as the first half of every preset's id.
AUTHOR = "sandbox"

#: The template of an issuance that names none.
MEMBERSHIP = f"{AUTHOR}:membership"
#: The default claims of that template.
MEMBER: dict[str, Any] = {"givenName": "Ada", "familyName": "Example", "memberSince": "2020-02-20"}


class AttributeFields(WireModel):
    """The fields of every attribute definition."""

    name: str = ABSENT
    description: str = ABSENT
    required: bool = ABSENT


class SdJwtAttributeFields(AttributeFields):
    """The fields of every attribute definition of an sd-jwt."""

    always_disclosed: bool = ABSENT


class SdJwtValueDefinition(SdJwtAttributeFields):
    """A plain value in an sd-jwt."""

    type: Literal["string", "number", "boolean", "date"]


class SdJwtObjectDefinition(SdJwtAttributeFields):
    """Attributes within an attribute."""

    type: Literal["object"]
    properties: dict[str, "SdJwtAttribute"]


class SdJwtArrayDefinition(SdJwtAttributeFields):
    """A list of values of any type, unless `items` says one."""

    type: Literal["array"]
    items: "SdJwtAttribute" = ABSENT


class MdocValueDefinition(AttributeFields):
    """A plain value in an mdoc."""

    type: Literal["string", "number", "boolean", "date", "binary"]


class MdocArrayDefinition(AttributeFields):
    """A list of values of any type, unless `items` says one."""

    type: Literal["array"]
    items: "MdocAttribute" = ABSENT


SdJwtAttribute = Annotated[
    SdJwtValueDefinition | SdJwtObjectDefinition | SdJwtArrayDefinition, Field(discriminator="type")
]
MdocAttribute = Annotated[MdocValueDefinition | MdocArrayDefinition, Field(discriminator="type")]


class MdocNamespaceDefinition(WireModel):
    """The attributes of one namespace."""

    properties: dict[str, MdocAttribute]


Definition = SdJwtAttribute | MdocAttribute | MdocNamespaceDefinition

#: Type of an attribute → types of its values, if these are not text.
JSON_TYPES: Mapping[str, tuple[type, ...]] = {"number": (int, float), "boolean": (bool,)}

#: Example values by the type of an attribute.
EXAMPLES: Mapping[str, Any] = {
    "string": "example",
    "number": 7,
    "boolean": True,
    "date": "2020-02-20",
    "binary": "ZXhhbXBsZQ==",
}


def _is_required(definition: Definition) -> bool:
    if isinstance(definition, MdocNamespaceDefinition):
        return any(_is_required(entry) for entry in definition.properties.values())
    return definition.required is True


def fits(value: Any, wanted: Definition | Mapping[str, Definition]) -> bool:
    """Return True if a value fits its definition: for objects, all required attributes and no unknown attribute."""
    match wanted:
        case SdJwtObjectDefinition() | MdocNamespaceDefinition():
            return fits(value, wanted.properties)
        case SdJwtArrayDefinition() | MdocArrayDefinition():
            items = wanted.items
            return isinstance(value, list) and (items is None or all(fits(item, items) for item in value))
        case Mapping():
            return (isinstance(value, Mapping) and value.keys() <= wanted.keys()) and all(
                fits(value[key], definition) if key in value else not _is_required(definition)
                for key, definition in wanted.items()
            )
    try:
        match wanted.type:
            case "date":
                date.fromisoformat(value)
            case "binary":
                base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        return False
    return type(value) in JSON_TYPES.get(wanted.type, (str,))


def example(wanted: Definition | Mapping[str, Definition]) -> Any:
    """Return an example value that fits."""
    match wanted:
        case SdJwtObjectDefinition() | MdocNamespaceDefinition():
            return example(wanted.properties)
        case SdJwtArrayDefinition() | MdocArrayDefinition():
            return [] if wanted.items is None else [example(wanted.items)]
        case Mapping():
            return {key: example(definition) for key, definition in wanted.items()}
    return EXAMPLES[wanted.type]


class Period(WireModel):
    """How long a credential is valid."""

    days: Whole = Field(ge=0)
    months: Whole = Field(ge=0)
    years: Whole = Field(ge=0)


class MdocValidity(WireModel):
    """When an mdoc expires."""

    future: Period


class SdJwtValidity(MdocValidity):
    """When an sd-jwt expires, counted from its issuance or from its `validFrom`."""

    start: Literal["issuance", "validFrom"]


class DidWebIssuer(WireModel):
    """Signs with the key of a `did:web`, which has no `keyType` to choose."""

    signer: Literal["did:web"]


class CertificateIssuer(WireModel):
    """Signs with the key of an imported certificate."""

    signer: Literal["certificate"]
    key_type: Literal["P-256", "Ed25519"] = ABSENT


SdJwtIssuer = Annotated[DidWebIssuer | CertificateIssuer, Field(discriminator="signer")]


class PresetFields(WireModel):
    """The fields of presets of both formats."""

    template_name: str
    code: str = Field(pattern=r"^[a-z0-9-]+$")
    template_description: str


class NewSdJwtPreset(PresetFields):
    """The body that creates a preset of format `sd-jwt`."""

    credential_format: Literal["sd-jwt"]
    template_attributes: dict[str, SdJwtAttribute]
    issuer_config: SdJwtIssuer = ABSENT
    valid_until: SdJwtValidity = ABSENT


class MdocPresetFields(PresetFields):
    """The fields of a preset of format `mdoc`, in the request and in the answer."""

    credential_format: Literal["mdoc"]
    template_attributes: dict[str, MdocNamespaceDefinition]
    valid_until: MdocValidity


class NewMdocPreset(MdocPresetFields):
    """The body that creates a preset of format `mdoc`."""

    type: str = Field(min_length=1)
    issuer_config: CertificateIssuer = ABSENT


NewPreset = Annotated[NewSdJwtPreset | NewMdocPreset, Field(discriminator="credential_format")]


class CreatedFields(StampedModel):
    """The fields that the platform adds to a preset."""

    author: str
    template_type: str


class CreatedSdJwtPreset(NewSdJwtPreset, CreatedFields):
    """A preset of format `sd-jwt`."""

    issuer_config: SdJwtIssuer


class CreatedMdocPreset(MdocPresetFields, CreatedFields):
    """A preset of format `mdoc`."""

    issuer_config: CertificateIssuer | None


CreatedPreset = Annotated[CreatedSdJwtPreset | CreatedMdocPreset, Field(discriminator="credential_format")]


class SandboxTemplate(StampedModel):
    """A credential template. The attributes of an mdoc are in their namespaces, as in the preset."""

    name: str
    description: str
    type: str
    archived_at: datetime | None
    format: Literal["sd-jwt-vc", "mdoc"]
    attributes: dict[str, SdJwtAttribute] | dict[str, MdocNamespaceDefinition]


@operation("POST", "/me-creds/api/presets/credentials")
def create_preset(tenant: Tenant, body: NewPreset) -> CreatedPreset:
    """Create a preset, or answer 409 if its code is taken, since credentials of the old preset may exist."""
    id_ = f"{AUTHOR}:{body.code}"
    if tenant.state.get(SandboxTemplate, id_):
        raise HTTPException(409, f"There is a preset {id_} already.")
    now = tenant.now()
    fields = {name: getattr(body, name) for name in body.model_fields_set - {"type"}}
    fields |= {"id": id_, "author": AUTHOR, "created_at": now, "updated_at": now}
    preset: CreatedPreset
    if isinstance(body, NewMdocPreset):
        preset = CreatedMdocPreset(**{"issuer_config": None, "template_type": body.type, **fields})
    else:
        type_uri = f"https://sandbox.example/types/{AUTHOR}/{body.code}"
        default = DidWebIssuer(signer="did:web")
        preset = CreatedSdJwtPreset(**{"issuer_config": default, "template_type": type_uri, **fields})
    template = SandboxTemplate(
        id=id_,
        name=body.template_name,
        description=body.template_description,
        type=preset.template_type,
        created_at=now,
        updated_at=now,
        archived_at=None,
        format="mdoc" if isinstance(body, NewMdocPreset) else "sd-jwt-vc",
        attributes=body.template_attributes,
    )
    tenant.state.put(id_, template)
    return preset


@operation("GET", "/me-creds/api/templates/credentials/{id}")
def read_template(tenant: Tenant, id_: str) -> SandboxTemplate:
    """Return a template. With the fault `hideArchived`, answer 404 if it is archived. The specification says both."""
    return find_template(tenant, id_, archived=not tenant.faults.on.hide_archived)


def find_template(tenant: Tenant, id_: str, *, archived: bool = True) -> SandboxTemplate:
    """Return a template or raise a 404. `archived`: also if it is archived."""
    template = tenant.state.find(SandboxTemplate, id_, "template")
    if template.archived_at is not None and not archived:
        raise HTTPException(404, f"The template {template.id} is archived.")
    return template


@operation("GET", "/sandbox/templates")
def list_templates(tenant: Tenant) -> list[SandboxTemplate]:
    """Return every template, the oldest first."""
    return tenant.state.all(SandboxTemplate)


@operation("POST", "/sandbox/templates/{id}/archive")
def archive_template(tenant: Tenant, id_: str) -> SandboxTemplate:
    """Archive a template, so that nothing can be issued by it."""
    template = tenant.state.find(SandboxTemplate, id_, "template")
    archived = template.model_copy(update={"archived_at": template.archived_at or tenant.now()})
    tenant.state.put(id_, archived)
    return archived


def claims_of(template: SandboxTemplate, attributes: dict[str, Any] | None) -> dict[str, Any]:
    """Return the claims of a new credential: the attributes, or examples if there are none.

    A 400 names the template and not the attribute (specification, "Errors", rule 1).
    """
    if attributes is None:
        return MEMBER if template.id == MEMBERSHIP else example(template.attributes)
    if not fits(attributes, template.attributes):
        raise HTTPException(400, f"The attributes do not fit the template {template.id}.")
    return attributes


FIXTURES: tuple[dict[str, Any], ...] = (
    {
        "credentialFormat": "sd-jwt",
        "templateName": "Membership",
        "code": "membership",
        "templateDescription": "Says that the holder is a member.",
        "templateAttributes": {
            "givenName": {"type": "string", "name": "Given name"},
            "familyName": {"type": "string", "name": "Family name"},
            "memberSince": {"type": "date", "name": "Member since", "alwaysDisclosed": True},
        },
        "validUntil": {"start": "issuance", "future": {"days": 0, "months": 0, "years": 1}},
    },
    {
        "credentialFormat": "mdoc",
        "templateName": "Permit",
        "code": "permit",
        "templateDescription": "Says that the holder may enter.",
        "type": "example.sandbox.permit.1",
        "templateAttributes": {
            "example.sandbox.permit": {
                "properties": {
                    "holder": {"type": "string", "required": True},
                    "portrait": {"type": "binary"},
                    "zones": {"type": "array", "items": {"type": "string"}},
                }
            }
        },
        "validUntil": {"future": {"days": 30, "months": 0, "years": 0}},
    },
)


def load_fixtures(tenant: Tenant) -> None:
    """Create the templates that every sandbox begins with."""
    for preset in FIXTURES:
        create_preset(tenant, TypeAdapter[NewSdJwtPreset | NewMdocPreset](NewPreset).validate_python(preset))
