"""Two thin senders of the same operations: `AsyncApi` for event loops, `SyncApi` for threads and the command line.

    async with AsyncApi.from_settings(settings) as api:
        presentation = await api.presentations.get(event.resource_id)

The nouns and their methods are written once, in `namespaces`; what is sent, and how an answer is read, is decided by
pure functions in `operations`, `roots` and `answers`. Whatever goes wrong is an `ApiError`.

httpx and httpcore log each URL at INFO and DEBUG through the standard library's logging: ids for most operations, but
usernames and external identifiers for three of `users`. Keep those loggers at WARNING where logs are kept.
"""

import asyncio
import ssl
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Protocol, Self, TypeVar

import httpx

from credhook.worker.api import answers
from credhook.worker.api.auth import Client, ClientCredentials
from credhook.worker.api.causes import cause_of
from credhook.worker.api.errors import ApiError, InvalidRequest, NotUnderstood
from credhook.worker.api.gate import OPERATION, AsyncGated, Gate, Gated, conclude
from credhook.worker.api.hanging_up import hang_up
from credhook.worker.api.hints import unanswered
from credhook.worker.api.namespaces import AsyncSender, Platform, SyncSender
from credhook.worker.api.operations import GET_ISSUANCE, GET_PRESENTATION, Call
from credhook.worker.api.roots import Root
from credhook.worker.api.sizes import LONGEST_BODY
from credhook.worker.api.transport import AsyncBounded, BodyRefused, Bounded

R = TypeVar("R")

#: An answer is read as it comes: a compressed one could be far longer than its transport says.
_JSON = {"Content-Type": "application/json"}
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "credhook"}

#: All that httpx lets through when a request cannot be sent or answered.
_FAILURES = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, UnicodeError)


class Settings(Client, Protocol):
    """What a sender needs to know, as the worker's settings have it."""

    @property
    def api_url(self) -> str:
        """Root of the API."""

    @property
    def issuance_path(self) -> str:
        """Path of an issuance, with `{id}`."""

    @property
    def presentation_path(self) -> str:
        """Path of a presentation, with `{id}`."""

    @property
    def fetch_timeout(self) -> float:
        """Seconds that one request may take."""

    @property
    def match_ids(self) -> bool:
        """Whether details must carry the id that was asked for."""

    @property
    def max_answer(self) -> int:
        """Bytes that an answer may have."""


