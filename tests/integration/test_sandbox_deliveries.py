"""Deliveries over real TLS to a receiver built for the purpose, which checks signatures with code of its own."""

import base64
import hashlib
import hmac
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from serving import Platform, platform
from waiting import until

SECRET = "whsec_c2FuZGJveC1vbmx5LXB1Ymxpc2hlZC1ieS1jcmVkaG9vaw=="
FORM = {"grant_type": "client_credentials", "client_id": "sandbox", "client_secret": "sandbox"}
COMPLETED = "openid4vc.issuance.completed"
DATA = "openid4vc.verification.data"


@dataclass
class Received:
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]

    @property
    def id(self) -> str:
        return self.all("webhook-id")[0]

    def signed(self) -> bytes:
        return f"{self.id}.{self.all('webhook-timestamp')[0]}.".encode() + self.body

    def token(self, version: str) -> bytes:
        tokens = dict(token.split(",", 1) for token in self.all("webhook-signature")[0].split(" "))
        return base64.b64decode(tokens[version])


@dataclass
class Receiver:
    """A webhook endpoint that answers what it is told to: first the statuses listed, then 202."""

    url: str
    received: list[Received] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    body: bytes = b'{"data": {"status": "accepted"}}'
    hang: threading.Event | None = None


@contextmanager
def receiving(certificate: trustme.LeafCert) -> Iterator[Receiver]:
    receiver = Receiver("")
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with lock:
                receiver.received.append(Received(self.headers.items(), body))
                status = receiver.statuses.pop(0) if receiver.statuses else 202
            if receiver.hang:
                receiver.hang.wait(20)
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("location", receiver.url)
            self.send_header("content-length", str(len(receiver.body)))
            self.end_headers()
            self.wfile.write(receiver.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  The name that is overridden.
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: object, client_address: object) -> None:
            """A sandbox that is stopped hangs up; that is no defect of this receiver."""

    with Server(("127.0.0.1", 0), Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        receiver.url = f"https://127.0.0.1:{server.server_address[1]}/webhooks"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield receiver
        finally:
            if receiver.hang:
                receiver.hang.set()
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture(scope="module")
def running(ca: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with platform(tmp_path_factory.mktemp("sandbox"), "--ca", str(ca)) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(running: Platform) -> Iterator[Platform]:
    yield running
    running.clear()
    with authorized(running) as api:
        for endpoint in api.get("/me-creds/api/endpoints").json():
            api.delete(f"/me-creds/api/endpoints/{endpoint['id']}")


@pytest.fixture
def receiver(authority: trustme.CA) -> Iterator[Receiver]:
    with receiving(authority.issue_cert("127.0.0.1")) as receiver:
        yield receiver


@contextmanager
def authorized(sandbox: Platform) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=sandbox.url) as client:
        granted = client.post("/realms/sandbox/protocol/openid-connect/token", data=FORM).json()
        client.headers["authorization"] = f"Bearer {granted['access_token']}"
        yield client


def register(sandbox: Platform, url: str, *filter_types: str) -> str:
    id_ = str(uuid4())
    wanted = {"url": url, "id": id_} | ({"filterTypes": list(filter_types)} if filter_types else {})
    with authorized(sandbox) as api:
        api.post("/me-creds/api/endpoints", json=wanted).raise_for_status()
    return id_


def happen(sandbox: Platform, event_type: str = COMPLETED, **more: Any) -> list[dict[str, Any]]:
    answer = httpx.post(f"{sandbox.url}/sandbox/events", json={"eventType": event_type} | more)
    found: list[dict[str, Any]] = answer.raise_for_status().json()["data"]
    return found


def settled(sandbox: Platform, webhook_id: str = "") -> list[dict[str, Any]]:
    """The attempts of a delivery, or of all, once nothing is under way."""
    query = {"webhookId": webhook_id} if webhook_id else {}

    def ask() -> Any:
        answer = httpx.get(f"{sandbox.url}/sandbox/deliveries", params=query).json()
        return answer if answer["meta"]["underWay"] == 0 else None

    attempts: list[dict[str, Any]] = until(ask, what="the end of all deliveries")["data"]
    return attempts


def test_a_delivery_is_signed_and_says_what_has_happened(sandbox: Platform, receiver: Receiver) -> None:
    endpoint_id = register(sandbox, receiver.url)
    (made,) = happen(sandbox)
    (attempt,) = settled(sandbox, made["webhookIds"][0])
    (received,) = receiver.received
    assert received.all("webhook-id") == made["webhookIds"]
    assert received.all("content-type") == ["application/json"]
    assert json.loads(received.body) == {
        "eventType": COMPLETED,
        "payload": {"openId4VcIssuanceId": made["resourceId"]},
    }
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    assert received.token("v1") == hmac.digest(key, received.signed(), hashlib.sha256)
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


@pytest.mark.parametrize("options", [["--unsigned"], ["whsk"], ["whsk", "--signing-secret", SECRET]])
def test_deliveries_are_signed_as_told(options: list[str], ca: Path, receiver: Receiver, tmp_path: Path) -> None:
    private = f"whsk_{base64.b64encode(bytes(range(32))).decode()}"
    told = ["--signing-secret", private, *options[1:]] if options[0] == "whsk" else options
    with platform(tmp_path, "--ca", str(ca), *told) as sandbox:
        register(sandbox, receiver.url)
        happen(sandbox, DATA)
        settled(sandbox)
    (received,) = receiver.received
    printed = sandbox.environment.get("CREDHOOK_WEBHOOK_SECRETS", "")
    if options == ["--unsigned"]:
        assert printed == ""
        assert received.all("webhook-id")
        assert not received.all("webhook-timestamp") + received.all("webhook-signature")
        return
    public = printed.strip('"').split(" ")[0].removeprefix("whpk_")
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public))
    key.verify(received.token("v1a"), received.signed())
    assert ("v1," in f" {received.all('webhook-signature')[0]}") == (len(options) > 1)


