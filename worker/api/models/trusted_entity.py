"""Issuers that the organisation trusts. Specification: Trusted entity, Certificates and trusted entities."""

from typing import Any, ClassVar

from pydantic import JsonValue

from credhook.worker.api.models.base import RequestModel, ResponseModel, Timestamp


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
