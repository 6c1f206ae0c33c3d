"""What carries requests over the network, within bounds: aiohttp.

httpx alone takes seven times as long for a request, and its interface over aiohttp twice as long, measured; fetching is
most of what a worker does. What httpx's users know holds here: HTTPS_PROXY and its siblings, SSL_CERT_FILE, trust.
"""

import asyncio
import ssl
from http import HTTPStatus
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.http import HttpProcessingError

from credhook.worker.api.bounds import LONGEST_BODY, is_success, read
from credhook.worker.api.http.connections import Connections, Taken
from credhook.worker.api.http.exchange import Request, Response, Unanswered, Unsendable
from credhook.worker.api.http.proxies import Proxies, ProxyFailed, UnsupportedProxy
from credhook.worker.api.http.server import Server, parts_of
from credhook.worker.api.http.trust import shared_ssl_context

#: Seconds for which an idle connection is kept: servers close theirs after 5 s and more.
KEPT: Final = 4.0
#: Seconds that connecting to one address of a host may take before the next one is tried beside it (RFC 8305, 5).
NEXT_ADDRESS: Final = 0.25


class AiohttpTransport:
    """A transport over kept connections. To be used on one event loop, from its first request on.

    aiohttp connects, leads through proxies, keeps connections and parses what comes over them. Its session is left out:
    for each request it makes a dozen objects, which takes as long as all the rest.

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
        self._servers: dict[str, Server] = {}
        self._opened: Connections | None = None

    async def send(self, request: Request) -> Response:
        """See `Transport`."""
        try:
            server, sent = self._prepared(request)
            loop = asyncio.get_running_loop()
            deadline = loop.time() + self._timeout
            while True:
                taken = self._connections.take_kept(server)
                if taken is None:
                    async with asyncio.timeout_at(deadline):
                        taken = await self._connections.take_new(server)
                timer = loop.call_at(deadline, taken.expire)  # A third of what a time-out by cancellation takes.
                try:
                    return await self._answer(taken, server, sent)
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                    # Again, while it meets kept connections that the server is just closing.
                    if taken.has_answered or not (taken.is_kept and request.repeatable):
                        raise
                finally:
                    timer.cancel()
                    self._connections.give_back(taken, server)
        except HttpProcessingError as error:
            raise Unanswered(error, "protocol") from error
        except (aiohttp.ClientError, UnsupportedProxy, ProxyFailed, OSError) as error:  # TimeoutError is an OSError.
            raise Unanswered(error) from error

    async def _answer(self, taken: Taken, server: Server, sent: bytes) -> Response:
        message, payload = await taken.head_of_answer(sent)
        status, headers = message.code, message.headers
        if is_success(status):
            is_plain = "Content-Encoding" not in headers
            if is_plain and payload.is_eof() and payload.total_bytes <= self._longest:  # As nearly always.
                body = payload.read_nowait()
            else:
                body = await read(status, headers, payload.iter_any(), self._longest)
        elif status == HTTPStatus.SWITCHING_PROTOCOLS:
            raise aiohttp.ClientPayloadError("nobody has asked for another protocol")
        elif status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED and server.is_proxied:
            raise ProxyFailed  # Where it is encrypted, aiohttp says so itself.
        else:
            try:
                body = await read(status, headers, payload.iter_any(), self._longest)
            except (aiohttp.ClientError, HttpProcessingError, OSError):
                body = b""  # Its status says most.
        return Response(status, headers, body, taken.transport)

    def _prepared(self, request: Request) -> tuple[Server, bytes]:
        """Where the request goes, and its bytes."""
        try:
            origin, target = parts_of(request.url)
            server = self._servers.get(origin)
            if server is None:
                server = self._servers[origin] = Server(origin, self._proxies, self._ssl_context)
            return server, server.bytes_of(request, target)
        except ValueError as error:
            raise Unsendable(type(error).__name__) from error

    async def aclose(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._opened.aclose()

    @property
    def _connections(self) -> Connections:
        if self._opened is None:
            self._opened = Connections(
                self._kept,
                limit=0,  # Whoever sends knows how many requests are under way.
                ssl=self._ssl_context,
                resolver=self._resolver,
                happy_eyeballs_delay=NEXT_ADDRESS,
            )
        return self._opened
