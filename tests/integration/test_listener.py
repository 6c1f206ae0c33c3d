"""What a sender can make long, over raw sockets: on the public port, plain and encrypted, and on the admin listener."""

import json
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import plain
import pytest
import trustme
from floods import DRIPPED_BODIES, DRIPPED_HEADS, FAST, SILENCE, Flood, Target, peak
from growing_files import whole, whole_lines
from raw_response import next_response
from refusals import BODY, request, signed
from serving import receiver, running
from signing import SECRET
from waiting import until

from credhook.sandbox.local.environment import free_port

#: Bytes that a flood may send before it is cut off: what sockets buffer, and what TLS drops for 0.1 s while it closes.
MOST = 512 << 20


@dataclass
class Listeners:
    """A receiver with a public port that speaks TLS or not, and its admin listener."""

    targets: dict[str, Target]
    pids: tuple[int, ...]
    logs: tuple[Path, ...]

    @property
    def text(self) -> str:
        return "".join(whole(log.read_text()) for log in self.logs)


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory, module_redis: str) -> Iterator[int]:
    """The port of a receiver that gives senders the time that it gives them anywhere."""
    with receiver(tmp_path_factory.mktemp("patient"), module_redis, CREDHOOK_REQUEST_TIMEOUT="60") as process:
        yield process.port


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory, module_redis: str) -> Iterator[Listeners]:
    folder = tmp_path_factory.mktemp("listeners")
    authority, certificate = trustme.CA(), folder / "cert.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    admin, port = free_port(), free_port()
    quick = {"CREDHOOK_REQUEST_TIMEOUT": "1"}
    environment = quick | {
        "REDIS_URL": module_redis,
        "PORT": str(port),
        "CREDHOOK_WEBHOOK_SECRETS": SECRET,
        "CREDHOOK_TLS_CERTFILE": str(certificate),
    }
    with (
        receiver(folder, module_redis, options=(), CREDHOOK_ADMIN=f"127.0.0.1:{admin}", **quick) as plain,
        running(folder / "tls.log", "receiver", environment=environment) as encrypted,
    ):
        targets = {"public": Target(plain.port), "admin": Target(admin), "encrypted": Target(port, trust)}
        until(lambda: '"receiver_started"' in encrypted.text, what="the encrypted receiver")
        yield Listeners(targets, (plain.process.pid, encrypted.process.pid), (plain.log, encrypted.log))


def flooded(target: Target, flood: Flood) -> tuple[int, bytes]:
    """Send without looking until the connection is closed; bytes sent, and what was answered."""
    sent, answer = 0, b""
    deadline = time.monotonic() + 60
    with target.connect() as raw:
        raw.settimeout(0.1)
        with suppress(ConnectionError, ssl.SSLError):
            with suppress(TimeoutError):
                raw.sendall(flood.first)
            time.sleep(0.02)  # So that it is judged before the rest comes.
            while flood.then and sent < MOST:
                with suppress(TimeoutError):
                    sent += raw.send(flood.then)
                if flood.pause or not sent:
                    raw.settimeout(flood.pause / 10)
                    with suppress(TimeoutError):
                        answer += raw.recv(65_536)
                        break
                assert time.monotonic() < deadline
        raw.settimeout(60)
        with suppress(ConnectionError, ssl.SSLError):
            while part := raw.recv(65_536):
                answer += part
    return sent, answer


@pytest.mark.parametrize("listener", ["public", "encrypted", "admin"])
@pytest.mark.parametrize("flood", FAST, ids=lambda flood: flood.name)
def test_nothing_that_a_sender_makes_long_is_taken_without_end(
    listeners: Listeners, listener: str, flood: Flood
) -> None:
    sent, answer = flooded(listeners.targets[listener], flood)
    assert sent < MOST
    # The answer may be lost where the sender goes on sending; if there is one, it says what it was about.
    assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 2"))


def test_the_table_costs_little_and_leaves_one_line_a_minute_for_each_reason(listeners: Listeners) -> None:
    for target in listeners.targets.values():
        for flood in FAST:
            flooded(target, flood)
    until(lambda: '"too_many_headers"' in listeners.text, what="the line in the log")
    assert max(map(peak, listeners.pids)) < 180
    assert "Traceback" not in listeners.text
    lines = [json.loads(line) for line in whole_lines(listeners.logs[0])]
    told: dict[tuple[str, str], list[datetime]] = defaultdict(list)
    for line in lines:
        if line["logger"] == "credhook.listener":
            told[line["listener"], line["reason"]].append(datetime.fromisoformat(line["timestamp"]))
    assert all(later - earlier > timedelta(seconds=59) for times in told.values() for earlier, later in pairwise(times))
    assert all(line.get("hint") for line in lines if line["logger"] == "credhook.listener")


@pytest.mark.parametrize("listener", ["public", "encrypted"])
@pytest.mark.parametrize("flood", [DRIPPED_HEADS, DRIPPED_BODIES], ids=lambda flood: flood.name)
def test_a_request_that_drips_is_cut_off(listeners: Listeners, listener: str, flood: Flood) -> None:
    _, answer = flooded(listeners.targets[listener], flood)
    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("listener", ["public", "encrypted", "admin"])
