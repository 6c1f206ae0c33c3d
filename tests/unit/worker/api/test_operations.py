"""What leaves the machine: every operation's request, and that no id can lead one astray."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError, InvalidRequest
from credhook.worker.api.models import CertificateRequest, IdentityLinkRequest, UserRequest, path_segment
from credhook.worker.api.operations import Endpoints, Templates, Users
from support.platform.token_endpoint import async_api, every_operation
from support.platform.transports import sender_of

#: How a test calls the platform.
Made = Coroutine[Any, Any, object]

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
CERTIFICATE = CertificateRequest(certificate=PEM)


def recorded(url: str = "https://api.example/tenant", **paths: str) -> tuple[AsyncApi, list[httpx.Request]]:
    """A client of a platform that answers each request with 404, and the requests."""
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(404)

    return async_api(answer, url=url, **paths), requests


async def sent(call: Callable[[AsyncApi], Made], **options: str) -> httpx.Request:
    api, requests = recorded(**options)
    with pytest.raises(ApiError):
        await call(api)
    [request] = requests
    return request


async def test_a_request_carries_the_token_and_says_what_its_body_is() -> None:
    read = await sent(lambda api: api.users.list())
    made = await sent(lambda api: api.users.create(UserRequest(email="a@b.example", first_name="Ada")))
    for request, kind in ((read, None), (made, "application/json")):
        assert request.headers["authorization"] == "Bearer t"
        assert request.headers["accept-encoding"] == "identity"
        assert request.headers.get("content-type") == kind
    assert (read.content, made.content) == (b"", b'{"email":"a@b.example","firstName":"Ada"}')


@pytest.mark.parametrize(
    ("root", "url"),
    [
        ("http://127.0.0.1:8700", "http://127.0.0.1:8700/me-creds/api/endpoints"),
        ("https://api.example/a/b/", "https://api.example/a/b/me-creds/api/endpoints"),
        ("https://api.example/a%2Fb", "https://api.example/a%2Fb/me-creds/api/endpoints"),
        ("http://[::1]:8700/x", "http://[::1]:8700/x/me-creds/api/endpoints"),
        ("https://bücher.example", "https://xn--bcher-kva.example/me-creds/api/endpoints"),
    ],
)
async def test_every_path_goes_below_the_base_url(root: str, url: str) -> None:
    request = await sent(lambda api: api.endpoints.list(), url=root)
    assert request.url.raw_host.decode() in url
    assert request.url == httpx.URL(url)


async def test_details_are_read_where_the_settings_say() -> None:
    paths = {"issuance_path": "/v2/issued/{id}", "presentation_path": "/v2/shown/{id}/details"}
    reads: list[tuple[Callable[[AsyncApi], Made], bytes]] = [
        (lambda api: api.issuances.get("acme:i"), b"/tenant/v2/issued/acme%3Ai"),
        (lambda api: api.issuances.list(), b"/tenant/v2/issued"),
        (lambda api: api.presentations.get("p"), b"/tenant/v2/shown/p/details"),
        (lambda api: api.presentations.page(""), b"/tenant/v2/shown"),
        (lambda api: api.presentations.page("page%5Bafter%5D=2"), b"/tenant/v2/shown?page%5Bafter%5D=2"),
    ]
    for call, target in reads:
        assert (await sent(call, **paths)).url.raw_path == target


def test_an_operation_takes_its_own_values_only() -> None:
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: Endpoints.create(UserRequest(email="a")), r"endpoints\.create does not take UserRequest"),  # type: ignore[arg-type]
        (Endpoints.create, "takes 1 values, not 0"),  # type: ignore[list-item]
        (lambda: Endpoints.list(UserRequest(email="a")), "takes 0 values, not 1"),  # type: ignore[call-arg]
        (lambda: Templates.get("a", "b"), "takes 1 values, not 2"),  # type: ignore[call-arg]
        (lambda: Templates.get(id="a"), "by position"),  # type: ignore[call-arg]
        (lambda: Users.link_identity("a"), "takes 2 values, not 1"),
    ]
    for call, message in wrong:
        with pytest.raises(TypeError, match=message):
            call()


def test_operations_by_id_check_the_id_of_the_answer() -> None:
    by_one_value = [each for each in every_operation().values() if len(each.placeholders) == 1 and each.body is None]
    matched = {each.name for each in by_one_value if each("mine").asked_for == "mine"}
    assert matched == {"issuances.get", "presentations.get", "templates.get"}


def test_a_call_does_not_show_what_it_carries() -> None:
    assert repr(Users.by_external_identifier("ada@b.example")) == "Call(users.by_external_identifier)"


@pytest.mark.parametrize(
    "value", ["a@b.example", "a/b", "a+b", "a b", "ä", "日本", "a%2fb", "?#", "...", "x" * 512, "ä" * 256]
)
def test_any_text_can_be_a_segment(value: str) -> None:
    assert path_segment(value) == value


@pytest.mark.parametrize(
    "value",
    ["", ".", "..", "../a", "a/../b", "a/.", "..\\a", "a\nb", "\x7f", "\x85", "\0", "\ud800", "x" * 513, "ä" * 257],
)
def test_a_segment_that_could_climb_or_cannot_travel_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="should"):
        path_segment(value)


#: What each operation takes besides an id.
REST: dict[str, object] = {
    "certificates.import_": CERTIFICATE,
    "users.link_identity": IdentityLinkRequest(enabled=True),
}
TAKING_AN_ID = [each for each in every_operation().values() if "{" in each.path]

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
    api, requests = recorded()
    for operation in TAKING_AN_ID:
        before, after = re.split(r"{\w+}", f"/tenant{operation.path}")
        requests.clear()
        with pytest.raises(ApiError) as caught:
            await operation.bound_to(sender_of(api))(value, *([REST[operation.name]] if operation.name in REST else []))
        if not requests:
            assert (type(caught.value), caught.value.operation) == (InvalidRequest, operation.name)
            continue
        [request] = requests
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
@settings(max_examples=50, deadline=None)
def test_no_id_leads_a_request_elsewhere(value: str) -> None:
    asyncio.run(leads_nowhere_else(value))
