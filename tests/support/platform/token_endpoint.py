"""A platform made of functions, for clients of the token endpoint: it grants tokens, and believes them until revoked.

It stands behind one of httpx's transports, so that nothing goes over a network.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from credhook.events import RESOURCES
from credhook.worker.api.client import AsyncApi, Permit, Sender
from credhook.worker.api.http.exchange import Transport
from credhook.worker.api.http.httpx_transport import HttpxTransport
from credhook.worker.api.operations import Namespace, Operation, reading
from credhook.worker.api.token import ClientCredentials, Token
from support.process.fake_children import Clock

TOKEN_URL = "https://id.example/realms/r/protocol/openid-connect/token"
API_URL = "https://api.example"


class Platform:
    """An identity provider and an API.

    Attributes:
        granted: how many tokens were; the API believes those in `good`. `lifetime`: of the tokens, in seconds.
        token_requests, api_requests: what came to each.
        refuse_tokens: what the token endpoint answers instead of granting one, if anything.
    """

    def __init__(self) -> None:
        self.granted = 0
        self.good: set[str] = set()
        self.token_requests: list[httpx.Request] = []
        self.api_requests: list[httpx.Request] = []
        self.refuse_tokens: Callable[[httpx.Request], httpx.Response] | None = None
        self.lifetime = 300

    def revoke(self) -> None:
        """Believe none of the tokens any more."""
        self.good.clear()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "id.example":
            return self._token(request)
        self.api_requests.append(request)
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.good:
            return httpx.Response(401, json={"errors": [{"detail": "Expired", "code": "UNAUTHORIZED"}]})
        return httpx.Response(200, json={"data": {"id": "p", "status": "verified"}})

    def _token(self, request: httpx.Request) -> httpx.Response:
        self.token_requests.append(request)
        if self.refuse_tokens:
            return self.refuse_tokens(request)
        self.granted += 1
        token = f"token-{self.granted}"
        self.good.add(token)
        granted = {"access_token": token, "expires_in": self.lifetime, "refresh_expires_in": 0, "token_type": "Bearer"}
        return httpx.Response(200, json=granted)


class Held:
    """A platform whose token endpoint sets `asked` when it is asked, and answers once `go` is set."""

    def __init__(self) -> None:
        self.platform = Platform()
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "id.example":
            self.asked.set()
            await self.go.wait()
        return self.platform(request)


class CountedCredentials(ClientCredentials):
    """Credentials that count how often they were asked for a token."""

    asked = 0

    async def token(self, transport: Transport) -> Token:
        self.asked += 1
        return await super().token(transport)


def credentials(clock: Clock | None = None) -> CountedCredentials:
    return CountedCredentials(TOKEN_URL, "me", "s3cret", clock=clock or Clock())


def behind(platform: Any) -> HttpxTransport:
    """A transport to the platform, which is whatever `httpx.MockTransport` takes."""
    return HttpxTransport(httpx.AsyncClient(transport=httpx.MockTransport(platform)), 10.0)


def client(platform: Any, auth: ClientCredentials, *, url: str = API_URL, **options: Any) -> AsyncApi:
    return AsyncApi(Sender(url, auth, behind(platform), **options))


class Book(Permit):
    """A guard that lets everything pass. It writes down the operations, and what it hears of their ends."""

    def __init__(self) -> None:
        self.acquired: list[str] = []
        self.heard: list[tuple[object, ...]] = []

    async def __call__(self, operation: str) -> Permit:
        self.acquired.append(operation)
        return self

    def ended(self, status: int | None, *, retry_after: float | None = None, cause: str = "") -> None:
        self.heard.append((cause,) if status is None else (status, retry_after, *filter(None, [cause])))

    def cancelled(self) -> None:
        self.heard.append(("cancelled",))


class BrokenBody(httpx.AsyncByteStream):
    """A body that breaks off with an error, or never goes on."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'{"errors": ['
        if self.error:
            raise self.error
        await asyncio.Event().wait()


Handler = Callable[[httpx.Request], Any]


def with_tokens(handler: Handler) -> Handler:
    """A platform that grants a token to everyone, and answers all else as the handler does."""

    async def handle(request: httpx.Request) -> Any:
        if request.url.host == "id.example":
            return httpx.Response(200, json={"access_token": "t", "expires_in": 300, "token_type": "Bearer"})
        response = handler(request)
        return await response if inspect.isawaitable(response) else response

    return handle


def async_api(handler: Handler, **options: Any) -> AsyncApi:
    return client(with_tokens(handler), credentials(), **options)


def every_operation() -> dict[str, Operation[Any]]:
    """All that a client offers, by name."""
    found = [each for resource in RESOURCES for each in reading(resource).values()]
    found += [each for kind in Namespace.__subclasses__() for each in vars(kind).values()]
    return {each.name: each for each in found if isinstance(each, Operation)}
