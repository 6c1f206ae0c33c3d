"""The two senders: what becomes of a request on its way, over a transport made for the purpose."""

import asyncio
import ssl
from collections.abc import Awaitable
from typing import Any

import httpx
import pytest
from token_endpoint import API_URL, TOKEN_URL, Handler, async_api, credentials, every_operation, with_tokens

from credhook.worker.api.client import MOST_PAGES, AsyncApi, SyncApi
from credhook.worker.api.errors import ApiError, InvalidRequest, InvalidResponse, Unavailable
from credhook.worker.api.http.exchange import LONGEST_BODY, Request, Response
from credhook.worker.api.models import UserRequest
from credhook.worker.api.token import ClientCredentials
from credhook.worker.settings import PlatformSettings

GOOD = {"data": {"id": "p", "status": "verified"}}


async def outcomes(handler: Handler) -> list[object]:
    """What either sender makes of it: the result, or the error."""
    async with async_api(handler) as api:
        in_thread = asyncio.to_thread(SyncApi(api).presentations.get, "p")
        return [await outcome_of(in_thread), await outcome_of(api.presentations.get("p"))]


async def outcome_of(call: Awaitable[object]) -> object:
    try:
        return await call
    except ApiError as error:
        return error


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        *(
            (kind("a secret url"), Unavailable)
            for kind in (
                httpx.ConnectError,
                ConnectionResetError,
                ssl.SSLError,
            )
        ),
        (httpx.LocalProtocolError("a secret url"), InvalidRequest),
        (httpx.UnsupportedProtocol("a secret url"), InvalidRequest),
        (httpx.InvalidURL("a secret url"), InvalidRequest),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
async def test_whatever_httpx_raises_is_an_error_of_ours(failure: Exception, error: type[ApiError]) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise failure

    for outcome in await outcomes(fail):
        assert type(outcome) is error
        assert type(failure).__name__ in str(outcome)
        assert "secret" not in str(outcome)
        assert getattr(outcome, "__context__", None) is None


# Settings.


def told(**more: str) -> PlatformSettings:
    """Settings, without an environment."""
    named = {
        "CREDHOOK_API_URL": "https://api.example/x",
        "CREDHOOK_TOKEN_URL": TOKEN_URL,
        "CREDHOOK_CLIENT_ID": "me",
        "CREDHOOK_CLIENT_SECRET": "s3cret",
        "CREDHOOK_ISSUANCE_PATH": "/issued/{id}",
        "CREDHOOK_PRESENTATION_PATH": "/shown/{id}",
        "CREDHOOK_FETCH_TIMEOUT": "2.5",
    }
    return PlatformSettings.model_validate(named | more)


