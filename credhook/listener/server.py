"""uvicorn's server and HTTP protocol, with limits on everything that a sender can make long or slow.

A proxy in front ends slow senders earlier and speaks TLS. These limits keep the process small in any case.
"""

import asyncio
import json
import math
import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import httptools
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from credhook.logs import FloodGuard
from credhook.settings import valid_until

log = structlog.get_logger("credhook.listener")

#: Most open connections.
_MAX_CONNECTIONS: Final = 900
#: Files that a process may have open besides: connections to Redis and of the admin listener. With them, it stays below
#: 1,024, the usual `ulimit -n`.
_OTHER_FILES: Final = 124
#: Bytes of a request's line and headers. The platform sends about 400; with a proxy's additions about 1,500.
_MAX_HEAD_BYTES: Final = 16_384
#: Lines of headers, and of trailers, as in Apache.
_MAX_HEADERS: Final = 100
#: Seconds for a whole request, from its first byte.
_REQUEST_SECONDS: Final = 10.0
#: Seconds until the sender must have read the answer. Redis answers within five seconds or not at all.
_ANSWER_SECONDS: Final = 30.0
#: Seconds that a connection may stay open without a request.
_IDLE_SECONDS: Final = 5.0
#: Seconds for a connection to close. A sender that does not read would keep it open.
_CLOSE_SECONDS: Final = 2.0
#: Seconds that a new connection gets for its request while the process stops; over TLS, for its handshake as well.
LAST_REQUEST_SECONDS: Final = 1.0
#: Turns of uvicorn's main loop, of 0.1 s each, between two checks of all connections.
_CHECK_TURNS: Final = 5
#: Seconds after which a sender may try again. A restart of Redis takes about as long.
RETRY_AFTER: Final = 5

#: Titles that are not Python's phrases: 400 has the platform's title; 413 differs between Python's versions.
_TITLES: Final = {400: "Validation Failed", 413: "Payload Too Large"}


def errors_body(status: int, detail: str) -> bytes:
    """Return the body of an error response: the platform's own `errors` envelope."""
    title = _TITLES.get(status, HTTPStatus(status).phrase)
    code = "VALIDATION_ERROR" if status == HTTPStatus.BAD_REQUEST else title.upper().replace(" ", "_")
    error = {"id": str(uuid4()), "status": status, "code": code, "title": title, "detail": detail}
    return json.dumps({"errors": [error]}).encode()


class Rejection(NamedTuple):
    """A reason to reject a sender before the application sees the request.

    Attributes:
        reason: its stable name in the log and in metrics.
        status: of the answer.
        detail: for the sender.
        hint: for the operator.
    """

    reason: str
    status: int
    detail: str
    hint: str

    def answer(self) -> bytes:
        """Return the whole response."""
        body = errors_body(self.status, self.detail)
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *([f"retry-after: {RETRY_AFTER}"] if self.status == HTTPStatus.SERVICE_UNAVAILABLE else []),
            "connection: close\r\n\r\n",
        ]
        return "\r\n".join(lines).encode() + body


