"""uvicorn's server and HTTP protocol, with limits on everything that a sender can make long or slow."""

import asyncio
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from heapq import nsmallest
from typing import Any, Final, cast

import httptools
import structlog
import uvicorn
from uvicorn.config import STARTUP_FAILURE, Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from credhook.listener.limits import (
    BODY_TOO_LARGE,
    FULL,
    HEAD_TOO_LARGE,
    INVALID,
    MADE_ROOM,
    NO_ROOM,
    PIPELINED,
    SLOW_HANDSHAKE,
    SLOW_REQUEST,
    TOO_MANY_HEADERS,
    UNREAD,
    UPGRADE,
    Limits,
    Rejection,
)
from credhook.logs import FloodGuard

log = structlog.get_logger("credhook.listener")

#: Bytes of a request's line and headers. The platform sends about 400; with a proxy's additions about 1,500.
_MAX_HEAD_BYTES: Final = 16_384
#: Lines of headers, and of trailers, as in Apache.
_MAX_HEADERS: Final = 100
#: Seconds until the sender must have read the answer. Redis answers within five or not at all.
_ANSWER_SECONDS: Final = 30.0
#: Seconds for a connection to close. A sender that does not read would keep it open.
_CLOSE_SECONDS: Final = 2.0
#: Seconds between two checks of all connections. A timer for each request would cost more.
_SWEEP_SECONDS: Final = 0.5
#: Seconds before a full listener may cut off a sender: enough for a handshake and a request from another continent.
_PATIENCE_WHEN_FULL: Final = 0.5
#: Seconds between two searches for slow senders: each looks at every connection.
_SEARCH_SECONDS: Final = 0.1
#: Seconds for a sender to confirm the end of an encrypted connection, which reads and drops bytes until then.
_TLS_SHUTDOWN_SECONDS: Final = 0.1
#: Bytes of answers that wait to be read before the next answer is held back.
_UNREAD_BYTES: Final = 4_096


