"""Webhook endpoints. Specification: Webhook endpoint, Events, Endpoints."""

from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from credhook.events import EVENT_TYPES
from credhook.worker.api.models.base import RequestModel, ResponseModel, Timestamp
from credhook.worker.api.models.ids import resource_id


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
