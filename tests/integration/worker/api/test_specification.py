"""The platform's specification, section by section, run by our client against the sandbox over real HTTP.

`RULES` is what a request's fields may hold. What they may not is refused here before anything is sent, and by the
platform if it is sent all the same. The sandbox's own tests hold its errors to the specification.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from copy import deepcopy
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from pydantic import TypeAdapter, ValidationError

from credhook.worker.api import models, operations
from credhook.worker.api.client import Api
from credhook.worker.api.errors import InvalidRequest
from credhook.worker.api.http.exchange import Request, Response
from credhook.worker.api.http.transport import CurlTransport
from credhook.worker.api.token import ClientCredentials
from support import plain
from support.platform.presets import FUTURE, MDOC, SD_JWT
from support.platform.transports import api_over, for_threads, sender_of
from support.process.serving import Platform

TYPES = (
    *(f"openid4vc.issuance.{word}" for word in ("offered", "completed", "failed", "partiallyIssued", "expired")),
    *(f"openid4vc.verification.{word}" for word in ("requested", "verified", "failed", "expired", "data")),
)

#: Requests that the specification allows, with every field that it names. `unique` renews what must not repeat.
ENDPOINT: dict[str, Any] = {"url": "https://127.0.0.1:9/hooks", "id": "e", "filterTypes": ["openid4vc.issuance.failed"]}
ENTITY: dict[str, Any] = {"name": "Issuer", "dids": [{"did": "did:web:a.example", "name": "A"}], "certificates": []}
USER: dict[str, Any] = {
    "email": "u@b.example",
    "username": "u",
    "firstName": "Ada",
    "lastName": "Example",
    "externalIdentifier": "x",
}
OFFER = {"credentialOffer": "openid-credential-offer://?x"}
CERTIFICATE = {"certificate": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"}


class Recording(CurlTransport):
    """The network, remembering each answer of the API and of the token endpoint, with its request."""

    def __init__(self) -> None:
        super().__init__(10.0)
        self.answers: list[httpx.Response] = []

    async def send(self, request: Request) -> Response:
        response = await super().send(request)
        sent = httpx.Request(request.method, request.url, headers=dict(request.headers), content=request.body)
        self.answers.append(httpx.Response(response.status, headers=response.headers, content=response.body))
        self.answers[-1].request = sent
        return response


class Bench:
    """A client, the platform that it calls, and what went between them."""

    def __init__(self, platform: Platform, api: Api, wire: Recording) -> None:
        self.platform, self.api, self.wire = platform, api, wire

    @property
    def answer(self) -> httpx.Response:
        return self.wire.answers[-1]

    @property
    def body(self) -> Any:
        return self.answer.json()

    def sandbox(self, method: str, path: str, **options: Any) -> Any:
        """Ask what is the sandbox's own and not the platform's."""
        answer = plain.request(method, f"{self.platform.url}/sandbox{path}", **options)
        return answer.raise_for_status().json()["data"]

    def offer(self, template: str = "sandbox:membership", **more: object) -> str:
        issuance = self.platform.make("openid4vc.issuance.offered", templateId=template, **more)
        uri = self.api.issuances.get(issuance).offer_uri
        assert uri is not None
        return uri


@pytest.fixture(scope="module")
def client(sandbox: Platform) -> Iterator[Bench]:
    """A client for this thread and others, with an event loop of the workers' kind."""
    wire = Recording()
    auth = ClientCredentials(sandbox.environment["CREDHOOK_TOKEN_URL"], "sandbox", "sandbox")

    @asynccontextmanager
    async def opened() -> AsyncIterator[Api]:
        async with aclosing(wire), aclosing(auth), api_over(wire, sandbox.url, auth) as api:
            yield for_threads(api)

    options = {"use_uvloop": True}
    with start_blocking_portal(backend_options=options) as portal, portal.wrap_async_context_manager(opened()) as api:
        yield Bench(sandbox, api, wire)


@pytest.fixture
def bench(client: Bench) -> Iterator[Bench]:
    yield client
    client.platform.clear()
    for endpoint in client.api.endpoints.list():
        client.api.endpoints.delete(endpoint.id)


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
    return TypeAdapter[Any](models.PresetRequest).validate_python(document)


def is_timestamp(text: object) -> bool:
    """ISO 8601, with a date, a time and a zone."""
    return isinstance(text, str) and "T" in text and datetime.fromisoformat(text).tzinfo is not None


