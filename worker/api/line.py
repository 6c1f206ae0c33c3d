"""One connection to a server at a time, kept open, with nothing around it: what fetching details goes through.

This is the room where the client is fast. For one request an `httpx.AsyncClient` takes 450 microseconds of processor
time, measured, and httpcore's connection over asyncio's streams 220: it parses in Python, and locks for connections
that are shared. Here httptools parses, in C, as it does for the receiver, and it is 75; a worker that handled 1,306
events a second handled 1,812. What all those layers are for is done elsewhere: bounds in transport.py, authentication
in auth.py, one line for each event under way in slots.py.
"""

import asyncio
import select
import ssl
from collections.abc import AsyncIterator
from typing import Final, Self, cast

import httptools
import httpx

from credhook.worker.api.hanging_up import CONNECTION

#: Seconds after which an idle connection is not used again: servers close theirs after 5 s and more.
_KEPT: Final = 4.0
#: Bytes of an answer up to its body, for which the parser has no limit; no server of any kind sends more.
_LONGEST_HEAD: Final = 65_536
#: Bytes of a body that wait to be read before no more of it is taken from the socket.
_MOST_UNREAD: Final = 262_144

_PORTS: Final = {"http": 80, "https": 443}
#: What comes before an answer, and is none.
_INTERIM: Final = range(100, 200)
_BODILESS: Final = {httpx.codes.NO_CONTENT, httpx.codes.NOT_MODIFIED}


class Line(httpx.AsyncBaseTransport):
    """A transport for one request at a time. It opens another connection when the last one is no longer good."""

    def __init__(self, ssl_context: ssl.SSLContext) -> None:
        self._ssl_context = ssl_context
        self._connections: dict[tuple[str, bytes, int | None], _Connection] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request; the answer's body is yet to be read.

        Raises:
            httpx.TransportError: there is no answer.
        """
        url = request.url
        server = url.scheme, url.raw_host, url.port
        connection = self._connections.get(server)
        if connection is None or not connection.is_good:
            if connection is not None:
                connection.close()
            connection = self._connections[server] = await _Connection.open(url, self._ssl_context)
        return await connection.ask(request)

    async def aclose(self) -> None:
        """Hang up."""
        for connection in self._connections.values():
            connection.close()


class _Connection(asyncio.Protocol):
    """A connection, and the answer that is under way on it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer: _Answer | None = None
        self._good_until = self._loop.time() + _KEPT
        #: Says whether something has come that the loop has not read yet: nobody has asked for it, and the next request
        #: would take it for its answer.
        self._unheard = select.poll()

    @classmethod
    async def open(cls, url: httpx.URL, ssl_context: ssl.SSLContext) -> Self:
        """Connect to the server that the URL names.

        Raises:
            httpx.ConnectError, httpx.UnsupportedProtocol: it cannot be.
        """
        if url.scheme not in _PORTS:
            raise httpx.UnsupportedProtocol(f"{url.scheme} is not spoken here")
        port, trust = url.port or _PORTS[url.scheme], ssl_context if url.scheme == "https" else None
        try:
            # The host as it is sent: a name in Unicode would be encoded once more, by an older standard.
            host = url.raw_host.decode("ascii")
            _, connection = await asyncio.get_running_loop().create_connection(cls, host, port, ssl=trust)
        except OSError as error:
            raise httpx.ConnectError(type(error).__name__) from error
        return connection

    @property
    def is_good(self) -> bool:
        """Whether it is idle, and can be expected to be open at the other end as well."""
        return (
            self._answer is None
            and not self._transport.is_closing()
            and self._loop.time() < self._good_until
            and not self._unheard.poll(0)
        )

    async def ask(self, request: httpx.Request) -> httpx.Response:
        """Send a request and await the head of its answer."""
        self._transport.write(_packed(request))
        answer = self._answer = _Answer(self._transport)
        try:
            while not answer.has_head:
                await answer.something()
        except BaseException:
            self.close()
            raise
        body = _Body(self, answer)
        return httpx.Response(
            answer.status, headers=answer.headers, stream=body, extensions={CONNECTION: self._transport}
        )

    def over(self, answer: "_Answer") -> None:
        """Nobody reads the answer any more. The connection is of further use only if nothing of it is left."""
        if self._answer is answer:
            self._answer = None
            self._good_until = self._loop.time() + _KEPT
            if not answer.leaves_it_good:
                self.close()

    def close(self) -> None:
        """Hang up, whatever is under way."""
        if self._answer is not None:
            self._answer.fail(httpx.ReadError("hung up"))
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._unheard.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # Nobody has asked.
            self.close()
        else:
            self._answer.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None:
            self._answer.end(error)


