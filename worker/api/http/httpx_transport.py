"""Adapt any of httpx's transports: its network client, `httpx.MockTransport`, `httpx.ASGITransport`, or your own."""

import asyncio
import errno
import re
import socket
import ssl
from typing import Final

import httpx

from credhook.worker.api.http.exchange import Request, Response, Unanswered, Unsendable

#: Our own doing: nothing was sent.
_UNSENDABLE: Final = (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL, UnicodeError)

#: How httpcore and h11 say that the other end has hung up.
_HUNG_UP: Final = re.compile("closed|disconnected")

#: The more precise classes first.
_BY_CLASS: Final = (
    (socket.gaierror, "name_resolution"),
    (ssl.SSLCertVerificationError, "certificate"),
    (ssl.SSLEOFError, "closed"),
    (ssl.SSLZeroReturnError, "closed"),
    (ssl.SSLError, "tls"),
    (TimeoutError, "timeout"),
    (ConnectionRefusedError, "refused"),
)
_BY_NUMBER: Final = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.ECONNABORTED: "reset",
    errno.EPIPE: "reset",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EHOSTDOWN: "unreachable",
    errno.ENETDOWN: "unreachable",
    errno.EADDRNOTAVAIL: "unreachable",
}


class HttpxTransport:
    """One of httpx's transports, within the same bounds as `PyreqwestTransport`."""

    def __init__(self, inner: httpx.AsyncBaseTransport, timeout: float, *, longest: int) -> None:
        self._inner = inner
        self._timeout = timeout
        self._longest = longest

    async def send(self, request: Request) -> Response:
        """See `Transport`."""
        body = bytearray()
        try:
            sent = httpx.Request(
                request.method,
                request.url,
                headers=dict(request.headers),
                content=request.body,
                extensions={"timeout": httpx.Timeout(self._timeout).as_dict()},
            )
            async with asyncio.timeout(self._timeout):
                received = await self._inner.handle_async_request(sent)
                response = Response(received.status_code, received.headers, b"")
                try:
                    async for chunk in received.aiter_bytes():
                        body += chunk
                        if len(body) > response.limit(self._longest):
                            break
                finally:
                    await received.aclose()
            return response.with_body(bytes(body), self._longest)
        except _UNSENDABLE as error:
            raise Unsendable(type(error).__name__) from error
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise Unanswered(type(error).__name__, cause_of(error)) from error

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def cause_of(error: BaseException) -> str:
    """Return the word for why there is no answer; empty if none fits. httpx wraps errors of the operating system."""
    for each in _chain(error):
        for kind, word in _BY_CLASS:
            if isinstance(each, kind):
                return word
        if isinstance(each, OSError) and each.errno in _BY_NUMBER:
            return _BY_NUMBER[each.errno]
        if isinstance(each, ConnectionError) and each.errno is None:  # asyncio's and uvloop's own.
            return "closed"
    if isinstance(error, httpx.TimeoutException):
        return "timeout"
    if isinstance(error, httpx.RemoteProtocolError | httpx.NetworkError) and _HUNG_UP.search(str(error)):
        return "closed"
    return "protocol" if isinstance(error, httpx.RemoteProtocolError) else ""


def _chain(error: BaseException | None) -> list[BaseException]:
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
    return chain
