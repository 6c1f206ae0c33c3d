"""Call the platform's API, from an event loop or from threads.

    async with AsyncApi.from_env() as api:
        presentation = await api.presentations.get("…")

`AsyncApi` and `Api` are what authors see. `Sender` sends their calls. `operations` holds the nouns and their operations
and `responses` reads answers, both without input or output. Every failure is an `ApiError`.
"""

import asyncio
import os
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
from credhook.worker.api.errors import ApiError, InvalidResponse, Unavailable, error_of
from credhook.worker.api.http.exchange import BodyRefused, Request, Response, Transport, Unanswered, Unsendable
from credhook.worker.api.operations import AsyncSender, Call, Elements, Method, Page, Platform, SyncSender, request
from credhook.worker.api.token import ClientCredentials, Token

if TYPE_CHECKING:
    import httpx

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


def transport_from(settings: "PlatformSettings") -> Transport:
    """Build the transport of one event loop to the platform and its token endpoint, for all senders to share."""
    timeout, files = settings.fetch_timeout, (settings.client_certfile, settings.client_keyfile)
    if settings.http_client == "httpx":
        import httpx

        from credhook.worker.api.http.httpx_transport import HttpxTransport, Routes

        return HttpxTransport(httpx.AsyncClient(transport=Routes(*files), trust_env=False), timeout)
    from credhook.worker.api.http.transport import CurlTransport  # Handlers are imported in places that send nothing.

    return CurlTransport(timeout, certfile=files[0], keyfile=files[1])


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

        `cause` is a word of `Unanswered`, the class of the error, or what of the answer was not understood.
        """

    def cancelled(self) -> None:
        """Report that the request was cancelled or never sent, which says nothing about the platform."""


#: Waits until a request of the named operation may be sent, or raises `Unavailable`. Not asked about token requests.
Guard = Callable[[str], Awaitable[Permit]]


async def _unguarded(_: str) -> Permit:
    return Permit()


class Sender:
    """Sends calls on one event loop, with a token, within the platform's limits.

    Args:
        api_url: Root of the API. Nothing is sent to another origin or above its path, but for the token request.
        auth: Our credentials. Share them among all senders of the loop, so that they share their token.
        transport: Sends the requests. It is closed with the sender.
        issuance_path: Path of an issuance below the root, with `{id}`.
        presentation_path: Path of a presentation below the root, with `{id}`.
        match_ids: Refuse an answer that carries another id than the one asked for.
        guard: Delays or refuses requests, and gives permits that hear of their ends.
        retry_seconds: How long a request is repeated whose refusal may pass. Specification: Errors, rule 3.
        repeat_after: Seconds after which a GET that got a 500 is sent once more; None: it is not.

    Attributes:
        paths: Resource → path of its details.
    """

    def __init__(
        self,
        api_url: str,
        auth: ClientCredentials,
        transport: Transport,
        *,
        issuance_path: str = ISSUANCE.path,
        presentation_path: str = PRESENTATION.path,
        match_ids: bool = True,
        guard: Guard = _unguarded,
        retry_seconds: float = 0.0,
        repeat_after: float | None = None,
    ) -> None:
        self.paths: Final = {ISSUANCE.name: issuance_path, PRESENTATION.name: presentation_path}
        self._base_url = api_url.rstrip("/")
        self._match_ids = match_ids
        self._auth = auth
        self._transport = transport
        self._guard = guard
        self._retry_seconds, self._repeat_after = retry_seconds, repeat_after
        self._is_closed = False

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
            transport or transport_from(settings),
            issuance_path=settings.issuance_path,
            presentation_path=settings.presentation_path,
            match_ids=settings.match_ids,
            guard=guard,
            retry_seconds=retry_seconds,
            repeat_after=None if retry_seconds else REPEAT_SECONDS,
        )

    @classmethod
    def from_env(cls, http: "httpx.AsyncClient | httpx.Client | None" = None) -> Self:
        """Build a sender from the environment, over our own connections or a client of httpx.

        Raises:
            ValueError: A setting is missing or wrong.
        """
        from pydantic import ValidationError

        from credhook.settings import PlatformSettings, join_dev_session, settings_errors

        join_dev_session(unless="CREDHOOK_API_URL")
        try:
            settings = PlatformSettings()
        except ValidationError as invalid:
            raise ValueError("; ".join(settings_errors(invalid))) from None
        if http is None:
            return cls.from_settings(settings)
        from credhook.worker.api.http.httpx_transport import HttpxTransport

        return cls.from_settings(settings, transport=HttpxTransport(http, settings.fetch_timeout, is_ours=False))

    def send(self, call: Call[R]) -> Coroutine[Any, Any, R]:
        """Send a call, when awaited, and return its result; of a list, all pages.

        Raises:
            ApiError: It did not succeed.
            RuntimeError: The sender is closed.
        """
        self._check_open(call)
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
        elements: list[Any] = []
        count = size = 0
        raw: Any = None
        async for page in pages(lambda following: self.send(operation(following))):
            elements += page.items
            raw = page.raw
            count, size = count + 1, size + page.size
            if page.following and (count >= MOST_PAGES or size > MOST_LIST_BYTES):
                raise InvalidResponse(
                    f"{operation.name}: the list goes on after {count} pages and {size} bytes: read it page by page",
                    operation=operation.name,
                    cause="too_large",
                )
        return Elements(elements, raw)

    async def _send(self, call: Call[R]) -> R:
        response, permit = await self._answer(call)
        try:
            result = responses.read(
                call.operation,
                response,
                datetime.now(UTC),
                asked_for=call.asked_for,
                match_ids=self._match_ids,
                url=self._base_url + call.path,
                root=self._base_url,
            )
        except ApiError as error:
            if isinstance(error, InvalidResponse):
                response.hang_up()
            cause = "" if call.operation.raw else error.cause  # A handler has chosen the path of a raw request.
            permit.ended(response.status, retry_after=error.retry_after, cause=cause)
            raise
        except BaseException:
            permit.cancelled()
            raise
        permit.ended(response.status)
        return result

    async def _answer(self, call: Call[Any]) -> tuple[Response, Permit]:
        """Return the answer, and the permit to end. After a 401, ask once more with a fresh token.

        Specification: Authentication.
        """
        operation, url = call.operation.name, self._base_url + call.path
        token = await self._auth.token(self._transport)
        permit = await self._guard(operation)
        response = await self._sent(call, url, token, permit)
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
        return response, permit

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
            self._check_open(call)  # It may have waited for a token or its turn.
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

    def _check_open(self, call: Call[Any]) -> None:
        if self._is_closed:
            raise RuntimeError(f"{call.operation.name}: the client is closed: call it inside its `with` block")

    async def aclose(self) -> None:
        """Close the connections. No call is sent any more."""
        self._is_closed = True
        await self._transport.aclose()


class AsyncApi(Platform[AsyncSender]):
    """The platform's API for an event loop: `async with AsyncApi.from_env() as api`.

    Args:
        sender: Sends the calls; by default one with the settings of the environment.
        http: Carries the calls in place of our own connections. It is not closed with this client.
    """

    def __init__(self, sender: Sender | None = None, *, http: "httpx.AsyncClient | None" = None) -> None:
        self._sender = sender or Sender.from_env(http)
        super().__init__(self._sender, self._sender.paths)

    @classmethod
    def from_env(cls) -> Self:
        """Build a client from the worker's variables: CREDHOOK_API_URL and so on.

        If CREDHOOK_API_URL is not set, take the settings of a `credhook dev` in the current folder.

        Raises:
            ValueError: A variable is missing or wrong.
        """
        return cls()

    async def request(self, method: Method, path: str, json: Any = None) -> Any:
        """Send a request for an operation that has no name here, and return the JSON of the answer, or None.

        `path` begins with `/` and may have a query. Token, limits and errors are those of all operations.

        Raises:
            ApiError: It did not succeed.
        """
        return await self._sender.send(request(method, path, json))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sender.aclose()


#: The loop of `background_loop`, by process: a forked child has no thread that runs its parent's.
_LOOPS: Final[dict[int, asyncio.AbstractEventLoop]] = {}


def background_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop in a thread of its own, which runs until the process ends."""
    process = os.getpid()
    if process not in _LOOPS:
        loop = asyncio.new_event_loop()
        if _LOOPS.setdefault(process, loop) is loop:
            threading.Thread(target=loop.run_forever, daemon=True, name="credhook.api").start()
        else:  # Another thread was quicker.
            loop.close()
    return _LOOPS[process]


