"""The platform's specification, row by row, run by our client against the sandbox over real HTTP.

Every row names the section that it comes from. Three tables: `DONE` is what the platform does, `RULES` is what a
request's fields may hold (refused here before anything is sent, and refused by the platform if it is sent all the
same), `REFUSED` is what the platform answers when it does not.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from pydantic import TypeAdapter, ValidationError
from serving import Platform
from threaded_client import sync_api

from credhook.worker.api.errors import ApiError, InvalidRequest, NotFound, Unauthorized, Unavailable
from credhook.worker.api.http.exchange import Request, Response
from credhook.worker.api.http.transport import PyreqwestTransport, shared_ssl_context
from credhook.worker.api.models import (
    CertificateRequest,
    EndpointRequest,
    IdentityLinkRequest,
    OfferRequest,
    PresetRequest,
    TrustedEntityRequest,
    UserRequest,
)
from credhook.worker.api.operations import (
    Call,
    Certificates,
    Endpoints,
    Operation,
    Presets,
    TrustedEntities,
    Users,
    Wallet,
)
from credhook.worker.api.token import ClientCredentials

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


class Recording(PyreqwestTransport):
    """The network, remembering each exchange with the API and with the token endpoint."""

    def __init__(self) -> None:
        super().__init__(10.0)
        self.exchanges: list[tuple[httpx.Request, httpx.Response]] = []

    async def send(self, request: Request) -> Response:
        response = await super().send(request)
        sent = httpx.Request(request.method, request.url, headers=dict(request.headers), content=request.body)
        self.exchanges.append((sent, httpx.Response(response.status, headers=response.headers, content=response.body)))
        return response


class Bench:
    """A client, the platform that it calls, and what went between them."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.wire = Recording()
        self._opened = ExitStack()
        self.aside = httpx.Client(base_url=f"{platform.url}/sandbox", verify=shared_ssl_context(), timeout=60)
        self.now = 1_000.0
        self.api = self._opened.enter_context(sync_api(platform.url, self.new_auth(), transport=self.wire))

    def new_auth(self) -> ClientCredentials:
        """Our credentials, for one event loop."""
        token_url = self.platform.environment["CREDHOOK_TOKEN_URL"]
        return ClientCredentials(token_url, "sandbox", "sandbox", clock=lambda: self.now)

    def close(self) -> None:
        self._opened.close()
        self.aside.close()

    @property
    def request(self) -> httpx.Request:
        return self.wire.exchanges[-1][0]

    @property
    def answer(self) -> httpx.Response:
        return self.wire.exchanges[-1][1]

    @property
    def body(self) -> Any:
        return self.answer.json()

    def sandbox(self, method: str, path: str, **options: Any) -> Any:
        """Ask what is the sandbox's own and not the platform's."""
        return self.aside.request(method, path, **options).raise_for_status().json()["data"]

    def make(self, event_type: str, **more: object) -> str:
        """Make something happen; the id of the issuance or presentation."""
        [happened] = self.sandbox("POST", "/events", json={"eventType": event_type, **more})
        return str(happened["resourceId"])

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
    bench.now += 60.0  # A token that was refused when it was fresh is not renewed at once.
    for endpoint in bench.api.endpoints.list():
        bench.api.endpoints.delete(endpoint.id)
    bench.close()


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


# What the platform does: (section, sentence, check).

Check = Callable[[Bench], None]
DONE: list[tuple[str, str, Check]] = []


def row(section: str) -> Callable[[Check], Check]:
    """Enter a check into the table; its name is the row's sentence."""

    def enter(check: Check) -> Check:
        DONE.append((section, check.__name__.replace("_", " "), check))
        return check

    return enter


@row("Response envelope")
def every_success_has_data_and_otherwise_only_links_and_meta(bench: Bench) -> None:
    api, name = bench.api, uuid4().hex
    csr, certificate, _ = bench.chain()
    api.users.create(user(username=name, externalIdentifier=f"x-{name}"))
    for enveloped in (
        lambda: api.presets.create(preset(unique(SD_JWT))),
        lambda: api.presets.create(preset(unique(MDOC))),
        lambda: api.templates.get("sandbox:membership"),
        lambda: api.certificates.import_(csr, CertificateRequest(certificate=certificate)),
        lambda: api.trusted_entities.create(TrustedEntityRequest.model_validate(ENTITY)),
        lambda: api.endpoints.create(EndpointRequest.model_validate(unique(ENDPOINT))),
        lambda: api.users.create(user(username=uuid4().hex)),
        api.users.list,
        lambda: api.users.by_external_identifier(f"x-{name}"),
        lambda: api.users.external_identifier(name),
        lambda: api.users.link_identity(name, enabled=True),
    ):
        enveloped()
        assert "data" in bench.body
        assert set(bench.body) <= {"data", "links", "meta"}
        assert bench.answer.headers["content-type"].startswith("application/json")


