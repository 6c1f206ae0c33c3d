"""Connections that are kept, where aiohttp has to be told more than it asks for: when not to use one again."""

import asyncio
import select
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from credhook.worker.api.http.exchange import Unanswered
from credhook.worker.api.http.proxies import ProxyFailed


class RememberingResponse(aiohttp.ClientResponse):
    """Keeps what it came over, which aiohttp forgets once it has been read; hangs up on what is not read whole.

    Where TLS is spoken, aiohttp would say goodbye first, and go on reading until the other end has done so too.
    """

    came_over: asyncio.WriteTransport | None = None

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read the head."""
        self.came_over = connection.transport
        return await super().start(connection)

    def close(self) -> None:
        """Give it up."""
        self._hang_up()
        super().close()

    def release(self) -> Any:
        """Have no more of it."""
        if not self.content.is_eof():
            self._hang_up()
        return super().release()

    def _hang_up(self) -> None:
        if self.came_over is not None:
            self.came_over.abort()


class KeptConnections(aiohttp.TCPConnector):
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
        """Connect, or take a kept connection over which nothing has come since."""
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
                if isinstance(req, CountedRequest):
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


class CountedRequest(aiohttp.ClientRequest):
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
    counted = cast("CountedRequest", request)  # The session makes no others.
    while True:
        counted.is_over_kept_connection = False
        try:
            return await send(counted)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if not counted.is_over_kept_connection or isinstance(error, aiohttp.ClientConnectorError):
                raise Unanswered(error) from error


#: For requests that may be sent twice.
REPEATING: Final = (_again_if_it_met_the_end,)
