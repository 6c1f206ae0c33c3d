"""Send requests over a client of httpx, within bounds, for those who need its mocks, transports or instrumentation.

httpx takes bytes that follow an answer on a kept connection for the answer to the next request. So each request has a
connection of its own. httpx does not bound the number of interim answers either: a flood of them ends with the time.
"""

import asyncio
import os
import socket
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from errno import EMFILE, ENFILE
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx

from credhook.worker.api.http.environment import proxy_for, ssl_context
from credhook.worker.api.http.exchange import (
    BY_ERRNO,
    BY_VERDICT,
    Request,
    Response,
    Unanswered,
    Unsendable,
    is_of_tls,
)

#: Our own doing: nothing was sent.
_UNSENDABLE: Final = (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL, UnicodeError)
#: Codings of a body that are decoded, though our own header asks for none. A body of another coding is not JSON.
_CODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
_MAX_PORT: Final = 65_535
#: zlib reads the heads of gzip and of zlib.
_EITHER_HEAD: Final = zlib.MAX_WBITS | 32
_BY_ERRNO: Final = BY_ERRNO | {EMFILE: "socket", ENFILE: "socket"}
#: Key of a request's `_Way` among its extensions.
_WAY: Final = "credhook.way"

#: A client of httpx, of either kind.
HttpxClient = httpx.AsyncClient | httpx.Client


class HttpxTransport:
    """A transport over a client of httpx. The synchronous kind works in threads.

    The client's transports, mounts, proxies and hooks count. Its headers, cookies, credentials and redirects do not.

    Args:
        client: The client.
        timeout: Seconds that sending may take as a whole: connecting, waiting, reading.
        is_ours: False for a client that its maker closes.

    Raises:
        TypeError: The client is of another kind.
    """

    def __init__(self, client: HttpxClient, timeout: float, *, is_ours: bool = True) -> None:
        if not isinstance(client, HttpxClient):
            raise TypeError(f"http should be an httpx.AsyncClient or an httpx.Client, not {type(client).__name__}")
        self._client, self.timeout, self._is_ours = client, timeout, is_ours

    async def send(self, request: Request) -> Response:
        """See `Transport`."""
        way = _Way()
        try:
            sent = httpx.Request(
                request.method,
                _checked(request.url, "http", "https"),
                headers={**request.headers, "Connection": "close"},
                content=request.body,
                extensions={"timeout": httpx.Timeout(self.timeout).as_dict(), _WAY: way},
            )
            async with way.closed_on_error(), asyncio.timeout(self.timeout):
                if isinstance(self._client, httpx.Client):
                    response = await asyncio.to_thread(_answer_in_thread, self._client, sent, self.timeout)
                else:
                    sent.extensions["trace"] = way.note
                    response = await _answer(self._client, sent)
        except _UNSENDABLE as error:
            raise Unsendable(type(error).__name__) from error
        except (httpx.HTTPError, httpx.StreamError, OSError, zlib.error) as error:
            cause, reason = _cause_of(error)
            is_proxys = way.is_proxied and not way.is_past_proxy(request.url) and not is_of_tls(cause)
            raise Unanswered(type(error).__name__, "proxy" if is_proxys else cause, reason) from error
        if response.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED and way.is_proxied:
            raise Unanswered("ProxyError", "proxy")
        return response

    async def aclose(self) -> None:
        """Close the client, unless its maker does."""
        if not self._is_ours:
            return
        if isinstance(self._client, httpx.Client):
            self._client.close()
        else:
            await self._client.aclose()


async def _answer(client: httpx.AsyncClient, sent: httpx.Request) -> Response:
    received = await client.send(sent, stream=True, auth=None, follow_redirects=False)
    try:
        body = _Body(received)
        if not received.is_stream_consumed:
            async for chunk in received.aiter_raw():
                if not body.take(chunk):
                    break
        return body.response()
    finally:
        await received.aclose()


def _answer_in_thread(client: httpx.Client, sent: httpx.Request, timeout: float) -> Response:
    deadline = time.monotonic() + timeout
    received = client.send(sent, stream=True, auth=None, follow_redirects=False)
    try:
        body = _Body(received)
        if not received.is_stream_consumed:
            for chunk in received.iter_raw():
                if not body.take(chunk) or time.monotonic() > deadline:  # Nobody waits for the rest.
                    break
        return body.response()
    finally:
        received.close()


class _Way:
    """How far a request has come, as httpcore reports it.

    Attributes:
        is_proxied: True if it goes through a proxy of the environment.
    """

    def __init__(self) -> None:
        self.is_proxied = False
        self._events = set[str]()
        self._stream: Any = None

    async def note(self, event: str, details: Mapping[str, Any]) -> None:
        """Take a report."""
        self._events.add(event)
        if event.endswith(".connect_tcp.complete"):
            self._stream = details["return_value"]

    @asynccontextmanager
    async def closed_on_error(self) -> AsyncIterator[None]:
        """Close the connection if the block fails. httpcore leaves it open if a TLS handshake is cancelled."""
        try:
            yield
        except BaseException:
            if self._stream is not None:
                await self._stream.aclose()
            raise

    def is_past_proxy(self, url: str) -> bool:
        """Return True if the proxy has taken the request, or for TLS if it has opened the tunnel."""
        events = {"http11.send_request_headers.complete"}
        if url.lower().startswith("https:"):
            events = {"proxy.start_tls.started", "socks.setup_socks5_connection.complete"}
        return not events.isdisjoint(self._events)