def added_to(wanted: dict[str, Any], bench: Bench) -> set[str]:
    """Compare the answer with the request, and return the names of the fields that only the answer has."""
    shown: dict[str, Any] = bench.body["data"]
    assert {name: shown[name] for name in wanted} == wanted
    assert is_timestamp(shown["createdAt"])
    assert is_timestamp(shown["updatedAt"])
    return shown.keys() - wanted.keys()


# Response envelope.


def test_a_client_reads_every_answer_with_and_without_its_envelope(bench: Bench) -> None:
    created = bench.api.endpoints.create(models.EndpointRequest.model_validate(unique(ENDPOINT)))
    bench.platform.faults(envelopes="swapped")
    assert created in bench.api.endpoints.list()
    assert isinstance(bench.body, dict)
    assert bench.api.templates.get("sandbox:membership").id == "sandbox:membership"
    assert "data" not in bench.body
    assert bench.api.wallet.accept(credential_offer=bench.offer())
    assert isinstance(bench.body, dict)


# Credential preset, credential template.


@pytest.mark.parametrize("document", [SD_JWT, MDOC], ids=["sd-jwt", "mdoc"])
def test_a_preset_is_answered_with_what_was_asked_and_becomes_a_template(
    bench: Bench, document: dict[str, Any]
) -> None:
    wanted = unique(document)
    created = bench.api.presets.create(preset(wanted))
    assert bench.answer.status_code == 200
    assert created.id == f"{created.author}:{wanted['code']}"
    if vct := wanted.pop("type", None):
        assert created.template_type == vct
    else:
        assert created.template_type.startswith(("https:", "http:", "urn:"))
        assert created.author in created.template_type
        assert wanted["code"] in created.template_type
    assert added_to(wanted, bench) == {"id", "author", "templateType", "createdAt", "updatedAt"}

    template = bench.api.templates.get(created.id)
    assert bench.answer.status_code == 200
    assert set(bench.body["data"]) == {
        *("name", "description", "attributes", "createdAt", "updatedAt", "archivedAt", "format", "id", "type"),
    }
    assert bench.body["data"]["attributes"] == wanted["templateAttributes"]
    assert (template.id, template.type) == (created.id, created.template_type)
    assert (template.name, template.description) == (wanted["templateName"], wanted["templateDescription"])
    assert template.format == ("mdoc" if vct else "sd-jwt-vc")
    assert template.attributes


def test_preset_always_has_an_issuer(bench: Bench) -> None:
    left_out = {"issuerConfig", "validUntil", "credentialFormat"}  # The format is that of the model.
    wanted = {name: value for name, value in unique(SD_JWT).items() if name not in left_out}
    bench.api.presets.create(models.SdJwtPresetRequest.model_validate(wanted))
    assert bench.body["data"]["issuerConfig"]["signer"] in {"did:web", "certificate"}
    assert "validUntil" not in bench.body["data"]
    wanted = {name: value for name, value in unique(MDOC).items() if name not in left_out - {"validUntil"}}
    bench.api.presets.create(models.MdocPresetRequest.model_validate(wanted))
    assert bench.body["data"]["issuerConfig"] is None


# User, identity link result.


def test_a_user_has_an_id_names_an_address_and_is_enabled(bench: Bench) -> None:
    wanted = unique(USER)
    assert not bench.api.users.create(models.UserRequest.model_validate(wanted)).existed
    assert bench.api.users.create(models.UserRequest.model_validate(wanted)).existed
    found = next(each for each in bench.api.users.list() if each.username == wanted["username"])
    shown = next(each for each in bench.body["data"] if each["username"] == wanted["username"])
    assert set(shown) == {"id", "username", "email", "firstName", "lastName", "enabled"}
    assert UUID(found.id)
    assert (found.email, found.first_name, found.last_name) == (wanted["email"], "Ada", "Example")
    assert found.enabled is True


def test_a_link_names_the_user_and_the_tenants_provider_and_is_idempotent(bench: Bench) -> None:
    name = f"user-{uuid4().hex}"
    bench.api.users.create(models.UserRequest(username=name))
    for enabled in (True, True, False, False, True):
        link = bench.api.users.link_identity(name, enabled=enabled)
        assert set(bench.body["data"]) == {"username", "idpAlias", "linked"}
        assert (link.username, link.linked) == (name, enabled)
        assert link.idp_alias


