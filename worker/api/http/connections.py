"""Connections that are kept, where aiohttp has to be told more than it asks for: when not to use one again."""

import asyncio
import select
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage

from credhook.worker.api.http.proxies import ProxyFailed
from credhook.worker.api.http.server import Server

#: Bytes of one header, headers of one response.
_LONGEST_HEADER: Final = 16_384
_MOST_HEADERS: Final = 128
#: Whoever sends has one that is exact, and covers everything.
_NO_TIMEOUT: Final = aiohttp.ClientTimeout()


class Taken(NamedTuple):
    """A connection that is ours until it is given back.

    Attributes:
        connection: aiohttp's, which knows where it belongs.
        protocol: what reads from it.
        transport: what writes to it.
        kept: whether it has answered others before.
    """

    connection: Connection
    protocol: ResponseHandler
    transport: asyncio.Transport
    kept: bool

    async def head_of_answer(self, request: bytes) -> tuple[RawResponseMessage, aiohttp.StreamReader]:
        """Send the request; the head of its response, and the body as it comes."""
        protocol = self.protocol
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
            message, payload = await protocol.read()
            if message.code >= HTTPStatus.OK or message.code == HTTPStatus.SWITCHING_PROTOCOLS:
                return message, payload

    def give_back(self, *, whole: bool) -> None:
        """Keep it for others if the response was read whole; else hang up."""
        if whole:
            self.connection.release()
            return
        self.transport.abort()  # Where TLS is spoken, a close would say goodbye first, and go on reading.
        self.connection.close()


class KeptConnections(aiohttp.TCPConnector):
    """Uses a connection again only if nothing has come over it since: that would be read as the next response.

    aiohttp looks whether a connection is open. It does not look for bytes that it has read and nobody has asked for,
    nor for those that are in the socket and that the loop has had no turn to read.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._used: WeakKeyDictionary[ResponseHandler, select.poll] = WeakKeyDictionary()

    async def take(self, server: Server) -> Taken:
        """Connect to the server, or take a kept connection over which nothing has come since."""
        while True:
            try:
                connection = await self.connect(server.key(), [], _NO_TIMEOUT)
            except asyncio.CancelledError as error:
                if server.proxy.url is not None:
                    error.__cause__ = ProxyFailed()  # It is found where this becomes a time-out.
                raise
            except (aiohttp.ClientConnectionError, aiohttp.ClientResponseError) as error:
                if server.proxy.url is None or _says_itself_where(error):
                    raise
                raise ProxyFailed from error
            protocol, transport = connection.protocol, connection.transport
            if protocol is None or transport is None:  # It has ended in the moment that it was there.
                connection.close()
                raise aiohttp.ServerDisconnectedError
            unheard = self._used.get(protocol)
            if unheard is None:
                self._used[protocol] = _poll(transport)
                return Taken(connection, protocol, transport, kept=False)
            if not (protocol.should_close or unheard.poll(0)):
                return Taken(connection, protocol, transport, kept=True)
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
