"""Send requests over the network, within bounds, by pyreqwest, a binding to Rust's reqwest.

A request costs 40 microseconds of processor time, with httpx twenty times as much, and fetching is most of a worker's
work. `HttpxTransport` is the other implementation. HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY name the proxies.
"""

import asyncio
import atexit
import functools
import ipaddress
import math
import os
import re
import ssl
import sys
import time
import urllib.request
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import certifi
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import DetailedPyreqwestError, PyreqwestError
from pyreqwest.proxy import ProxyBuilder

from credhook.worker.api.http.exchange import HEADERS, Request, Response, Unanswered, Unsendable


class Proxies:
    """The proxies that the environment names. Each origin is looked up once."""

    def __init__(self) -> None:
        self._named = urllib.request.getproxies()
        self.url_for = functools.cache(self._find)

    def _find(self, origin: str) -> str | None:
        """Return the URL of the proxy, which may hold credentials, or None if there is no proxy.

        Raises:
            ValueError: The origin is none.
            Unanswered: The proxy does not speak HTTP, or its URL is not valid.
        """
        parts = urlsplit(origin)
        named = self._named.get(parts.scheme) or self._named.get("all")
        host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]
        if not named or _is_loopback(host) or urllib.request.proxy_bypass(f"{host}:{port}"):
            return None
        url = named if "://" in named else f"http://{named}"
        try:
            proxy = urlsplit(url)
            usable = proxy.scheme in {"http", "https"} and proxy.hostname and proxy.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise Unanswered("UnsupportedProxy", "proxy")
        return url


