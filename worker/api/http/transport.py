"""What carries requests over the network, within bounds: aiohttp.

httpx alone takes seven times as long for a request, and its interface over aiohttp twice as long, measured; fetching is
most of what a worker does. What httpx's users know holds here: HTTPS_PROXY and its siblings, SSL_CERT_FILE, trust.
"""

import asyncio
import ssl
from http import HTTPStatus
from typing import Final

import aiohttp
import yarl
from aiohttp.abc import AbstractResolver

from credhook.worker.api.http.body_limit import is_success, read
from credhook.worker.api.http.connections import REPEATING, CountedRequest, KeptConnections, RememberingResponse
from credhook.worker.api.http.exchange import Request, Response, Unanswered, Unsendable
from credhook.worker.api.http.json_size import LONGEST_BODY
from credhook.worker.api.http.proxies import Proxies, ProxyFailed, UnsupportedProxy
from credhook.worker.api.http.trust import shared_ssl_context

#: Seconds for which an idle connection is kept: servers close theirs after 5 s and more.
KEPT: Final = 4.0
#: Seconds that connecting to one address of a host may take before the next one is tried beside it (RFC 8305, 5).
NEXT_ADDRESS: Final = 0.25
#: Bytes of one header, headers of one response.
_LONGEST_HEADER: Final = 16_384
_MOST_HEADERS: Final = 128
#: What aiohttp would say of a body by itself, also where there is none.
_NOT_OURS: Final = ("Content-Type",)


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
        refused: Response | None = None
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
                    skip_auto_headers=None if request.repeatable else _NOT_OURS,
                    allow_redirects=False,
                    proxy=proxy,
                    proxy_headers=proxy_headers,
                    middlewares=REPEATING if request.repeatable else None,
                ) as response,
            ):
                if response.status == HTTPStatus.SWITCHING_PROTOCOLS:
                    raise aiohttp.ClientPayloadError("nobody has asked for another protocol")
                if response.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED and proxy is not None:
                    raise ProxyFailed  # noqa: TRY301  Where it is encrypted, aiohttp says so itself.
                connection = response.came_over if isinstance(response, RememberingResponse) else None
                if not is_success(response.status):
                    refused = Response(response.status, response.headers, b"", connection)
                body = await read(response.status, response.headers, response.content.iter_any(), self._longest)
                return Response(response.status, response.headers, body, connection)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, ValueError) as error:
            raise Unsendable(type(error).__name__) from error
        except (aiohttp.ClientError, UnsupportedProxy, ProxyFailed, OSError) as error:  # TimeoutError is an OSError.
            if refused is not None:
                return refused
            raise Unanswered(error) from error

    async def aclose(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._opened.close()

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            connector = KeptConnections(
                limit=0,  # Whoever sends knows how many requests are under way.
                ssl=self._ssl_context,
                resolver=self._resolver,
                keepalive_timeout=self._kept,
                happy_eyeballs_delay=NEXT_ADDRESS,
            )
            self._opened = aiohttp.ClientSession(
                connector=connector,
                request_class=CountedRequest,
                response_class=RememberingResponse,
                cookie_jar=aiohttp.DummyCookieJar(),  # An identity provider's would tie requests together.
                timeout=aiohttp.ClientTimeout(),  # Ours is exact, and covers everything.
                auto_decompress=False,
                max_line_size=_LONGEST_HEADER,
                max_field_size=_LONGEST_HEADER,
                max_headers=_MOST_HEADERS,
            )
        return self._opened