@row("Response envelope")
def a_client_reads_every_answer_with_and_without_its_envelope(bench: Bench) -> None:
    created = bench.api.endpoints.create(EndpointRequest.model_validate(unique(ENDPOINT)))
    bench.platform.faults(envelopes="swapped")
    assert created in bench.api.endpoints.list()
    assert isinstance(bench.body, dict)
    assert bench.api.templates.get("sandbox:membership").id == "sandbox:membership"
    assert "data" not in bench.body
    assert bench.api.wallet.accept(credential_offer=bench.offer())
    assert isinstance(bench.body, dict)


@row("Credential preset, format sd-jwt")
def a_preset_is_answered_with_what_was_asked_and_what_the_platform_adds(bench: Bench) -> None:
    wanted = unique(SD_JWT)
    created = bench.api.presets.create(preset(wanted))
    assert bench.answer.status_code == 200
    assert created.template_type.startswith(("https:", "http:", "urn:"))
    assert created.author in created.template_type
    assert wanted["code"] in created.template_type
    added = the_platform_adds_to(wanted, bench)
    assert set(added) == {"id", "author", "templateType", "createdAt", "updatedAt"}


@row("Credential preset, format sd-jwt")
def a_preset_has_an_issuer_even_if_none_was_asked_for_and_no_validity_then(bench: Bench) -> None:
    wanted = {name: value for name, value in unique(SD_JWT).items() if name not in {"issuerConfig", "validUntil"}}
    bench.api.presets.create(preset(wanted))
    assert bench.body["data"]["issuerConfig"]["signer"] in {"did:web", "certificate"}
    assert "validUntil" not in bench.body["data"]


@row("Credential preset, format mdoc")
def an_mdoc_preset_is_answered_with_its_type_as_template_type(bench: Bench) -> None:
    wanted = unique(MDOC)
    created = bench.api.presets.create(preset(wanted))
    assert bench.answer.status_code == 200
    assert created.template_type == wanted.pop("type")
    added = the_platform_adds_to(wanted, bench)
    assert set(added) == {"id", "author", "templateType", "createdAt", "updatedAt"}


@row("Credential preset, format mdoc")
def an_mdoc_presets_issuer_may_be_null_but_is_there(bench: Bench) -> None:
    wanted = {name: value for name, value in unique(MDOC).items() if name != "issuerConfig"}
    bench.api.presets.create(preset(wanted))
    assert bench.body["data"]["issuerConfig"] is None


def the_platform_adds_to(wanted: dict[str, Any], bench: Bench) -> dict[str, Any]:
    """What a preset says beyond its request, once what both say has been compared."""
    shown: dict[str, Any] = bench.body["data"]
    assert {name: shown[name] for name in wanted} == wanted
    assert shown["id"] == f"{shown['author']}:{wanted['code']}"
    assert is_timestamp(shown["createdAt"])
    assert is_timestamp(shown["updatedAt"])
    return {name: value for name, value in shown.items() if name not in wanted}


TEMPLATE_FIELDS = {
    *("name", "description", "attributes", "createdAt", "updatedAt", "archivedAt", "format", "id", "type"),
}


@row("Credential template")
def an_sd_jwt_template_shows_its_preset(bench: Bench) -> None:
    wanted = unique(SD_JWT)
    created = bench.api.presets.create(preset(wanted))
    template = bench.api.templates.get(created.id)
    assert bench.answer.status_code == 200
    assert set(bench.body["data"]) == TEMPLATE_FIELDS
    assert bench.body["data"]["attributes"] == wanted["templateAttributes"]
    assert (template.id, template.name, template.description) == (
        created.id,
        wanted["templateName"],
        wanted["templateDescription"],
    )
    assert template.format == "sd-jwt-vc"
    assert template.type == created.template_type


@row("Credential template")
def a_template_of_the_second_variant_is_read_as_well(bench: Bench) -> None:
    created = bench.api.presets.create(preset(unique(MDOC)))
    template = bench.api.templates.get(created.id)
    assert (template.id, template.format) == (created.id, "mdoc")
    assert template.attributes