def _is_loopback(host: str) -> bool:
    """Return True for this machine, which needs no proxy, as in Go."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


#: Seconds for which an idle connection is kept: servers close theirs after 5 s and more.
KEPT: Final = 4.0
#: Part of the time-out that connecting through a proxy may take, to tell a silent proxy from a slow platform.
_CONNECTING: Final = 0.9
#: Seconds between two changes of all connections after answers that cannot be trusted: a change takes 12 ms.
_DISTRUST_SECONDS: Final = 1.0
#: Seconds to wait at the interpreter's end. pyreqwest's own thread may still be waking an event loop, and finalization
#: would then abort the process: on a busy machine 63 of 500 scripts ended with 134, and with this wait none.
_LAST_WAKE_SECONDS: Final = 0.05
#: An origin, then a path and query. Credentials have no place in it.
_URL: Final = re.compile(r"(https?://[^/?#@\s\\]+)[^\s\\]*", re.IGNORECASE)

#: What reqwest's causes say, and the word for it. The first match counts.
_CAUSES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), word)
    for pattern, word in (
        ("proxy|tunnel", "proxy"),
        ("dns error|lookup address", "name_resolution"),
        ("invalid peer certificate|UnknownIssuer", "certificate"),
        ("received fatal alert|corrupt message|InvalidContentType|handshake|HandshakeFailure|InvalidMessage", "tls"),
        (r"os error 111\b", "refused"),
        (r"os error (99|100|101|112|113)\b", "unreachable"),
        (r"os error (32|103|104)\b", "reset"),
        (r"os error 110\b|timed out", "timeout"),
        ("connection closed|end of file|unexpected eof|close_notify|canceled", "closed"),
        ("invalid|parsed|too large|over limit|overflow|unexpected", "protocol"),
    )
)


class PyreqwestTransport:
    """A transport over kept connections, for one event loop.

    The client is made by the first request: its thread would not survive a fork.

    Args:
        timeout: Seconds that sending may take as a whole: connecting, waiting, reading.
        certfile: PEM file with our certificate for TLS.
        keyfile: PEM file with its key, if that is not in the same file.
    """

    def __init__(self, timeout: float, *, certfile: Path | None = None, keyfile: Path | None = None) -> None:
        self._timeout = timeout
        self._files = [file for file in (certfile, keyfile) if file is not None]
        self._proxies = Proxies()
        #: By the URL of the proxy; None leads to those without one.
        self._clients: dict[str | None, Client] = {}
        self._distrusted_at = -math.inf

    async def send(self, request: Request) -> Response:
        """See `Transport`."""
        match = _URL.fullmatch(request.url)
        if match is None or not request.url.isprintable():
            raise Unsendable("ValueError")
        try:
            proxy = self._proxies.url_for(match[1])
        except ValueError:
            raise Unsendable("ValueError") from None
        try:
            return await self._answer(proxy, request)
        except Unanswered as failure:
            if not (request.repeatable and failure.cause in {"closed", "reset"}):
                raise
        return await self._answer(proxy, request)  # The server may just have closed an idle connection.

    async def _answer(self, proxy: str | None, request: Request) -> Response:
        if proxy not in self._clients:
            self._clients[proxy] = self._built(proxy)
        client = self._clients[proxy]
        task = asyncio.current_task()
        cancelled = task.cancelling() if task else 0
        try:
            builder = client.request(request.method, request.url).headers(request.headers)
            if request.body is not None:
                builder = builder.body_bytes(request.body)
            async with builder.build_streamed() as received:
                response = Response(received.status, received.headers, b"", functools.partial(self._distrust, proxy))
                if response.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED and proxy is not None:
                    raise Unanswered("ProxyError", "proxy")
                body = await received.body_reader.read(response.limit + 1)
            if task and task.cancelling() > cancelled:  # pyreqwest drops a cancellation that meets an answer.
                raise asyncio.CancelledError
            return response.with_body(bytes(body or b""))
        except ValueError as error:  # It can quote the URL and the token, and so can the other.
            raise Unsendable(type(error).__name__) from None
        except (PyreqwestError, OSError) as error:
            raise Unanswered(type(error).__name__, _cause_of(error, is_proxied=proxy is not None)) from None

    def _distrust(self, proxy: str | None) -> None:
        """Give up all connections of the client: an answer over one of them was for another request."""
        now = time.monotonic()
        if now > self._distrusted_at + _DISTRUST_SECONDS:
            self._distrusted_at = now
            self._clients.pop(proxy, None)  # Requests under way keep the client alive.

    async def aclose(self) -> None:
        """Close the connections."""
        while self._clients:
            _, client = self._clients.popitem()
            await client.close()

    def _built(self, proxy: str | None) -> Client:
        _wait_at_exit()
        builder = (
            ClientBuilder()
            .user_agent(HEADERS["User-Agent"])  # For proxies.
            .follow_redirects(enable=False)
            .referer(enable=False)
            .timeout(timedelta(seconds=self._timeout))
            .pool_idle_timeout(timedelta(seconds=KEPT))
            .no_proxy()
        )
        if proxy is not None:
            builder = builder.proxy(ProxyBuilder.all(proxy))
            builder = builder.connect_timeout(timedelta(seconds=self._timeout * _CONNECTING))
        trusted = os.environ.get("SSL_CERT_FILE") or (None if os.environ.get("SSL_CERT_DIR") else certifi.where())
        if trusted:
            builder = builder.add_root_certificate_pem(_pem(Path(trusted)))
        if self._files:
            builder = builder.identity_pem(b"\n".join(map(_pem, self._files)))
        with _batch_scheduling():
            return builder.build()


def _pem(file: Path) -> bytes:
    """Read a PEM file without its byte order mark: OpenSSL skips the mark, and rustls the certificate behind it."""
    return file.read_bytes().removeprefix(BOM_UTF8)


@contextmanager
def _batch_scheduling() -> Iterator[None]:
    """Start threads that do not preempt another one when they wake.

    The client's thread wakes for each answer. On one core it would interrupt the event loop each time: a worker handles
    a sixth more events so.
    """
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # New threads inherit it.
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@functools.cache
def _wait_at_exit() -> None:
    atexit.register(time.sleep, _LAST_WAKE_SECONDS)


def _cause_of(error: Exception, *, is_proxied: bool) -> str:
    """Return the word for an error of pyreqwest. The first of its causes is left out: it quotes the URL."""
    causes = error.details["causes"] or [] if isinstance(error, DetailedPyreqwestError) else []
    text = "; ".join(cause["message"] for cause in causes[1:])
    word = next((word for pattern, word in _CAUSES if pattern.search(text)), "")
    if isinstance(error, TimeoutError):
        word = "timeout"
    is_connecting = "client error (Connect)" in text
    return "proxy" if is_proxied and is_connecting and word not in {"certificate", "tls"} else word


@functools.cache
def shared_ssl_context() -> ssl.SSLContext:
    """Return the same trust for Python's own TLS: SSL_CERT_FILE or SSL_CERT_DIR, otherwise certifi.

    Raises:
        OSError: A file cannot be read.
    """
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    return ssl.create_default_context(cafile=file or (None if folder else certifi.where()), capath=folder)