class _ThreadSender:
    """Sends calls on an event loop, by default the one in the background, while the calling thread waits."""

    def __init__(self, sender: Sender, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._sender, self._loop = sender, loop
        self._loops_thread = threading.get_ident() if loop else None

    def send(self, call: Call[R]) -> R:
        """Send a call and wait for its result.

        Raises:
            ApiError: It did not succeed.
            RuntimeError: The caller is on the event loop, which would wait for itself.
        """
        if threading.get_ident() == self._loops_thread:
            raise RuntimeError(f"{call.operation.name}: called on the event loop: make the handler an `async def`")
        sending = self._sender.send(call)
        try:
            running = asyncio.run_coroutine_threadsafe(sending, self._loop or background_loop())
        except RuntimeError:  # The loop has ended.
            sending.close()
            raise _stopping(call) from None
        try:
            return running.result()
        except CancelledError:
            raise _stopping(call) from None

    def close(self) -> None:
        """Close the sender, and wait until its connections are closed."""
        asyncio.run_coroutine_threadsafe(self._sender.aclose(), self._loop or background_loop()).result()


class Api(Platform[SyncSender]):
    """The platform's API for threads, scripts and notebooks: `with Api.from_env() as api`. Threads may share it.

    Args:
        sender: Sends the calls; by default one with the settings of the environment.
        loop: The running event loop, if the calls are to be sent on it; by default a loop in the background.
        http: Carries the calls in place of our own connections. It is not closed with this client.
    """

    def __init__(
        self,
        sender: Sender | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        http: "httpx.Client | None" = None,
    ) -> None:
        sender = sender or Sender.from_env(http)
        self._sender = _ThreadSender(sender, loop)
        super().__init__(self._sender, sender.paths)

    @classmethod
    def from_env(cls) -> Self:
        """Build a client from the worker's variables: CREDHOOK_API_URL and so on.

        If CREDHOOK_API_URL is not set, take the settings of a `credhook dev` in the current folder.

        Raises:
            ValueError: A variable is missing or wrong.
        """
        return cls()

    def request(self, method: Method, path: str, json: Any = None) -> Any:
        """Send a request as `AsyncApi.request` does, and wait for its result."""
        return self._sender.send(request(method, path, json))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.close()


def _stopping(call: Call[Any]) -> Unavailable:
    return Unavailable(f"{call.operation.name}: not sent: the worker is stopping", operation=call.operation.name)
