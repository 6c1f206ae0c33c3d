"""The two senders: what becomes of a request on its way, over a transport made for the purpose."""

import asyncio
import ssl
from collections.abc import Awaitable

import httpx
import pytest
from token_endpoint import API_URL, TOKEN_URL, Handler, async_api, credentials, with_tokens

from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.errors import ApiError, InvalidRequest, InvalidResponse, Unauthorized, Unavailable
from credhook.worker.api.http.exchange import Request, Response
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


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("location", ["https://evil.example/", "/me-creds/api/presentations/other", "?x", ""])
async def test_redirects_are_refused(status: int, location: str) -> None:
    asked: list[str] = []

    def redirect(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(status, headers={"location": location})

    assert [type(each) for each in await outcomes(redirect)] == [InvalidResponse, InvalidResponse]
    assert asked == ["/me-creds/api/presentations/p"] * 2


async def test_an_answer_of_401_twice_is_not_authenticated() -> None:
    outcome, _ = await outcomes(lambda _: httpx.Response(401))
    assert type(outcome) is Unauthorized


# How many at a time, and until when.


async def test_cancelling_a_request_is_not_an_error_of_the_platform() -> None:
    started = asyncio.Event()

    async def begin(_: httpx.Request) -> httpx.Response:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with async_api(begin) as api:
        task = asyncio.create_task(api.presentations.get("p"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


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