class AsyncApi(Platform[AsyncSender]):
    """The platform's API for an event loop.

    Args:
        api_url: Root of the API. Nothing is sent to another origin or above its path, but for the token request.
        auth: Our credentials. Share one among all senders, so that they share its token.
        issuance_path: Path of an issuance below the root, with `{id}`.
        presentation_path: Path of a presentation below the root, with `{id}`.
        timeout: Seconds that one HTTP request may take as a whole.
        match_ids: Whether an answer that carries another id than the one asked for is refused.
        max_answer: Bytes that an answer may have.
        transport: What carries requests, if not the network.
        ssl_context: Trust for TLS; by default one context for all senders of the process.
        max_connections: Connections held at most. httpx's pool slows down with their square: prefer many senders
            of one connection each, or hand a `Line` to each that sends one call at a time.
        gate: What may hold back or refuse calls, and hears what they come to.
    """

    def __init__(
        self,
        api_url: str,
        auth: ClientCredentials,
        *,
        issuance_path: str = GET_ISSUANCE.path,
        presentation_path: str = GET_PRESENTATION.path,
        timeout: float = 10.0,
        match_ids: bool = True,
        max_answer: int = LONGEST_BODY,
        transport: httpx.AsyncBaseTransport | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_connections: int | None = None,
        gate: Gate | None = None,
    ) -> None:
        super().__init__(self, issuance_path=issuance_path, presentation_path=presentation_path)
        self._root = Root(api_url)
        self._match_ids = match_ids
        self._auth = auth
        trust = ssl_context or shared_ssl_context()
        carrier = transport or httpx.AsyncHTTPTransport(verify=trust, trust_env=False, limits=_limits(max_connections))
        bounded = AsyncBounded(carrier, timeout, longest=max_answer)
        # Spoken to directly: a client around it would add redirects and cookies, which we refuse, and a third of
        # the time.
        self._transport = AsyncGated(bounded, gate) if gate else bounded
        self._timeouts = httpx.Timeout(timeout).as_dict()

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        *,
        auth: ClientCredentials | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_connections: int | None = None,
        gate: Gate | None = None,
    ) -> Self:
        """Build a sender from the worker's settings."""
        return cls(
            settings.api_url,
            auth or ClientCredentials.from_settings(settings),
            issuance_path=settings.issuance_path,
            presentation_path=settings.presentation_path,
            timeout=settings.fetch_timeout,
            match_ids=settings.match_ids,
            max_answer=settings.max_answer,
            transport=transport,
            ssl_context=ssl_context,
            max_connections=max_connections,
            gate=gate,
        )

    async def send(self, call: Call[R]) -> R:
        """Send a call and return its result.

        Raises:
            ApiError: It did not succeed.
        """
        try:
            response = await self._exchange(call)
        except _FAILURES as error:
            failure = _meaning(call, error)
        else:
            return await self._read(call, response)
        raise failure

    async def _read(self, call: Call[R], response: httpx.Response) -> R:
        """The result; a long one is read beside the loop."""
        asked_for = call.asked_for if self._match_ids else None
        now = datetime.now(UTC)
        try:
            if answers.is_long(call.operation, response):
                return await asyncio.to_thread(answers.read, call.operation, response, now, asked_for=asked_for)
            return answers.read(call.operation, response, now, asked_for=asked_for)
        except NotUnderstood:
            hang_up(response)
            raise

    async def _exchange(self, call: Call[Any]) -> httpx.Response:
        """The answer to the call, read to its end, after as many requests as authentication takes."""
        extensions = {"timeout": self._timeouts, OPERATION: call.operation.name}
        request = httpx.Request(
            call.operation.method,
            self._root.url(call),
            headers=_HEADERS if call.body is None else _HEADERS | _JSON,
            content=call.body,
            extensions=extensions,
        )
        try:
            async with aclosing(self._auth.async_auth_flow(request)) as flow:
                wanted = await anext(flow)
                while True:
                    response = await self._transport.handle_async_request(wanted)
                    try:
                        await response.aread()
                    finally:
                        await response.aclose()
                    try:
                        wanted = await flow.asend(response)
                    except StopAsyncIteration:
                        conclude(request, response)
                        return response
        finally:
            conclude(request)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class SyncApi(Platform[SyncSender]):
    """The platform's API for threads, which may share one. Its arguments are those of `AsyncApi`.

    The time-out is looked at between the pieces of an answer, since a thread cannot be interrupted.
    """

    def __init__(
        self,
        api_url: str,
        auth: ClientCredentials,
        *,
        issuance_path: str = GET_ISSUANCE.path,
        presentation_path: str = GET_PRESENTATION.path,
        timeout: float = 10.0,
        match_ids: bool = True,
        max_answer: int = LONGEST_BODY,
        transport: httpx.BaseTransport | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_connections: int | None = None,
        gate: Gate | None = None,
    ) -> None:
        super().__init__(self, issuance_path=issuance_path, presentation_path=presentation_path)
        self._root = Root(api_url)
        self._match_ids = match_ids
        self._auth = auth
        carrier = transport or httpx.HTTPTransport(
            verify=ssl_context or shared_ssl_context(), trust_env=False, limits=_limits(max_connections)
        )
        bounded = Bounded(carrier, timeout, longest=max_answer)
        self._http = httpx.Client(
            transport=Gated(bounded, gate) if gate else bounded,
            timeout=timeout,
            headers=_HEADERS,
            cookies=_no_cookies(),
            follow_redirects=False,
            trust_env=False,
        )

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        *,
        auth: ClientCredentials | None = None,
        transport: httpx.BaseTransport | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_connections: int | None = None,
        gate: Gate | None = None,
    ) -> Self:
        """Build a sender from the worker's settings."""
        return cls(
            settings.api_url,
            auth or ClientCredentials.from_settings(settings),
            issuance_path=settings.issuance_path,
            presentation_path=settings.presentation_path,
            timeout=settings.fetch_timeout,
            match_ids=settings.match_ids,
            max_answer=settings.max_answer,
            transport=transport,
            ssl_context=ssl_context,
            max_connections=max_connections,
            gate=gate,
        )

    def send(self, call: Call[R]) -> R:
        """Send a call and return its result.

        Raises:
            ApiError: It did not succeed.
        """
        request = _request(self._http, self._root, call)
        try:
            response = self._http.send(request, auth=self._auth)
            conclude(request, response)
        except _FAILURES as error:
            failure = _meaning(call, error)
        else:
            return self._read(call, response)
        finally:
            conclude(request)
        raise failure

    def _read(self, call: Call[R], response: httpx.Response) -> R:
        asked_for = call.asked_for if self._match_ids else None
        try:
            return answers.read(call.operation, response, datetime.now(UTC), asked_for=asked_for)
        except NotUnderstood:
            hang_up(response)
            raise

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@cache
def shared_ssl_context() -> ssl.SSLContext:
    """Return the process's own trust for TLS. Loading it takes longer than a request, so it is loaded once."""
    return httpx.create_ssl_context()


def _limits(max_connections: int | None) -> httpx.Limits:
    if max_connections is None:
        return httpx.Limits(max_connections=100, max_keepalive_connections=20)
    return httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)


def _no_cookies() -> CookieJar:
    """Keep nothing between requests: an identity provider sets cookies that would tie them together."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


def _request(http: httpx.Client | httpx.AsyncClient, root: Root, call: Call[Any]) -> httpx.Request:
    headers = {} if call.body is None else {"Content-Type": "application/json"}
    named = {OPERATION: call.operation.name}
    return http.build_request(
        call.operation.method, root.url(call), content=call.body, headers=headers, extensions=named
    )


def _meaning(call: Call[Any], error: Exception) -> ApiError:
    """Say what a request without an answer means. The error's own words stay out: they can quote URLs."""
    name, kind = _operation(call, error), type(error).__name__
    if isinstance(error, BodyRefused):
        return NotUnderstood(f"{name}: {error}", operation=name, cause=error.cause)
    if isinstance(error, httpx.DecodingError):
        return NotUnderstood(f"{name}: {error}", operation=name)
    if isinstance(error, httpx.TransportError | OSError) and not isinstance(
        error, httpx.LocalProtocolError | httpx.UnsupportedProtocol
    ):
        return unanswered(name, kind, cause_of(error))
    return InvalidRequest(f"{name}: the request cannot be sent: {kind}", operation=name)


def _operation(call: Call[Any], error: Exception) -> str:
    """Which request it was: the call's own, or the one for its token."""
    if isinstance(error, httpx.RequestError):
        with suppress(RuntimeError):  # Nobody has said which.
            return str(error.request.extensions.get(OPERATION, "token"))
    return call.operation.name
