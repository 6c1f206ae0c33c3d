"""The two senders: what becomes of a request on its way, over a transport made for the purpose."""

import asyncio
import gzip
import inspect
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from credhook.worker.api.auth import ClientCredentials
from credhook.worker.api.client import AsyncApi, SyncApi, shared_ssl_context
from credhook.worker.api.errors import ApiError, InvalidRequest, NotAuthenticated, NotThere, NotUnderstood, TryLater
from credhook.worker.api.sizes import LONGEST_BODY
from credhook.worker.api.token_request import Method

TOKEN_URL = "https://id.example/token"
API_URL = "https://api.example"
GOOD = {"data": {"id": "p", "status": "verified"}}

Handler = Callable[[httpx.Request], Any]


def with_tokens(handler: Handler) -> Handler:
    def handle(request: httpx.Request) -> Any:
        if request.url.host == "id.example":
            return httpx.Response(200, json={"access_token": "t", "expires_in": 300, "token_type": "Bearer"})
        return handler(request)

    return handle


def sync_api(handler: Handler, timeout: float = 5.0) -> SyncApi:
    transport = httpx.MockTransport(with_tokens(handler))
    return SyncApi(API_URL, ClientCredentials(TOKEN_URL, "me", "s3cret"), transport=transport, timeout=timeout)


def async_api(handler: Handler, timeout: float = 5.0) -> AsyncApi:
    inner = with_tokens(handler)

    async def handle(request: httpx.Request) -> httpx.Response:
        response = inner(request)
        if inspect.isawaitable(response):
            response = await response
        assert isinstance(response, httpx.Response)
        return response

    transport = httpx.MockTransport(handle)
    return AsyncApi(API_URL, ClientCredentials(TOKEN_URL, "me", "s3cret"), transport=transport, timeout=timeout)


async def outcomes(handler: Handler) -> list[object]:
    """What either sender makes of it: the result, or the error."""
    results: list[object] = []
    with sync_api(handler) as api:
        try:
            results.append(await asyncio.to_thread(api.presentations.get, "p"))
        except ApiError as error:
            results.append(error)
    async with async_api(handler) as other:
        try:
            results.append(await other.presentations.get("p"))
        except ApiError as error:
            results.append(error)
    return results


async def test_both_senders_read_the_same_answer() -> None:
    first, second = await outcomes(lambda _: httpx.Response(200, json=GOOD))
    assert first == second
    assert getattr(first, "id", None) == "p"


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        *(
            (kind("a secret url"), TryLater)
            for kind in (
                httpx.ConnectError,
                httpx.ConnectTimeout,
                httpx.ReadTimeout,
                httpx.WriteTimeout,
                httpx.PoolTimeout,
                httpx.ReadError,
                httpx.WriteError,
                httpx.CloseError,
                httpx.RemoteProtocolError,
                httpx.ProxyError,
                ConnectionResetError,
                ssl.SSLError,
            )
        ),
        (httpx.LocalProtocolError("a secret url"), InvalidRequest),
        (httpx.UnsupportedProtocol("a secret url"), InvalidRequest),
        (httpx.InvalidURL("a secret url"), InvalidRequest),
        (httpx.DecodingError("junk"), NotUnderstood),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
