"""Credential templates. Specification: Credential template (read by id)."""

from typing import ClassVar

from credhook.worker.api.models.attribute import AnyAttribute
from credhook.worker.api.models.base import ResponseModel, Timestamp


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