def test_names_with_characters_that_urls_reserve_are_found(bench: Bench) -> None:
    for mark in ("a+b@c.example", "a b", "a/b", "ä%2fb", "a?b=c&d#e;f", "日本"):
        wanted = {"username": f"{mark}{uuid4().hex}".lower(), "externalIdentifier": f"crm/{mark}{uuid4().hex}"}
        bench.api.users.create(models.UserRequest.model_validate(wanted))
        assert bench.api.users.by_external_identifier(wanted["externalIdentifier"]).username == wanted["username"]
        found = bench.api.users.external_identifier(wanted["username"])
        assert found.external_identifier == wanted["externalIdentifier"]
        assert bench.api.users.link_identity(wanted["username"], enabled=True).linked


# Wallet credential, limits.


def test_accepted_offer_becomes_credentials_with_every_field(bench: Bench) -> None:
    wanted = unique(SD_JWT)
    wanted["templateAttributes"] = {
        "text": {"type": "string"},
        "count": {"type": "number"},
        "flag": {"type": "boolean"},
        "deep": {"type": "object", "properties": {"inner": {"type": "string"}}},
        "many": {"type": "array", "items": {"type": "number"}},
    }
    claims = {"text": "ä", "count": 1.5, "flag": False, "deep": {"inner": "x"}, "many": [1, 2]}
    template = bench.api.presets.create(preset(wanted)).id
    credentials = bench.api.wallet.accept(credential_offer=bench.offer(template, attributes=claims))
    assert bench.answer.status_code == 201
    assert credentials
    for credential, shown in zip(credentials, bench.body, strict=True):
        assert {"id", "claims", "iat", "status", "format", "vct"} <= set(shown)
        assert UUID(shown["id"]) == credential.id
        assert is_timestamp(shown["iat"])
        assert shown["format"] == "vc+sd-jwt"
        assert shown["claims"] == credential.claims == claims


def test_the_issuer_is_a_did_for_sd_jwt_and_a_distinguished_name_for_mdoc(bench: Bench) -> None:
    for document, beginning in ((SD_JWT, "did:"), (MDOC, "CN=")):
        template = bench.api.presets.create(preset(unique(document))).id
        issuer = bench.api.wallet.accept(credential_offer=bench.offer(template))[0].iss
        assert issuer is not None
        assert issuer.startswith(beginning)


def test_a_vct_has_1_to_256_characters(bench: Bench) -> None:
    for length in (1, 256):
        template = bench.api.presets.create(preset(unique(MDOC) | {"type": "t" * length})).id
        assert bench.api.wallet.accept(credential_offer=bench.offer(template))[0].vct == "t" * length
    template = bench.api.presets.create(preset(unique(MDOC) | {"type": "t" * 257})).id
    with pytest.raises(InvalidRequest) as caught:
        bench.api.wallet.accept(credential_offer=bench.offer(template))
    assert caught.value.status == 400


# Certificate record, trusted entity, webhook endpoint.


def test_an_import_is_answered_with_a_record_of_strings(bench: Bench) -> None:
    csr = bench.sandbox("GET", "/csrs")[0]["id"]
    signed = bench.sandbox("POST", f"/csrs/{csr}/sign")
    record = bench.api.certificates.import_(csr, models.CertificateRequest.model_validate(signed))
    shown = bench.body["data"]
    assert set(shown) == {
        *("id", "createdAt", "updatedAt", "certificateSigningRequest"),
        *("subjectKeyIdentifier", "certificateId", "expiresAt"),
    }
    assert all(isinstance(value, str) for value in shown.values())
    assert record.certificate_id == shown["certificateId"]


def test_a_trusted_entity_is_answered_with_every_field(bench: Bench) -> None:
    entity = bench.api.trusted_entities.create(models.TrustedEntityRequest.model_validate(ENTITY))
    assert bench.answer.status_code == 201
    assert added_to(ENTITY, bench) == {"id", "createdAt", "updatedAt"}
    assert entity.id


def test_endpoints_are_answered_with_every_field_listed_and_deleted(bench: Bench) -> None:
    wanted = [unique(ENDPOINT) for _ in range(3)]
    for each in wanted:
        assert bench.api.endpoints.create(models.EndpointRequest.model_validate(each)).id == each["id"]
        assert bench.answer.status_code == 201
        assert added_to(each, bench) == {"createdAt", "updatedAt"}
    with pytest.raises(InvalidRequest) as caught:
        bench.api.endpoints.create(models.EndpointRequest.model_validate(wanted[0]))
    assert (caught.value.status, caught.value.errors[0].code) == (409, "CONFLICT")
    assert {each.id for each in bench.api.endpoints.list()} == {each["id"] for each in wanted}
    assert isinstance(bench.body, list)
    for each in wanted:
        bench.api.endpoints.delete(each["id"])
        assert (bench.answer.status_code, bench.answer.content) == (204, b"")
    assert bench.api.endpoints.list() == ()


