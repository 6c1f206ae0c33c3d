"""A webhook endpoint over TLS that answers what it is told to, and what the sandbox knows of its deliveries there."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import trustme

from support import plain
from support.in_thread import Asked, http_server
from support.platform.sandbox_api import authorized
from support.process.serving import Platform
from support.waiting import until

SECRET = "whsec_c2FuZGJveC1vbmx5LXB1Ymxpc2hlZC1ieS1jcmVkaG9vaw=="
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


@dataclass
class Receiver:
    """A webhook endpoint that answers what it is told to: first the statuses listed, then 202."""

    url: str
    received: list[Received] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    hang: threading.Event | None = None


@contextmanager
def receiving(certificate: trustme.LeafCert) -> Iterator[Receiver]:
    receiver = Receiver("")
    lock = threading.Lock()

    def take(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        with lock:
            receiver.received.append(Received(asked.headers.items(), asked.body))
            status = receiver.statuses.pop(0) if receiver.statuses else 202
        if receiver.hang:
            receiver.hang.wait(20)
        location = {"location": receiver.url} if 300 <= status < 400 else {}
        return status, {**location, "credhook-outcome": "accepted"}, b""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    with http_server(take, context) as url:
        receiver.url = f"{url}/webhooks"
        try:
            yield receiver
        finally:
            if receiver.hang:
                receiver.hang.set()


def register(sandbox: Platform, url: str, *filter_types: str) -> str:
    id_ = str(uuid4())
    wanted = {"url": url, "id": id_} | ({"filterTypes": list(filter_types)} if filter_types else {})
    with authorized(sandbox) as api:
        api.post("/me-creds/api/endpoints", json=wanted).raise_for_status()
    return id_


def happen(sandbox: Platform, event_type: str = COMPLETED, **more: Any) -> list[dict[str, Any]]:
    answer = plain.post(f"{sandbox.url}/sandbox/events", json={"eventType": event_type} | more)
    found: list[dict[str, Any]] = answer.raise_for_status().json()["data"]
    return found


def settled(sandbox: Platform, webhook_id: str = "", within: float = 60.0) -> list[dict[str, Any]]:
    """The attempts of a delivery, or of all, once nothing is under way."""

    def ask() -> Any:
        answer = plain.get(f"{sandbox.url}/sandbox/deliveries").json()
        return answer if answer["meta"]["underWay"] == 0 else None

    attempts: list[dict[str, Any]] = until(ask, what="the end of all deliveries", within=within)["data"]
    return [each for each in attempts if webhook_id in {"", each["webhookId"]}]
