"""Adapt any of httpx's transports: `httpx.MockTransport`, `httpx.ASGITransport`, or your own."""

import asyncio
from typing import Final

import httpx

from credhook.worker.api.http.exchange import Request, Response, Unanswered, Unsendable

#: Our own doing: nothing was sent.
_UNSENDABLE: Final = (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL, UnicodeError)


class HttpxTransport:
    """One of httpx's transports, within the same bounds as `CurlTransport`. Of causes it knows `timeout` only."""

    def __init__(self, inner: httpx.AsyncBaseTransport, timeout: float) -> None:
        self._inner = inner
        self._timeout = timeout

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
                        if len(body) > response.limit:
                            break
                finally:
                    await received.aclose()
            return response.with_body(bytes(body))
        except _UNSENDABLE as error:
            raise Unsendable(type(error).__name__) from error
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            cause = "timeout" if isinstance(error, httpx.TimeoutException | TimeoutError) else ""
            raise Unanswered(type(error).__name__, cause) from error

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()
