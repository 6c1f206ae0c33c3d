"""What nobody gets to see of what is sent and answered, and what nobody can change."""

import pickle
from typing import Any

import pytest
from pydantic import ValidationError
from rich.pretty import pretty_repr
from wallet import WALLET

from credhook.worker.api import models
from credhook.worker.api.models import (
    CertificateRequest,
    EndpointRequest,
    OfferRequest,
    Presentation,
    UserRequest,
    WalletCredential,
    Wire,
    mismatch,
)

PERSONAL = "ada.lovelace@private.example"


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (UserRequest, {"email": {"is": PERSONAL}, "firstName": [PERSONAL], "nickname": PERSONAL}),
        (OfferRequest, {"credentialOffer": [PERSONAL]}),
        (CertificateRequest, {"certificate": PERSONAL}),
        (EndpointRequest, {"url": PERSONAL, "filterTypes": [PERSONAL]}),
        (WalletCredential, {"id": PERSONAL, "claims": PERSONAL, "iat": PERSONAL, "vct": ""}),
        (Presentation, {"id": "p", "status": {"is": PERSONAL}, "credentials": PERSONAL}),
    ],
)
def test_no_validation_error_repeats_the_input(model: type[Wire], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(fields)
    assert PERSONAL not in str(caught.value)
    assert PERSONAL not in repr(caught.value)
    assert PERSONAL not in mismatch(caught.value)


SECRET = "Xq7-secret"


def every_answer() -> list[Wire]:
    """One of each model whose fields are personal or secret, filled with one word, an unknown field included."""
    extra = {"somethingNew": SECRET}
    time = "2026-11-01T10:00:00Z"
    documents: list[tuple[type[Wire], dict[str, Any]]] = [
        (models.User, {"id": "u", **dict.fromkeys(("username", "email", "firstName", "lastName"), SECRET)} | extra),
        (models.OnboardingResult, {"email": SECRET, "tempPassword": SECRET} | extra),
        (models.ExternalIdentifier, {"externalIdentifier": SECRET} | extra),
        (models.IdentityLink, {"username": SECRET, "idpAlias": SECRET, "linked": True} | extra),
        (models.WalletCredential, WALLET | {"claims": {"a": SECRET}, "iss": SECRET} | extra),
        (
            models.CertificateRecord,
            {"id": "c", "certificateId": "d", "expiresAt": "e", "createdAt": "e", "updatedAt": "e"}
            | {"certificateSigningRequest": SECRET, "subjectKeyIdentifier": SECRET}
            | extra,
        ),
        (
            models.TrustedEntity,
            {"id": "t", "name": SECRET, "createdAt": time, "updatedAt": time, "certificates": [SECRET]}
            | {"dids": [{"did": SECRET, "name": SECRET}]}
            | extra,
        ),
        (models.Endpoint, {"id": "e", "url": f"https://a.example/{SECRET}"} | extra),
        (
            models.Issuance,
            {"id": "i", "status": "offered", "offerUri": SECRET, "offerQrUri": SECRET, "credentials": [extra]} | extra,
        ),
        (
            models.Presentation,
            {"id": "p", "status": "verified", "authorizationRequestUri": SECRET, "error": SECRET}
            | {"credentials": [{"name": SECRET, "attributes": {SECRET: SECRET}, "issues": [SECRET]} | extra]}
            | extra,
        ),
        (models.UserRequest, dict.fromkeys(("email", "username", "firstName", "externalIdentifier"), SECRET)),
        (models.OfferRequest, {"credentialOffer": SECRET}),
        (models.EndpointRequest, {"url": f"https://a.example/{SECRET}"}),
        (models.TrustedEntityRequest, {"name": SECRET, "certificates": [SECRET]}),
    ]
    return [model.model_validate(document) for model, document in documents]


@pytest.mark.parametrize("value", every_answer(), ids=lambda value: type(value).__name__)
def test_no_repr_shows_personal_data_or_unknown_fields(value: Wire) -> None:
    assert SECRET in value.model_dump_json()
    shown = f"{value!r} {value} {[value]} {pretty_repr(value)}"
    assert SECRET not in shown


@pytest.mark.parametrize("value", every_answer(), ids=lambda value: type(value).__name__)
def test_values_cannot_be_changed_but_travel_between_processes(value: Wire) -> None:
    name = next(iter(type(value).model_fields))
    with pytest.raises(ValidationError):
        setattr(value, name, "other")
    assert pickle.loads(pickle.dumps(value)) == value
