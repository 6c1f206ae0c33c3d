"""Issuances and presentations of the sandbox, and the wallet that takes its offers."""

import json
from datetime import datetime, timedelta
from urllib.parse import urlencode

import httpx
import pytest

from credhook.sandbox.resources import PRE_AUTHORIZED
from support.platform.sandbox_api import CREDS, data, invalid, listed, missing, refused
from support.process.serving import Platform


def test_offers_of_somebody_else_are_missing_and_other_text_is_no_offer(sandbox: Platform, api: httpx.Client) -> None:
    def take(**query: str) -> httpx.Response:
        offer = f"openid-credential-offer://?{urlencode(query)}"
        return api.post("/me-wallet/api/credentials", json={"credentialOffer": offer})

    ours = {"credential_issuer": sandbox.url, "grants": {PRE_AUTHORIZED: {"pre-authorized_code": "iss_unknown"}}}
    missing(take(credential_offer=json.dumps(ours)))
    missing(take(credential_offer_uri="https://elsewhere.example/offers/x"))
    missing(take(credential_offer_uri=f"{sandbox.url}/offers/iss_unknown"))
    missing(take(credential_offer_uri=f"https://a.example/offers/{sandbox.make('openid4vc.issuance.offered')}"))
    for text in ("{", "{}", "[]", json.dumps(ours | {"grants": {}}), json.dumps(ours | {"grants": None})):
        invalid(take(credential_offer=text))
    for answer in (take(), take(other="x"), api.post("/me-wallet/api/credentials", json={})):
        invalid(answer)
    invalid(api.post("/me-wallet/api/credentials", json={"credentialOffer": "nonsense"}))


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize("by_value", [False, True], ids=["by reference", "by value"])
@pytest.mark.parametrize(
    ("consent", "status", "again"),
    [("accepted", "completed", 400), ("rejected", "failed", 400), ("pending", "offered", 201)],
)
def test_the_consent_of_a_taken_offer_decides_what_happens_to_its_issuance(
    sandbox: Platform, api: httpx.Client, by_value: bool, consent: str, status: str, again: int
) -> None:
    sandbox.faults(offersByValue=by_value, consent=consent)
    id_ = sandbox.make("openid4vc.issuance.offered", templateId="sandbox:permit")
    shown = data(api.get(f"{CREDS}/credentials/{id_}"))
    assert (shown["format"], shown["offerQrUri"]) == ("mdoc", shown["offerUri"])
    offer = {"credentialOffer": shown["offerUri"]}
    assert ("sandbox%3Apermit" in shown["offerUri"]) == by_value
    taken = api.post("/me-wallet/api/credentials", json=offer)
    assert (taken.status_code, [each["status"] for each in taken.json()]) == (201, [consent] * 2)
    assert data(api.get(f"{CREDS}/credentials/{id_}"))["status"] == status
    for now in (consent, "pending"):
        sandbox.faults(consent=now)
        assert api.post("/me-wallet/api/credentials", json=offer).status_code == again


@pytest.mark.parametrize(
    ("noun", "event_type", "status", "credentials"),
    [
        ("credentials", "openid4vc.issuance.offered", "offered", ["offered", "offered"]),
        ("credentials", "openid4vc.issuance.completed", "completed", ["issued", "issued"]),
        ("credentials", "openid4vc.issuance.failed", "failed", ["failed", "failed"]),
        ("credentials", "openid4vc.issuance.partiallyIssued", "partiallyIssued", ["issued", "failed"]),
        ("credentials", "openid4vc.issuance.expired", "expired", ["expired", "expired"]),
        ("presentations", "openid4vc.verification.requested", "requested", []),
        ("presentations", "openid4vc.verification.verified", "verified", [None]),
        ("presentations", "openid4vc.verification.data", "verified", [None]),
        ("presentations", "openid4vc.verification.failed", "rejected", []),
        ("presentations", "openid4vc.verification.expired", "expired", []),
    ],
)
def test_a_resource_is_in_the_state_that_its_event_announces(
    sandbox: Platform, api: httpx.Client, noun: str, event_type: str, status: str, credentials: list[str | None]
) -> None:
    resource = data(api.get(f"{CREDS}/{noun}/{sandbox.make(event_type)}"))
    assert resource["status"] == status
    assert [each.get("status") for each in resource["credentials"]] == credentials
    assert (resource.get("error") is not None) == (status == "rejected")
    assert resource in listed(api, noun)


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize(
    ("noun", "event_type"),
    [("credentials", "openid4vc.issuance.offered"), ("presentations", "openid4vc.verification.data")],
)
def test_lists_go_on_where_their_links_lead(sandbox: Platform, api: httpx.Client, noun: str, event_type: str) -> None:
    ids = [sandbox.make(event_type) for _ in range(5)]
    whole = [each["id"] for each in listed(api, noun)]
    assert whole[-5:] == ids
    sandbox.faults(pageSize=2)
    first = api.get(f"{CREDS}/{noun}").json()
    assert [each["id"] for each in first["data"]] == whole[:2]
    assert first["links"]["next"].startswith(f"{sandbox.url}{CREDS}/{noun}?page%5Bafter%5D=")
    assert [each["id"] for each in listed(api, noun)] == whole
    sandbox.faults(pageSize=len(whole))
    assert "links" not in api.get(f"{CREDS}/{noun}").json()
    assert api.get(f"{CREDS}/{noun}", params={"page[after]": 2**53 - 1, "other": "x"}).json() == {"data": []}
    for wrong in ("x", -1, 2**53):
        assert invalid(api.get(f"{CREDS}/{noun}", params={"page[after]": wrong})).startswith("query.page[after]: ")


