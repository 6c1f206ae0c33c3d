"""Call the platform's API, from an event loop or from threads.

    async with AsyncApi.from_settings(settings) as api:
        presentation = await api.presentations.get(event.resource_id)

`operations` holds the nouns and their operations and `responses` reads answers, both without
input or output. Every failure is an `ApiError`.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from copy import copy
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from credhook.backoff import Backoff, Waits
from credhook.events import ISSUANCE, PRESENTATION
from credhook.worker.api import responses
from credhook.worker.api.errors import InvalidResponse, Unavailable, error_of, seconds_to_wait
from credhook.worker.api.http.exchange import BodyRefused, Request, Response, Transport, Unanswered, Unsendable
from credhook.worker.api.http.transport import CurlTransport
from credhook.worker.api.operations import AsyncSender, Call, Elements, Method, Page, Platform, SyncSender, request
from credhook.worker.api.token import ClientCredentials, Token

if TYPE_CHECKING:
    from credhook.settings import PlatformSettings

R = TypeVar("R")

_JSON: Final = {"Content-Type": "application/json"}

#: Bounds of a list that is read to its end. A platform whose links never end must not fill the memory.
MOST_PAGES: Final = 1_000
MOST_LIST_BYTES: Final = 32 * 1024 * 1024

#: Waits between two tries of a request, unless the platform says how long.
_BACKOFF: Final = Backoff(first=0.5, longest=30.0)


#: Seconds after which a request that got a 500 is sent again, where that is safe.
REPEAT_SECONDS: Final = 0.5


def transport_from(settings: "PlatformSettings") -> CurlTransport:
    """Build the transport of one event loop to the platform and its token endpoint, for all senders to share."""
    return CurlTransport(settings.fetch_timeout, certfile=settings.client_certfile, keyfile=settings.client_keyfile)


#: Pages without an element that may follow each other in a list.
MOST_EMPTY: Final = 100


async def pages(page: Callable[[str], Awaitable[Page[R]]]) -> AsyncIterator[Page[R]]:
    """Yield each page of a list; `page` reads the page of a query, the first for "".

    Raises:
        InvalidResponse: The platform repeats a link, or its links go on without an element.
    """
    query: str | None = ""
    seen = set[str]()
    empty = 0
    while query is not None:
        if query in seen:
            raise InvalidResponse("the platform's list leads in a circle: links.next names a page that has been read")
        seen.add(query)
        read = await page(query)
        empty = 0 if read.items else empty + 1
        if empty > MOST_EMPTY:
            raise InvalidResponse(f"the platform's list leads on after {empty} pages without an element")
        yield read
        query = read.following


async def retried(send: Callable[[], Awaitable[R]], seconds: float, *, unanswered: bool = True) -> R:
    """Return the result of `send`, repeated for some seconds while the platform is unavailable.

    `unanswered`: repeat requests without an answer as well.

    Raises:
        ApiError: The failure does not pass in time.
    """
    until, waits = time.monotonic() + seconds, Waits(_BACKOFF)
    while True:
        try:
            return await send()
        except Unavailable as error:
            wait = max(waits.next(), error.retry_after or 0.0)
            if time.monotonic() + wait > until or (error.status is None and not unanswered):
                raise
        await asyncio.sleep(wait)


class Permit:
    """Permission to make one request, whose end is reported once. This default ignores the end."""

    def ended(self, status: int | None, *, retry_after: float | None = None, cause: str = "") -> None:
        """Report the status of the answer and the seconds of its Retry-After; or None, and why no whole answer came.

        `cause` is a word of `Unanswered`, or else the class of the error.
        """

    def cancelled(self) -> None:
        """Report that the request was cancelled or never sent, which says nothing about the platform."""


#: Waits until a request of the named operation may be sent, or raises `Unavailable`. Not asked about token requests.
Guard = Callable[[str], Awaitable[Permit]]


async def _unguarded(_: str) -> Permit:
    return Permit()


class AsyncApi(Platform[AsyncSender]):
    """The platform's API for an event loop.

    Args:
        api_url: Root of the API. Nothing is sent to another origin or above its path, but for the token request.
        auth: Our credentials. Share them among all senders of the loop, so that they share their token.
        issuance_path: Path of an issuance below the root, with `{id}`.
        presentation_path: Path of a presentation below the root, with `{id}`.
        timeout: Seconds that one HTTP request may take as a whole.
        match_ids: Refuse an answer that carries another id than the one asked for.
        transport: Sends the requests; by default one of our own. It is closed with the client.
        guard: Delays or refuses requests, and gives permits that hear of their ends.
        retry_seconds: How long a request is repeated whose refusal may pass. Specification: Errors, rule 3.
        repeat_after: Seconds after which a GET that got a 500 is sent once more; None: it is not.
    """

    def __init__(
        self,
        api_url: str,
        auth: ClientCredentials,
        *,
        issuance_path: str = ISSUANCE.path,
        presentation_path: str = PRESENTATION.path,
        timeout: float = 10.0,
        match_ids: bool = True,
        transport: Transport | None = None,
        guard: Guard = _unguarded,
        retry_seconds: float = 0.0,
        repeat_after: float | None = None,
    ) -> None:
        super().__init__(self, {ISSUANCE.name: issuance_path, PRESENTATION.name: presentation_path})
        self._base_url = api_url.rstrip("/")
        self._match_ids = match_ids
        self._auth = auth
        self._transport = transport or CurlTransport(timeout)
        self._guard = guard
        self._retry_seconds, self._repeat_after = retry_seconds, repeat_after

    @classmethod
    def from_settings(
        cls,
        settings: "PlatformSettings",
        *,
        auth: ClientCredentials | None = None,
        transport: Transport | None = None,
        guard: Guard = _unguarded,
        retry_seconds: float = 0.0,
    ) -> Self:
        """Build a sender from the worker's settings."""
        return cls(
            settings.api_url,
            auth or ClientCredentials.from_settings(settings),
            issuance_path=settings.issuance_path,
            presentation_path=settings.presentation_path,
            match_ids=settings.match_ids,
            transport=transport or transport_from(settings),
            guard=guard,
            retry_seconds=retry_seconds,
            repeat_after=None if retry_seconds else REPEAT_SECONDS,
        )

    async def request(self, method: Method, path: str, json: Any = None) -> Any:
        """Send a request for an operation that has no name here, and return the JSON of the answer, or None.

        `path` begins with `/` and may have a query. Token, limits and errors are those of all operations.

        Raises:
            ApiError: It did not succeed.
        """
        return await self.send(request(method, path, json))

    def send(self, call: Call[R]) -> Coroutine[Any, Any, R]:
        """Send a call, when awaited, and return its result; of a list, all pages.

        Raises:
            ApiError: It did not succeed.
        """
        if call.operation.is_list:
            sending = cast("Coroutine[Any, Any, R]", self._list(call))
        elif self._retry_seconds:
            sending = retried(lambda: self._send(call), self._retry_seconds, unanswered=False)
        else:
            sending = self._send(call)
        named: Any = sending
        named.__qualname__ = call.operation.name  # Python warns under this name if the call lacks its await.
        return sending

    async def _list(self, call: Call[Any]) -> tuple[Any, ...]:
        operation = copy(call.operation)
        operation.is_list, operation.paged = False, True
        found: list[Any] = []
        count = size = 0
        raw: Any = None
        async for page in pages(lambda following: self.send(operation(following))):
            found += page.items
            raw = page.raw
            count, size = count + 1, size + page.size
            if page.following and (count >= MOST_PAGES or size > MOST_LIST_BYTES):
                raise InvalidResponse(
                    f"{operation.name}: the list goes on after {count} pages and {size} bytes: read it page by page",
                    operation=operation.name,
                    cause="too_large",
                )
        return Elements(found, raw)

    async def _send(self, call: Call[R]) -> R:
        response = await self._answer(call)
        try:
            return responses.read(
                call.operation,
                response,
                datetime.now(UTC),
                asked_for=call.asked_for,
                match_ids=self._match_ids,
                url=self._base_url + call.path,
                root=self._base_url,
            )
        except InvalidResponse:
            response.hang_up()
            raise

    async def _answer(self, call: Call[Any]) -> Response:
        """Return the answer; after a 401, ask once more with a fresh token. Specification: Authentication."""
        operation, url = call.operation.name, self._base_url + call.path
        token = await self._auth.token(self._transport)
        permit = await self._guard(operation)
        response = await self._sent(call, url, token, permit)
        if response.is_success:
            permit.ended(response.status)
            return response
        if response.status == HTTPStatus.UNAUTHORIZED and self._auth.invalidate(token):
            try:
                token = await self._auth.token(self._transport)
            except BaseException:
                permit.cancelled()
                raise
            response = await self._sent(call, url, token, permit)
            if response.status == HTTPStatus.UNAUTHORIZED:
                self._auth.refused_when_fresh()
        if response.status == HTTPStatus.INTERNAL_SERVER_ERROR and "retry-after" not in response.headers:
            response = await self._repeated(call, url, token, permit) or response
        wait = None if response.is_success else seconds_to_wait(response.headers, datetime.now(UTC))
        permit.ended(response.status, retry_after=wait)
        return response

    async def _repeated(self, call: Call[Any], url: str, token: Token, permit: Permit) -> Response | None:
        """Return the answer to the same GET a little later, or None if it may not be sent again.

        The request needs a turn of its own, but its answer counts as that of the first. So a hiccup of the platform
        opens no circuit breaker.
        """
        if self._repeat_after is None or call.operation.method != "GET":
            return None
        try:
            await asyncio.sleep(self._repeat_after)
            turn = await self._guard(call.operation.name)
        except Unavailable:
            return None
        except BaseException:
            permit.cancelled()
            raise
        turn.cancelled()
        return await self._sent(call, url, token, permit)

    async def _sent(self, call: Call[Any], url: str, token: Token, permit: Permit) -> Response:
        """Return the answer to one request, and tell the permit if there is none."""
        headers = token.headers
        if call.body is not None:
            headers = {**headers, **_JSON}
        method, path = call.operation.method, call.operation.path
        request = Request(method, url, headers, call.body, repeatable=method == "GET", template=path)
        try:
            return await self._transport.send(request)
        except Unanswered as failure:
            permit.ended(None, cause=failure.cause or failure.kind)
            raise error_of(call.operation.name, failure) from None
        except BodyRefused as failure:
            permit.ended(HTTPStatus.OK)  # It is well enough to answer, if not in a form that we read.
            raise error_of(call.operation.name, failure) from None
        except BaseException as failure:
            permit.cancelled()
            if isinstance(failure, Unsendable):
                raise error_of(call.operation.name, failure) from None
            raise

    async def aclose(self) -> None:
        """Close the connections. Another request opens new ones."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class SyncApi(Platform[SyncSender]):
    """The platform's API for threads: each call is made on the event loop, and the thread waits for it.

    Create it on that event loop.
    """

    def __init__(self, api: AsyncApi) -> None:
        super().__init__(self, api.paths)
        self._api = api
        self._loop = asyncio.get_running_loop()
        self._loops_thread = threading.get_ident()

    def request(self, method: Method, path: str, json: Any = None) -> Any:
        """Send a request as `AsyncApi.request` does, and wait for its result."""
        return self.send(request(method, path, json))

    def send(self, call: Call[R]) -> R:
        """Send a call and wait for its result.

        Raises:
            ApiError: It did not succeed.
            RuntimeError: The caller is on the event loop, which would wait for itself.
        """
        if threading.get_ident() == self._loops_thread:
            raise RuntimeError(f"{call.operation.name}: called on the event loop: make the handler an `async def`")
        sending = self._api.send(call)
        try:
            running = asyncio.run_coroutine_threadsafe(sending, self._loop)
        except RuntimeError:  # The loop has ended.
            sending.close()
            raise _stopping(call) from None
        try:
            return running.result()
        except CancelledError:
            raise _stopping(call) from None


def _stopping(call: Call[Any]) -> Unavailable:
    return Unavailable(f"{call.operation.name}: not sent: the worker is stopping", operation=call.operation.name)