@row("User")
def a_user_has_an_id_names_an_address_and_is_enabled(bench: Bench) -> None:
    wanted = unique(USER)
    bench.api.users.create(user(**wanted))
    found = next(each for each in bench.api.users.list() if each.username == wanted["username"])
    shown = next(each for each in bench.body["data"] if each["username"] == wanted["username"])
    assert set(shown) == {"id", "username", "email", "firstName", "lastName", "enabled"}
    assert UUID(found.id)
    assert (found.email, found.first_name, found.last_name) == (wanted["email"], "Ada", "Example")
    assert found.enabled is True


@row("Identity link result")
def a_link_names_the_user_and_the_tenants_provider(bench: Bench) -> None:
    name = f"user-{uuid4().hex}"
    bench.api.users.create(user(username=name))
    link = bench.api.users.link_identity(name, enabled=True)
    assert set(bench.body["data"]) == {"username", "idpAlias", "linked"}
    assert (link.username, link.linked) == (name, True)
    assert link.idp_alias


@row("Wallet credential")
def an_accepted_offer_becomes_credentials_with_every_field(bench: Bench) -> None:
    credentials = bench.api.wallet.accept(credential_offer=bench.offer())
    assert bench.answer.status_code == 201
    assert credentials
    for credential, shown in zip(credentials, bench.body, strict=True):
        assert {"id", "claims", "iat", "status", "format", "vct"} <= set(shown)
        assert UUID(shown["id"]) == credential.id
        assert isinstance(shown["claims"], dict)
        assert is_timestamp(shown["iat"])
        assert shown["format"] == "vc+sd-jwt"


@row("Wallet credential")
def claims_hold_strings_numbers_booleans_objects_and_arrays(bench: Bench) -> None:
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
    issuance = bench.make("openid4vc.issuance.offered", templateId=template, attributes=claims)
    offer = bench.api.issuances.get(issuance).offer_uri
    assert offer is not None
    assert bench.api.wallet.accept(credential_offer=offer)[0].claims == claims


@row("Wallet credential")
def the_issuer_is_a_did_for_sd_jwt_and_a_distinguished_name_for_mdoc(bench: Bench) -> None:
    for document, beginning in ((SD_JWT, "did:"), (MDOC, "CN=")):
        template = bench.api.presets.create(preset(unique(document))).id
        issuer = bench.api.wallet.accept(credential_offer=bench.offer(template))[0].iss
        assert issuer is not None
        assert issuer.startswith(beginning)


@row("Certificate record")
def an_import_is_answered_with_a_record_of_strings(bench: Bench) -> None:
    csr, certificate, parents = bench.chain()
    request = CertificateRequest(certificate=certificate, parent_certificates=tuple(parents))
    record = bench.api.certificates.import_(csr, request)
    shown = bench.body["data"]
    assert set(shown) == {
        *("id", "createdAt", "updatedAt", "certificateSigningRequest"),
        *("subjectKeyIdentifier", "certificateId", "expiresAt"),
    }
    assert all(isinstance(value, str) for value in shown.values())
    assert record.certificate_id == shown["certificateId"]


@row("Trusted entity")
def a_trusted_entity_is_answered_with_every_field(bench: Bench) -> None:
    entity = bench.api.trusted_entities.create(TrustedEntityRequest.model_validate(ENTITY))
    assert bench.answer.status_code == 201
    shown = bench.body["data"]
    assert set(shown) == {"id", "name", "createdAt", "updatedAt", "dids", "certificates"}
    assert {name: shown[name] for name in ENTITY} == ENTITY
    assert is_timestamp(shown["createdAt"])
    assert is_timestamp(shown["updatedAt"])
    assert entity.id


@row("Webhook endpoint")
def an_endpoint_is_answered_with_every_field(bench: Bench) -> None:
    wanted = unique(ENDPOINT)
    endpoint = bench.api.endpoints.create(EndpointRequest.model_validate(wanted))
    assert bench.answer.status_code == 201
    shown = bench.body["data"]
    assert set(shown) == {"id", "url", "filterTypes", "createdAt", "updatedAt"}
    assert {name: shown[name] for name in wanted} == wanted
    assert is_timestamp(shown["createdAt"])
    assert is_timestamp(shown["updatedAt"])
    assert endpoint.id == wanted["id"]


