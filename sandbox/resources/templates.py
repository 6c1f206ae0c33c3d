"""Credential templates: what a preset looks like to those who read or issue by it."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from credhook.sandbox.http.errors import Refusal
from credhook.sandbox.http.wire import Wire
from credhook.sandbox.resources.attributes import MdocNamespace, SdJwtAttribute, example, fit
from credhook.sandbox.resources.presets import MdocPreset, PresetRecord, SdJwtPreset, shelf
from credhook.sandbox.tenant.operations import Operation
from credhook.sandbox.tenant.tenant import Tenant


class TemplateFields(Wire):
    """What templates of both formats have in common."""

    id: str
    name: str
    description: str
    type: str
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None


class SdJwtTemplate(TemplateFields):
    """A template of format `sd-jwt-vc`."""

    format: Literal["sd-jwt-vc"]
    attributes: dict[str, SdJwtAttribute]


class MdocTemplate(TemplateFields):
    """A template of format `mdoc`; its attributes stand in their namespaces, as in the preset."""

    format: Literal["mdoc"]
    attributes: dict[str, MdocNamespace]


Template = Annotated[SdJwtTemplate | MdocTemplate, Field(discriminator="format")]


def read(tenant: Tenant, id: str) -> Template:  # noqa: A002  The specification's own word.
    """Return a template, archived or not.

    Raises:
        Refusal: With 404 where there is none.
    """
    return _shown(_find(tenant, id))


def listed(tenant: Tenant) -> list[Template]:
    """Return every template, the oldest first."""
    return [_shown(record) for record in shelf(tenant.state).all()]


def archive(tenant: Tenant, id: str) -> Template:  # noqa: A002  The specification's own word.
    """Archive a template, so that nothing can be issued by it; archiving twice changes nothing.

    Raises:
        Refusal: With 404 where there is none.
    """
    record = _find(tenant, id)
    archived = record.model_copy(update={"archived_at": record.archived_at or tenant.now()})
    shelf(tenant.state).put(id, archived)
    return _shown(archived)


def usable(tenant: Tenant, id: str) -> Template:  # noqa: A002  The specification's own word.
    """Return a template that can be issued by.

    Raises:
        Refusal: With 404 where it is missing or archived (specification, "Status codes").
    """
    template = read(tenant, id)
    if template.archived_at is not None:
        raise Refusal(404, f"The template {id} is archived.")
    return template


def claims_of(template: Template, attributes: dict[str, Any] | None) -> dict[str, Any]:
    """Return what a credential of this template is to say; examples where nothing was said.

    Raises:
        Refusal: With 400, naming the template and not the attribute (specification, "Errors", rule 1).
    """
    if attributes is None:
        return example(template.attributes)
    if not fit(attributes, template.attributes):
        raise Refusal(400, f"The attributes do not fit the template {template.id}.")
    return attributes


def _find(tenant: Tenant, id_: str) -> PresetRecord:
    record = shelf(tenant.state).get(id_)
    if record is None:
        raise Refusal(404, f"There is no template {id_}.")
    return record


def _shown(record: PresetRecord) -> Template:
    preset = record.preset
    fields: dict[str, Any] = {
        "id": preset.id,
        "name": preset.template_name,
        "description": preset.template_description,
        "type": preset.template_type,
        "attributes": preset.template_attributes,
        "created_at": preset.created_at,
        "updated_at": preset.updated_at,
        "archived_at": record.archived_at,
    }
    match preset:
        case SdJwtPreset():
            return SdJwtTemplate(format="sd-jwt-vc", **fields)
        case MdocPreset():
            return MdocTemplate(format="mdoc", **fields)


OPERATIONS = (
    Operation(
        "GET", "/me-creds/api/templates/credentials/{id}", read, "Read a credential template by id.", refusals=(404,)
    ),
    Operation("GET", "/sandbox/templates", listed, "List the credential templates, the oldest first."),
    Operation("POST", "/sandbox/templates/{id}/archive", archive, "Archive a credential template.", refusals=(404,)),
)