def test_an_endpoint_without_types_receives_every_event(bench: Bench) -> None:
    endpoint = bench.api.endpoints.create(models.EndpointRequest(url="https://127.0.0.1:9/"))
    assert set(endpoint.filter_types or TYPES) == set(TYPES)
    for event_type in TYPES:
        (happened,) = bench.sandbox("POST", "/events", json={"eventType": event_type})
        assert len(happened["webhookIds"]) == 1


# What a field may hold. `...` leaves the field out.

#: A name that no other row uses; fixed, because it becomes part of the names of tests.
SOME = "0-named-a"
#: A request that is allowed, its model, the operation that takes it, and the values of the operation's path.
REQUESTS: dict[str, tuple[dict[str, Any], TypeAdapter[Any], operations.Operation[Any], tuple[str, ...]]] = {
    "sd-jwt": (SD_JWT, TypeAdapter(models.PresetRequest), operations.Presets.create, ()),
    "mdoc": (MDOC, TypeAdapter(models.PresetRequest), operations.Presets.create, ()),
    "endpoint": (ENDPOINT, TypeAdapter(models.EndpointRequest), operations.Endpoints.create, ()),
    "entity": (ENTITY, TypeAdapter(models.TrustedEntityRequest), operations.TrustedEntities.create, ()),
    "user": (USER, TypeAdapter(models.UserRequest), operations.Users.create, ()),
    "link": ({"enabled": True}, TypeAdapter(models.IdentityLinkRequest), operations.Users.link_identity, ("u",)),
    "import": (CERTIFICATE, TypeAdapter(models.CertificateRequest), operations.Certificates.import_, ("csr",)),
    "offer": (OFFER, TypeAdapter(models.OfferRequest), operations.Wallet.accept, ()),
}

SD_JWT_ATTRIBUTE, MDOC_ATTRIBUTE = "templateAttributes/a", "templateAttributes/org.example/properties/a"

#: Request, field, values that it may have, values that it may not.
TABLE: list[tuple[str, str, Any, Any]] = [
    # Both formats: what is required, and of which type.
    *(
        row
        for request in ("sd-jwt", "mdoc")
        for row in (
            (request, "credentialFormat", [], [..., "SD-JWT", "jwt", 1]),
            (request, "templateName", [], [..., 1, ["a"]]),
            (request, "templateDescription", [], [..., 1]),
            (request, "code", [f"{SOME}-{request}"], [..., 1, "", "A", "a_b", "a b", "ä", "a.b", "a\n"]),
            (request, "templateAttributes", [{}], [..., [], "a"]),
            (request, "issuerConfig", [..., {"signer": "certificate"}], [{}, {"signer": "did:key"}, "certificate"]),
            (request, "issuerConfig/keyType", ["P-256", "Ed25519"], ["P-384", "p-256", 1]),
            (request, "validUntil/future", [], [..., {}, 1]),
            *((request, f"validUntil/future/{part}", [0, 1, 999], [-1, 0.5, "1", True, ...]) for part in FUTURE),
        )
    ),
    # sd-jwt alone.
    ("sd-jwt", "issuerConfig", [{"signer": "did:web"}], [{"signer": "did:web", "keyType": "P-256"}]),
    ("sd-jwt", "validUntil", [...], []),
    ("sd-jwt", "validUntil/start", ["issuance", "validFrom"], [..., "validUntil", "", 1]),
    ("sd-jwt", "type", [], ["org.example.permit"]),
    # mdoc alone.
    ("mdoc", "issuerConfig", [], [{"signer": "did:web"}]),
    ("mdoc", "validUntil", [], [...]),
    ("mdoc", "validUntil/start", [], ["issuance"]),
    ("mdoc", "type", ["t", "urn:a-b:1"], [..., 1, ""]),
    ("mdoc", "templateAttributes/org.example", [{"properties": {}}], [{}, {"a": {"type": "string"}}]),
    # Attributes.
    *(
        (request, field, [{"type": "string", "name": "n", "description": "d", "required": False}], [
            *({}, {"type": "text"}, {"type": 1}, {"type": "array", "items": {"type": "object"}}),
            *({"type": "string"} | wrong for wrong in ({"name": 1}, {"description": 1}, {"required": "true"})),
        ])
        for request, field in (("sd-jwt", SD_JWT_ATTRIBUTE), ("mdoc", MDOC_ATTRIBUTE))
    ),
    ("sd-jwt", SD_JWT_ATTRIBUTE, [
        *({"type": kind} for kind in ("string", "number", "boolean", "date", "array")),
        {"type": "string", "alwaysDisclosed": False},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"b": {"type": "object", "properties": {"c": {"type": "date"}}}}},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    ], [
        *({"type": kind} for kind in ("binary", "", None, "object")),
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"b": {"type": "text"}}},
        {"type": "array", "items": {"type": "text"}},
        {"type": "string", "alwaysDisclosed": 1},
        {"type": "string", "unknown": 1},
        {"type": "string", "properties": {}},
        {"type": "string", "items": {"type": "string"}},
        {"type": "object", "properties": {}, "items": {"type": "string"}},
    ]),
    ("mdoc", MDOC_ATTRIBUTE, [
        *({"type": kind} for kind in ("string", "number", "boolean", "date", "binary", "array")),
        {"type": "array", "items": {"type": "binary"}},
    ], [{"type": "object"}, {"type": "string", "alwaysDisclosed": True}]),
    # Webhook endpoints.
    ("endpoint", "url", ["https://a.example/hooks?x=y", "https://127.0.0.1:8443/"], [
        *(..., 1, "", "http://a.example/", "a.example", "https://", "https:///hooks", "ftp://a.example"),
    ]),
    ("endpoint", "id", [..., f"chosen-{SOME}"], [1]),
    ("endpoint", "filterTypes", [..., [*TYPES], *([each] for each in TYPES)], [
        *(["openid4vc.issuance.revoked"], [1], [], TYPES[0]),
    ]),
    ("endpoint", "filterType", [], [[]]),
    # Certificates and trusted entities.
    ("entity", "name", [], [..., 1]),
    ("entity", "dids", [..., []], [
        *("did:web:a", ["did:web:a"], [{"did": "did:web:a"}], [{"name": "n"}]),
        *([{"did": 1, "name": "n"}], [{"did": "did:web:a", "name": 1}]),
    ]),
    ("entity", "certificates", [..., [], ["any"], [{"any": 1}]], ["any"]),
    ("import", "certificate", [], [..., 1]),
    ("import", "parentCertificates", [], ["MIIB", [1]]),
    # Users.
    *(("user", field, [...], [1, ["a"]]) for field in USER),
    ("link", "enabled", [], [..., "true", 1]),
    # The wallet.
    ("offer", "credentialOffer", [], [..., 1, ""]),
]  # fmt: skip
RULES = [
    (request, field, value, may)
    for request, field, allowed, refused in TABLE
    for may, values in ((True, allowed), (False, refused))
    for value in values
]