async def test_a_sender_is_built_from_settings() -> None:
    seen: list[httpx.Request] = []

    async def remember(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        response = await with_tokens(lambda _: httpx.Response(200, json=GOOD))(request)
        assert isinstance(response, httpx.Response)
        return response

    transport = httpx.MockTransport(remember)
    auth = ClientCredentials.from_settings(told())
    async with AsyncApi.from_settings(told(), auth=auth, transport=transport) as api:
        await api.presentations.get("p")
    async with AsyncApi.from_settings(told(), transport=transport) as other:
        await asyncio.to_thread(SyncApi(other).issuances.get, "p")
    token = httpx.URL(TOKEN_URL).path
    assert [request.url.path for request in seen] == [token, "/x/shown/p", token, "/x/issued/p"]
    assert all(set(request.extensions["timeout"].values()) == {2.5} for request in seen)


async def test_the_settings_decide_if_ids_must_match() -> None:
    transport = httpx.MockTransport(with_tokens(lambda _: httpx.Response(200, json=GOOD)))
    async with AsyncApi.from_settings(told(CREDHOOK_MATCH_IDS="0"), transport=transport) as api:
        assert (await api.presentations.get("q")).id == "p"


class Lent:
    """A transport that somebody else uses as well."""

    def __init__(self) -> None:
        self.is_closed = False

    async def send(self, request: Request) -> Response:
        if request.url == TOKEN_URL:
            return Response(200, {}, b'{"access_token": "t"}')
        return Response(200, {}, b'{"id": "p", "status": "verified"}')

    async def aclose(self) -> None:
        self.is_closed = True


async def test_a_transport_is_closed_by_whoever_made_it() -> None:
    lent = Lent()
    async with AsyncApi(API_URL, credentials(), transport=lent) as api:
        assert (await api.presentations.get("p")).id == "p"
    assert not lent.is_closed


# Lists, read to their end.

LISTED: dict[str, dict[str, Any]] = {
    "issuances": {"status": "x"},
    "presentations": {"status": "x"},
    "users": {},
    "endpoints": {"url": "https://a.b"},
}


class Pages:
    """A platform whose lists have pages of one item, up to the last number; each page has some bytes."""

    def __init__(self, last: int | None, size: int = 0, **fields: object) -> None:
        self.last, self.size, self.fields = last, size, fields
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        number = int(request.url.params.get("page[after]", 0))
        self.asked.append(request.url.path)
        links = {} if number == self.last else {"next": f"https://elsewhere.example/x?page[after]={number + 1}"}
        item = {"id": f"i{number}", **self.fields, "more": "x" * self.size}
        return httpx.Response(200, json={"data": [item], "links": links})


@pytest.mark.parametrize("noun", LISTED)
async def test_a_list_is_all_of_its_pages_for_either_sender(noun: str) -> None:
    platform = Pages(2, **LISTED[noun])
    async with async_api(platform) as api:
        found = [await getattr(api, noun).list(), await asyncio.to_thread(getattr(SyncApi(api), noun).list)]
    assert [[one.id for one in items] for items in found] == [["i0", "i1", "i2"]] * 2
    assert len(set(platform.asked)) == 1  # Of a link, only the query is followed.


def test_the_rows_above_are_all_lists() -> None:
    assert {name.partition(".")[0] for name, each in every_operation().items() if each.is_list} == set(LISTED)


@pytest.mark.parametrize(("size", "pages"), [(0, MOST_PAGES), (LONGEST_BODY - 1_000, 9)], ids=["pages", "bytes"])
async def test_a_list_that_does_not_end_is_given_up(size: int, pages: int) -> None:
    platform = Pages(None, size)
    async with async_api(platform) as api:
        with pytest.raises(InvalidResponse, match=rf"^users\.list: the list goes on after {pages} pages"):
            await api.users.list()
        assert len(platform.asked) == pages
        assert (await api.users.page("page[after]=7")).following == "page%5Bafter%5D=8"


# Requests for operations that have no name.

ROOT = "https://api.example/tenant"


async def test_a_request_without_a_name_is_sent_and_read_like_any_other() -> None:
    asked: list[tuple[str, str, bytes, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, str(request.url), request.content, request.headers["authorization"]))
        replies = {"POST": httpx.Response(202, json={"data": {"id": 1}, "links": {}}), "DELETE": httpx.Response(204)}
        return replies.get(request.method) or httpx.Response(503, headers={"Retry-After": "7"})

    async with AsyncApi(ROOT, credentials(), transport=httpx.MockTransport(with_tokens(answer))) as api:
        sync = SyncApi(api)
        assert await api.request("POST", "/x/offers", {"a": [1, None], "b": None}) == {"data": {"id": 1}, "links": {}}
        assert await api.request("POST", "/x", UserRequest(email="a@b.example"))
        assert await asyncio.to_thread(sync.request, "DELETE", "/x/a%20b") is None
        with pytest.raises(Unavailable, match=r"^request: the platform answered 503$") as caught:
            await api.request("GET", "/x?filter[id]=a&b=%2F")
    assert caught.value.retry_after == 7.0
    assert asked == [
        ("POST", f"{ROOT}/x/offers", b'{"a":[1,null],"b":null}', "Bearer t"),
        ("POST", f"{ROOT}/x", b'{"email":"a@b.example"}', "Bearer t"),
        ("DELETE", f"{ROOT}/x/a%20b", b"", "Bearer t"),
        ("GET", f"{ROOT}/x?filter[id]=a&b=%2F", b"", "Bearer t"),
    ]


@pytest.mark.parametrize(
    "path",
    [
        *("", "x", "https://evil.example/x", "//evil.example/x", "/a//b", "@evil.example", "/\\evil.example", ".evil"),
        *("/../x", "/a/..", "/a/./b", "/%2e%2E/x", "/a/.%2e", "/a%2f..%2fb", "/a%5c..", "/a?b=../c d", "/a#b", "/a%zz"),
        *("/a b", "/ä", "/a\n", "/a\r\nHost: evil", "/a\0", "/{id}", ":8080/x", "?a=b"),
    ],
)
async def test_no_path_leads_a_request_elsewhere(path: str) -> None:
    def never(_: httpx.Request) -> httpx.Response:
        raise AssertionError

    async with AsyncApi(ROOT, credentials(), transport=httpx.MockTransport(never)) as api:
        with pytest.raises(
            InvalidRequest, match=r"path should begin with one /, be percent-encoded, and have no \. or"
        ):
            await api.request("GET", path)
        for wrong in (("TRACE", "/x", None), ("POST", "/x", object())):
            with pytest.raises(InvalidRequest, match=r"^request: (method should be|json cannot)"):
                await api.request(*wrong)


@pytest.mark.parametrize(
    ("statuses", "patience", "asked"),
    [([500, 200], 60.0, 2), ([500, 200], 0.0, 1), ([429, 200], 1.0, 1), ([400, 200], 60.0, 1), ([0, 200], 60.0, 1)],
)
async def test_a_patient_client_repeats_what_passes(statuses: list[int], patience: float, asked: int) -> None:
    left = list(statuses)

    def answer(_: httpx.Request) -> httpx.Response:
        status = left.pop(0)
        if not status:  # It may have been done: a command does not repeat it.
            raise httpx.ReadError("reset")
        return httpx.Response(status, json={"data": []}, headers={"Retry-After": "2" if status == 429 else "0"})

    async with async_api(answer, patience=patience) as api:
        result = await outcome_of(api.users.list())
    assert len(statuses) - len(left) == asked
    assert (result == ()) == (left == [])
