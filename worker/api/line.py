"""One connection to one server at a time, kept open, with nothing around it: what fetching details goes through.

This is the room where the client is fast. An `httpx.AsyncClient` of one connection takes 460 to 660 microseconds of
processor time for one request, measured; its layers for pools, redirects, cookies and time-outs, and anyio below them,
are most of that. The same request over httpcore's connection and asyncio's own streams takes 180. What the layers are
for is done elsewhere: bounds in transport.py, authentication in auth.py, one line for each event under way in slots.py.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import httpcore
import httpx

#: Seconds after which an idle connection is not used again: servers close theirs after 5 s and more.
_KEPT = 4.0


class Line(httpx.AsyncBaseTransport):
    """A transport for one request at a time. It opens another connection when the last one is no longer good."""

    def __init__(self, ssl_context: ssl.SSLContext) -> None:
        self._ssl_context = ssl_context
        self._connections: dict[tuple[bytes, bytes, int | None], httpcore.AsyncHTTPConnection] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request; the answer's body is yet to be read.

        Raises:
            httpx.TransportError: there is no answer.
        """
        url = request.url
        asked = httpcore.Request(
            request.method,
            httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=cast("httpx.AsyncByteStream", request.stream),
            extensions={},
        )
        with _errors_of_httpx(httpx.ConnectError):
            connection = await self._connection((url.raw_scheme, url.raw_host, url.port), asked.url.origin)
            answer = await connection.handle_async_request(asked)
        body = _Body(cast("AsyncIterator[bytes]", answer.stream))
        return httpx.Response(answer.status, headers=answer.headers, stream=body, extensions=answer.extensions)

    async def aclose(self) -> None:
        """Hang up."""
        for connection in self._connections.values():
            await connection.aclose()

    async def _connection(
        self, server: tuple[bytes, bytes, int | None], origin: httpcore.Origin
    ) -> httpcore.AsyncHTTPConnection:
        known = self._connections.get(server)
        if known is not None and known.is_idle() and not known.has_expired():
            return known
        if known is not None:
            await known.aclose()
        network = _Network(self._ssl_context if server[0] == b"https" else None)
        fresh = self._connections[server] = httpcore.AsyncHTTPConnection(
            origin, ssl_context=self._ssl_context, keepalive_expiry=_KEPT, network_backend=network
        )
        return fresh


class _Network(httpcore.AsyncNetworkBackend):
    """How httpcore reaches a server: by asyncio's streams, TLS included, which anyio does in Python."""

    def __init__(self, ssl_context: ssl.SSLContext | None) -> None:
        self._ssl_context = ssl_context

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109, ARG002  httpcore's; ours is around the whole request.
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(*await asyncio.open_connection(host, port, ssl=self._ssl_context))


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109, ARG002  Likewise.
        return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109, ARG002
        self._writer.write(buffer)
        await self._writer.drain()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,  # noqa: ARG002
        server_hostname: str | None = None,  # noqa: ARG002
        timeout: float | None = None,  # noqa: ASYNC109, ARG002
    ) -> httpcore.AsyncNetworkStream:
        return self  # It has been since it was opened.

    async def aclose(self) -> None:
        self._writer.close()

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":  # An idle connection that has something to say says that it is over.
            return self._reader.at_eof() or bool(self._reader._buffer)  # type: ignore[attr-defined]  # noqa: SLF001
        return self._writer.get_extra_info(info)


class _Body(httpx.AsyncByteStream):
    def __init__(self, stream: AsyncIterator[bytes]) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors_of_httpx(httpx.ReadError):
            async for chunk in self._stream:
                yield chunk

    async def aclose(self) -> None:
        await cast("Any", self._stream).aclose()


@contextmanager
def _errors_of_httpx(unreachable: type[httpx.NetworkError]) -> Iterator[None]:
    """Raise what httpx itself would: its errors have the names of httpcore's."""
    try:
        yield
    except httpcore.ConnectionNotAvailable:
        raise httpx.PoolTimeout("the line is in use") from None
    except (
        httpcore.TimeoutException,
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.UnsupportedProtocol,
    ) as error:
        kind: type[httpx.TransportError] = getattr(httpx, type(error).__name__, httpx.NetworkError)
        raise kind(type(error).__name__) from None
    except OSError as error:
        raise unreachable(type(error).__name__) from None
