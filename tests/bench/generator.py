"""An open-loop load generator: requests at a steady rate, each latency counted from when its request was due.

A generator that waits for an answer before it sends the next request sends less while the server is slow. It leaves out
just the moments that matter (coordinated omission). Here a request that finds no idle connection waits, and its waiting
counts. wrk, which makes the full load, cannot keep a rate.
"""

import gc
import re
import select
import selectors
import socket
import time
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from bench.deliveries import Deliveries
from bench.machine import RunFailed

CONNECTIONS: Final = 64

#: Seconds after which a server that has stopped answering is given up.
SILENCE: Final = 10.0

#: Requests that are sent before answers are looked for again, so that a burst does not delay them.
_BURST: Final = 4

_CONTENT_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of a drive.

    Attributes:
        latencies: seconds from when a request was due until its answer had come.
        lateness: seconds from when a request was due until it was sent, for requests that no busy connection held up:
            the generator's own part in the latencies.
        begun: when the first request was due, by `time.perf_counter`.
    """

    latencies: Sequence[float]
    lateness: Sequence[float]
    begun: float

    def figures(self, latencies: Sequence[float]) -> dict[str, Any]:
        """Return p50 and p99 of these latencies, and the p99 of our own lateness, in milliseconds."""
        p50, p99 = _percentile(latencies, 0.5), _percentile(latencies, 0.99)
        return {"p50": p50, "p99": p99, "late": _percentile(self.lateness, 0.99)}


def drive(port: int, deliveries: Deliveries, rate: float, connections: int = CONNECTIONS) -> Sent:
    """Send all deliveries at a rate per second, and return once all are answered with 202.

    Raises:
        RunFailed: the server refused one, closed a connection, fell silent, or answered without a content-length.
    """
    with ExitStack() as stack:
        idle = [_Connection(stack.enter_context(_connect(port))) for _ in range(connections)]
        # A collection of garbage would stop the generator for milliseconds, and the server would be blamed.
        gc.collect()
        gc.disable()
        stack.callback(gc.enable)
        return _Drive(idle, memoryview(deliveries.read()), deliveries, 1 / rate).run()


def _connect(port: int) -> socket.socket:
    connected = socket.create_connection(("127.0.0.1", port), SILENCE)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _percentile(seconds: Sequence[float], part: float) -> float:
    """Return the latency that this part does not exceed, in milliseconds, by nearest rank."""
    return sorted(seconds)[min(len(seconds) - 1, int(part * len(seconds)))] * 1_000


class _Connection:
    """A connection, and the request that is under way on it."""

    __slots__ = ("answer", "due", "socket")

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.due = 0.0
        self.answer = b""

    def receive(self) -> bool:
        """Read the bytes that have come. Return True once the answer is whole."""
        received = self.socket.recv(65_536)
        if not received:
            raise RunFailed("the server closed a connection")
        self.answer += received
        end = self.answer.find(b"\r\n\r\n")
        if end < 0:
            return False
        length = _CONTENT_LENGTH.search(self.answer, 0, end)
        if length is None:
            raise RunFailed("the server answered without a content-length")
        if len(self.answer) < end + 4 + int(length[1]):
            return False
        if not self.answer.startswith(b"HTTP/1.1 202 "):
            raise RunFailed(f"a request was refused: {self.answer[:80]!r}")
        self.answer = b""
        return True


class _Drive:
    def __init__(
        self, connections: list[_Connection], requests: memoryview, deliveries: Deliveries, interval: float
    ) -> None:
        self._connections = connections
        self._idle = deque(connections)
        self._requests = requests
        self._size = deliveries.size
        self._total = deliveries.count
        self._interval = interval
        self._sent = 0
        self._starved = False
        self._latencies, self._lateness = array("d"), array("d")

    def run(self) -> Sent:
        with selectors.DefaultSelector() as selector:
            for connection in self._connections:
                selector.register(connection.socket, selectors.EVENT_READ, connection)
            self._start = time.perf_counter()
            while len(self._latencies) < self._total:
                wait = self._send_due()
                # The selector's own time-out counts in milliseconds, that of select(2) in microseconds.
                select.select([selector], [], [], wait)
                ready = selector.select(0)
                if not ready and wait == SILENCE:
                    raise RunFailed(f"no answer within {SILENCE:g} s")
                for key, _ in ready:
                    self._receive(key.data)
        return Sent(self._latencies, self._lateness, self._start)

    def _send_due(self) -> float:
        """Send the requests that are due on idle connections. Return the seconds until the next look."""
        for _ in range(_BURST):
            if self._sent == self._total:
                return SILENCE
            now, due = time.perf_counter(), self._start + self._sent * self._interval
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
        if connection.receive():
            self._latencies.append(time.perf_counter() - connection.due)
            self._idle.append(connection)
