"""Issuances: the outer record that issuance events refer to. Its fields were observed, not specified."""

from typing import Annotated, ClassVar

from pydantic import FailFast

from credhook.worker.api.models.base import NoneAsEmpty, ObservedTimestamp, ResponseModel, Stateful


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
