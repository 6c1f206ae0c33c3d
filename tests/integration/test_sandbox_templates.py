"""Presets of the sandbox, the templates that they become, and what is issued by these."""

from datetime import datetime
from typing import Any

import httpx
import pytest
from sandbox_api import CREDS, FUTURE, PRESET, code, data, invalid, missing, refused
from serving import Platform

SD_JWT = PRESET | {"validUntil": {"start": "validFrom", "future": FUTURE}}
MDOC = PRESET | {
    "credentialFormat": "mdoc",
    "type": "org.example.permit",
    "templateAttributes": {"org.example": {"properties": {"portrait": {"type": "binary"}}}},
    "validUntil": {"future": FUTURE},
}


@pytest.mark.parametrize(
    ("body", "format_", "issuer"), [(SD_JWT, "sd-jwt-vc", {"signer": "did:web"}), (MDOC, "mdoc", None)]
)
def test_a_preset_is_created_and_read_as_a_template(
    api: httpx.Client, body: dict[str, Any], format_: str, issuer: Any
) -> None:
    wanted = body | {"code": code()}
    preset = data(api.post(f"{CREDS}/presets/credentials", json=wanted))
    assert preset["id"] == f"{preset['author']}:{wanted['code']}"
    uri = f"https://sandbox.example/types/{preset['author']}/{wanted['code']}"
    assert preset["templateType"] == wanted.pop("type", uri)
    assert "type" not in preset
    assert preset["issuerConfig"] == issuer
    assert {name: preset[name] for name in wanted} == wanted
    assert datetime.fromisoformat(preset["createdAt"]) == datetime.fromisoformat(preset["updatedAt"])
    assert data(api.get(f"{CREDS}/templates/credentials/{preset['id']}")) == {
        "id": preset["id"],
        "name": "Badge",
        "description": "A badge.",
        "type": preset["templateType"],
        "format": format_,
        "attributes": wanted["templateAttributes"],
        "createdAt": preset["createdAt"],
        "updatedAt": preset["updatedAt"],
        "archivedAt": None,
    }


def test_a_taken_code_a_wrong_preset_and_an_unknown_template_are_refused(api: httpx.Client) -> None:
    wanted = PRESET | {"code": code()}
    data(api.post(f"{CREDS}/presets/credentials", json=wanted))
    refused(api.post(f"{CREDS}/presets/credentials", json=wanted), 409, "CONFLICT", "Conflict")
    answer = api.post(f"{CREDS}/presets/credentials", json=PRESET | {"code": "A"})
    invalid(answer)
    assert answer.json()["errors"][0]["source"] == {"pointer": "/code"}
    missing(api.get(f"{CREDS}/templates/credentials/sandbox:unknown"))


@pytest.mark.usefixtures("swept")
def test_an_archived_template_can_be_read_and_not_issued_by(sandbox: Platform, api: httpx.Client) -> None:
    id_ = data(api.post(f"{CREDS}/presets/credentials", json=PRESET | {"code": code()}))["id"]
    wanted = {"eventType": "openid4vc.issuance.offered", "templateId": id_, "attributes": {"name": "Ada"}}
    (offered,) = data(api.post("/sandbox/events", json=wanted), 201)
    offer = data(api.get(f"{CREDS}/credentials/{offered['resourceId']}"))["offerUri"]
    archived = data(api.post(f"/sandbox/templates/{id_}/archive"))["archivedAt"]
    assert datetime.fromisoformat(archived)
    assert data(api.get(f"{CREDS}/templates/credentials/{id_}"))["archivedAt"] == archived
    assert data(api.post(f"/sandbox/templates/{id_}/archive"))["archivedAt"] == archived
    missing(api.post("/sandbox/events", json=wanted))
    missing(api.post("/me-wallet/api/credentials", json={"credentialOffer": offer}))
    sandbox.faults(hideArchived=True)
    missing(api.get(f"{CREDS}/templates/credentials/{id_}"))
    data(api.get(f"{CREDS}/templates/credentials/sandbox:membership"))


def test_attributes_that_do_not_fit_name_the_template_and_not_the_attribute(api: httpx.Client) -> None:
    id_ = data(api.post(f"{CREDS}/presets/credentials", json=PRESET | {"code": code()}))["id"]
    wanted = {"eventType": "openid4vc.issuance.offered", "templateId": id_, "attributes": {"address": "x"}}
    answer = api.post("/sandbox/events", json=wanted)
    assert id_ in invalid(answer)
    assert "address" not in answer.text
    assert "name" not in answer.text
