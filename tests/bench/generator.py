"""An open-loop load generator: requests at a steady rate, each latency counted from when its request was due.

A generator that waits for an answer before it sends the next request sends less while the server is slow, and so leaves
out just the moments that matter (coordinated omission). Here a request that finds no idle connection waits, and its
waiting counts.
"""

import gc
import re
import select
import selectors
import socket
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from bench.deliveries import Deliveries

#: Seconds after which a server that has stopped answering is given up.
SILENCE: Final = 10.0

#: Requests that are sent before answers are looked for again, so that answers are not seen late because of a burst.
_BURST: Final = 4

_CONTENT_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Broken(Exception):
    """The server closed a connection, fell silent, or answered without a content-length."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of it.

    Attributes:
        latencies: seconds from when a request was due until its answer had come, of all that were accepted.
        lateness: seconds from when a request was due until it was sent, of those that no busy connection held up: the
            generator's own part in the latencies.
        refused: how many were answered with anything else.
        seconds: from the first request to the last answer.
        begun: when the first request was due, by `time.perf_counter`.
    """

    latencies: Sequence[float]
    lateness: Sequence[float]
    refused: int
    seconds: float
    begun: float


def at_rate(rate: float, seconds: float) -> int:
    """How many are sent within so many seconds: at least one, for none would be no measurement."""
    return max(1, round(rate * seconds))


def drive(
    port: int, deliveries: Deliveries, *, rate: float | None, seconds: float, connections: int, status: int = 202
) -> Sent:
    """Send deliveries for some seconds, at a rate per second, or with `None` as fast as the connections allow.

    What is answered with `status` was accepted.

    Raises:
        Broken: see there.
    """
    requests = deliveries.read()
    with ExitStack() as stack:
        accepted = f"HTTP/1.1 {status} ".encode()
        idle = [_Connection(stack.enter_context(_connect(port)), accepted) for _ in range(connections)]
        stack.enter_context(_no_garbage_collection())
        return _Drive(idle, memoryview(requests), deliveries.size, rate, seconds).run()


def _connect(port: int) -> socket.socket:
    connected = socket.create_connection(("127.0.0.1", port), SILENCE)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection would stop the generator for milliseconds, which the server would be blamed for."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Connection:
    """A connection, and the request that is under way on it."""

    __slots__ = ("accepted", "answer", "due", "socket")

    def __init__(self, connected: socket.socket, accepted: bytes) -> None:
        self.socket = connected
        self.accepted = accepted
        self.due = 0.0
        self.answer = b""

    def receive(self) -> bool | None:
        """Read what has come: whether the answer accepts, or None while it is not whole."""
        received = self.socket.recv(65_536)
        if not received:
            raise Broken("the server closed a connection")
        self.answer += received
        end = self.answer.find(b"\r\n\r\n")
        if end < 0:
            return None
        length = _CONTENT_LENGTH.search(self.answer, 0, end)
        if length is None:
            raise Broken("the server answered without a content-length")
        if len(self.answer) < end + 4 + int(length[1]):
            return None
        accepted = self.answer.startswith(self.accepted)
        self.answer = b""
        return accepted


class _Drive:
    def __init__(
        self, connections: list[_Connection], requests: memoryview, size: int, rate: float | None, seconds: float
    ) -> None:
        self._connections = connections
        self._idle = deque(connections)
        self._requests = requests
        self._size = size
        self._interval = 1 / rate if rate else 0.0
        there = len(requests) // size
        self._total = min(there, at_rate(rate, seconds)) if rate else there
        #: When sending ends. At a steady rate it does not before all is sent, however late.
        self._seconds = float("inf") if rate else seconds
        self._sent = self._answered = self._refused = 0
        self._starved = False
        self._latencies, self._lateness = array("d"), array("d")

    def run(self) -> Sent:
        """Send and receive until all that was sent is answered."""
        with selectors.DefaultSelector() as selector:
            for connection in self._connections:
                selector.register(connection.socket, selectors.EVENT_READ, connection)
            self._start = time.perf_counter()
            while self._answered < self._total:
                wait = self._send_due()
                # The selector's own time-out counts in milliseconds, that of select(2) in microseconds.
                select.select([selector], [], [], wait)
                ready = selector.select(0)
                if not ready and wait == SILENCE and self._answered < self._total:
                    raise Broken(f"no answer within {SILENCE:g} s")
                for key, _ in ready:
                    self._receive(key.data)
        return Sent(self._latencies, self._lateness, self._refused, time.perf_counter() - self._start, self._start)

    def _send_due(self) -> float:
        """Send what is due and finds an idle connection; seconds that may be waited before the next look."""
        for _ in range(_BURST):
            now = time.perf_counter()
            if now - self._start > self._seconds:
                self._total = self._sent
            if self._sent == self._total:
                return SILENCE if self._answered < self._sent else 0.0
            due = self._start + self._sent * self._interval if self._interval else now
            if due > now:
                self._starved = False
                return due - now
            if not self._idle:
                self._starved = True
                return SILENCE
            self._send(self._idle.popleft(), due, now)
        return 0.0

    def _send(self, connection: _Connection, due: float, now: float) -> None:
        connection.due = due
        start = self._sent * self._size
        connection.socket.sendall(self._requests[start : start + self._size])
        self._sent += 1
        if not self._starved:
            self._lateness.append(now - due)

    def _receive(self, connection: _Connection) -> None:
        accepted = connection.receive()
        if accepted is None:
            return
        if accepted:
            self._latencies.append(time.perf_counter() - connection.due)
        else:
            self._refused += 1
        self._answered += 1
        self._idle.append(connection)
