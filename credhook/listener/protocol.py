"""uvicorn's HTTP protocol, with bounds on everything that a sender can make long.

One count does it: bytes of the request that is not finished. Whole requests, which is what deliveries come as, only
pass a few comparisons.
"""

import asyncio
from itertools import chain
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from credhook.listener.connections import Connections
from credhook.listener.limits import MAX_HEAD, MAX_LINES, MAX_PIPELINED, SMALL
from credhook.listener.refusals import (
    BODY_TOO_LARGE,
    FULL,
    HEAD_TOO_LARGE,
    IDLE,
    INVALID,
    NO_ROOM,
    PIPELINED,
    SLOW_BODY,
    SLOW_HANDSHAKE,
    SLOW_HEAD,
    TOO_MANY_HEADERS,
    UNREAD,
    UPGRADE,
    Refusal,
)

#: What of a request has not come to its end: none of it, its headers, its body.
_NOTHING, _HEAD, _BODY = range(3)

#: Seconds that an answer may take, the sender's reading of it included. Redis answers within five or not at all.
_ANSWER: Final = 30.0

#: Seconds that a connection may take to close: a sender that does not read its answer keeps it from doing so.
_LINGER: Final = 2.0

#: Bytes of answers that wait to be read; the next is not written before. An answer has about 200.
_UNREAD_BYTES: Final = 4_096

#: Bytes that a request counts for while it waits behind another, beside its own.
_PIPELINED_BYTES: Final = 4_096


#: Copies of a byte that came encrypted: as it came, in OpenSSL's buffer, and plain.
_ENCRYPTED: Final = 3


class _RefusedError(Exception):
    """Stops the parser; why is in the protocol's `_refusal`."""


