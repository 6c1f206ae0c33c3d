"""Details as bytes and back. How they are kept: integration/test_snapshots.py."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from credhook.worker.api.models import Issuance, Presentation
from credhook.worker.attempt.details import from_bytes, to_bytes

ISSUED, VERIFIED = "openid4vc.issuance.completed", "openid4vc.verification.data"

PRESENTATION: dict[str, Any] = {
    "id": "cmfw1",
    "status": "VERIFIED",
    "createdAt": "2026-11-20T10:00:00.123456+02:00",
    "updatedAt": "a while ago",
    "expiresAt": 1_700_000_000,
    "presentationTemplateId": None,
    "error": "text",
    "credentials": [
        {
            "isValid": True,
            "name": "Membership",
            "type": "sd-jwt",
            "attributes": {
                "given_name": "Zoë",
                "givenName": "other",
                "isValid": "an attribute",
                "born": "1990-01-01",
                "points": 1.5,
                "number": 12345678901234567890123,
                "address": {"lines": ["a", None, {"postalCode": 1, "postal_code": "2"}]},
                "none": None,
            },
            "issues": [{"someCode": 1}, "text"],
            "is_valid": "not the field",
        },
        {"isValid": "true", "presentedAttributes": {"given_name": "Ann"}},
        {"attributes": {"a": 1}, "presentedAttributes": {"a": 2}},
        {},
    ],
    "created_at": "not the field",
    "verifierInfo": {"tenantId": 7, "tags": ["x"]},
}

ISSUANCE: dict[str, Any] = {
    "id": "iss_1",
    "status": "partiallyIssued",
    "format": "sd-jwt",
    "offerUri": "openid-credential-offer://x",
    "credentials": [{"id": "c", "status": "ok", "revocable": False, "validUntil": "2030"}],
    "newField": [1, {"a": None}],
}


def read(model: type[Any], document: object) -> Any:
    """As the client reads the platform's answer."""
    return TypeAdapter(model).validate_python(document, by_alias=True, by_name=False)


@pytest.mark.parametrize(
    ("model", "document", "event_type"),
    [
        (Presentation, PRESENTATION, VERIFIED),
        (Presentation, {"id": "p", "status": "rejected", "error": {"message": "no", "code": 3}}, VERIFIED),
        (Presentation, {"id": "p", "status": "rejected", "error": ["no", 3]}, VERIFIED),
        (Presentation, {"id": "p", "status": "requested", "credentials": None}, VERIFIED),
        (Issuance, ISSUANCE, ISSUED),
        (Issuance, {"id": "i", "status": "offered"}, ISSUED),
    ],
)
def test_details_come_back_as_they_were(model: type[Any], document: object, event_type: str) -> None:
    details = read(model, document)
    back = from_bytes(to_bytes(details), event_type)
    assert back is not None
    assert type(back) is model
    assert back == details
    assert back.model_fields_set == details.model_fields_set
    assert to_bytes(back) == to_bytes(details)


def test_attributes_and_unknown_fields_keep_their_names_and_values() -> None:
    back: Any = from_bytes(to_bytes(read(Presentation, PRESENTATION)), VERIFIED)
    assert back.credentials[0].attributes == PRESENTATION["credentials"][0]["attributes"]
    assert back.credentials[1].attributes == {"given_name": "Ann"}
    assert back.model_extra == {"created_at": "not the field", "verifierInfo": {"tenantId": 7, "tags": ["x"]}}
    assert back.credentials[0].model_extra == {"is_valid": "not the field"}


def test_trust_is_neither_lost_nor_gained() -> None:
    verified = {"id": "p", "status": "verified", "credentials": [{"isValid": True}]}
    doubtful = {"id": "p", "status": "verified", "credentials": [{"isValid": "true", "is_valid": True}]}
    unsaid = {"id": "p", "status": "verified", "credentials": [{"is_valid": True}]}
    for document, trusted in ((verified, True), (doubtful, False), (unsaid, False)):
        back: Any = from_bytes(to_bytes(read(Presentation, document)), VERIFIED)
        assert back.trusted is trusted


@pytest.mark.parametrize("snapshot", [b"", b"{", b"[]", b'{"id": {"given": "Zara"}}'])
def test_a_snapshot_that_does_not_match_counts_as_absent(snapshot: bytes) -> None:
    assert from_bytes(snapshot, VERIFIED) is None