async def test_whatever_httpx_raises_is_an_error_of_ours(failure: Exception, error: type[ApiError]) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise failure

    for outcome in await outcomes(fail):
        assert type(outcome) is error
        assert "secret" not in str(outcome)
        assert getattr(outcome, "__context__", None) is None


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("location", ["https://evil.example/", "/me-creds/api/presentations/other", "?x", ""])
async def test_redirects_are_refused(status: int, location: str) -> None:
    asked: list[str] = []

    def redirect(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(status, headers={"location": location})

    assert [type(each) for each in await outcomes(redirect)] == [NotUnderstood, NotUnderstood]
    assert asked == ["/me-creds/api/presentations/p"] * 2


async def test_cookies_are_not_kept() -> None:
    cookies: list[str | None] = []

    def set_cookie(request: httpx.Request) -> httpx.Response:
        cookies.append(request.headers.get("cookie"))
        return httpx.Response(200, json=GOOD, headers={"set-cookie": "session=1; Path=/"})

    async with async_api(set_cookie) as api:
        await api.presentations.get("p")
        await api.presentations.get("p")
    with sync_api(set_cookie) as other:
        other.presentations.get("p")
        other.presentations.get("p")
    assert cookies == [None] * 4


# Bounds.


class Endless(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body without an end, that counts what was taken of it."""

    def __init__(self) -> None:
        self.given = 0
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self.given += 65_536
            yield b" " * 65_536

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


async def test_a_body_is_read_up_to_four_mebibytes_and_then_refused() -> None:
    streams = [Endless(), Endless()]
    given = iter(streams)
    for outcome in await outcomes(lambda _: httpx.Response(200, stream=next(given))):
        assert type(outcome) is NotUnderstood
        assert "longer than 4194304 bytes" in str(outcome)
    for stream in streams:
        assert stream.given <= LONGEST_BODY + 2 * 65_536
        assert stream.closed


async def test_a_body_of_just_four_mebibytes_is_read() -> None:
    body = httpx.Response(200, json=GOOD).content
    body += b" " * (LONGEST_BODY - len(body))
    for outcome in await outcomes(lambda _: httpx.Response(200, content=body)):
        assert getattr(outcome, "id", None) == "p"


@pytest.mark.parametrize(("status", "error"), [(503, TryLater), (404, NotThere), (400, InvalidRequest)])
async def test_an_endless_refusal_is_cut_short_and_keeps_its_meaning(status: int, error: type[ApiError]) -> None:
    streams = [Endless(), Endless()]
    given = iter(streams)
    assert {type(each) for each in await outcomes(lambda _: httpx.Response(status, stream=next(given)))} == {error}
    assert all(stream.given <= LONGEST_BODY + 2 * 65_536 and stream.closed for stream in streams)


async def test_a_compressed_answer_is_not_unpacked() -> None:
    bomb = gzip.compress(b" " * 10_000_000)

    def compressed(status: int) -> Handler:
        return lambda _: httpx.Response(status, stream=httpx.ByteStream(bomb), headers={"content-encoding": "gzip"})

    for outcome in await outcomes(compressed(200)):
        assert type(outcome) is NotUnderstood
        assert "compressed" in str(outcome)
    for outcome in await outcomes(compressed(503)):
        assert type(outcome) is TryLater


class Dripping(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that arrives a byte at a time, each well within the time-out of a read."""

    def __iter__(self) -> Iterator[bytes]:
        while True:
            time.sleep(0.01)
            yield b" "

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0.01)
            yield b" "


async def test_a_dripping_body_ends_with_the_time_of_the_request() -> None:
    begun = time.monotonic()
    async with async_api(lambda _: httpx.Response(200, stream=Dripping()), timeout=0.1) as api:
        with pytest.raises(TryLater, match="ReadTimeout"):
            await api.presentations.get("p")
    with (
        sync_api(lambda _: httpx.Response(200, stream=Dripping()), timeout=0.1) as other,
        pytest.raises(TryLater, match="ReadTimeout"),
    ):
        other.presentations.get("p")
    assert time.monotonic() - begun < 5


async def test_a_request_that_is_never_answered_ends_with_its_time() -> None:
    async def never(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with async_api(never, timeout=0.05) as api:
        with pytest.raises(TryLater, match="ReadTimeout"):
            await api.presentations.get("p")


async def test_cancelling_a_request_is_not_an_error_of_the_platform() -> None:
    started = asyncio.Event()

    async def never(_: httpx.Request) -> httpx.Response:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with async_api(never) as api:
        task = asyncio.create_task(api.presentations.get("p"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# Settings.


class Told:
    """Settings, without an environment."""

    api_url = "https://api.example/x"
    token_url = TOKEN_URL
    client_id = "me"
    issuance_path = "/issued/{id}"
    presentation_path = "/shown/{id}"
    fetch_timeout = 2.5
    match_ids = True
    max_answer = LONGEST_BODY
    token_auth: Method = "post"
    scope = None
    audience = None
    resource = ()
    client_secret = SecretStr("s3cret")


async def test_a_sender_is_built_from_settings() -> None:
    seen: list[httpx.Request] = []

    def remember(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=GOOD)

    transport = httpx.MockTransport(with_tokens(remember))
    auth = ClientCredentials.from_settings(Told())
    async with AsyncApi.from_settings(Told(), auth=auth, transport=transport) as api:
        await api.presentations.get("p")
    with SyncApi.from_settings(Told(), transport=transport) as other:
        other.issuances.get("p")
    assert [request.url.path for request in seen] == ["/x/shown/p", "/x/issued/p"]
    assert all(set(request.extensions["timeout"].values()) == {2.5} for request in seen)


class Lenient(Told):
    """Settings that say otherwise."""

    match_ids = False
    max_answer = 65_536


async def test_whether_ids_match_and_how_long_an_answer_is_are_taken_from_settings() -> None:
    bodies = iter([GOOD, GOOD, {"long": "x" * 65_536}, {"long": "x" * 65_536}])
    transport = httpx.MockTransport(with_tokens(lambda _: httpx.Response(200, json=next(bodies))))
    async with AsyncApi.from_settings(Lenient(), transport=transport) as api:
        with SyncApi.from_settings(Lenient(), transport=transport) as other:
            assert (await api.presentations.get("q")).id == other.presentations.get("q").id == "p"
            with pytest.raises(NotUnderstood, match="longer than 65536 bytes"):
                await api.presentations.get("p")
            with pytest.raises(NotUnderstood, match="longer than 65536 bytes"):
                other.presentations.get("p")


def test_a_root_that_is_none_stops_construction() -> None:
    with pytest.raises(ValueError, match="the API's URL"):
        SyncApi("api.example", ClientCredentials(TOKEN_URL, "me", "s"))


async def test_one_trust_store_serves_every_sender() -> None:
    auth = ClientCredentials(TOKEN_URL, "me", "s")
    async with AsyncApi(API_URL, auth) as api:
        with SyncApi(API_URL, auth) as other:
            carriers: list[Any] = [api._transport, other._http._transport]
            assert {carrier._inner._pool._ssl_context for carrier in carriers} == {shared_ssl_context()}


async def test_logs_hold_no_token_no_secret_and_no_body(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "httpx")  # Our own set-up of logs, if a test has called it, keeps it quiet.
    detail = {"id": "p", "status": "verified", "credentials": [{"attributes": {"name": "Ada Lovelace"}}]}
    await outcomes(lambda _: httpx.Response(200, json={"data": detail}))
    await outcomes(lambda _: httpx.Response(400, json={"errors": [{"detail": "Ada Lovelace"}]}))
    with sync_api(with_tokens(lambda _: httpx.Response(200, json={"data": detail}))) as api:
        api.presentations.get("p")  # The asynchronous sender has no client of httpx's around it, and no log.
    assert caplog.text
    for secret in ("Ada", "s3cret", "Bearer"):
        assert secret not in caplog.text


# Types: checked by mypy, which fails if either is not what the platform's nouns promise.


async def test_each_sender_has_precise_types() -> None:
    handler = with_tokens(lambda _: httpx.Response(200, json=GOOD))
    with sync_api(handler) as api:
        value: str = api.presentations.get("p").status
    async with async_api(handler) as other:
        pending: Awaitable[object] = other.presentations.get(id="p")
        await pending
        status: str = (await other.presentations.get("p")).status
    assert value == status == "verified"


def test_an_answer_of_401_twice_is_not_authenticated() -> None:
    with sync_api(lambda _: httpx.Response(401)) as api, pytest.raises(NotAuthenticated):
        api.users.list()
