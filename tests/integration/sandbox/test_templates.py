"""Presets of the sandbox, the templates that they become, and what is issued by these."""

from datetime import datetime
from typing import Any
from uuid import uuid4

import httpx
import pytest

from support.platform.presets import SD_JWT
from support.platform.sandbox_api import CREDS, data, missing, refused
from support.process.serving import Platform


def preset() -> dict[str, Any]:
    return SD_JWT | {"code": f"c-{uuid4()}"}


def test_a_taken_code_and_an_unknown_template_are_refused(api: httpx.Client) -> None:
    wanted = preset()
    del wanted["issuerConfig"]
    assert data(api.post(f"{CREDS}/presets/credentials", json=wanted))["issuerConfig"] == {"signer": "did:web"}
    refused(api.post(f"{CREDS}/presets/credentials", json=wanted), 409, "CONFLICT", "Conflict")
    missing(api.get(f"{CREDS}/templates/credentials/sandbox:unknown"))


@pytest.mark.usefixtures("swept")
def test_an_archived_template_can_be_read_and_not_issued_by(sandbox: Platform, api: httpx.Client) -> None:
    id_ = data(api.post(f"{CREDS}/presets/credentials", json=preset()))["id"]
    wanted = {"eventType": "openid4vc.issuance.offered", "templateId": id_, "attributes": {"a": "Ada"}}
    (offered,) = data(api.post("/sandbox/events", json=wanted), 201)
    offer = data(api.get(f"{CREDS}/credentials/{offered['resourceId']}"))["offerUri"]
    archived = data(api.post(f"/sandbox/templates/{id_}/archive"))["archivedAt"]
    assert datetime.fromisoformat(archived)
    assert data(api.get(f"{CREDS}/templates/credentials/{id_}"))["archivedAt"] == archived
    assert data(api.post(f"/sandbox/templates/{id_}/archive"))["archivedAt"] == archived
    missing(api.post("/sandbox/events", json=wanted))
    data(api.post("/sandbox/events", json=wanted | {"eventType": "openid4vc.verification.data"}), 201)
    missing(api.post("/me-wallet/api/credentials", json={"credentialOffer": offer}))
    sandbox.faults(hideArchived=True)
    missing(api.get(f"{CREDS}/templates/credentials/{id_}"))
    data(api.get(f"{CREDS}/templates/credentials/sandbox:membership"))