class Bounded(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Count it among the `connections`; the rest is uvicorn's."""
        super().__init__(config, server_state, app_state, loop)
        self.held = 0
        self.served = False
        #: What ends before there is a connection, where it is to be encrypted.
        self.handshake: asyncio.Task[None] | None = None
        self._connections = connections
        self._limits = connections.limits
        self._unfinished = _NOTHING
        #: When that changed last, or when the latest answer was given.
        self._since = connections.clock()
        #: Bytes of what is not finished.
        self._wire = 0
        #: Bytes of memory that one of them takes.
        self._weight = 1
        self._refusal: Refusal | None = None
        #: Whether what comes is thrown away.
        self._deaf = False
        self._closing_since: float | None = None
        connections.add(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As uvicorn has it.
        """Begin to wait for a request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_UNREAD_BYTES)
        self._weight = _ENCRYPTED if self.scheme == "https" else 1

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no longer."""
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come; of what is then not finished, there must not be too much."""
        if self._deaf:
            return
        self._wire += len(data)
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(self._refusal or INVALID)
            return
        if self._unfinished or self.pipeline or len(data) > SMALL:
            self._hold(len(data))

    def on_message_begin(self) -> None:
        """Note the time: headers have to be there within some seconds."""
        self._unfinished = _HEAD
        self._since = self._connections.now
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Judge the headers, and begin to count anew."""
        if self._wire > MAX_HEAD and self._head_size() > MAX_HEAD:  # It may count what follows, too.
            self._reject(HEAD_TOO_LARGE)
        if len(self.headers) > MAX_LINES:
            self._reject(TOO_MANY_HEADERS)
        if len(self.pipeline) == MAX_PIPELINED:
            self._reject(PIPELINED)
        if self.parser.should_upgrade():  # Where it were ignored, the body would be read as the next request.
            self._reject(UPGRADE)
        super().on_headers_complete()
        self._unfinished = _BODY
        self._since = self._connections.now
        self._wire = 0
        # What comes now are trailers, which httptools reports as headers. Nobody reads them.
        self.headers = []

    def on_message_complete(self) -> None:
        """Wait for the next request, or for the application."""
        if len(self.headers) > MAX_LINES:
            self._reject(TOO_MANY_HEADERS)
        self._unfinished = _NOTHING
        self._since = self._connections.now
        self._wire = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, if it has come; it may not for some seconds, which `overdue` looks after."""
        self.server_state.total_requests += 1
        self.served = True
        if self.transport.is_closing():
            return
        self._since = self._connections.now
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self.held:
            self.cycle.body.clear()  # What the application has not read would be kept until the next request.
            self._connections.release(self)

    def shutdown(self) -> None:
        """Drop an idle connection at once: to close TLS politely is to wait for a peer that may never answer."""
        if self._is_answering:
            super().shutdown()
        else:
            self.transport.abort()

    def waiting(self, now: float) -> float:
        """Seconds for which its sender has kept us waiting; 0 while it waits for us."""
        return 0.0 if self.transport and self._closing_since is None and self._waits_for_us else now - self._since

    def overdue(self, now: float) -> Refusal | None:
        """Why it should be ended now, if it should."""
        waited = now - self._since
        if self.transport is None:  # Not encrypted yet, or gone before the loop came to it.
            return SLOW_HANDSHAKE if waited > self._limits.header_timeout else None
        if self.transport.is_closing():
            if self._closing_since is None:
                self._closing_since = now
            return UNREAD if now - self._closing_since > _LINGER else None
        if self._waits_for_us:
            return UNREAD if waited > _ANSWER else None
        if self._unfinished == _BODY:
            return SLOW_BODY if waited > self._limits.body_timeout else None
        if self._unfinished == _HEAD:
            return SLOW_HEAD if waited > self._limits.header_timeout else None
        patience = self._limits.idle_timeout if self.served else self._limits.header_timeout
        return IDLE if waited > patience else None

    def end(self, refusal: Refusal) -> None:
        """Close it, with an answer if one is due."""
        if self.transport is None:
            self._connections.remove(self)
            if self.handshake:
                self.handshake.cancel()
        elif refusal.status:
            self._turn_away(refusal)
        elif refusal is IDLE:
            self.transport.close()
        else:
            self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _waits_for_us(self) -> bool:
        """Whether the next step is ours: an answer, or reading what has come already."""
        return self.flow.read_paused or (self._is_answering and not self._unfinished)

    def _head_size(self) -> int:
        return len(self.url) + sum(map(len, chain.from_iterable(self.headers)))

    def _reject(self, refusal: Refusal) -> None:
        self._refusal = refusal
        raise _RefusedError

    def _hold(self, size: int) -> None:
        """Bound what this request, and all together, may have sent without being finished."""
        bound = MAX_HEAD if self._unfinished == _HEAD else self._limits.on_the_wire
        if self._wire > bound and self._unfinished:
            self._refuse(HEAD_TOO_LARGE if self._unfinished == _HEAD else BODY_TOO_LARGE)
        elif len(self.headers) > MAX_LINES:
            self._refuse(TOO_MANY_HEADERS)
        elif not self._connections.hold(self, self._weight * size + _PIPELINED_BYTES * len(self.pipeline)):
            self._refuse(NO_ROOM)

    def _refuse(self, refusal: Refusal) -> None:
        self._connections.count(refusal)
        self._turn_away(refusal)

    def _turn_away(self, refusal: Refusal) -> None:
        """Answer in the request's turn, if it is its turn, and hear nothing more."""
        self._deaf = True
        self._connections.release(self)
        if self.headers:  # Thousands of short ones come at once, and would be kept until the connection is gone.
            self.headers.clear()
        if not self._is_answering:
            answered_already = self._unfinished == _BODY
            self._say_last(b"" if answered_already else refusal.answer(self.server_state.default_headers))
        elif self._unfinished == _HEAD:  # Those before it are answered first; then this one finds the door closed.
            self.cycle.keep_alive = False
            self._unfinished = _NOTHING
        elif self.pipeline or self.cycle.response_started:
            self.transport.abort()
        else:  # The application has seen it, and is to learn that nobody waits any more.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self.cycle.body.clear()
            self._say_last(refusal.answer(self.server_state.default_headers))

    def _say_last(self, answer: bytes) -> None:
        if answer:
            self.transport.write(answer)
        self.transport.close()


class TurnedAway(asyncio.Protocol):
    """A connection for which there is no room."""

    def __init__(self, connections: Connections) -> None:
        """Only count it: `connections` are full."""
        connections.count(FULL)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say so, and close."""
        stream = cast(asyncio.Transport, transport)
        stream.write(FULL.answer())
        stream.close()
