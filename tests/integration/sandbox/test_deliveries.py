"""Deliveries of the sandbox over real TLS: what is sent, signed how, to whom, how often and in which order."""

import base64
import hashlib
import hmac
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support import plain
from support.platform.sandbox_api import authorized
from support.platform.webhook_endpoint import COMPLETED, DATA, SECRET, Received, Receiver, happen, register, settled
from support.process.serving import Platform, platform
from support.waiting import until

pytestmark = pytest.mark.usefixtures("swept")


def test_a_delivery_is_signed_and_says_what_has_happened(sandbox: Platform, receiver: Receiver) -> None:
    endpoint_id = register(sandbox, receiver.url)
    (made,) = happen(sandbox)
    (attempt,) = settled(sandbox, made["webhookIds"][0])
    (received,) = receiver.received
    assert received.all("webhook-id") == made["webhookIds"]
    assert received.all("content-type") == ["application/json"]
    assert json.loads(received.body) == {"eventType": COMPLETED, "payload": {"openId4VcIssuanceId": made["resourceId"]}}
    assert verifies(received)
    assert attempt.pop("milliseconds") > 0
    assert attempt.pop("startedAt")
    assert attempt == {
        "webhookId": received.id,
        "eventType": COMPLETED,
        "resourceId": made["resourceId"],
        "endpointId": endpoint_id,
        "url": receiver.url,
        "attempt": 1,
        "status": 202,
        "error": None,
        "answer": "accepted",
        "outcome": "acknowledged",
        "forged": None,
    }


def test_an_unsigned_delivery_has_only_its_id(ca: Path, receiver: Receiver, tmp_path: Path) -> None:
    with platform(tmp_path, "--ca", str(ca), "--unsigned") as sandbox:
        register(sandbox, receiver.url)
        happen(sandbox, DATA)
        settled(sandbox)
    (received,) = receiver.received
    assert received.all("webhook-id")
    assert not received.all("webhook-timestamp") + received.all("webhook-signature")


def test_each_endpoint_gets_only_the_types_that_it_asked_for(sandbox: Platform, receiver: Receiver) -> None:
    register(sandbox, receiver.url, DATA, COMPLETED)
    register(sandbox, f"{receiver.url}/2", DATA)
    made = [happen(sandbox, name)[0]["webhookIds"] for name in ("openid4vc.issuance.offered", COMPLETED, DATA)]
    settled(sandbox)
    assert [len(set(ids)) for ids in made] == [0, 1, 2]
    assert sorted(received.id for received in receiver.received) == sorted(made[1] + made[2])


def test_a_delivery_is_repeated_although_acknowledged(sandbox: Platform, receiver: Receiver) -> None:
    register(sandbox, receiver.url)
    sandbox.faults(duplicate=3)
    receiver.statuses = [201, 500]
    made = happen(sandbox, count=5)
    settled(sandbox)
    ids = Counter(received.id for received in receiver.received)
    assert set(ids) == {each["webhookIds"][0] for each in made}
    assert sorted(ids.values()) == [3, 3, 3, 3, 4]


def test_forgeries_come_beside_a_delivery_and_none_verifies(sandbox: Platform, receiver: Receiver) -> None:
    register(sandbox, receiver.url)
    sandbox.faults(forge=6)
    genuine = happen(sandbox)[0]["webhookIds"][0]
    until(lambda: len(receiver.received) == 7)
    assert [received.id for received in receiver.received if verifies(received)] == [genuine]

    def forged() -> list[dict[str, Any]]:
        found = plain.get(f"{sandbox.url}/sandbox/deliveries").json()["data"]
        return [each for each in found if each["forged"] and each["url"] == receiver.url]

    until(lambda: len(forged()) == 6)
    assert {each["attempt"] for each in forged()} == {1}
    kinds = ["wrongKey", "changedBody", "stale", "unsigned", "secondId", "wrongKey"]
    assert sorted(each["forged"] for each in forged()) == sorted(kinds)
    with authorized(sandbox) as api:
        paths = [f"/me-creds/api/credentials/{each['resourceId']}" for each in forged()]
        assert {api.get(path).status_code for path in paths} == {404}


def verifies(received: Received) -> bool:
    if len(received.all("webhook-id")) != 1 or not received.all("webhook-signature"):
        return False
    key, (sent, *_) = base64.b64decode(SECRET.removeprefix("whsec_")), received.all("webhook-timestamp")
    signed = f"{received.id}.{sent}.".encode() + received.body
    signature = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return abs(int(sent) - time.time()) < 300 and received.all("webhook-signature") == [f"v1,{signature}"]


@pytest.mark.parametrize(("consent", "announced"), [("accepted", COMPLETED), ("rejected", "openid4vc.issuance.failed")])
def test_a_taken_offer_is_announced(sandbox: Platform, receiver: Receiver, consent: str, announced: str) -> None:
    register(sandbox, receiver.url, announced)
    sandbox.faults(consent=consent)
    (made,) = happen(sandbox, "openid4vc.issuance.offered")
    with authorized(sandbox) as api:
        offer = api.get(f"/me-creds/api/credentials/{made['resourceId']}").json()["data"]["offerUri"]
        api.post("/me-wallet/api/credentials", json={"credentialOffer": offer}).raise_for_status()
    settled(sandbox)
    (received,) = receiver.received
    assert json.loads(received.body)["payload"] == {"openId4VcIssuanceId": made["resourceId"]}