@row("Endpoints: webhook endpoints")
def the_list_holds_every_endpoint_of_the_organisation(bench: Bench) -> None:
    assert bench.api.endpoints.list() == ()
    created = [bench.api.endpoints.create(EndpointRequest.model_validate(unique(ENDPOINT))) for _ in range(3)]
    assert {each.id for each in bench.api.endpoints.list()} == {each.id for each in created}
    assert isinstance(bench.body, list)


@row("Endpoints: webhook endpoints")
def an_endpoint_without_types_receives_every_event(bench: Bench) -> None:
    endpoint = bench.api.endpoints.create(EndpointRequest(url="https://127.0.0.1:9/"))
    assert set(endpoint.filter_types or TYPES) == set(TYPES)
    for event_type in TYPES:
        assert deliveries(bench, event_type) == 1


@row("Endpoints: webhook endpoints")
def a_deleted_endpoint_is_gone_and_the_answer_has_no_body(bench: Bench) -> None:
    endpoint = bench.api.endpoints.create(EndpointRequest.model_validate(unique(ENDPOINT)))
    bench.api.endpoints.delete(endpoint.id)
    assert bench.answer.status_code == 204
    assert bench.answer.content == b""
    assert bench.api.endpoints.list() == ()


@row("Endpoints: consumer onboarding")
def a_user_is_known_by_email_or_username_alone(bench: Bench) -> None:
    for wanted in ({"email": f"{uuid4().hex}@b.example"}, {"username": uuid4().hex}):
        assert not bench.api.users.create(user(**wanted)).existed
        assert bench.api.users.create(user(**wanted)).existed


@row("Endpoints: consumer onboarding")
def names_with_characters_that_urls_reserve_are_found(bench: Bench) -> None:
    for mark in ("a+b@c.example", "a b", "a/b", "ä%2fb", "a?b=c&d#e;f", "日本"):
        wanted = {"username": f"{mark}{uuid4().hex}".lower(), "externalIdentifier": f"crm/{mark}{uuid4().hex}"}
        bench.api.users.create(user(**wanted))
        assert bench.api.users.by_external_identifier(wanted["externalIdentifier"]).username == wanted["username"]
        found = bench.api.users.external_identifier(wanted["username"])
        assert found.external_identifier == wanted["externalIdentifier"]
        assert bench.api.users.link_identity(wanted["username"], enabled=True).linked


@row("Endpoints: consumer onboarding")
def linking_and_unlinking_are_idempotent(bench: Bench) -> None:
    name = uuid4().hex
    bench.api.users.create(user(username=name))
    for enabled in (True, True, False, False, True):
        assert bench.api.users.link_identity(name, enabled=enabled).linked is enabled


def deliveries(bench: Bench, event_type: str) -> int:
    """How many deliveries the platform makes of an event, one for each endpoint that wants it."""
    [happened] = bench.sandbox("POST", "/events", json={"eventType": event_type})
    return len(happened["webhookIds"])


@row("Events")
def an_endpoint_with_types_receives_only_these(bench: Bench) -> None:
    for wanted in TYPES:
        endpoint = bench.api.endpoints.create(
            EndpointRequest.model_validate({"url": "https://127.0.0.1:9/", "filterTypes": [wanted]})
        )
        assert [deliveries(bench, event_type) for event_type in TYPES] == [int(each == wanted) for each in TYPES]
        bench.api.endpoints.delete(endpoint.id)


@row("Limits")
def a_vct_has_1_to_256_characters(bench: Bench) -> None:
    for length in (1, 256):
        template = bench.api.presets.create(preset(unique(MDOC) | {"type": "t" * length})).id
        assert bench.api.wallet.accept(credential_offer=bench.offer(template))[0].vct == "t" * length
    template = bench.api.presets.create(preset(unique(MDOC) | {"type": "t" * 257})).id
    with pytest.raises(InvalidRequest) as caught:
        bench.api.wallet.accept(credential_offer=bench.offer(template))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "check", [check for _, _, check in DONE], ids=[f"{section}: {sentence}" for section, sentence, _ in DONE]
)
def test_the_platform_does_what_the_specification_says(bench: Bench, check: Check) -> None:
    check(bench)


# What a field may hold: (section, request, field, value, whether it may). `...` leaves the field out.