def test_a_credential_without_claims_has_none(sandbox: Platform, api: httpx.Client) -> None:
    issued = {"eventType": "openid4vc.issuance.completed", "templateId": "sandbox:permit", "attributes": {}}
    invalid(api.post("/sandbox/events", json=issued))  # It must name its holder.
    id_ = sandbox.make("openid4vc.verification.verified", templateId="sandbox:permit", attributes={})
    (credential,) = data(api.get(f"{CREDS}/presentations/{id_}"))["credentials"]
    assert credential["attributes"] == {}


def test_a_presentation_moves_on_and_keeps_what_was_shown(sandbox: Platform, api: httpx.Client) -> None:
    id_ = sandbox.make("openid4vc.verification.requested")
    shown = {"templateId": "sandbox:permit", "attributes": {"a": [1, {"b": None}]}}
    sandbox.make("openid4vc.verification.verified", resourceId=id_, **shown)
    sandbox.make("openid4vc.verification.data", resourceId=id_)
    presentation = data(api.get(f"{CREDS}/presentations/{id_}"))
    (credential,) = presentation["credentials"]
    assert (credential["name"], credential["type"]) == ("Permit", "example.sandbox.permit.1")
    assert credential["attributes"] == shown["attributes"]
    times = (presentation[f"{name}At"] for name in ("created", "updated", "expires"))
    made, moved, ends = map(datetime.fromisoformat, times)
    assert made < moved < ends == made + timedelta(minutes=15)
    for impossible in ("expired", "verified", "data"):
        wanted = {"eventType": f"openid4vc.verification.{impossible}", "resourceId": id_}
        refused(api.post("/sandbox/events", json=wanted), 409, "CONFLICT", "Conflict")


def test_nothing_is_made_when_one_of_many_fails(sandbox: Platform, api: httpx.Client) -> None:
    id_ = sandbox.make("openid4vc.issuance.offered")
    twice = {"eventType": "openid4vc.issuance.failed", "resourceId": id_, "count": 2}
    refused(api.post("/sandbox/events", json=twice), 409, "CONFLICT", "Conflict")
    assert data(api.get(f"{CREDS}/credentials/{id_}"))["status"] == "offered"
    for wrong in ({"count": 0}, {"count": 10_001}, {"count": None}, {"isValid": None}, {"attributes": None}):
        invalid(api.post("/sandbox/events", json=twice | wrong))
    assert sandbox.make("openid4vc.issuance.failed", resourceId=id_, count=1.0) == id_
    assert {one["status"] for one in data(api.get(f"{CREDS}/credentials/{id_}"))["credentials"]} == {"failed"}


def test_unknown_resources_are_missing(api: httpx.Client) -> None:
    for path in ("credentials/unknown", "presentations/unknown", "presentations/%00", "credentials/%F0%9F"):
        missing(api.get(f"{CREDS}/{path}"))
    assert missing(api.get(f"{CREDS}/credentials/a%2Fb")) == "There is no issuance a/b."
    missing(api.delete(f"{CREDS}/endpoints/unknown"))
    wanted = {"eventType": "openid4vc.issuance.failed", "resourceId": "unknown"}
    missing(api.post("/sandbox/events", json=wanted))
