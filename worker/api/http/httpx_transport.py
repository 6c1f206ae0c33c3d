"""Any of httpx's transports in place of the network: `httpx.MockTransport`, `httpx.ASGITransport`, or one's own."""

import asyncio
import re
from dataclasses import replace
from typing import Final, cast

import httpx

from credhook.worker.api.bounds import read
from credhook.worker.api.http.exchange import Request, Response, Unanswered, Unsendable

#: Our own doing: nothing was sent.
_UNSENDABLE: Final = (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL, UnicodeError)

#: How httpcore and h11 say that the other end has hung up.
_HUNG_UP: Final = re.compile("closed|disconnected")


class HttpxTransport:
    """One of httpx's transports, within the same bounds as `AiohttpTransport`."""

    def __init__(self, inner: httpx.AsyncBaseTransport, timeout: float, *, longest: int) -> None:
        self._inner = inner
        self._timeout = timeout
        self._longest = longest

    async def send(self, request: Request) -> Response:
        """See `Transport`."""
        refused: Response | None = None
        try:
            sent = httpx.Request(
                request.method,
                request.url,
                headers=dict(request.headers),
                content=request.body,
                extensions={"timeout": httpx.Timeout(self._timeout).as_dict()},
            )
            async with asyncio.timeout(self._timeout):
                response = await self._inner.handle_async_request(sent)
                answer = Response(response.status_code, response.headers, b"")
                refused = None if answer.is_success else answer
                try:
                    # As it comes: of a response that was made by hand, httpx has read the body already.
                    chunks = aiter(cast("httpx.AsyncByteStream", response.stream))
                    return replace(answer, body=await read(answer.status, answer.headers, chunks, self._longest))
                finally:
                    await response.aclose()
        except _UNSENDABLE as error:
            raise Unsendable(type(error).__name__) from error
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            if refused is not None:
                return refused
            raise Unanswered(error, _cause_of(error)) from error

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def _cause_of(error: Exception) -> str:
    """The word for what httpx says itself; what the system says below it is found without us."""
    if isinstance(error, httpx.TimeoutException):
        return "timeout"
    if isinstance(error, httpx.RemoteProtocolError | httpx.NetworkError) and _HUNG_UP.search(str(error)):
        return "closed"
    return "protocol" if isinstance(error, httpx.RemoteProtocolError) else ""