def test_an_endpoint_receives_what_it_asked_for(sandbox: Platform, receiver: Receiver) -> None:
    register(sandbox, receiver.url, DATA, COMPLETED)
    (unwanted,) = happen(sandbox, "openid4vc.issuance.offered")
    (wanted,) = happen(sandbox, DATA)
    settled(sandbox)
    assert unwanted["webhookIds"] == []
    assert [received.id for received in receiver.received] == wanted["webhookIds"]


def test_each_endpoint_gets_a_delivery_of_its_own(sandbox: Platform, receiver: Receiver) -> None:
    register(sandbox, receiver.url)
    register(sandbox, f"{receiver.url}/2")
    (made,) = happen(sandbox)
    settled(sandbox)
    assert len(set(made["webhookIds"])) == 2
    assert {received.id for received in receiver.received} == set(made["webhookIds"])


@pytest.mark.parametrize("status", [302, 400, 404, 429, 500, 503])
def test_anything_but_2xx_is_retried_under_the_same_id(sandbox: Platform, receiver: Receiver, status: int) -> None:
    register(sandbox, receiver.url)
    receiver.statuses = [status, status]
    (made,) = happen(sandbox)
    attempts = settled(sandbox, made["webhookIds"][0])
    assert [(each["attempt"], each["status"], each["outcome"]) for each in attempts] == [
        (1, status, "retrying"),
        (2, status, "retrying"),
        (3, 202, "acknowledged"),
    ]
    assert [received.id for received in receiver.received] == made["webhookIds"] * 3
    assert len({received.body for received in receiver.received}) == 1


def test_a_receiver_that_is_not_there_is_retried(sandbox: Platform, authority: trustme.CA) -> None:
    with receiving(authority.issue_cert("127.0.0.1")) as gone:
        pass
    register(sandbox, gone.url)
    (made,) = happen(sandbox)

    def attempts() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{sandbox.url}/sandbox/deliveries").json()["data"]
        return [each for each in found if each["webhookId"] == made["webhookIds"][0]]

    until(lambda: len(attempts()) >= 2)
    assert attempts()[0]["status"] is None
    assert "ConnectError" in attempts()[0]["error"]
    assert attempts()[0]["outcome"] == "retrying"


def test_a_receiver_that_cannot_prove_itself_gets_nothing(sandbox: Platform) -> None:
    with receiving(trustme.CA().issue_cert("127.0.0.1")) as stranger:
        register(sandbox, stranger.url)
        happen(sandbox)
        url = f"{sandbox.url}/sandbox/deliveries?limit=1"
        until(lambda: "CERTIFICATE_VERIFY_FAILED" in str(httpx.get(url).json()["data"]))
        assert stranger.received == []