def test_a_connection_that_says_nothing_is_closed_without_a_word(listeners: Listeners, listener: str) -> None:
    assert flooded(listeners.targets[listener], SILENCE) == (0, b"")


def test_a_handshake_that_is_not_finished_is_cut_off(listeners: Listeners) -> None:
    with socket.create_connection(("127.0.0.1", listeners.targets["encrypted"].port), timeout=60) as raw:
        raw.sendall(b"\x16\x03\x01")
        with suppress(ConnectionError):
            assert raw.recv(1) == b""
    until(lambda: '"slow_handshake"' in listeners.text, what="the line in the log")


def answers(port: int, *parts: bytes) -> bytes:
    """All that comes until the connection is closed, after parts that are sent a moment apart."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw, suppress(ConnectionError):
        for part in parts:
            raw.sendall(part)
            time.sleep(0.1)
        while some := raw.recv(65_536):
            received += some
    return received


@pytest.mark.parametrize("upgrade", ["websocket", "h2c", "anything"])
def test_an_upgrade_is_refused_once_and_its_body_is_no_request(patient: int, upgrade: str) -> None:
    smuggled = request(*signed("smuggled"))
    head = request(
        "connection: upgrade", f"upgrade: {upgrade}", *signed("upgraded", content=smuggled), content=smuggled
    )
    for parts in ([head], [head[: -len(smuggled)], smuggled]):
        received = answers(patient, *parts)
        assert received.count(b"HTTP/1.1 ") == 1
        assert received.startswith(b"HTTP/1.1 400")
        assert b"connection: close" in received
        assert b"The protocol cannot be changed." in received


def test_what_stands_in_trailers_is_no_header(patient: int) -> None:
    *headers, signature = signed("trailed")
    chunk = b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(BODY), BODY, signature.encode())
    sent = request(*headers, "connection: close", "transfer-encoding: chunked", content=chunk, length=False)
    received = answers(patient, sent)
    assert received.startswith(b"HTTP/1.1 400")
    assert b"webhook-signature" in received


@pytest.mark.parametrize(("number", "status"), [(100, b"202"), (101, b"413")])
def test_so_many_trailers_are_one_too_many_although_all_come_at_once(patient: int, number: int, status: bytes) -> None:
    chunk = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY) + b"x: y\r\n" * number + b"\r\n"
    headers = (*signed(f"trailers_{number}"), "connection: close", "transfer-encoding: chunked")
    received = answers(patient, request(*headers, content=chunk, length=False))
    assert received.startswith(b"HTTP/1.1 " + status)


def test_an_endless_chunked_body_is_refused_at_the_limit_and_the_connection_closed(patient: int) -> None:
    chunk = b"1000\r\n" + b" " * 4_096 + b"\r\n"
    head = request(*signed("endless"), "transfer-encoding: chunked", content=b"", length=False)
    received = b""
    with socket.create_connection(("127.0.0.1", patient), timeout=60) as raw:
        raw.sendall(head + chunk * 16)
        raw.settimeout(0.2)
        with pytest.raises(TimeoutError):
            raw.recv(1)  # So much may come.
        raw.settimeout(60)
        raw.sendall(chunk)
        with suppress(ConnectionError):
            while some := raw.recv(65_536):
                received += some
    assert received.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in received


def test_the_answer_to_a_declared_length_over_the_limit_closes_the_connection(patient: int) -> None:
    received = answers(patient, request(*signed(), "content-length: 70000", length=False))
    assert received.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in received


def test_a_long_body_that_is_allowed_leaves_the_connection_to_the_next(tmp_path: Path, redis_url: str) -> None:
    long = BODY + b" " * 400_000
    with (
        receiver(tmp_path, redis_url, CREDHOOK_MAX_BODY="600000") as process,
        socket.create_connection(("127.0.0.1", process.port), timeout=60) as raw,
    ):
        for number in range(3):
            raw.sendall(request(*signed(f"long_{number}", content=long), content=long))
            assert next_response(raw)[0] == 202


def test_a_request_sent_before_the_answer_to_the_last_closes_the_connection_after_that_answer(patient: int) -> None:
    ahead = request(first="GET /healthz HTTP/1.1", content=b"") * 50
    received = answers(patient, ahead)
    assert received.startswith(b"HTTP/1.1 200")
    assert received.count(b"HTTP/1.1 ") == 1


def test_an_answer_that_is_not_read_keeps_nothing_waiting(listeners: Listeners) -> None:
    """The admin listener's longest answer, asked for again and again and never read."""
    sent = b"GET /metrics HTTP/1.1\r\nhost: inbox\r\n\r\n"
    before = peak(listeners.pids[0])
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.connect(("127.0.0.1", listeners.targets["admin"].port))
        raw.settimeout(0.2)
        with suppress(OSError):
            for _ in range(2_000):
                raw.sendall(sent)
        assert plain.get(f"http://127.0.0.1:{listeners.targets['admin'].port}/healthz").is_success
    assert peak(listeners.pids[0]) < before + 20


def test_honest_connections_are_kept_for_their_next_request(patient: int) -> None:
    asked = request(first="GET /healthz HTTP/1.1", content=b"")
    with socket.create_connection(("127.0.0.1", patient), timeout=60) as raw:
        for number in range(5):
            raw.sendall(asked)
            assert next_response(raw)[0] == 200, number