class _Body:
    """The body of an answer, decoded up to its bound."""

    def __init__(self, received: httpx.Response) -> None:
        self._response = Response(received.status_code, received.headers, b"")
        self._body = bytearray(received.content if received.is_stream_consumed else b"")  # Mocks have it at hand.
        coding = received.headers.get("content-encoding", "").strip().lower()
        self._decoder = zlib.decompressobj(_EITHER_HEAD) if coding in _CODINGS else None

    def take(self, chunk: bytes) -> bool:
        """Keep a part of the body. Return False if no more of it may be read."""
        left = self._response.limit + 1 - len(self._body)
        self._body += self._decoder.decompress(chunk, left) if self._decoder else chunk[:left]
        return len(self._body) <= self._response.limit

    def response(self) -> Response:
        """Return the answer.

        Raises:
            BodyRefused: It is longer than it may be.
        """
        return self._response.with_body(bytes(self._body))


class Routes(httpx.AsyncBaseTransport):
    """The way to each origin as the environment describes it, with the same trust and proxies as `CurlTransport`."""

    def __init__(self, certfile: Path | None = None, keyfile: Path | None = None) -> None:
        self._certificate = certfile and (os.fspath(certfile), keyfile and os.fspath(keyfile))
        self._ssl: ssl.SSLContext | None = None
        #: Transports by proxy, "" for none.
        self._transports: dict[str, httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request over a connection of its own."""
        proxy = proxy_for(f"{request.url.scheme}://{request.url.netloc.decode('ascii')}")
        request.extensions[_WAY].is_proxied = bool(proxy)
        self._ssl = self._ssl or ssl_context()
        if self._certificate:  # The file may have been renewed.
            try:
                self._ssl.load_cert_chain(*self._certificate, password="")
            except OSError as error:
                raise ssl.SSLError(type(error).__name__) from None
        if proxy not in self._transports:
            self._transports[proxy] = _transport(self._ssl, proxy)
        return await self._transports[proxy].handle_async_request(request)

    async def aclose(self) -> None:
        """Close the connections."""
        for transport in self._transports.values():
            await transport.aclose()


def _checked(url: str, *schemes: str) -> httpx.URL:
    """Return a URL that httpx can send requests to.

    Raises:
        httpx.InvalidURL: httpx would change the URL, or fail late.
    """
    parsed = httpx.URL(url)
    if parsed.scheme not in schemes or not parsed.host or not url.isprintable() or (parsed.port or 0) > _MAX_PORT:
        raise httpx.InvalidURL("no URL")
    return parsed


def _transport(context: ssl.SSLContext, url: str) -> httpx.AsyncHTTPTransport:
    """Return a transport through the proxy, if there is one.

    Raises:
        httpx.ProxyError: The proxy cannot be used.
    """
    try:
        url = url if not url or "://" in url else f"http://{url}"
        proxy = httpx.Proxy(_checked(url, "http", "https", "socks5", "socks5h")) if url else None
        if proxy is not None and proxy.url.scheme == "https":
            proxy.ssl_context = context
        return httpx.AsyncHTTPTransport(context, limits=httpx.Limits(), proxy=proxy, trust_env=False)
    except (ValueError, httpx.InvalidURL) as error:
        raise httpx.ProxyError(type(error).__name__) from None  # The error quotes the URL.
    except ImportError:
        raise httpx.ProxyError(_NO_SOCKS) from None


_NO_SOCKS: Final = "a SOCKS proxy needs the package socksio"


def _cause_of(error: Exception) -> tuple[str, str]:
    """Return the word of `Unanswered` for an error, and more words if it has any that quote nothing."""
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return "timeout", ""
    if isinstance(error, httpx.ProxyError):
        return "proxy", _NO_SOCKS if str(error) == _NO_SOCKS else ""
    for link in _chain(error):
        if isinstance(link, ssl.SSLCertVerificationError):
            word = BY_VERDICT.get(link.verify_code, "certificate_unfit")
            return word, "" if word == "certificate_name" else link.verify_message  # That message quotes the host.
        if word := _word_of(link):
            return word, ""
    return "closed" if isinstance(error, httpx.ReadError | httpx.WriteError) else "", ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, then the errors that led to it."""
    while error is not None:
        yield error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__


def _word_of(error: BaseException) -> str:
    """Return the word of `Unanswered` for an error in a chain, or "" if an earlier error may have one."""
    if isinstance(error, ssl.SSLError):
        return "tls"
    if isinstance(error, socket.gaierror):
        return "name_resolution"
    if isinstance(error, OSError) and error.errno:
        return _BY_ERRNO.get(error.errno, "unreachable")
    if isinstance(error, httpx.RemoteProtocolError):
        has_ended = "closed connection" in str(error) or "disconnected" in str(error)  # Words of h11 and httpcore.
        return "closed" if has_ended else "protocol"
    return "protocol" if isinstance(error, zlib.error) else ""
