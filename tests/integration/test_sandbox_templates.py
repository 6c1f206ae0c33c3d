"""Presets of the sandbox, the templates that they become, and what is issued by these."""

from datetime import datetime

import httpx
from sandbox_api import CREDS, FUTURE, PRESET, code, data, invalid, missing, refused


def test_an_sd_jwt_preset_is_created_and_read_as_a_template(api: httpx.Client) -> None:
    wanted = PRESET | {"code": code(), "validUntil": {"start": "validFrom", "future": FUTURE}}
    preset = data(api.post(f"{CREDS}/presets/credentials", json=wanted))
    assert preset["id"] == f"{preset['author']}:{wanted['code']}"
    assert preset["templateType"].startswith("https://")
    assert preset["templateType"].endswith(f"{preset['author']}/{wanted['code']}")
    assert preset["issuerConfig"] == {"signer": "did:web"}
    assert {name: preset[name] for name in wanted} == wanted
    assert datetime.fromisoformat(preset["createdAt"]) == datetime.fromisoformat(preset["updatedAt"])
    template = data(api.get(f"{CREDS}/templates/credentials/{preset['id']}"))
    assert template == {
        "id": preset["id"],
        "name": "Badge",
        "description": "A badge.",
        "type": preset["templateType"],
        "format": "sd-jwt-vc",
        "attributes": PRESET["templateAttributes"],
        "createdAt": preset["createdAt"],
        "updatedAt": preset["updatedAt"],
        "archivedAt": None,
    }


def test_an_mdoc_preset_is_created_and_read_as_a_template(api: httpx.Client) -> None:
    wanted = PRESET | {
        "credentialFormat": "mdoc",
        "code": code(),
        "type": "org.example.permit",
        "templateAttributes": {"org.example": {"properties": {"portrait": {"type": "binary"}}}},
        "validUntil": {"future": FUTURE},
    }
    preset = data(api.post(f"{CREDS}/presets/credentials", json=wanted))
    assert (preset["templateType"], preset["issuerConfig"]) == ("org.example.permit", None)
    assert "type" not in preset
    template = data(api.get(f"{CREDS}/templates/credentials/{preset['id']}"))
    assert (template["format"], template["type"]) == ("mdoc", "org.example.permit")
    assert template["attributes"] == wanted["templateAttributes"]


def test_a_code_is_taken_once(api: httpx.Client) -> None:
    wanted = PRESET | {"code": code()}
    data(api.post(f"{CREDS}/presets/credentials", json=wanted))
    refused(api.post(f"{CREDS}/presets/credentials", json=wanted), 409, "CONFLICT", "Conflict")


def test_a_wrong_preset_is_refused_with_the_place_of_every_fault(api: httpx.Client) -> None:
    answer = api.post(f"{CREDS}/presets/credentials", json=PRESET | {"code": "A", "templateName": 1})
    invalid(answer)
    assert {each["source"]["pointer"] for each in answer.json()["errors"]} == {"/code", "/templateName"}


def test_an_unknown_template_is_missing(api: httpx.Client) -> None:
    missing(api.get(f"{CREDS}/templates/credentials/sandbox:unknown"))


def test_an_archived_template_can_be_read_and_not_issued_by(api: httpx.Client) -> None:
    id_ = data(api.post(f"{CREDS}/presets/credentials", json=PRESET | {"code": code()}))["id"]
    archived = data(api.post(f"/sandbox/templates/{id_}/archive"))["archivedAt"]
    assert datetime.fromisoformat(archived)
    assert data(api.get(f"{CREDS}/templates/credentials/{id_}"))["archivedAt"] == archived
    assert data(api.post(f"/sandbox/templates/{id_}/archive"))["archivedAt"] == archived
    wanted = {"eventType": "openid4vc.issuance.offered", "templateId": id_, "attributes": {"name": "Ada"}}
    missing(api.post("/sandbox/events", json=wanted))


def test_attributes_that_do_not_fit_name_the_template_and_not_the_attribute(api: httpx.Client) -> None:
    id_ = data(api.post(f"{CREDS}/presets/credentials", json=PRESET | {"code": code()}))["id"]
    wanted = {"eventType": "openid4vc.issuance.offered", "templateId": id_, "attributes": {"address": "x"}}
    answer = api.post("/sandbox/events", json=wanted)
    assert id_ in invalid(answer)
    assert "address" not in answer.text
    assert "name" not in answer.text
