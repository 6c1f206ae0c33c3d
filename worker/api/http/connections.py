"""Connections, and those that are kept for the next request: used again only if nothing has come over them since.

What comes over an idle connection would be read as the next response. aiohttp's own pool looks whether a connection is
open; it does not look for bytes that it has read and nobody has asked for, nor for those that are in the socket and
that the loop has had no turn to read. And it takes as long as sending the request, measured.
"""

import asyncio
import select
import time
from collections import defaultdict, deque
from http import HTTPStatus
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage

from credhook.worker.api.http.proxies import ProxyFailed
from credhook.worker.api.http.server import Server

#: Bytes of one header, headers of one response.
_LONGEST_HEADER: Final = 16_384
_MOST_HEADERS: Final = 128
#: Whoever sends has a time-out that is exact, and covers everything.
_NO_TIMEOUT: Final = aiohttp.ClientTimeout()


class Taken:
    """A connection, for one request after the other.

    Attributes:
        transport: what writes to it.
        is_kept: whether it has answered others before.
        since: when it was last given back, in monotonic seconds.
    """

    def __init__(self, connection: Connection, protocol: ResponseHandler, transport: asyncio.Transport) -> None:
        self._connection = connection  # aiohttp's, which knows that it is there.
        self._protocol = protocol
        self.transport = transport
        self.is_kept = False
        self.since = 0.0
        self._payload: aiohttp.StreamReader | None = None
        self._unheard = select.poll()
        self._unheard.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    async def head_of_answer(self, request: bytes) -> tuple[RawResponseMessage, aiohttp.StreamReader]:
        """Send the request; the head of its response, and the body as it comes."""
        protocol, self._payload = self._protocol, None
        protocol.set_response_params(
            read_until_eof=True,
            auto_decompress=False,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
            max_headers=_MOST_HEADERS,
        )
        if protocol.is_connected():  # Else it has just ended: its end says why, and would go unheard.
            self.transport.write(request)
        while True:
            message, self._payload = await protocol.read()
            if message.code >= HTTPStatus.OK or message.code == HTTPStatus.SWITCHING_PROTOCOLS:
                return message, self._payload

    def expire(self) -> None:
        """Have whoever reads from it hear that it took too long."""
        error = TimeoutError()
        self._protocol.set_exception(error)
        if self._payload is not None:
            self._payload.set_exception(error)

    @property
    def has_answered(self) -> bool:
        """Whether the head of the response has come."""
        return self._payload is not None

    @property
    def is_whole(self) -> bool:
        """Whether the response was read whole, and another may be asked for."""
        return self._payload is not None and self._payload.is_eof() and not self._protocol.should_close

    @property
    def is_quiet(self) -> bool:
        """Whether it is open, and nothing has come over it since."""
        protocol = self._protocol
        return protocol.is_connected() and not protocol.should_close and not self._unheard.poll(0)

    def hang_up(self) -> None:
        """Have done with it. Where TLS is spoken, a close would say goodbye first, and go on reading."""
        self.transport.abort()
        self._connection.close()


class Connections(aiohttp.TCPConnector):
    """Connects, and keeps connections for a while."""

    def __init__(self, kept: float, **options: Any) -> None:
        """`kept`: seconds for which an idle connection is good; the `options` are aiohttp's."""
        super().__init__(**options)
        self._longest = kept
        self._idle: defaultdict[str, deque[Taken]] = defaultdict(deque)
        self._sweeper: asyncio.TimerHandle | None = None

    def take_kept(self, server: Server) -> Taken | None:
        """The connection that was used last, if one is good."""
        idle, since = self._idle[server.origin], time.monotonic() - self._longest
        while idle:
            taken = idle.pop()
            if taken.since >= since and taken.is_quiet:
                return taken
            taken.hang_up()
        return None

    async def take_new(self, server: Server) -> Taken:
        """Connect."""
        try:
            connection = await self.connect(server.key(), [], _NO_TIMEOUT)
        except asyncio.CancelledError as error:
            if server.is_proxied:
                error.__cause__ = ProxyFailed()  # It is found where this becomes a time-out.
            raise
        except (aiohttp.ClientConnectionError, aiohttp.ClientResponseError) as error:
            if not server.is_proxied or _says_itself_where(error):
                raise
            raise ProxyFailed from error
        protocol, transport = connection.protocol, connection.transport
        if protocol is None or transport is None:  # It has ended in the moment that it was there.
            connection.close()
            raise aiohttp.ServerDisconnectedError
        return Taken(connection, protocol, transport)

    def give_back(self, taken: Taken, server: Server) -> None:
        """Keep it for others, if its response was read whole."""
        if not taken.is_whole or self.closed:
            taken.hang_up()
            return
        taken.is_kept, taken.since = True, time.monotonic()
        self._idle[server.origin].append(taken)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(self._longest, self._sweep)

    def _sweep(self) -> None:
        """Close those that have been idle for too long, now and as long as there are any."""
        since, self._sweeper = time.monotonic() - self._longest, None
        for idle in self._idle.values():
            while idle and idle[0].since < since:
                idle.popleft().hang_up()
        if any(self._idle.values()):
            self._sweeper = asyncio.get_running_loop().call_later(self._longest, self._sweep)

    async def aclose(self) -> None:
        """Close all of them."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for idle in self._idle.values():
            while idle:
                idle.pop().hang_up()
        await self.close()


def _says_itself_where(error: aiohttp.ClientError) -> bool:
    """Whether an error on the way through a proxy is about the proxy by its class, or about what is behind it."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return not isinstance(error, aiohttp.ClientConnectorDNSError)  # Only the proxy's name is looked up.
    return isinstance(error, aiohttp.ClientHttpProxyError)