def written(allowed: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    document = deepcopy(unique(allowed))
    *folders, last = field.split("/")
    place = document
    for folder in folders:
        place = place[folder]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("request_", "field", "value", "may"),
    RULES,
    ids=[
        f"{request}: {field} {'may' if may else 'may not'} be {'absent' if value is ... else json.dumps(value)[:40]}"
        for request, field, value, may in RULES
    ],
)
def test_a_field_holds_what_the_specification_says(
    bench: Bench, request_: str, field: str, value: Any, may: bool
) -> None:
    allowed, reader, operation, names = REQUESTS[request_]
    document = written(allowed, field, value)
    if may:
        shown = (
            sender_of(bench.api)
            .send(operation(reader.validate_python(document)))
            .model_dump(mode="json", exclude_unset=True)
        )
        assert json.loads(bench.answer.request.content) == document
        assert request_ == "user" or all(shown[name] == sent for name, sent in document.items() if name != "type")
    else:
        with pytest.raises(ValidationError):
            reader.validate_python(document)
        call = operation(*names, reader.validate_python(allowed))
        with pytest.raises(InvalidRequest) as caught:
            sender_of(bench.api).send(replace(call, body=json.dumps(document).encode()))
        assert (caught.value.status, caught.value.errors[0].code) == (400, "VALIDATION_ERROR")


def test_refused_attributes_name_only_the_template(bench: Bench) -> None:
    happen = operations.Operation[Any]("sandbox.events", "POST", "/sandbox/events", Any)
    event = {"eventType": TYPES[0], "templateId": "sandbox:membership", "attributes": {"shoeSize": 44}}
    with pytest.raises(InvalidRequest) as caught:
        sender_of(bench.api).send(operations.Call(happen, happen.path, body=json.dumps(event).encode()))
    (error,) = caught.value.errors
    assert (error.status, error.code, error.title) == ("400", "VALIDATION_ERROR", "Validation Failed")
    assert "sandbox:membership" in (error.detail or "")
    assert "shoeSize" not in bench.answer.text