#: What senders begin with that speak something else, and what to do about each. The first bytes decide.
_OTHER_PROTOCOLS: Final = (
    (b"\x16\x03", "the sender speaks TLS: let a proxy end it, or set CREDHOOK_TLS_CERTFILE"),
    (b"PRI * HTTP/2", "the sender speaks HTTP/2: let the proxy speak HTTP/1.1 to the receiver"),
    (b"PROXY ", "the proxy sends the PROXY protocol: switch it off"),
    (b"\r\n\r\n\x00\r\nQUIT\n", "the proxy sends the PROXY protocol: switch it off"),
)
_HEAD: Final = Rejection(
    "head_too_large",
    413,
    "The headers are too large.",
    f"headers may have {_MAX_HEAD_BYTES} bytes and {_MAX_HEADERS} lines: see what the sender or the proxy adds",
)
_BODY: Final = Rejection("body_too_large", 413, "The body is too large.", "see CREDHOOK_MAX_BODY")
_INVALID: Final = Rejection(
    "invalid_http", 400, "This is not a valid HTTP request.", "a scanner, or a sender that does not speak HTTP/1.1"
)
_TUNNEL: Final = Rejection("tunnel", 400, "This is no proxy.", "a scanner looks for open proxies: nothing to do")
_PIPELINED: Final = Rejection(
    "pipelined", 400, "Wait for the answer.", "the sender sends its next request before the answer: switch that off"
)
_SLOW: Final = Rejection(
    "slow_request",
    408,
    "The request did not come in time.",
    f"a request may take {_REQUEST_SECONDS:g} s: a slow network, a scanner, or a proxy that does not buffer requests",
)
_FULL: Final = Rejection(
    "full",
    503,
    "The server is busy; try again.",
    f"more connections are open than {_MAX_CONNECTIONS}, or than `ulimit -n` allows: put a proxy in front that limits "
    "them, or run more processes",
)
#: Headers that offer another protocol (RFC 9110, 7.8; RFC 7540, 3.2.1), and the header that names them.
_OFFERS: Final = {b"upgrade", b"http2-settings", b"connection"}