#: A name that no other row uses; fixed, because it becomes part of the names of tests.
SOME = "0-named-a"
#: A request that is allowed, its model, the operation that takes it, and the values of the operation's path.
REQUESTS: dict[str, tuple[dict[str, Any], TypeAdapter[Any], Operation[Any], tuple[str, ...]]] = {
    "sd-jwt": (SD_JWT, TypeAdapter(PresetRequest), Presets.create, ()),
    "mdoc": (MDOC, TypeAdapter(PresetRequest), Presets.create, ()),
    "endpoint": (ENDPOINT, TypeAdapter(EndpointRequest), Endpoints.create, ()),
    "entity": (ENTITY, TypeAdapter(TrustedEntityRequest), TrustedEntities.create, ()),
    "user": (USER, TypeAdapter(UserRequest), Users.create, ()),
    "link": ({"enabled": True}, TypeAdapter(IdentityLinkRequest), Users.link_identity, ("u",)),
    "offer": ({"credentialOffer": "openid-credential-offer://?x"}, TypeAdapter(OfferRequest), Wallet.accept, ()),
}


def call_of(request: str, document: object) -> Call[Any]:
    """Return a call with this body, whether or not it is allowed."""
    allowed, reader, operation, names = REQUESTS[request]
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return replace(operation(*names, reader.validate_python(allowed)), body=body)


SD = "Credential preset, format sd-jwt"
SD_ATTRIBUTE = "SD-JWT attribute definition"
MD = "Credential preset, format mdoc"
MD_ATTRIBUTE = "Mdoc attribute definition"
LIMITS = "Limits"
HOOKS = "Endpoints: webhook endpoints"
TRUST = "Endpoints: certificates and trusted entities"
ONBOARDING = "Endpoints: consumer onboarding"
WALLET = "Endpoints: wallet credentials"

Rule = tuple[str, str, str, Any, bool]


def rules(section: str, request: str, field: str, *values: Any, may: bool) -> list[Rule]:
    return [(section, request, field, value, may) for value in values]


def attribute(definition: dict[str, Any], *, may: bool) -> list[Rule]:
    return rules(SD_ATTRIBUTE, "sd-jwt", "templateAttributes/a", definition, may=may)


def mdoc_attribute(definition: dict[str, Any], *, may: bool) -> list[Rule]:
    return rules(MD_ATTRIBUTE, "mdoc", "templateAttributes/org.example/properties/a", definition, may=may)


