"""The two senders: what becomes of a request on its way, and of an answer that is too long, breaks off or stalls."""

import asyncio
import ssl
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import ThreadPoolExecutor
from errno import ECONNABORTED, ECONNREFUSED, ECONNRESET, EMFILE, ENETUNREACH, ENFILE, EPIPE, ETIMEDOUT
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx
import pytest

from credhook.settings import PlatformSettings
from credhook.worker.api.client import MOST_EMPTY, MOST_PAGES, Api, AsyncApi, Sender, transport_from
from credhook.worker.api.errors import ApiError, InvalidRequest, InvalidResponse, Unavailable
from credhook.worker.api.http.exchange import LONGEST_BODY, Request, Response
from credhook.worker.api.http.httpx_transport import HttpxTransport
from credhook.worker.api.models import UserRequest
from credhook.worker.api.token import ClientCredentials
from support.platform.platform_settings import leading_to
from support.platform.token_endpoint import (
    TOKEN_URL,
    BrokenBody,
    Handler,
    Platform,
    async_api,
    behind,
    client,
    credentials,
    every_operation,
    with_tokens,
)
from support.platform.transports import BOTH, api_over, for_threads
from support.virtual_time import on_own_clock
from support.waiting import until

GOOD = {"data": {"id": "p", "status": "verified"}}


async def outcome_of(call: Awaitable[object]) -> Any:
    try:
        return await call
    except ApiError as error:
        return error


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (httpx.ConnectError("a secret url"), ""),
        (ConnectionResetError("a secret url"), ""),
        *((OSError(number, "a secret url"), "reset") for number in (ECONNRESET, ECONNABORTED, EPIPE)),
        (OSError(ECONNREFUSED, "a secret url"), "refused"),
        (OSError(ETIMEDOUT, "a secret url"), "timeout"),
        *((OSError(number, "a secret url"), "socket") for number in (EMFILE, ENFILE)),
        (OSError(ENETUNREACH, "a secret url"), "unreachable"),
        (ssl.SSLError("a secret url"), "tls"),
        (httpx.LocalProtocolError("a secret url"), "unsendable"),
        (httpx.UnsupportedProtocol("a secret url"), "unsendable"),
        (httpx.InvalidURL("a secret url"), "unsendable"),
        (UnicodeError("a secret url"), "unsendable"),
        (httpx.StreamError("a secret url"), ""),
    ],
    ids=lambda value: repr(value).partition(", ")[0] if isinstance(value, Exception) else value,
)
async def test_errors_of_httpx_become_api_errors(failure: Exception, cause: str) -> None:
    async with async_api(Mock(side_effect=failure)) as api:
        in_thread = asyncio.to_thread(for_threads(api).presentations.get, "p")
        outcomes = [await outcome_of(in_thread), await outcome_of(api.presentations.get("p"))]
    for outcome in outcomes:
        assert (type(outcome), outcome.operation, outcome.cause) == (Unavailable, "presentations.get", cause)
        assert type(failure).__name__ in str(outcome)
        assert "secret" not in str(outcome)
        assert "secret" not in "".join(traceback.format_exception(outcome))


def told(**more: str) -> PlatformSettings:
    """Settings, without an environment."""
    named = leading_to("https://api.example/x") | {
        "CREDHOOK_TOKEN_URL": TOKEN_URL,
        "CREDHOOK_ISSUANCE_PATH": "/issued/{id}",
        "CREDHOOK_PRESENTATION_PATH": "/shown/{id}",
        "CREDHOOK_FETCH_TIMEOUT": "2.5",
    }
    return PlatformSettings.model_validate(named | more)