def connections_for(open_files: int) -> int:
    """Return how many connections may be open with this limit of open files.

    Without a file for it, a connection would be closed without an answer and without a line in the log.
    """
    if open_files == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return min(_MAX_CONNECTIONS, max(open_files // 2, open_files - _OTHER_FILES))


class Listener(uvicorn.Config):
    """uvicorn's configuration for a port whose senders are not trusted."""

    def __init__(
        self,
        app: ASGIApp,
        name: str,
        *,
        body_bytes: int,
        connections: int | None = None,
        answer_seconds: float = _ANSWER_SECONDS,
        idle_seconds: float = _IDLE_SECONDS,
        count: Callable[[str], None] = lambda _: None,
        **options: Any,
    ) -> None:
        """`name`: for the log. `count` is called with the reason of each rejection. `options`: more of uvicorn's."""
        super().__init__(
            app,
            http=BoundedProtocol,
            ws="none",  # uvicorn would drop the body of a request that asks for an upgrade.
            access_log=False,  # It writes paths, and a path may be the secret.
            log_config=None,
            proxy_headers=False,  # We do not use the address or scheme of the client.
            server_header=False,
            lifespan="off",
            **options,
        )
        self.body_bytes = body_bytes
        self.connections = connections or connections_for(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self.answer_seconds = answer_seconds
        self.idle_seconds = idle_seconds
        self._name = name
        self._count = count
        self._guard = FloodGuard(1, time.monotonic)

    def note(self, reason: str, hint: str) -> None:
        """Count a rejection, and log one line a minute for each reason."""
        self._count(reason)
        if (more := self._guard.admit(reason)) is not None:
            log.warning("sender_rejected", listener=self._name, reason=reason, hint=hint, **more)


class Server(uvicorn.Server):
    """Serves a `Listener` on sockets."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command, since a process may have two servers, and both must stop."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, answer the connections that were just accepted, then drain.

        Another process may go on with the same socket, so that senders notice no restart. But only this process can
        answer a connection that it has accepted.
        """
        for server in (*self.servers, *(sockets or ())):
            server.close()
        for _ in range(5):  # The event loop hands over accepted connections.
            await asyncio.sleep(0)
        deadline = time.monotonic() + LAST_REQUEST_SECONDS
        while self._expects_requests() and time.monotonic() < deadline and not self.force_exit:  # noqa: ASYNC110  uvicorn polls, too.
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)

    def _expects_requests(self) -> bool:
        """Return True if a request may be on its way. uvicorn does not list a connection during its TLS handshake."""
        connections = self.server_state.connections
        return self.config.is_ssl or any(
            isinstance(connection, BoundedProtocol) and connection.expects_request for connection in connections
        )

    async def on_tick(self, counter: int) -> bool:
        """End overdue connections. A timer for each request would cost more."""
        if counter % _CHECK_TURNS == 0:
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, BoundedProtocol):
                    connection.end_if_overdue()
        return await super().on_tick(counter)


class _Phase(Enum):
    """Which part of a request a connection is in. Before the first request it is IDLE."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    ANSWER = auto()


class _RejectedError(Exception):
    """Stops the parser. The reason is in the protocol's `_rejection`."""


class BoundedProtocol(HttpToolsProtocol):
    """One HTTP connection with limits on bytes and time. Requests must not be pipelined."""

    config: Listener

    def __init__(
        self,
        config: Listener,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._phase = _Phase.IDLE
        #: Bytes received in this phase.
        self._received = 0
        self._deadline = 0.0
        #: The first bytes of the connection's latest request.
        self._beginning = b""
        #: Further bytes are thrown away once this is set, since the connection will be closed.
        self._rejection: Rejection | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As in uvicorn.
        """Wait for the first request, if there is room for the connection."""
        super().connection_made(transport)
        self._enter(_Phase.IDLE, self.config.idle_seconds)
        if len(self.connections) > self.config.connections:
            self._reject(_FULL)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, then check the size of the unfinished request."""
        if self._rejection:
            return
        if self._phase is _Phase.IDLE:
            self._enter(_Phase.HEAD, _REQUEST_SECONDS)
            self._beginning = data[:16]
        self._received += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._reject(self._rejection or self._other_protocol())
            return
        too_many = len(self.headers or ()) > _MAX_HEADERS
        if self._phase is _Phase.HEAD and (too_many or self._received > _MAX_HEAD_BYTES):
            self._reject(_HEAD)
        # A body may come in chunks of a few bytes each, and have trailers.
        if self._phase is _Phase.BODY and (too_many or self._received > 2 * self.config.body_bytes + _MAX_HEAD_BYTES):
            self._reject(_BODY)

    def _parse(self, data: bytes) -> None:
        """Parse the bytes. An offer of another protocol is ignored, as RFC 9110 (7.8) allows.

        Java's HTTP client offers HTTP/2 by default. httptools takes what follows such an offer for the other protocol.
        So the head is parsed again without it, and the body belongs to the request.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            method, (rest,) = self.parser.get_method(), offer.args
            kept = [b"%b: %b" % header for header in self.headers if header[0] not in _OFFERS]
            head = [b"%b %b HTTP/1.1" % (method, self.url), *kept, b"connection: close", b"", b""]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.feed_data(b"\r\n".join(head) + data[rest:])

    def _other_protocol(self) -> Rejection:
        """Return the rejection of bytes that are not HTTP, with a hint at what they are."""
        hint = next((hint for first, hint in _OTHER_PROTOCOLS if self._beginning.startswith(first)), _INVALID.hint)
        return _INVALID._replace(hint=hint)

    def eof_received(self) -> bool:  # type: ignore[override]  # As asyncio has it.
        """Answer the request under way: a sender may end its side after the request. TLS cannot be half closed."""
        if self._phase is not _Phase.ANSWER:
            return False
        self.cycle.keep_alive = False
        return True

    def on_message_begin(self) -> None:
        """Refuse a second request before the first is answered."""
        if self._phase is _Phase.ANSWER:
            self._stop_parsing(_PIPELINED)
        self._phase = _Phase.HEAD
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Check the headers."""
        head_bytes = 0
        if self._received > _MAX_HEAD_BYTES:  # A part of the body has come with the headers.
            head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if len(self.headers) > _MAX_HEADERS or head_bytes > _MAX_HEAD_BYTES:
            self._stop_parsing(_HEAD)
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._stop_parsing(_TUNNEL)
            return  # `_parse` takes the offer out.
        super().on_headers_complete()
        self._phase, self._received = _Phase.BODY, 0
        self.headers = []  # httptools reports trailers as headers. The application does not get them.

    def on_message_complete(self) -> None:
        """Wait for the application, unless it has answered without the body."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if self.cycle.response_complete:
            self._enter(_Phase.IDLE, self.config.idle_seconds)
        else:
            self._enter(_Phase.ANSWER, self.config.answer_seconds)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one. `end_if_overdue` replaces uvicorn's timer."""
        if not self.transport.is_closing():
            self.flow.resume_reading()
        if self._phase is _Phase.ANSWER:
            self._enter(_Phase.IDLE, self.config.idle_seconds)

    @property
    def expects_request(self) -> bool:
        """Return True if a request has begun to come, or if none has come since the connection was made."""
        is_new = self._phase is _Phase.IDLE and self.cycle is None
        return (is_new or self._phase is _Phase.HEAD) and not self._rejection

    def shutdown(self) -> None:
        """Close an idle connection at once. Over TLS it would otherwise wait for the sender to close it, too."""
        super().shutdown()
        if self.transport.is_closing():
            self.transport.abort()

    def end_if_overdue(self) -> None:
        """End the connection if its phase has lasted too long."""
        if time.monotonic() <= self._deadline:
            return
        if self._phase in {_Phase.HEAD, _Phase.BODY} and not self._rejection:
            self._reject(_SLOW)
            return
        if self._phase is _Phase.ANSWER:
            self.config.note("answer_unread", "the sender does not read its answers")
        self.transport.abort()

    def _enter(self, phase: _Phase, seconds: float) -> None:
        self._phase = phase
        self._received = 0
        self._deadline = time.monotonic() + seconds

    def _stop_parsing(self, rejection: Rejection) -> None:
        self._rejection = rejection
        raise _RejectedError

    def _reject(self, rejection: Rejection) -> None:
        """Answer after the previous request, then close."""
        self._rejection = rejection
        self.config.note(rejection.reason, rejection.hint)
        if self.headers:  # Thousands of short headers may have come at once.
            self.headers.clear()
        if self._phase is _Phase.ANSWER:  # The previous request is answered; then uvicorn closes.
            self.cycle.keep_alive = False
            return
        answered = False
        if self._phase is _Phase.BODY:  # The application may be reading the body.
            answered = self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not answered:
            self.transport.write(rejection.answer())
        self._deadline = time.monotonic() + _CLOSE_SECONDS
        self.transport.close()


class Certificate:
    """Shows each peer the certificate that its files hold now. Other programs renew it every few weeks."""

    def __init__(self, chain: Path, key: Path | None) -> None:
        """Read the chain, and its key, from PEM files. Without `key`, the chain's file holds it as well.

        Raises:
            OSError: the files cannot be read, or do not fit each other.
        """
        self._chain, self._key = chain, key
        self._stamp, self._current = self._look(), self._load()
        self._warn_if_expired()

    def context(self, *_: object) -> ssl.SSLContext:
        """Return the context of a listener, as uvicorn asks for it."""
        # OpenSSL calls `_show` at each handshake, even if the peer names no server. If the new certificate were loaded
        # into this context instead, the old certificate would stay beside it if its key has another type.
        self._current.sni_callback = self._show
        return self._current

    def _show(self, connection: ssl.SSLObject, _name: str, _first: ssl.SSLContext) -> None:
        if (stamp := self._look()) != self._stamp:
            self._stamp = stamp
            try:
                self._current = self._load()
            except (OSError, ValueError) as error:
                # The other file may be written a moment later, which is another change.
                hint = "the old certificate stays in use; the files should hold a PEM chain and its key, not encrypted"
                log.warning("certificate_not_loaded", error=type(error).__name__, hint=hint)
            else:
                log.info("certificate_loaded", file=str(self._chain))
        self._warn_if_expired()
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._chain, self._key, password="")  # OpenSSL must not ask for a password.
        self._expires = valid_until(self._chain).timestamp()
        return context

    def _warn_if_expired(self) -> None:
        """Log once per certificate that it has expired. Senders refuse it, and no delivery arrives."""
        if time.time() >= self._expires:
            self._expires = math.inf
            hint = "senders refuse it; renew the file, and the next handshake uses it"
            log.error("certificate_expired", file=str(self._chain), hint=hint)

    def _look(self) -> list[int]:
        """Return the files' times of change, without those of missing files."""
        times = []
        for file in (self._chain, self._key or self._chain):
            with suppress(OSError):
                times.append(file.stat().st_mtime_ns)
        return times