RULES: list[Rule] = [
    # Both formats: what is required, and of which type.
    *(
        rule
        for section, request in ((SD, "sd-jwt"), (MD, "mdoc"))
        for rule in (
            *rules(section, request, "credentialFormat", ..., "SD-JWT", "jwt", 1, may=False),
            *rules(section, request, "templateName", ..., 1, ["a"], may=False),
            *rules(section, request, "templateDescription", ..., 1, may=False),
            *rules(section, request, "code", ..., 1, "", "A", "a_b", "a b", "ä", "a.b", "a\n", may=False),
            *rules(section, request, "code", f"{SOME}-{request}", may=True),
            *rules(section, request, "templateAttributes", ..., [], "a", may=False),
            *rules(section, request, "templateAttributes", {}, may=True),
            *rules(section, request, "issuerConfig", ..., may=True),
            *rules(section, request, "issuerConfig", {"signer": "certificate"}, may=True),
            *rules(section, request, "issuerConfig/keyType", "P-256", "Ed25519", may=True),
            *rules(section, request, "issuerConfig/keyType", "P-384", "p-256", 1, may=False),
            *rules(section, request, "issuerConfig", {}, {"signer": "did:key"}, "certificate", may=False),
            *rules(section, request, "validUntil/future", ..., {}, 1, may=False),
            *(
                rule
                for part in ("days", "months", "years")
                for rule in (
                    *rules(LIMITS, request, f"validUntil/future/{part}", 0, 1, 999, may=True),
                    *rules(LIMITS, request, f"validUntil/future/{part}", -1, 0.5, "1", True, may=False),
                    *rules(section, request, f"validUntil/future/{part}", ..., may=False),
                )
            ),
        )
    ),
    # sd-jwt alone.
    *rules(SD, "sd-jwt", "issuerConfig", {"signer": "did:web"}, may=True),
    *rules(SD, "sd-jwt", "issuerConfig", {"signer": "did:web", "keyType": "P-256"}, may=False),
    *rules(SD, "sd-jwt", "validUntil", ..., may=True),
    *rules(SD, "sd-jwt", "validUntil/start", "issuance", "validFrom", may=True),
    *rules(SD, "sd-jwt", "validUntil/start", ..., "validUntil", "", 1, may=False),
    *rules(SD, "sd-jwt", "type", "org.example.permit", may=False),
    # mdoc alone.
    *rules(MD, "mdoc", "issuerConfig", {"signer": "did:web"}, may=False),
    *rules(MD, "mdoc", "validUntil", ..., may=False),
    *rules(MD, "mdoc", "type", ..., 1, may=False),
    *rules(MD, "mdoc", "validUntil/start", "issuance", may=False),
    *rules(LIMITS, "mdoc", "type", "", may=False),
    *rules(LIMITS, "mdoc", "type", "t", may=True),
    *rules(MD, "mdoc", "templateAttributes/org.example", {}, {"a": {"type": "string"}}, may=False),
    *rules(MD, "mdoc", "templateAttributes/org.example", {"properties": {}}, may=True),
    # Attributes.
    *(rule for kind in ("string", "number", "boolean", "date") for rule in attribute({"type": kind}, may=True)),
    *attribute(
        {"type": "string", "name": "n", "description": "d", "required": False, "alwaysDisclosed": False}, may=True
    ),
    *attribute({"type": "object", "properties": {}}, may=True),
    *attribute(
        {"type": "object", "properties": {"b": {"type": "object", "properties": {"c": {"type": "date"}}}}}, may=True
    ),
    *attribute({"type": "array"}, may=True),
    *attribute({"type": "array", "items": {"type": "string"}}, may=True),
    *attribute({"type": "array", "items": {"type": "array", "items": {"type": "number"}}}, may=True),
    *attribute({}, may=False),
    *attribute({"type": "object"}, may=False),
    *attribute({"type": "object", "properties": []}, may=False),
    *attribute({"type": "object", "properties": {"b": {"type": "text"}}}, may=False),
    *attribute({"type": "array", "items": {"type": "text"}}, may=False),
    *(rule for kind in ("binary", "text", "", 1, None) for rule in attribute({"type": kind}, may=False)),
    *attribute({"type": "string", "name": 1}, may=False),
    *attribute({"type": "string", "description": 1}, may=False),
    *attribute({"type": "string", "required": "true"}, may=False),
    *attribute({"type": "string", "alwaysDisclosed": 1}, may=False),
    *attribute({"type": "string", "unknown": 1}, may=False),
    *attribute({"type": "string", "properties": {}}, may=False),
    *attribute({"type": "string", "items": {"type": "string"}}, may=False),
    *attribute({"type": "object", "properties": {}, "items": {"type": "string"}}, may=False),
    *attribute({"type": "array", "items": {"type": "object"}}, may=False),
    *(
        rule
        for kind in ("string", "number", "boolean", "date", "binary", "array")
        for rule in mdoc_attribute({"type": kind}, may=True)
    ),
    *mdoc_attribute({"type": "string", "name": "n", "description": "d", "required": False}, may=True),
    *mdoc_attribute({"type": "array", "items": {"type": "binary"}}, may=True),
    *mdoc_attribute({"type": "array", "items": {"type": "object"}}, may=False),
    *(rule for kind in ("object", "text", 1) for rule in mdoc_attribute({"type": kind}, may=False)),
    *mdoc_attribute({}, may=False),
    *mdoc_attribute({"type": "string", "name": 1}, may=False),
    *mdoc_attribute({"type": "string", "description": 1}, may=False),
    *mdoc_attribute({"type": "string", "required": "true"}, may=False),
    *mdoc_attribute({"type": "string", "alwaysDisclosed": True}, may=False),
    # Webhook endpoints.
    *rules(HOOKS, "endpoint", "url", ..., 1, "", "http://a.example/", "a.example", "https://", may=False),
    *rules(HOOKS, "endpoint", "url", "https:///hooks", "ftp://a.example", may=False),
    *rules(HOOKS, "endpoint", "url", "https://a.example/hooks?x=y", "https://127.0.0.1:8443/", may=True),
    *rules(HOOKS, "endpoint", "id", 1, may=False),
    *rules(HOOKS, "endpoint", "id", ..., f"chosen-{SOME}", may=True),
    *rules("Events", "endpoint", "filterTypes", ..., list(TYPES), *([each] for each in TYPES), may=True),
    *rules("Events", "endpoint", "filterTypes", ["openid4vc.issuance.revoked"], [1], [], TYPES[0], may=False),
    *rules("Events", "endpoint", "filterType", [], may=False),
    # Certificates and trusted entities.
    *rules(TRUST, "entity", "name", ..., 1, may=False),
    *rules(TRUST, "entity", "dids", ..., [], may=True),
    *rules(TRUST, "entity", "dids", "did:web:a", ["did:web:a"], [{"did": "did:web:a"}], [{"name": "n"}], may=False),
    *rules(TRUST, "entity", "dids", [{"did": 1, "name": "n"}], [{"did": "did:web:a", "name": 1}], may=False),
    *rules(TRUST, "entity", "certificates", ..., [], ["any"], [{"any": 1}], may=True),
    *rules(TRUST, "entity", "certificates", "any", may=False),
    # Users.
    *(
        rule
        for field in ("email", "username", "firstName", "lastName", "externalIdentifier")
        for rule in (
            *rules(ONBOARDING, "user", field, ..., may=True),
            *rules(ONBOARDING, "user", field, 1, ["a"], may=False),
        )
    ),
    *rules(ONBOARDING, "link", "enabled", ..., "true", 1, may=False),
    # The wallet.
    *rules(WALLET, "offer", "credentialOffer", ..., 1, "", may=False),
]


