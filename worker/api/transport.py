"""A request and its response, within bounds; and what carries them over the network: aiohttp.

httpx alone takes seven times as long for a request, and its interface over aiohttp twice as long, measured; fetching is
most of what a worker does. What httpx's users know holds here: HTTPS_PROXY and its siblings, SSL_CERT_FILE, trust.
"""

import asyncio
import select
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import aiohttp
import yarl
from aiohttp.abc import AbstractResolver, AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from credhook.worker.api.body import BodyRefused, read
from credhook.worker.api.causes import cause_of
from credhook.worker.api.proxies import Proxies, ProxyFailed, UnsupportedProxy
from credhook.worker.api.sizes import LONGEST_BODY
from credhook.worker.api.trust import shared_ssl_context

__all__ = ["AiohttpTransport", "BodyRefused", "Request", "Response", "Transport", "Unanswered", "Unsendable"]

#: Seconds for which an idle connection is kept: servers close theirs after 5 s and more.
KEPT: Final = 4.0
#: Seconds that connecting to one address of a host may take before the next one is tried beside it (RFC 8305, 5).
NEXT_ADDRESS: Final = 0.25
#: Bytes of one header, headers of one response.
_LONGEST_HEADER: Final = 16_384
_MOST_HEADERS: Final = 128


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent.

    Attributes:
        method: GET, POST, PATCH or DELETE.
        url: As it goes over the wire, percent-encoded.
        headers: Not shown, since one of them is the token.
        body: Not shown, since it can hold personal data and secrets.
        repeatable: Whether the request may be sent again when its connection ended before it was answered.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(default=None, repr=False)
    repeatable: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """What came back, whole.

    Attributes:
        status: The HTTP status.
        headers: Looked up without regard to case.
        body: Decompressed. Not shown.
        connection: What it came over.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    connection: asyncio.WriteTransport | None = field(default=None, repr=False)

    @property
    def is_success(self) -> bool:
        """Whether the status is a 2xx."""
        return 200 <= self.status < 300  # noqa: PLR2004  The class of statuses, in HTTP's own words.

    def hang_up(self) -> None:
        """Close the connection that it came over: nobody can tell whose answers come over it any more.

        Whoever else is using it by now gets an error, rather than somebody else's answer.
        """
        if self.connection is not None:
            self.connection.abort()


class Unanswered(Exception):
    """There is no response.

    Attributes:
        kind: Class of what was raised.
        cause: A word of `causes`, or nothing.
    """

    def __init__(self, error: BaseException) -> None:
        self.kind = type(error).__name__
        self.cause = cause_of(error)
        super().__init__(f"{self.kind}, {self.cause}")


class Unsendable(Exception):
    """The request is none that could be sent; the message is the class of what was raised."""


class Transport(Protocol):
    """Sends requests, many at a time."""

    async def send(self, request: Request) -> Response:
        """Send the request and read its response.

        Raises:
            Unanswered: There is no response, or not all of it, in time.
            Unsendable: It cannot be sent at all.
            BodyRefused: The response is longer than it may be.
        """

    async def aclose(self) -> None:
        """Close the connections."""


class AiohttpTransport:
    """A transport over kept connections. To be used on one event loop, from its first request on.

    Args:
        timeout: Seconds that one request may take as a whole: connecting, waiting, reading.
        longest: Bytes that a response may have, decompressed.
        ssl_context: Trust for TLS; by default the process's own.
        resolver: From names to addresses; by default the system's.
        kept: Seconds after which an idle connection is not used again.
    """

    def __init__(
        self,
        timeout: float,
        *,
        longest: int = LONGEST_BODY,
        ssl_context: ssl.SSLContext | None = None,
        resolver: AbstractResolver | None = None,
        kept: float = KEPT,
    ) -> None:
        self._timeout = timeout
        self._longest = longest
        self._ssl_context = ssl_context or shared_ssl_context()
        self._resolver = resolver
        self._kept = kept
        self._proxies = Proxies()
        self._opened: aiohttp.ClientSession | None = None

    async def send(self, request: Request) -> Response:
        """See `Transport`."""
        try:
            # Exactly as it was put together: nothing in it is resolved or encoded once more.
            url = yarl.URL(request.url, encoded=True)
            proxy, for_proxy = self._proxies.on_the_way_to(url)
            headers, proxy_headers = request.headers, None
            if for_proxy and url.scheme == "http":
                headers = {**headers, **for_proxy}
            elif for_proxy:
                proxy_headers = for_proxy
            async with (
                asyncio.timeout(self._timeout),
                self._session.request(
                    request.method,
                    url,
                    headers=headers,
                    data=request.body,
                    allow_redirects=False,
                    proxy=proxy,
                    proxy_headers=proxy_headers,
                    middlewares=_REPEATING if request.repeatable else None,
                ) as response,
            ):
                if response.status == HTTPStatus.SWITCHING_PROTOCOLS:
                    raise aiohttp.ClientPayloadError("nobody has asked for another protocol")
                if response.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED and proxy is not None:
                    raise ProxyFailed  # noqa: TRY301  Where it is encrypted, aiohttp says so itself.
                body = await read(response.status, response.headers, response.content.iter_any(), self._longest)
                connection = response.came_over if isinstance(response, _Response) else None
                return Response(response.status, response.headers, body, connection)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, ValueError) as error:
            raise Unsendable(type(error).__name__) from error
        except (aiohttp.ClientError, UnsupportedProxy, ProxyFailed, OSError) as error:  # TimeoutError is an OSError.
            raise Unanswered(error) from error

    async def aclose(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._opened.close()

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            connector = _Connector(
                limit=0,  # Whoever sends knows how many requests are under way.
                ssl=self._ssl_context,
                resolver=self._resolver,
                keepalive_timeout=self._kept,
                happy_eyeballs_delay=NEXT_ADDRESS,
            )
            self._opened = aiohttp.ClientSession(
                connector=connector,
                request_class=_Request,
                response_class=_Response,
                cookie_jar=aiohttp.DummyCookieJar(),  # An identity provider's would tie requests together.
                timeout=aiohttp.ClientTimeout(),  # Ours is exact, and covers everything.
                auto_decompress=False,
                skip_auto_headers=("Content-Type", "User-Agent"),
                max_line_size=_LONGEST_HEADER,
                max_field_size=_LONGEST_HEADER,
                max_headers=_MOST_HEADERS,
            )
        return self._opened


class _Response(aiohttp.ClientResponse):
    """Keeps what it came over, which aiohttp forgets once it has been read; hangs up on what is not read whole.

    Where TLS is spoken, aiohttp would say goodbye first, and go on reading until the other end has done so too.
    """

    came_over: asyncio.WriteTransport | None = None

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        self.came_over = connection.transport
        return await super().start(connection)

    def close(self) -> None:
        self._hang_up()
        super().close()

    def release(self) -> Any:
        if not self.content.is_eof():
            self._hang_up()
        return super().release()

    def _hang_up(self) -> None:
        if self.came_over is not None:
            self.came_over.abort()


class _Connector(aiohttp.TCPConnector):
    """Uses a connection again only if nothing has come over it since: that would be read as the next response.

    aiohttp looks whether a connection is open. It does not look for bytes that it has read and nobody has asked for,
    nor for those that are in the socket and that the loop has had no turn to read.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._used: WeakKeyDictionary[ResponseHandler, select.poll] = WeakKeyDictionary()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  aiohttp's.
    ) -> Connection:
        while True:
            try:
                connection = await super().connect(req, traces, timeout)
            except asyncio.CancelledError as error:
                if req.proxy is not None:
                    error.__cause__ = ProxyFailed()  # It is found where this becomes a time-out.
                raise
            except (aiohttp.ClientConnectionError, aiohttp.ClientResponseError) as error:
                if req.proxy is None or _says_itself_where(error):
                    raise
                raise ProxyFailed from error
            protocol, transport = connection.protocol, connection.transport
            if protocol is None or transport is None:
                return connection
            unheard = self._used.get(protocol)
            if unheard is None:
                self._used[protocol] = _poll(transport)
                return connection
            if not (protocol.should_close or unheard.poll(0)):
                if isinstance(req, _Request):
                    req.is_over_kept_connection = True
                return connection
            connection.close()


def _says_itself_where(error: aiohttp.ClientError) -> bool:
    """Whether an error on the way through a proxy is about the proxy by its class, or about what is behind it."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return not isinstance(error, aiohttp.ClientConnectorDNSError)  # Only the proxy's name is looked up.
    return isinstance(error, aiohttp.ClientHttpProxyError)


def _poll(transport: asyncio.BaseTransport) -> select.poll:
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return poll


class _Request(aiohttp.ClientRequest):
    """Knows whether its connection has answered others before."""

    is_over_kept_connection = False

    async def write_bytes(
        self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
    ) -> None:
        """Write the body, unless the connection has just ended: its end says why, and would go unheard."""
        if conn.protocol is not None and conn.protocol.is_connected():
            await super().write_bytes(writer, conn, content_length)


async def _again_if_it_met_the_end(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Send the request again while it meets kept connections that the server is just closing."""
    while isinstance(request, _Request):
        request.is_over_kept_connection = False
        try:
            return await send(request)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if not request.is_over_kept_connection or isinstance(error, aiohttp.ClientConnectorError):
                raise Unanswered(error) from error
    return await send(request)


_REPEATING: Final = (_again_if_it_met_the_end,)