@pytest.mark.parametrize("url", ["https://a..b/", "https://xn--a/", f"https://{'a' * 70}.example/", "https://[::1]:1/"])
def test_an_endpoint_that_cannot_be_reached_fails_and_nothing_else_does(
    sandbox: Platform, receiver: Receiver, url: str
) -> None:
    register(sandbox, url)
    register(sandbox, receiver.url)
    happen(sandbox)
    until(lambda: len(receiver.received) == 1)


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"[]", b'{"data": 1}', b'{"data": {"status": 1}}', b'{"data": {"status": "\\ud800"}}']
)
def test_what_a_receiver_says_may_be_anything(sandbox: Platform, receiver: Receiver, body: bytes) -> None:
    register(sandbox, receiver.url)
    receiver.body = body
    (made,) = happen(sandbox)
    (attempt,) = settled(sandbox, made["webhookIds"][0])
    assert (attempt["answer"], attempt["outcome"]) == (None, "acknowledged")


def test_a_delivery_is_repeated_although_acknowledged(sandbox: Platform, receiver: Receiver) -> None:
    register(sandbox, receiver.url)
    sandbox.faults(duplicate=3)
    receiver.statuses = [202, 500]
    made = happen(sandbox, count=5)
    settled(sandbox)
    ids = Counter(received.id for received in receiver.received)
    assert set(ids) == {each["webhookIds"][0] for each in made}
    assert sorted(ids.values()) == [3, 3, 3, 3, 4]


def test_deliveries_come_in_another_order(sandbox: Platform, receiver: Receiver) -> None:
    register(sandbox, receiver.url)
    sandbox.faults(reorder=3)
    made = [each["webhookIds"][0] for number in (3, 1) for each in happen(sandbox, count=number)]
    settled(sandbox)
    assert {received.id for received in receiver.received} == set(made)
    assert receiver.received[-1].id == made[3]
    assert settled(sandbox, made[0])[0]["startedAt"] > settled(sandbox, made[2])[0]["startedAt"]


def test_a_delivery_is_late(sandbox: Platform, receiver: Receiver) -> None:
    register(sandbox, receiver.url)
    sandbox.faults(delayMs=2_000)
    late = happen(sandbox)[0]["webhookIds"][0]
    sandbox.faults(delayMs=0)
    prompt = happen(sandbox)[0]["webhookIds"][0]
    settled(sandbox)
    assert [received.id for received in receiver.received] == [prompt, late]


def test_a_lost_attempt_is_made_again(sandbox: Platform, receiver: Receiver) -> None:
    register(sandbox, receiver.url)
    sandbox.faults(drop=1, loseAnswers=1)
    (made,) = happen(sandbox)
    attempts = settled(sandbox, made["webhookIds"][0])
    assert [(each["status"], each["answer"]) for each in attempts] == [
        (None, None),
        (None, "accepted"),
        (202, "accepted"),
    ]
    assert len(receiver.received) == 2


def test_forgeries_come_beside_a_delivery_and_none_verifies(sandbox: Platform, receiver: Receiver) -> None:
    register(sandbox, receiver.url)
    sandbox.faults(forge=5)
    genuine = happen(sandbox)[0]["webhookIds"][0]
    until(lambda: len(receiver.received) == 6)
    assert [received.id for received in receiver.received if verifies(received)] == [genuine]

    def forged() -> list[dict[str, Any]]:
        found = httpx.get(f"{sandbox.url}/sandbox/deliveries").json()["data"]
        return [each for each in found if each["forged"]]

    until(lambda: len(forged()) == 5)
    assert {each["forged"] for each in forged()} == {"wrongKey", "changedBody", "stale", "unsigned", "secondId"}
    with authorized(sandbox) as api:
        paths = [f"/me-creds/api/credentials/{each['resourceId']}" for each in forged()]
        assert {api.get(path).status_code for path in paths} == {404}


def verifies(received: Received) -> bool:
    if len(received.all("webhook-id")) != 1 or not received.all("webhook-signature"):
        return False
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    fresh = abs(int(received.all("webhook-timestamp")[0]) - time.time()) < 300
    return fresh and received.token("v1") == hmac.digest(key, received.signed(), hashlib.sha256)