def written(request: str, field: str, value: Any) -> dict[str, Any]:
    document = deepcopy(unique(REQUESTS[request][0]))
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
    ("section", "request_", "field", "value", "may"),
    RULES,
    ids=[
        f"{section}: {field} {'may' if may else 'may not'} be {'absent' if value is ... else json.dumps(value)[:40]}"
        for section, _, field, value, may in RULES
    ],
)
def test_a_field_holds_what_the_specification_says(
    bench: Bench, section: str, request_: str, field: str, value: Any, may: bool
) -> None:
    document = written(request_, field, value)
    reader = REQUESTS[request_][1]
    if may:
        call = REQUESTS[request_][2](reader.validate_python(document))
        shown = bench.api.send(call).model_dump(mode="json", exclude_unset=True)
        assert json.loads(bench.request.content) == document
        assert request_ == "user" or all(shown[name] == sent for name, sent in document.items() if name != "type")
    else:
        with pytest.raises(ValidationError):
            reader.validate_python(document)
        with pytest.raises(InvalidRequest) as caught:
            bench.api.send(call_of(request_, document))
        assert (caught.value.status, caught.value.errors[0].code) == (400, "VALIDATION_ERROR")


def test_a_user_without_email_and_username_is_refused_here_and_there(bench: Bench) -> None:
    with pytest.raises(ValidationError):
        user(firstName="Ada")
    with pytest.raises(InvalidRequest) as caught:
        bench.api.send(call_of("user", {"firstName": "Ada"}))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "change",
    [
        {"certificate": ...},
        {"certificate": 1},
        {"certificate": "MIIB"},
        {"parentCertificates": "MIIB"},
        {"parentCertificates": ["MIIB"]},
    ],
    ids=lambda change: f"{TRUST}: {change}",
)
def test_an_import_takes_pem_and_nothing_else(bench: Bench, change: dict[str, Any]) -> None:
    csr, certificate, parents = bench.chain()
    document = {"certificate": certificate, "parentCertificates": parents} | change
    document = {name: value for name, value in document.items() if value is not ...}
    with pytest.raises(ValidationError):
        CertificateRequest.model_validate(document)
    call = Certificates.import_(csr, CertificateRequest(certificate=certificate))
    with pytest.raises(InvalidRequest) as caught:
        bench.api.send(replace(call, body=json.dumps(document).encode()))
    assert (caught.value.status, caught.value.errors[0].code) == (400, "VALIDATION_ERROR")


# What the platform answers instead: (section, sentence, act, error, status, code, title).

Act = Callable[[Bench], object]

HAPPEN: Operation[Any] = Operation("sandbox.events", "POST", "/sandbox/events", Any)


def happen(bench: Bench, **event: Any) -> object:
    """Make something happen through the client, so that its refusal is read like any other."""
    return bench.api.send(Call(HAPPEN, HAPPEN.path, body=json.dumps(event).encode()))


def twice(bench: Bench, document: dict[str, Any]) -> None:
    for _ in range(2):
        bench.api.endpoints.create(EndpointRequest.model_validate(document))


