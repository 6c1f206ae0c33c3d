"""The platform's specification, row by row, run by our client against the sandbox over real HTTP.

Every row names the section that it comes from. Three tables: `DONE` is what the platform does, `RULES` is what a
request's fields may hold (refused here before anything is sent, and refused by the platform if it is sent all the
same), `REFUSED` is what the platform answers when it does not.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest
from pydantic import TypeAdapter
from serving import Platform

from worker.api.auth import ClientCredentials
from worker.api.client import SyncApi
from worker.api.models import (
    PresetRequest,
    UserRequest,
)

TYPES = (
    "openid4vc.issuance.offered",
    "openid4vc.issuance.completed",
    "openid4vc.issuance.failed",
    "openid4vc.issuance.partiallyIssued",
    "openid4vc.issuance.expired",
    "openid4vc.verification.requested",
    "openid4vc.verification.verified",
    "openid4vc.verification.failed",
    "openid4vc.verification.expired",
    "openid4vc.verification.data",
)

FUTURE = {"days": 0, "months": 6, "years": 1}

#: Requests that the specification allows, with every field that it names. `unique` renews what must not repeat.
SD_JWT: dict[str, Any] = {
    "credentialFormat": "sd-jwt",
    "templateName": "Badge",
    "code": "badge",
    "templateDescription": "Says that somebody wears one.",
    "templateAttributes": {
        "a": {"type": "string", "name": "n", "description": "d", "required": True, "alwaysDisclosed": True}
    },
    "issuerConfig": {"signer": "certificate", "keyType": "P-256"},
    "validUntil": {"start": "issuance", "future": FUTURE},
}
MDOC: dict[str, Any] = {
    "credentialFormat": "mdoc",
    "templateName": "Permit",
    "code": "permit",
    "templateDescription": "Says that somebody may enter.",
    "type": "org.example.permit.1",
    "templateAttributes": {
        "org.example": {"properties": {"a": {"type": "string", "name": "n", "description": "d", "required": True}}}
    },
    "validUntil": {"future": FUTURE},
    "issuerConfig": {"signer": "certificate", "keyType": "Ed25519"},
}
ENDPOINT: dict[str, Any] = {"url": "https://127.0.0.1:9/hooks", "id": "e", "filterTypes": ["openid4vc.issuance.failed"]}
ENTITY: dict[str, Any] = {"name": "Issuer", "dids": [{"did": "did:web:a.example", "name": "A"}], "certificates": []}
USER: dict[str, Any] = {
    "email": "u@b.example",
    "username": "u",
    "firstName": "Ada",
    "lastName": "Example",
    "externalIdentifier": "x",
}


class Recording(httpx.HTTPTransport):
    """The network, remembering the last exchange with the API and with the token endpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges: list[tuple[httpx.Request, httpx.Response]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        answer.read()
        kept = httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)
        self.exchanges.append((request, kept))
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


class Bench:
    """A client, the platform that it calls, and what went between them."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.wire = Recording()
        self.now = 1_000.0
        self.auth = ClientCredentials(
            platform.environment["CREDHOOK_TOKEN_URL"], "sandbox", "sandbox", clock=lambda: self.now
        )
        self.api = SyncApi(platform.url, self.auth, transport=self.wire)

    @property
    def request(self) -> httpx.Request:
        return self.wire.exchanges[-1][0]

    @property
    def answer(self) -> httpx.Response:
        return self.wire.exchanges[-1][1]

    @property
    def body(self) -> Any:
        return self.answer.json()

    def sent_to(self, path: str) -> int:
        return sum(request.url.path.endswith(path) for request, _ in self.wire.exchanges)

    def sandbox(self, method: str, path: str, **options: Any) -> Any:
        """Ask what is the sandbox's own and not the platform's."""
        return httpx.request(method, f"{self.platform.url}/sandbox{path}", **options).raise_for_status().json()["data"]

    def make(self, event_type: str, **more: object) -> str:
        return self.platform.make(event_type, **more)

    def chain(self) -> tuple[str, str, list[str]]:
        """A signing request's id, its certificate, and the parents: intermediate, root."""
        csr = self.sandbox("GET", "/csrs")[0]["id"]
        signed = self.sandbox("POST", f"/csrs/{csr}/sign")
        return csr, signed["certificate"], signed["parentCertificates"]

    def offer(self, template: str = "sandbox:membership") -> str:
        issuance = self.make("openid4vc.issuance.offered", templateId=template)
        uri = self.api.issuances.get(issuance).offer_uri
        assert uri is not None
        return uri


@pytest.fixture
def bench(sandbox: Platform) -> Iterator[Bench]:
    bench = Bench(sandbox)
    yield bench
    sandbox.clear()
    for endpoint in bench.api.endpoints.list():
        bench.api.endpoints.delete(endpoint.id)
    bench.api.close()


def unique(document: dict[str, Any]) -> dict[str, Any]:
    """The document with a name of its own wherever the platform wants one."""
    mark = uuid4().hex[:12]
    renewed = {
        "code": f"{document.get('code')}-{mark}",
        "id": f"{document.get('id')}-{mark}",
        "email": f"{mark}@b.example",
        "username": f"user-{mark}",
        "externalIdentifier": f"crm-{mark}",
    }
    return document | {name: value for name, value in renewed.items() if name in document}


def preset(document: dict[str, Any]) -> Any:
    return TypeAdapter[Any](PresetRequest).validate_python(document)


def user(**fields: Any) -> UserRequest:
    return UserRequest.model_validate(fields)


def is_timestamp(text: object) -> bool:
    """ISO 8601, with a date, a time and a zone."""
    return isinstance(text, str) and "T" in text and datetime.fromisoformat(text).tzinfo is not None


# What the platform does.


def creates_an_sd_jwt_preset(bench: Bench) -> None:
    wanted = unique(SD_JWT)
    created = bench.api.presets.create(preset(wanted))
    assert bench.answer.status_code == 200
    assert bench.request.headers["content-type"] == "application/json"
    shown = bench.body["data"]
    assert {name: shown[name] for name in wanted} == wanted
    assert created.id == f"{created.author}:{wanted['code']}"
    assert urlsplit(created.template_type).scheme
    assert created.code in created.template_type
    assert created.author in created.template_type
    assert is_timestamp(shown["createdAt"])
    assert is_timestamp(shown["updatedAt"])


def creates_an_mdoc_preset(bench: Bench) -> None:
    wanted = unique(MDOC)
    created = bench.api.presets.create(preset(wanted))
    assert bench.answer.status_code == 200
    shown = bench.body["data"]
    assert (
        {name: shown[name] for name in wanted if name != "type"} == {**wanted, "type": 0} | {"type": 0} and False
    ) or {name: shown[name] for name in wanted if name != "type"} == {
        name: value for name, value in wanted.items() if name != "type"
    }
    assert created.template_type == wanted["type"]
    assert created.id == f"{created.author}:{wanted['code']}"
    assert is_timestamp(shown["createdAt"])
    assert is_timestamp(shown["updatedAt"])
