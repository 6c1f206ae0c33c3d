"""The load generator, against a server that stalls."""

import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.deliveries import Deliveries, sign
from bench.generator import Broken, drive

ACCEPTED = b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\nok"
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


@contextmanager
def server(size: int, *, stall: float = 0.0, answer: bytes = ACCEPTED) -> Iterator[int]:
    """Answers each request of `size` bytes, in two parts, and stalls once, for all connections, at the twentieth.

    With an empty answer it hangs up.
    """
    lock, seen = threading.Lock(), iter(range(1_000_000))

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while len(self.rfile.read(size)) == size and answer:
                with lock:
                    if next(seen) == 20:
                        time.sleep(stall)
                self.wfile.write(answer[:-1])
                self.wfile.write(answer[-1:])

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        disable_nagle_algorithm = True

    with Server(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield listening.server_address[1]
        finally:
            listening.shutdown()


@pytest.fixture
def deliveries(tmp_path: Path) -> Deliveries:
    return sign(tmp_path / "deliveries", 1_000)


def test_every_request_that_was_due_while_the_server_stalled_counts_as_late(deliveries: Deliveries) -> None:
    with server(deliveries.size, stall=0.5) as port:
        sent = drive(port, deliveries, rate=100, seconds=1, connections=4)
    assert len(sent.latencies) == 100
    # A generator that waits for answers would have seen four slow requests, one on each connection.
    assert sum(latency > 0.1 for latency in sent.latencies) >= 35


def test_without_a_rate_all_connections_are_kept_busy_until_the_time_is_up(tmp_path: Path) -> None:
    deliveries = sign(tmp_path / "deliveries", 20_000)
    with server(deliveries.size) as port:
        sent = drive(port, deliveries, rate=None, seconds=0.2, connections=4)
    assert 4 <= len(sent.latencies) < 20_000


def test_at_a_rate_of_next_to_nothing_one_is_sent(deliveries: Deliveries) -> None:
    with server(deliveries.size) as port:
        assert len(drive(port, deliveries, rate=0.1, seconds=1, connections=4).latencies) == 1


def test_a_refusal_is_counted_apart(deliveries: Deliveries) -> None:
    with server(deliveries.size, answer=REFUSED) as port:
        sent = drive(port, deliveries.split(10)[0], rate=1_000, seconds=1, connections=2)
    assert (len(sent.latencies), sent.refused) == (0, 10)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 202 Accepted\r\n\r\n"])
def test_a_server_that_hangs_up_or_is_hard_to_understand_is_an_error(deliveries: Deliveries, answer: bytes) -> None:
    with server(deliveries.size, answer=answer) as port, pytest.raises(Broken):
        drive(port, deliveries, rate=1_000, seconds=1, connections=1)