def with_fault(act: Act, **faults: int) -> Act:
    def disturbed(bench: Bench) -> object:
        bench.platform.faults(**faults)
        return act(bench)

    return disturbed


def by_archived_template(bench: Bench) -> object:
    id_ = bench.api.presets.create(preset(unique(SD_JWT))).id
    bench.sandbox("POST", f"/templates/{id_}/archive")
    return happen(bench, eventType=TYPES[0], templateId=id_)


NOT_FOUND = (NotFound, 404, "NOT_FOUND", "Not Found")
INVALID = (InvalidRequest, 400, "VALIDATION_ERROR", "Validation Failed")
UNAUTHORIZED = (Unauthorized, 401, "UNAUTHORIZED", "Unauthorized")
FAILED = (Unavailable, 500, "INTERNAL_SERVER_ERROR", "Internal Server Error")

REFUSED: list[tuple[str, str, Act, tuple[type[ApiError], int, str, str]]] = [
    ("Endpoints: presets and templates", "an unknown template", lambda b: b.api.templates.get("a:b"), NOT_FOUND),
    ("Errors", "an archived template", by_archived_template, NOT_FOUND),
    ("Errors", "an unknown presentation", lambda b: b.api.presentations.get("none"), NOT_FOUND),
    ("Errors", "an unknown issuance", lambda b: b.api.issuances.get("none"), NOT_FOUND),
    (HOOKS, "an unknown endpoint", lambda b: b.api.endpoints.delete("none"), NOT_FOUND),
    (
        TRUST,
        "an unknown signing request",
        lambda b: b.api.certificates.import_("none", CertificateRequest(certificate=b.chain()[1])),
        NOT_FOUND,
    ),
    (ONBOARDING, "an unknown external identifier", lambda b: b.api.users.by_external_identifier("none"), NOT_FOUND),
    (ONBOARDING, "the identifier of an unknown user", lambda b: b.api.users.external_identifier("none"), NOT_FOUND),
    (ONBOARDING, "a link of an unknown user", lambda b: b.api.users.link_identity("none", enabled=True), NOT_FOUND),
    (
        "Errors",
        "attributes that do not fit their template",
        lambda b: happen(b, eventType=TYPES[0], templateId="sandbox:membership", attributes={"shoeSize": 44}),
        INVALID,
    ),
    ("Errors", "a malformed body", lambda b: b.api.send(call_of("user", b"{")), INVALID),
    ("Errors", "a failure", with_fault(lambda b: b.api.users.list(), server_errors=1), FAILED),
    ("Authentication", "two 401 in a row", with_fault(lambda b: b.api.users.list(), unauthorized=2), UNAUTHORIZED),
    (
        "Errors",
        "a conflict, not shown",
        lambda b: twice(b, unique(ENDPOINT)),
        (InvalidRequest, 409, "CONFLICT", "Conflict"),
    ),
    (
        "Errors",
        "too many requests, not shown",
        with_fault(lambda b: b.api.users.list(), rate_limit=1, retry_after=7),
        (Unavailable, 429, "TOO_MANY_REQUESTS", "Too Many Requests"),
    ),
]


@pytest.mark.parametrize(
    ("act", "expected"),
    [(act, expected) for _, _, act, expected in REFUSED],
    ids=[f"{section}: {sentence}" for section, sentence, _, _ in REFUSED],
)
def test_an_error_is_read_as_the_specification_has_it(
    bench: Bench, act: Act, expected: tuple[type[ApiError], int, str, str]
) -> None:
    error, status, code, title = expected
    with pytest.raises(ApiError) as caught:
        act(bench)
    assert type(caught.value) is error
    assert caught.value.status == status
    first = caught.value.errors[0]
    assert (first.status, first.code, first.title) == (str(status), code, title)
    assert first.detail
    assert first.id
    shown = bench.body["errors"]
    assert isinstance(shown, list)
    assert set(shown[0]) <= {"detail", "id", "status", "code", "title", "source", "meta"}
    assert isinstance(shown[0]["status"], int)
    assert set(bench.body) == {"errors"}


def test_attributes_that_do_not_fit_are_refused_by_template_and_not_by_name(bench: Bench) -> None:
    with pytest.raises(InvalidRequest) as caught:
        happen(bench, eventType=TYPES[0], templateId="sandbox:membership", attributes={"shoeSize": 44})
    detail = caught.value.errors[0].detail or ""
    assert "sandbox:membership" in detail
    assert "shoeSize" not in bench.answer.text