async def test_a_sender_is_built_from_settings() -> None:
    platform, seen = Platform(), list[httpx.URL]()

    def remember(request: httpx.Request) -> httpx.Response:
        seen.append(request.url)
        return platform(request)

    inner = httpx.MockTransport(remember)
    inner.aclose = closed = AsyncMock()  # type: ignore[method-assign]
    transport = HttpxTransport(httpx.AsyncClient(transport=inner), 10.0)
    auth = ClientCredentials.from_settings(told())
    async with AsyncApi(Sender.from_settings(told(), auth=auth, transport=transport)) as api:
        await api.presentations.get("p")
    other = Sender.from_settings(told(), transport=behind(remember))
    await asyncio.to_thread(Api(other).issuances.get, "p")
    assert seen[::2] == [TOKEN_URL] * 2
    assert [url.path for url in seen[1::2]] == ["/x/shown/p", "/x/issued/p"]
    for name in BOTH:
        assert vars(transport_from(told(CREDHOOK_HTTP_CLIENT=name)))["timeout"] == 2.5
    assert closed.await_count == 1


async def test_the_settings_decide_if_ids_must_match() -> None:
    answers = iter([GOOD, GOOD, {"status": "verified"}, {"error": "x"}])
    transport = behind(with_tokens(lambda _: httpx.Response(200, json=next(answers))))
    api = AsyncApi(Sender.from_settings(told(), transport=transport))
    with pytest.raises(InvalidResponse, match="another id than the one asked for"):
        await api.presentations.get("q")
    async with AsyncApi(Sender.from_settings(told(CREDHOOK_MATCH_IDS="0"), transport=transport)) as api:
        assert [(await api.presentations.get("q")).id for _ in range(2)] == ["p", "q"]
        with pytest.raises(InvalidResponse, match="an error in place of data"):
            await api.presentations.get("q")


LISTED: dict[str, dict[str, Any]] = {
    "issuances": {"status": "x"},
    "presentations": {"status": "x"},
    "users": {},
    "endpoints": {"url": "https://a.b"},
}


class Pages:
    """A platform whose lists have pages of one item, up to the last number; each page has some bytes.

    Only each page whose number can be divided by `filled` has an item.
    """

    def __init__(self, last: int | None, size: int = 0, *, filled: int = 1, **fields: object) -> None:
        self.last, self.size, self.filled, self.fields = last, size, filled, fields
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        number = int(request.url.params.get("page[after]", 0))
        self.asked.append(request.url.path)
        links = {} if number == self.last else {"next": f"https://elsewhere.example/x?page[after]={number + 1}"}
        item = {"id": f"i{number}", **self.fields, "more": "x" * self.size}
        return httpx.Response(200, json={"data": [item] if number % self.filled == 0 else [], "links": links})


@pytest.mark.parametrize("noun", LISTED)
async def test_a_list_is_all_of_its_pages_for_either_sender(noun: str) -> None:
    platform = Pages(2, **LISTED[noun])
    async with async_api(platform) as api:
        found = [await getattr(api, noun).list(), await asyncio.to_thread(getattr(for_threads(api), noun).list)]
    assert [[one.id for one in items] for items in found] == [["i0", "i1", "i2"]] * 2
    assert len(set(platform.asked)) == 1  # Of a link, only the query is followed.


def test_the_rows_above_are_all_lists() -> None:
    assert {name.partition(".")[0] for name, each in every_operation().items() if each.is_list} == set(LISTED)


@pytest.mark.parametrize(("size", "pages"), [(0, MOST_PAGES), (LONGEST_BODY - 1_000, 9)], ids=["pages", "bytes"])
async def test_a_list_that_does_not_end_is_given_up(size: int, pages: int) -> None:
    platform = Pages(None, size)
    async with async_api(platform) as api:
        with pytest.raises(InvalidResponse, match=rf"^users\.list: the list goes on after {pages} pages") as caught:
            await api.users.list()
        assert caught.value.cause == "too_large"
        assert len(platform.asked) == pages
        assert (await api.users.page("page[after]=7")).following == "page%5Bafter%5D=8"
    async with async_api(Pages(pages - 1, size)) as api:
        assert len(await api.users.list()) == pages  # The last page may reach a bound.


async def test_a_list_may_have_a_hundred_empty_pages_in_a_row() -> None:
    async with async_api(Pages(303, filled=MOST_EMPTY + 1)) as api:
        assert [user.id for user in await api.users.list()] == ["i0", "i101", "i202", "i303"]


