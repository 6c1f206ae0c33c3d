"""Wallet credentials. Specification: Wallet credential, Wallet credentials (`/me-wallet/api`)."""

from typing import Annotated, Any, ClassVar
from uuid import UUID

from pydantic import Field

from credhook.worker.api.models.base import RequestModel, Stateful, Timestamp


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