class Connections:
    """The open connections of one listener."""

    def __init__(
        self,
        limits: Limits,
        listener: str,
        *,
        count: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty. `listener` is the name in the log; `count` is called with the reason of each rejection."""
        self.limits = limits
        self.clock = clock
        self._listener = listener
        self._count = count
        self._open: set[BoundedProtocol] = set()
        self._held = 0
        self._searched = -_SEARCH_SECONDS
        self._guard = FloodGuard(1, clock)

    def add(self, connection: "BoundedProtocol") -> None:
        """Register a connection."""
        self._open.add(connection)

    def remove(self, connection: "BoundedProtocol") -> None:
        """Forget a connection and the bytes that it holds."""
        self._open.discard(connection)
        self.release(connection)

    def admit(self) -> bool:
        """Return True if there is room for one more connection. A full listener cuts off its slowest senders first."""
        if len(self._open) >= self.limits.connections:
            self._cut_off_slow()
        return len(self._open) < self.limits.connections

    def hold(self, connection: "BoundedProtocol", size: int) -> bool:
        """Count bytes of an unfinished request. Return False if all requests together hold too many."""
        connection.held += size
        self._held += size
        if self._held > self.limits.buffered_bytes:
            self._cut_off_slow()
        return self._held <= self.limits.buffered_bytes

    def release(self, connection: "BoundedProtocol") -> None:
        """Stop counting the bytes of a connection."""
        self._held -= connection.held
        connection.held = 0

    def reject(self, rejection: Rejection) -> None:
        """Count a rejection, and log one line a minute for each reason."""
        self._count(rejection.reason)
        if (more := self._guard.admit(rejection.reason)) is not None:
            log.warning(rejection.event, listener=self._listener, reason=rejection.reason, hint=rejection.hint, **more)

    async def watch(self) -> None:
        """End overdue connections, until cancelled."""
        while True:
            now = self.clock()
            for connection in tuple(self._open):
                if rejection := connection.overdue(now):
                    self._end(connection, rejection)
            await asyncio.sleep(_SWEEP_SECONDS)

    def _cut_off_slow(self) -> None:
        """End the slowest sixteenth, of the senders that have kept us waiting."""
        now = self.clock()
        if now - self._searched < _SEARCH_SECONDS:
            return
        slow = [each for each in self._open if each.waits_for_sender and now - each.since > _PATIENCE_WHEN_FULL]
        if not slow:
            self._searched = now
        for connection in nsmallest(len(self._open) // 16 + 1, slow, key=lambda each: each.since):
            self._end(connection, MADE_ROOM)
            self.remove(connection)

    def _end(self, connection: "BoundedProtocol", rejection: Rejection) -> None:
        self.reject(rejection)
        connection.end(rejection)


class Server(uvicorn.Server):
    """Serves an application on sockets, to senders that are not trusted."""

    def __init__(self, config: Config, connections: Connections, tls: ssl.SSLContext | None = None) -> None:
        """Serve the application of `config`; its protocol and TLS settings are not used."""
        super().__init__(config)
        self._connections = connections
        self._tls = tls

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command: a process may have two servers, and both must stop."""
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `should_exit`, then finish the requests under way."""
        watch = asyncio.create_task(self._connections.watch())
        try:
            await super().serve(sockets)
        finally:
            watch.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if self._tls:
            tls["ssl"] = self._tls
            tls["ssl_handshake_timeout"] = self._connections.limits.request_timeout
            tls["ssl_shutdown_timeout"] = _TLS_SHUTDOWN_SECONDS
        self.servers = [await loop.create_server(self._protocol, sock=each, **tls) for each in sockets or ()]
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        if not self._connections.admit():
            return _TurnedAway(self._connections)
        loop = asyncio.get_running_loop()
        return BoundedProtocol(self._connections, self.config, self.server_state, self.lifespan.state, loop)


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

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Count the connection from now on: a TLS handshake also takes a place."""
        super().__init__(config, server_state, app_state, loop)
        self.held = 0
        self.since = connections.clock()
        self._connections = connections
        self._phase = _Phase.IDLE
        #: Bytes received in this phase.
        self._received = 0
        #: Bytes after the headers: a body, in chunks of a few bytes each, and trailers.
        self._max_body_bytes = 2 * connections.limits.body_bytes + _MAX_HEAD_BYTES
        self._rejection: Rejection | None = None
        #: Whether further bytes are thrown away, since the connection will be closed.
        self._deaf = False
        connections.add(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As in uvicorn.
        """Start the time for the first request."""
        super().connection_made(transport)
        if self._deaf:  # It was cut off during the handshake.
            transport.abort()
            return
        transport.set_write_buffer_limits(high=_UNREAD_BYTES)
        self.since = self._connections.clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up the place."""
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, then check the size of the unfinished request."""
        if self._deaf:
            return
        if self._phase is _Phase.IDLE:
            self._enter(_Phase.HEAD)
        self._received += len(data)
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._reject(self._rejection or INVALID)
            return
        if self._phase is _Phase.BODY:
            if self._received > self._max_body_bytes:
                self._reject(BODY_TOO_LARGE)
            elif len(self.headers) > _MAX_HEADERS:
                self._reject(TOO_MANY_HEADERS)
            elif not self._connections.hold(self, len(data)):
                self._reject(NO_ROOM)
        elif self._received > _MAX_HEAD_BYTES:
            self._reject(HEAD_TOO_LARGE)
        elif self._phase is _Phase.HEAD and not self._connections.hold(self, len(data)):
            self._reject(NO_ROOM)

    def on_message_begin(self) -> None:
        """Refuse a second request before the first is answered."""
        if self._phase is _Phase.ANSWER:
            self._stop_parsing(PIPELINED)
        self._phase = _Phase.HEAD
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Check the headers. A request in one piece may be longer than `data_received` allows."""
        if self._received > _MAX_HEAD_BYTES:
            head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if head_bytes > _MAX_HEAD_BYTES:
                self._stop_parsing(HEAD_TOO_LARGE)
        if len(self.headers) > _MAX_HEADERS:
            self._stop_parsing(TOO_MANY_HEADERS)
        if self.parser.should_upgrade():  # Ignored, its body would be parsed as the next request.
            self._stop_parsing(UPGRADE)
        super().on_headers_complete()
        self._phase, self._received = _Phase.BODY, 0
        self.headers = []  # httptools reports trailers as headers. The application does not get them.

    def on_message_complete(self) -> None:
        """Wait for the application, unless it has answered without the body."""
        if len(self.headers) > _MAX_HEADERS:
            self._stop_parsing(TOO_MANY_HEADERS)
        super().on_message_complete()
        self._enter(_Phase.IDLE if self.cycle.response_complete else _Phase.ANSWER)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one. `overdue` replaces uvicorn's timer."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
        if self._phase is _Phase.ANSWER:
            self._enter(_Phase.IDLE)

    @property
    def waits_for_sender(self) -> bool:
        """Return True if the sender has the next step."""
        return self._phase is not _Phase.ANSWER

    def overdue(self, now: float) -> Rejection | None:
        """Return the reason to end this connection now, if there is one. Close it without a reason if it is idle."""
        seconds = now - self.since
        if self.transport is None:  # The loop ends the handshake, but reports that to no protocol.
            return SLOW_HANDSHAKE if seconds > self._connections.limits.request_timeout else None
        if self.transport.is_closing():
            return UNREAD if seconds > _CLOSE_SECONDS and self.transport.get_write_buffer_size() else None
        if not self.waits_for_sender:
            return UNREAD if seconds > _ANSWER_SECONDS else None
        if self._phase is _Phase.IDLE:
            if seconds > self._connections.limits.idle_timeout:
                self.transport.close()
            return None
        return SLOW_REQUEST if seconds > self._connections.limits.request_timeout else None

    def end(self, rejection: Rejection) -> None:
        """Answer if the rejection has an answer, and close."""
        if self.transport is None:
            self._deaf = True
            self._connections.remove(self)
        elif rejection.status:
            self._answer(rejection)
        else:
            self.transport.abort()

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._received = 0
        self.since = self._connections.clock()
        if self.held and phase is _Phase.IDLE:
            self._connections.release(self)

    def _stop_parsing(self, rejection: Rejection) -> None:
        self._rejection = rejection
        raise _RejectedError

    def _reject(self, rejection: Rejection) -> None:
        self._connections.reject(rejection)
        self._answer(rejection)

    def _answer(self, rejection: Rejection) -> None:
        """Answer after the previous request, then close. Ignore further bytes."""
        self._deaf = True
        self._connections.release(self)
        if self.headers:  # Thousands of short ones may have come at once.
            self.headers.clear()
        if self._phase is _Phase.ANSWER:  # The request before is answered, then uvicorn closes.
            self.cycle.keep_alive = False
            return
        answered = False
        if self._phase is _Phase.BODY:  # The application may be reading the body.
            answered = self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.body.clear()
            self.cycle.message_event.set()
        if not answered:
            self.transport.write(rejection.answer())
        self.since = self._connections.clock()
        self.transport.close()


class _TurnedAway(asyncio.Protocol):
    """A connection for which there is no room."""

    def __init__(self, connections: Connections) -> None:
        connections.reject(FULL)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer 503 and close."""
        stream = cast(asyncio.Transport, transport)
        stream.write(FULL.answer())
        stream.close()