ROOT = "https://api.example/tenant"


async def test_a_request_without_a_name_is_sent_and_read_like_any_other() -> None:
    asked: list[tuple[str, str, bytes, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, str(request.url), request.content, request.headers["authorization"]))
        assert ("content-type" in request.headers) is bool(request.content)
        replies = dict.fromkeys(("PUT", "PATCH", "DELETE"), httpx.Response(204))
        replies["POST"] = httpx.Response(202, json={"data": {"id": 1}, "links": {}})
        return replies.get(request.method) or httpx.Response(503, headers={"Retry-After": "7"})

    class Noting(HttpxTransport):
        async def send(self, request: Request) -> Response:
            repeatable.add((request.method, request.repeatable))
            return await super().send(request)

    transport, repeatable = (
        Noting(httpx.AsyncClient(transport=httpx.MockTransport(with_tokens(answer))), 10.0),
        set[tuple[str, bool]](),
    )
    async with api_over(transport, ROOT, credentials()) as api:
        sync = for_threads(api)
        assert await api.request("POST", "/x/offers", {"a": [1, None], "b": None}) == {"data": {"id": 1}, "links": {}}
        assert await api.request("POST", "/x", UserRequest(email="a@b.example"))
        assert await asyncio.to_thread(sync.request, "POST", "/x", {})
        assert await api.request("PUT", "/x", 1) is await api.request("PATCH", "/x", 1) is None
        assert await asyncio.to_thread(sync.request, "DELETE", "/acme:a%20b@x/!$&'()*+,;=~") is None
        with pytest.raises(Unavailable, match=r"^request: the platform answered 503$") as caught:
            await api.request("GET", "/x?filter[id]=a&b=%2F/../c:@!$'()*+,;~?-")
    assert caught.value.retry_after == 7.0
    once = {(method, False) for method in ("POST", "PUT", "PATCH", "DELETE")}
    assert repeatable == {("GET", True), ("POST", True)} | once  # The repeatable POST is the token's.
    assert asked == [
        ("POST", f"{ROOT}/x/offers", b'{"a":[1,null],"b":null}', "Bearer t"),
        ("POST", f"{ROOT}/x", b'{"email":"a@b.example"}', "Bearer t"),
        ("POST", f"{ROOT}/x", b"{}", "Bearer t"),
        *((method, f"{ROOT}/x", b"1", "Bearer t") for method in ("PUT", "PATCH")),
        ("DELETE", f"{ROOT}/acme:a%20b@x/!$&'()*+,;=~", b"", "Bearer t"),
        ("GET", f"{ROOT}/x?filter[id]=a&b=%2F/../c:@!$'()*+,;~?-", b"", "Bearer t"),
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
    async with client(Mock(side_effect=AssertionError), credentials(), url=ROOT) as api:
        with pytest.raises(InvalidRequest, match=r"path should begin with one /, be percent-encoded, and have no \."):
            await api.request("GET", path)
        if path.startswith("/"):
            with pytest.raises(InvalidRequest, match=r"^users\.page: should be `following` of another page$"):
                await api.users.page(path)
        for wrong in (("TRACE", "/x", None), ("POST", "/x", object())):
            with pytest.raises(InvalidRequest, match=r"^request: (method should be|json cannot)"):
                await api.request(*wrong)


@pytest.mark.parametrize(
    ("statuses", "retry_seconds", "asked"),
    [([500, 200], 60.0, 2), ([500, 200], 0.0, 1), ([429, 200], 1.0, 1), ([400, 200], 60.0, 1), ([0, 200], 60.0, 1)],
)
async def test_client_with_retry_seconds_repeats_what_passes(
    statuses: list[int], retry_seconds: float, asked: int
) -> None:
    left = list(statuses)

    def answer(_: httpx.Request) -> httpx.Response:
        status = left.pop(0)
        if not status:  # It may have been done: a command does not repeat it.
            raise httpx.ReadError("reset")
        return httpx.Response(status, json={"data": []}, headers={"Retry-After": "2" if status == 429 else "0"})

    async with async_api(answer, retry_seconds=retry_seconds) as api:
        result = await outcome_of(api.users.list())
    assert len(statuses) - len(left) == asked
    assert (result == ()) == (left == [])


@on_own_clock
async def test_a_patient_client_pauses_though_the_platform_asks_for_no_pause() -> None:
    answers = Mock(side_effect=[httpx.Response(503, headers={"Retry-After": "0"})] * 20)
    assert isinstance(await outcome(answers, retry_seconds=3.0), Unavailable)


# Where it cannot be sent.


async def test_on_the_loop_itself_it_is_a_mistake_with_a_remedy() -> None:
    platform = Platform()
    async with client(platform, credentials()) as api:
        with pytest.raises(RuntimeError, match=r"^presentations\.get: .*make the handler an `async def`"):
            for_threads(api).presentations.get("p")
        await asyncio.sleep(0)
    assert platform.token_requests == platform.api_requests == []


def test_after_the_loop_has_ended_it_is_for_later() -> None:
    platform = Platform()

    async def made() -> Api:
        return for_threads(client(platform, credentials()))

    facade = asyncio.run(made())
    with ThreadPoolExecutor(1) as threads:
        error = threads.submit(facade.presentations.get, "p").exception()
    assert isinstance(error, Unavailable)
    assert str(error) == "presentations.get: not sent: the worker is stopping"
    assert (error.operation, error.status, error.retry_after) == ("presentations.get", None, None)
    assert platform.token_requests == []


def test_a_call_that_the_end_of_the_loop_breaks_off_is_for_later() -> None:
    asked, facades = threading.Event(), []

    async def never(_: httpx.Request) -> httpx.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def live() -> None:
        facades.append(for_threads(client(never, credentials())))
        await asyncio.to_thread(asked.wait)  # And with that it ends, and cancels whatever is under way.

    with ThreadPoolExecutor(2) as threads:
        loop = threads.submit(lambda: asyncio.run(live()))
        (facade,) = until(lambda: facades)
        error = threads.submit(facade.presentations.get, "p").exception()
        loop.result()
    assert isinstance(error, Unavailable)
    assert error.operation == "presentations.get"


async def outcome(handler: Handler, **options: Any) -> Any:
    """The result of a call, or the error."""
    async with async_api(handler, **options) as api:
        return await outcome_of(api.presentations.get("p"))


class Endless(httpx.AsyncByteStream):
    """A body without an end, that counts what was taken of it."""

    def __init__(self) -> None:
        self.given = 0
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.given += 65_536
            yield b" " * 65_536

    async def aclose(self) -> None:
        self.closed = True


async def test_a_body_is_read_up_to_four_mebibytes_and_then_refused() -> None:
    stream = Endless()
    refused = await outcome(lambda _: httpx.Response(200, stream=stream))
    assert (type(refused), refused.cause) == (InvalidResponse, "too_large")
    assert "longer than 4194304 bytes" in str(refused)
    assert stream.given <= LONGEST_BODY + 2 * 65_536
    assert stream.closed
    body = httpx.Response(200, json=GOOD).content
    body += b" " * (LONGEST_BODY - len(body))
    assert (await outcome(lambda _: httpx.Response(200, content=body))).id == "p"


#: What may become of a body that has begun.
ENDS = {"broken off": httpx.ReadError("x"), "reset": ConnectionResetError(), "stalled": None}


@pytest.mark.parametrize("status", [200, 429])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@on_own_clock
async def test_an_answer_without_the_rest_of_its_body_is_none(end: Exception | None, status: int) -> None:
    failed = await outcome(lambda _: httpx.Response(status, stream=BrokenBody(end)))
    assert (type(failed), failed.status) == (Unavailable, None)
    assert failed.cause == ("timeout" if end is None else "closed" if isinstance(end, httpx.ReadError) else "")
