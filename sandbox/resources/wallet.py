"""The wallet: turning a credential offer into credentials."""

from datetime import datetime
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from pydantic import Field

from credhook.sandbox.http.errors import Refusal, Source
from credhook.sandbox.http.wire import Wire
from credhook.sandbox.resources import issuances, templates
from credhook.sandbox.resources.issuances import OFFER_SCHEME, IssuanceRecord
from credhook.sandbox.tenant.lifecycle import ImpossibleError
from credhook.sandbox.tenant.operations import Operation
from credhook.sandbox.tenant.tenant import Tenant

#: Longest `vct` (specification, "Limits").
LONGEST_VCT = 256

ISSUER_DID = "did:web:sandbox.example"
ISSUER_NAME = "CN=Sandbox Issuer"

OFFER_PATTERN = r"^openid-credential-offer://"

IN_OFFER = Source(pointer="/credentialOffer")


class Offer(Wire):
    """The body of `POST /credentials`."""

    credential_offer: str = Field(pattern=OFFER_PATTERN)


class WalletCredential(Wire):
    """A credential in the wallet (specification, "Wallet credential")."""

    id: str
    claims: dict[str, Any] = Field(repr=False)
    iat: datetime
    status: Literal["pending", "accepted", "rejected"]
    format: Literal["vc+sd-jwt"]
    vct: str = Field(min_length=1, max_length=LONGEST_VCT)
    iss: str = Field(min_length=1, max_length=512)


def accept(tenant: Tenant, wanted: Offer) -> list[WalletCredential]:
    """Accept an offer that the sandbox has made; its issuance is completed by that, and says so in an event.

    Raises:
        Refusal: With 404 for an offer of somebody else, with 400 for one that cannot be accepted any more.
    """
    record = issuances.find(tenant, _issuance_id(wanted.credential_offer))
    credentials = _credentials(record, templates.read(tenant, record.template_id), tenant.now())
    try:
        with tenant.state.together():
            issuances.move(tenant, record.shown.id, "openid4vc.issuance.completed")
            tenant.announce("openid4vc.issuance.completed", record.shown.id)
    except ImpossibleError as problem:
        raise Refusal(400, "The offer has been used or has expired.", source=IN_OFFER) from problem
    return credentials


def _issuance_id(offer: str) -> str:
    """Return the id of the issuance that an offer belongs to."""
    try:
        uri = parse_qs(offer.removeprefix(OFFER_SCHEME).removeprefix("?"))["credential_offer_uri"][0]
        folder, _, id_ = urlsplit(uri).path.rpartition("/")
    except (LookupError, ValueError):
        folder, id_ = "", ""
    if folder != "/offers":
        raise Refusal(404, "This is no offer of this sandbox.", source=IN_OFFER)
    return id_


def _credentials(record: IssuanceRecord, template: templates.Template, now: datetime) -> list[WalletCredential]:
    if len(template.type) > LONGEST_VCT:
        raise Refusal(400, f"The type of the credential is longer than {LONGEST_VCT} characters.", source=IN_OFFER)
    return [
        WalletCredential(
            id=str(uuid4()),
            claims=record.claims,
            iat=now,
            status="accepted",
            format="vc+sd-jwt",
            vct=template.type,
            iss=ISSUER_NAME if isinstance(template, templates.MdocTemplate) else ISSUER_DID,
        )
        for _ in record.shown.credentials
    ]


OPERATIONS = (
    Operation(
        "POST",
        "/me-wallet/api/credentials",
        accept,
        "Accept a credential offer; the answer is a bare array.",
        status=201,
        enveloped=False,
        refusals=(404,),
    ),
)