class _Answer:
    """An answer as it comes in. Its methods with names of the parser's are called by the parser."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = False
        self._parser = httptools.HttpResponseParser(self)
        self._transport = transport
        self._head_size = 0
        self._chunks: list[bytes] = []
        self._unread = 0
        self._complete = False
        self._stays_open = False
        self._surplus = False
        self._error: httpx.TransportError | None = None
        self._wake: asyncio.Future[None] | None = None

    @property
    def leaves_it_good(self) -> bool:
        """Whether another request may follow on its connection."""
        return self._complete and self._stays_open and not self._surplus and self._unread <= _MOST_UNREAD

    async def something(self) -> None:
        """Return when something has happened since the last look.

        Raises:
            httpx.TransportError: nothing more will.
        """
        if self._error is None and not self._complete:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        if self._error is not None:
            raise self._error

    async def read(self) -> bytes:
        """The next part of the body; nothing at its end.

        Raises:
            httpx.TransportError: it does not come whole.
        """
        while not self._chunks and not self._complete:
            await self.something()
        part, self._chunks = b"".join(self._chunks), []
        if self._unread > _MOST_UNREAD and not self._transport.is_closing():
            self._transport.resume_reading()
        self._unread = 0
        return part

    def feed(self, data: bytes) -> None:
        """Take in what has arrived."""
        unread = self._unread
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.fail(httpx.RemoteProtocolError("the answer is no HTTP"))
        if self._unread == unread:  # Headers, of the head or behind the body.
            self._head_size += len(data)
            if self._head_size > _LONGEST_HEAD:
                self.fail(httpx.RemoteProtocolError("the answer's headers are too long"))
        if self._unread > _MOST_UNREAD:
            self._transport.pause_reading()
        self._notify()

    def end(self, error: Exception | None) -> None:
        """The connection has ended, which is the end of a body that says no length."""
        if self._complete or self._error is not None:
            return
        if error is None and self.has_head and self._is_unbounded():
            self._complete = True
        elif error is not None:
            failure = httpx.ReadError(type(error).__name__)
            failure.__cause__ = error
            self.fail(failure)
        elif self.has_head:
            self.fail(httpx.ReadError("closed in the middle of an answer"))
        else:
            self.fail(httpx.RemoteProtocolError("closed without an answer"))
        self._notify()

    def fail(self, error: httpx.TransportError) -> None:
        """It is not going to be whole."""
        if self._error is None and not self._complete:
            self._error = error
        self._transport.abort()
        self._notify()

    def on_message_begin(self) -> None:
        self._surplus = self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._surplus or status in _INTERIM:
            self.headers = self.headers if self._surplus else []
            return
        self.status, self.has_head = status, True

    def on_body(self, body: bytes) -> None:
        if self.has_head and not self._surplus:
            self._chunks.append(body)
            self._unread += len(body)

    def on_message_complete(self) -> None:
        if self.has_head and not self._surplus:
            self._complete, self._stays_open = True, self._parser.should_keep_alive()

    def _is_unbounded(self) -> bool:
        names = {name.lower() for name, _ in self.headers}
        return not names & {b"content-length", b"transfer-encoding"} and self.status not in _BODILESS

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class _Body(httpx.AsyncByteStream):
    def __init__(self, connection: _Connection, answer: _Answer) -> None:
        self._connection = connection
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while part := await self._answer.read():
            yield part

    async def aclose(self) -> None:
        self._connection.over(self._answer)


def _packed(request: httpx.Request) -> bytes:
    """The request as it is sent.

    Raises:
        httpx.LocalProtocolError: a header would be read as more than one.
    """
    headers = request.headers.raw
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%b: %b" % header for header in headers]
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(headers) or head.count(b"\r") != len(headers) or b"\0" in head:
        raise httpx.LocalProtocolError("a header has a control character")
    return head + b"\r\n\r\n" + request.content