def test_a_removed_endpoint_gets_no_more(sandbox: Platform, receiver: Receiver) -> None:
    id_ = register(sandbox, receiver.url)
    receiver.statuses = [500] * 8
    (made,) = happen(sandbox)
    until(lambda: receiver.received)
    with authorized(sandbox) as api:
        assert api.delete(f"/me-creds/api/endpoints/{id_}").status_code == 204
    attempts = settled(sandbox, made["webhookIds"][0])
    assert "acknowledged" not in {each["outcome"] for each in attempts}


def test_a_receiver_that_is_gone_for_good_is_switched_off(sandbox: Platform, receiver: Receiver) -> None:
    register(sandbox, receiver.url)
    receiver.statuses = [410]
    (made,) = happen(sandbox)
    (attempt,) = settled(sandbox, made["webhookIds"][0])
    assert attempt["outcome"] == "givenUp"
    (registration,) = httpx.get(f"{sandbox.url}/sandbox/endpoints").json()["data"]
    assert registration["switchedOffAt"]
    assert happen(sandbox)[0]["webhookIds"] == []


def test_an_endpoint_that_keeps_failing_is_given_up_and_then_switched_off(
    ca: Path, receiver: Receiver, tmp_path: Path
) -> None:
    with platform(tmp_path, "--ca", str(ca), "--time-scale", "0.000001") as sandbox:
        register(sandbox, receiver.url)
        receiver.statuses = [500] * 1000
        (made,) = happen(sandbox)
        attempts = settled(sandbox, made["webhookIds"][0])
        assert [each["outcome"] for each in attempts] == ["retrying"] * 7 + ["givenUp"]

        def switched_off() -> bool:
            happen(sandbox)
            (registration,) = httpx.get(f"{sandbox.url}/sandbox/endpoints").json()["data"]
            return registration["switchedOffAt"] is not None

        until(switched_off)


def test_a_success_ends_a_failure(sandbox: Platform, receiver: Receiver) -> None:
    register(sandbox, receiver.url)
    receiver.statuses = [500]
    happen(sandbox)
    settled(sandbox)
    (registration,) = httpx.get(f"{sandbox.url}/sandbox/endpoints").json()["data"]
    assert (registration["failingSince"], registration["switchedOffAt"]) == (None, None)


def test_an_accepted_offer_is_announced(sandbox: Platform, receiver: Receiver) -> None:
    register(sandbox, receiver.url, COMPLETED)
    (made,) = happen(sandbox, "openid4vc.issuance.offered")
    with authorized(sandbox) as api:
        offer = api.get(f"/me-creds/api/credentials/{made['resourceId']}").json()["data"]["offerUri"]
        api.post("/me-wallet/api/credentials", json={"credentialOffer": offer}).raise_for_status()
    settled(sandbox)
    assert [json.loads(received.body)["payload"] for received in receiver.received] == [
        {"openId4VcIssuanceId": made["resourceId"]}
    ]


def test_a_restart_keeps_everything_and_goes_on_delivering(ca: Path, receiver: Receiver, tmp_path: Path) -> None:
    options = ["--ca", str(ca), "--state", str(tmp_path / "state.db")]
    receiver.statuses = [500] * 3
    with platform(tmp_path, *options) as sandbox:
        register(sandbox, receiver.url)
        (made,) = happen(sandbox)
        until(lambda: len(receiver.received) == 3)
        csrs = httpx.get(f"{sandbox.url}/sandbox/csrs").json()["data"]
        assert sandbox.stop() == 0
    with platform(tmp_path, *options) as sandbox:
        attempts = settled(sandbox, made["webhookIds"][0])
        assert attempts[-1]["outcome"] == "acknowledged"
        assert httpx.get(f"{sandbox.url}/sandbox/csrs").json()["data"] == csrs
        with authorized(sandbox) as api:
            assert len(api.get("/me-creds/api/endpoints").json()) == 1
            details = api.get(f"/me-creds/api/credentials/{made['resourceId']}")
        assert details.json()["data"]["status"] == "completed"
    assert {received.id for received in receiver.received} == set(made["webhookIds"])


def test_a_receiver_that_hangs_does_not_keep_the_sandbox_from_ending(
    ca: Path, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.hang = threading.Event()
    with platform(tmp_path, "--ca", str(ca)) as sandbox:
        register(sandbox, receiver.url)
        happen(sandbox, count=20)
        until(lambda: receiver.received)
        sandbox.process.terminate()
        assert sandbox.process.wait(60) == 0
