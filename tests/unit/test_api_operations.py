"""What leaves the machine: every operation's request, and that no id can lead one astray."""

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from credhook.worker.api import operations
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError, InvalidRequest
from credhook.worker.api.models import (
    CertificateRequest,
    EndpointRequest,
    Future,
    MdocPresetRequest,
    MdocValidUntil,
    SdJwtPresetRequest,
    TrustedEntityRequest,
    UserRequest,
)
from credhook.worker.api.operations import Operation
from credhook.worker.api.token import ClientCredentials

#: How a test calls the platform.
Made = Coroutine[Any, Any, object]

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
CERTIFICATE = CertificateRequest(certificate=PEM)
SPAN = {"days": 0, "months": 0, "years": 1}


class Recorder:
    """A platform that remembers requests and answers each with 404."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "id.example":
            return httpx.Response(200, json={"access_token": "t", "expires_in": 300, "token_type": "Bearer"})
        self.requests.append(request)
        return httpx.Response(404)

    def api(
        self,
        issuance_path: str = "/me-creds/api/credentials/{id}",
        presentation_path: str = "/me-creds/api/presentations/{id}",
    ) -> AsyncApi:
        return AsyncApi(
            "https://api.example/tenant",
            ClientCredentials("https://id.example/token", "me", "s3cret"),
            issuance_path=issuance_path,
            presentation_path=presentation_path,
            transport=httpx.MockTransport(self),
        )


async def sent(call: Callable[[AsyncApi], Made], **paths: str) -> httpx.Request:
    recorder = Recorder()
    async with recorder.api(**paths) as api:
        with pytest.raises(ApiError):
            await call(api)
    [request] = recorder.requests
    return request


REQUESTS: list[tuple[Callable[[AsyncApi], Made], str, str, Any]] = [
    (lambda api: api.endpoints.list(), "GET", "/me-creds/api/endpoints", None),
    (
        lambda api: api.endpoints.create(EndpointRequest(url="https://a.example", id="e")),
        "POST",
        "/me-creds/api/endpoints",
        {"url": "https://a.example", "id": "e"},
    ),
    (
        lambda api: api.endpoints.create(
            EndpointRequest(url="https://a.example", filter_types=("openid4vc.issuance.failed",))
        ),
        "POST",
        "/me-creds/api/endpoints",
        {"url": "https://a.example", "filterTypes": ["openid4vc.issuance.failed"]},
    ),
    (lambda api: api.endpoints.delete("e"), "DELETE", "/me-creds/api/endpoints/e", None),
    (
        lambda api: api.presets.create(
            SdJwtPresetRequest(template_name="n", code="c", template_description="d", template_attributes={})
        ),
        "POST",
        "/me-creds/api/presets/credentials",
        {
            "credentialFormat": "sd-jwt",
            "templateName": "n",
            "code": "c",
            "templateDescription": "d",
            "templateAttributes": {},
        },
    ),
    (
        lambda api: api.presets.create(
            MdocPresetRequest(
                template_name="n",
                code="c",
                template_description="d",
                type="t",
                template_attributes={},
                valid_until=MdocValidUntil(future=Future(days=0, months=0, years=1)),
            )
        ),
        "POST",
        "/me-creds/api/presets/credentials",
        {
            "credentialFormat": "mdoc",
            "templateName": "n",
            "code": "c",
            "templateDescription": "d",
            "type": "t",
            "templateAttributes": {},
            "validUntil": {"future": SPAN},
        },
    ),
    (lambda api: api.templates.get("t"), "GET", "/me-creds/api/templates/credentials/t", None),
    (
        lambda api: api.certificates.import_("c", CERTIFICATE),
        "POST",
        "/me-creds/api/certificates/csrs/c/import",
        {"certificate": PEM},
    ),
    (
        lambda api: api.trusted_entities.create(TrustedEntityRequest(name="n", certificates=({"any": 1},))),
        "POST",
        "/me-creds/api/trusted-entities",
        {"name": "n", "certificates": [{"any": 1}]},
    ),
    (
        lambda api: api.users.create(UserRequest(email="a@b.example", first_name="Ada")),
        "POST",
        "/consumer-onboarding/api/users",
        {"email": "a@b.example", "firstName": "Ada"},
    ),
    (lambda api: api.users.list(), "GET", "/consumer-onboarding/api/users", None),
    (
        lambda api: api.users.by_external_identifier("crm/7 ä"),
        "GET",
        "/consumer-onboarding/api/users/by-external-identifier/crm%2F7%20%C3%A4",
        None,
    ),
    (
        lambda api: api.users.external_identifier("a+b@c.example"),
        "GET",
        "/consumer-onboarding/api/users/a%2Bb%40c.example/external-identifier",
        None,
    ),
    (
        lambda api: api.users.link_identity("ada", enabled=False),
        "PATCH",
        "/consumer-onboarding/api/users/ada/idp-link",
        {"enabled": False},
    ),
    (lambda api: api.wallet.accept("offer"), "POST", "/me-wallet/api/credentials", {"credentialOffer": "offer"}),
    (lambda api: api.issuances.get("acme:i"), "GET", "/me-creds/api/credentials/acme%3Ai", None),
    (lambda api: api.issuances.list(), "GET", "/me-creds/api/credentials", None),
    (lambda api: api.presentations.get("p"), "GET", "/me-creds/api/presentations/p", None),
    (lambda api: api.presentations.list(), "GET", "/me-creds/api/presentations", None),
    (lambda api: api.presentations.list("p"), "GET", "/me-creds/api/presentations?filter%5Bid%5D=p", None),
    (lambda api: api.issuances.page(), "GET", "/me-creds/api/credentials", None),
    (lambda api: api.issuances.page("page%5Bafter%5D=2"), "GET", "/me-creds/api/credentials?page%5Bafter%5D=2", None),
    (lambda api: api.presentations.page("cursor=x"), "GET", "/me-creds/api/presentations?cursor=x", None),
]


@pytest.mark.parametrize(
    ("call", "method", "target", "body"), REQUESTS, ids=[f"{method} {target}" for _, method, target, _ in REQUESTS]
)
async def test_each_operation_sends_what_the_specification_says(
    call: Callable[[AsyncApi], Made], method: str, target: str, body: Any
) -> None:
    request = await sent(call)
    assert request.method == method
    assert request.url.raw_path.decode() == f"/tenant{target}"
    assert request.url.host == "api.example"
    assert request.headers["authorization"] == "Bearer t"
    assert request.headers["accept-encoding"] == "identity"
    assert (json.loads(request.content) if request.content else None) == body
    assert request.headers.get("content-type") == ("application/json" if body is not None else None)


async def test_the_rows_above_cover_every_operation() -> None:
    known = [vars(each) for each in (operations, operations.ISSUANCES, operations.PRESENTATIONS)]
    named = {each.name for one in known for each in one.values() if isinstance(each, Operation)}
    async with Recorder().api() as api:
        spelled = {
            f"{noun}.{verb}"
            for noun, namespace in vars(api).items()
            for verb, method in inspect.getmembers_static(type(namespace))
            if isinstance(method, type(vars(type(api.users))["list"]))
        }
    assert named == spelled
    assert len(named) == 19


async def test_details_are_read_where_the_settings_say() -> None:
    paths = {"issuance_path": "/v2/issued/{id}", "presentation_path": "/v2/shown/{id}"}
    reads: list[tuple[Callable[[AsyncApi], Made], bytes]] = [
        (lambda api: api.issuances.get("i"), b"/tenant/v2/issued/i"),
        (lambda api: api.issuances.list(), b"/tenant/v2/issued"),
        (lambda api: api.presentations.get("p"), b"/tenant/v2/shown/p"),
        (lambda api: api.presentations.list("p"), b"/tenant/v2/shown?filter%5Bid%5D=p"),
        (lambda api: api.presentations.page("a=b"), b"/tenant/v2/shown?a=b"),
    ]
    for call, target in reads:
        assert (await sent(call, **paths)).url.raw_path == target


def test_an_operation_takes_its_own_body_and_its_own_names_only() -> None:
    with pytest.raises(TypeError, match=r"endpoints\.create does not take UserRequest"):
        operations.CREATE_ENDPOINT(UserRequest(email="a"))
    with pytest.raises(TypeError, match="does not take NoneType"):
        operations.CREATE_ENDPOINT()
    with pytest.raises(TypeError, match="does not take"):
        operations.LIST_ENDPOINTS(UserRequest(email="a"))
    with pytest.raises(TypeError, match="needs exactly the names"):
        operations.GET_TEMPLATE()
    with pytest.raises(TypeError, match="needs exactly the names"):
        operations.GET_TEMPLATE(id="a", username="b")


def test_a_call_does_not_show_what_it_carries() -> None:
    assert repr(operations.FIND_USER(externalIdentifier="ada@b.example")) == "Call(users.by_external_identifier)"


async def test_arguments_that_cannot_be_sent_are_named_without_being_repeated() -> None:
    async with Recorder().api() as api:
        cases: list[tuple[Callable[[], object], str]] = [
            (lambda: api.presentations.get("../x"), "presentations.get: id should be 1 to 128 of"),
            (lambda: api.users.external_identifier("ada\n"), "users.external_identifier: username should hold no"),
            (lambda: api.wallet.accept(""), "wallet.accept: credential_offer: string too short"),
        ]
        for wrong, message in cases:
            with pytest.raises(InvalidRequest) as caught:
                wrong()
            assert str(caught.value).startswith(message)
            assert "../x" not in str(caught.value)
            assert caught.value.status is None
            assert caught.value.operation == message.split(":")[0]


# Ids that mean harm.

#: (what is called, what its path looks like around the id)
TAKING_AN_ID: list[tuple[Callable[[AsyncApi, str], Made], str, str]] = [
    (lambda api, value: api.issuances.get(value), "/tenant/me-creds/api/credentials/", ""),
    (lambda api, value: api.presentations.get(value), "/tenant/me-creds/api/presentations/", ""),
    (lambda api, value: api.presentations.list(value), "/tenant/me-creds/api/presentations?filter%5Bid%5D=", ""),
    (lambda api, value: api.endpoints.delete(value), "/tenant/me-creds/api/endpoints/", ""),
    (lambda api, value: api.templates.get(value), "/tenant/me-creds/api/templates/credentials/", ""),
    (
        lambda api, value: api.certificates.import_(value, CERTIFICATE),
        "/tenant/me-creds/api/certificates/csrs/",
        "/import",
    ),
    (
        lambda api, value: api.users.by_external_identifier(value),
        "/tenant/consumer-onboarding/api/users/by-external-identifier/",
        "",
    ),
    (
        lambda api, value: api.users.external_identifier(value),
        "/tenant/consumer-onboarding/api/users/",
        "/external-identifier",
    ),
    (
        lambda api, value: api.users.link_identity(value, enabled=True),
        "/tenant/consumer-onboarding/api/users/",
        "/idp-link",
    ),
]

hostile = st.one_of(
    st.text(),
    st.text(alphabet="./\\%2eEfF5cC:;@?#&=~+ *a\r\n\t\0\x7f\x85{}[]"),
    st.lists(
        st.sampled_from(
            [
                *("..", ".", "/", "\\", "%2e%2e", "%2f", "%00", "//evil.example", "http://evil.example"),
                *("@evil.example", "?", "#", ":", "id", "{id}", "\r\nHost: evil", "ä", "\u202e", "\ud800"),
                *("%", "%25", ";", "a" * 120),
            ]
        ),
        max_size=6,
    ).map("".join),
)


async def leads_nowhere_else(value: str) -> None:
    recorder = Recorder()
    async with recorder.api() as api:
        for call, before, after in TAKING_AN_ID:
            recorder.requests.clear()
            with pytest.raises(ApiError) as caught:
                await call(api, value)
            if not recorder.requests:
                assert type(caught.value) is InvalidRequest
                continue
            [request] = recorder.requests
            target = request.url.raw_path.decode("ascii")
            assert (request.url.scheme, request.headers["host"]) == ("https", "api.example")
            assert target.startswith(before)
            assert target.endswith(after)
            segment = target[len(before) : len(target) - len(after)]
            assert set(segment).isdisjoint("/\\?#&=;@{} ")
            assert unquote(segment, errors="strict") == value
            assert unquote(segment) not in {"", ".", ".."}


@given(hostile)
@example("..")
@example("%2e%2e")
@example("\ud800")
@example("http://evil.example/")
@settings(max_examples=200, deadline=None)
def test_no_id_leads_a_request_elsewhere(value: str) -> None:
    asyncio.run(leads_nowhere_else(value))


@pytest.mark.soak
@given(hostile)
@settings(max_examples=10_000, deadline=None)
def test_none_of_ten_thousand_ids_leads_a_request_elsewhere(value: str) -> None:
    asyncio.run(leads_nowhere_else(value))


@pytest.mark.parametrize("path", ["/../{id}", "//evil.example/{id}", "/a?x=/{id}#f", "/a/./{id}", "/ä/{id}"])
async def test_a_configured_path_that_leads_elsewhere_is_not_sent(path: str) -> None:
    recorder = Recorder()
    async with recorder.api(issuance_path=path) as api:
        with pytest.raises(ApiError) as caught:
            await api.issuances.get("i")
    if path == "//evil.example/{id}":  # Below the base URL it is only a path with an empty segment.
        assert [str(request.url) for request in recorder.requests] == ["https://api.example/tenant//evil.example/i"]
    else:
        assert type(caught.value) is InvalidRequest
        assert recorder.requests == []
