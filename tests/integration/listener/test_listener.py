"""What a sender can make long, over raw sockets: on the receiver's port, and on a listener with short limits."""

import asyncio
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs
from uvicorn.server import ServerState

from credhook.listener.admin import bind_setting
from credhook.listener.server import BoundedProtocol, Listener, Server, connections_for
from support.process.serving import Receiver, receiver
from support.receiver.refusals import BODY, next_response, request, signed
from support.waiting import until_async


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the whole body of a POST. Answer a GET with more than sockets buffer."""
    if scope["path"] == "/early":
        await send({"type": "http.response.start", "status": 200, "headers": []})
    while scope["method"] == "POST" and (await receive()).get("more_body"):
        pass
    if scope["path"] == "/slow":  # Overdue connections are ended every half second.
        await asyncio.sleep(1.5)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(0 if scope["method"] == "POST" else 64):
        await send({"type": "http.response.body", "body": b"a" * (1 << 20), "more_body": True})
    await send({"type": "http.response.body"})


@asynccontextmanager
async def listening(connections: int = 10, answer_seconds: float = 0.3) -> AsyncIterator[tuple[int, Counter[str]]]:
    """Serve in this process, with short limits. Yield the port, and the reasons of rejections."""
    counted: Counter[str] = Counter()
    raw = bind_setting("127.0.0.1:0", "PORT")
    config = Listener(
        application,
        "test",
        body_bytes=1_000,
        connections=connections,
        answer_seconds=answer_seconds,
        idle_seconds=0.6,
        count=lambda reason: counted.update([reason]),
    )
    serving = Server(config)
    task = asyncio.create_task(serving.serve([raw]))
    try:
        yield raw.getsockname()[1], counted
    finally:
        serving.should_exit = True
        await task


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credhook.listener.server._REQUEST_SECONDS", 0.3)


HEAD, CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\n", b"transfer-encoding: chunked\r\n\r\n"
EARLY = HEAD.replace(b"/", b"/early", 1) + b"content-length: 900\r\n\r\n"
WHOLE = HEAD + b"content-length: 0\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "dripped", "answer", "reason"),
    [
        pytest.param(HEAD + b"x-pad: ", b"a", b"HTTP/1.1 408", "slow_request", id="head"),
        pytest.param(HEAD + b"content-length: 900\r\n\r\n", b"a", b"HTTP/1.1 408", "slow_request", id="body"),
        pytest.param(HEAD + CHUNKED, b"1\r\na\r\n" * 100_000, b"HTTP/1.1 413", "body_too_large", id="endless chunks"),
        pytest.param(HEAD + CHUNKED + b"0\r\n", b"x:\r\n" * 101, b"HTTP/1.1 413", "body_too_large", id="trailers"),
        pytest.param(EARLY, b"a", b"HTTP/1.1 200", "slow_request", id="body after its only answer"),
        pytest.param(b"", b"", b"", "", id="silence"),
        pytest.param(HEAD + b"content-length: 0\r\n\r\n", b"", b"HTTP/1.1 200", "", id="silence after an answer"),
    ],
)
async def test_listener_cuts_slow_senders_off(sent: bytes, dripped: bytes, answer: bytes, reason: str) -> None:
    async with listening(answer_seconds=600) as (port, counted):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        reading = asyncio.create_task(reader.read(65_536))
        while not (counted or reading.done()):
            writer.write(dripped)
            await asyncio.sleep(0.05)
        assert (await reading).startswith(answer)
        with suppress(ConnectionError):  # What was sent after the end resets the connection.
            assert await reader.read() == b""
        writer.close()
        assert counted == ({reason: 1} if reason else {})


@pytest.mark.parametrize(("header", "reason"), [(b"", "answer_unread"), (b"content-length: 9\r\n", "slow_request")])
async def test_listener_cuts_off_senders_that_do_not_read(
    monkeypatch: pytest.MonkeyPatch, header: bytes, reason: str
) -> None:
    monkeypatch.setattr("credhook.listener.server._CLOSE_SECONDS", 0.1)
    async with listening() as (port, counted):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n" + header + b"\r\n")
        with capture_logs() as logs:
            await until_async(lambda: counted)
        assert header or logs[0]["hint"] == "the sender does not read its answers"
        with suppress(ConnectionError):  # Once the connection is closed.
            while counted == {reason: 1}:
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(0.05)
        assert counted == {reason: 1}
        writer.close()


async def test_an_answer_may_take_longer_than_a_request() -> None:
    async with listening(answer_seconds=60) as (port, _):
        received = await asyncio.to_thread(answers, port, WHOLE.replace(b"/", b"/slow", 1))
    assert received.startswith(b"HTTP/1.1 200")


async def test_stop_waits_for_requests_that_have_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[str] = []
    config = Listener(application, "test", body_bytes=1_000, count=counted.append)
    config.load()
    protocol = BoundedProtocol(config, ServerState(), {})
    protocol.connection_made(asyncio.Transport())
    for seconds, data in ((-1.0, HEAD), (60.0, b"content-length: 9\r\n\r\n")):
        monkeypatch.setattr("credhook.listener.server._REQUEST_SECONDS", seconds)
        assert protocol.expects_request
        protocol.data_received(data)
    with pytest.raises(NotImplementedError):  # Such a transport writes nothing.
        protocol.end_if_overdue()
    assert counted == ["slow_request"]


async def test_a_stop_waits_for_a_handshake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("credhook.listener.server.LAST_REQUEST_SECONDS", 60.0)
    authority, certificate, trust = trustme.CA(), tmp_path / "cert.pem", ssl.create_default_context()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    authority.configure_trust(trust)
    raw = bind_setting("127.0.0.1:0", "PORT")
    serving = Server(Listener(application, "test", body_bytes=1_000, ssl_certfile=certificate))
    task = asyncio.create_task(serving.serve([raw]))
    await until_async(lambda: serving.started)
    begun, later = (socket.create_connection(raw.getsockname()) for _ in range(2))
    for number, connection in enumerate((later, begun)):  # One that was accepted later has a whole handshake first.
        reader, writer = await asyncio.open_connection(sock=connection, ssl=trust, server_hostname="localhost")
        writer.write(WHOLE)
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        serving.should_exit, serving.force_exit = True, number > 0
        ended, _ = await asyncio.wait({task}, timeout=60 if number else 1)
        assert bool(ended) is serving.force_exit


async def test_one_connection_too_many_is_told_to_come_again() -> None:
    async with listening(connections=2) as (port, counted):
        begun = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in begun:
            writer.write(HEAD)
        with capture_logs() as logs:
            refused, closing = await asyncio.open_connection("127.0.0.1", port)
            said = await refused.read()
        assert said.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 5\r\n" in said
        assert b"The server is busy; try again." in said
        assert counted == {"full": 1}
        assert logs[0]["hint"].startswith("more connections are open than 900, or than `ulimit -n` allows: put")
        for _, writer in (*begun, ("", closing)):
            writer.close()
        await asyncio.sleep(0.1)
        received = await asyncio.to_thread(answers, port, WHOLE)
    assert received.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("open_files", "connections"), [(1_024, 900), (1 << 20, 900), (resource.RLIM_INFINITY, 900), (256, 132), (40, 20)]
)
def test_connections_leave_room_for_other_files(open_files: int, connections: int) -> None:
    assert connections_for(open_files) == connections


def test_each_rejection_is_counted_and_each_reason_logged_once_a_minute() -> None:
    counted: list[str] = []
    config = Listener(application, "public", body_bytes=0, count=counted.append)
    with capture_logs() as logs:
        for reason in ("full", "upgrade") * 100:
            config.note(reason, "a hint")
    assert [(line["event"], line["listener"], line["reason"], line["hint"]) for line in logs] == [
        ("sender_rejected", "public", "full", "a hint"),
        ("sender_rejected", "public", "upgrade", "a hint"),
    ]
    assert Counter(counted) == {"full": 100, "upgrade": 100}


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


#: Offers of another protocol: Java's HTTP client, curl, a proxy that drops half of an offer, RFC 2817.
OFFERS = {
    "java": ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAEAAEAAAAIAAAAB"),
    "websocket": ("connection: upgrade", "upgrade: websocket"),
    "TLS": ("upgrade: TLS/1.2", "connection: Upgrade"),
    "two": ("connection: keep-alive, upgrade", "upgrade: h2c, TLS/1.0"),
    "an upgrade without connection": ("upgrade: h2c",),
    "a connection without upgrade": ("connection: Upgrade",),
}  # fmt: skip


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
def test_offer_of_another_protocol_is_ignored(server: Receiver, offer: tuple[str, ...]) -> None:
    content = b'{"eventType":"openid4vc.issuance.offered","payload":{"openId4VcIssuanceId":"iss_1"}}'
    whole = request(*offer, *signed(f"offer-{offer[0]}-{len(offer)}", content=content), content=content)
    sendings = ([whole], [whole[:-1], whole[-1:]], [whole[: -len(content)], content], [whole[:40], whole[40:]])
    with ThreadPoolExecutor(len(sendings)) as pool:  # An idle connection is kept for five seconds.
        for received in pool.map(lambda parts: answers(server.port, *parts), sendings):
            assert received.count(b"HTTP/1.1 ") == 1
            assert received.startswith(b"HTTP/1.1 202"), received


@pytest.mark.parametrize("encoding", ["length", "chunks"])
def test_body_behind_an_offer_is_no_request(server: Receiver, encoding: str) -> None:
    smuggled = request(*signed("smuggled"))
    head = request(*OFFERS["java"], *signed("upgraded", content=smuggled), content=smuggled)
    if encoding == "chunks":
        head = head.replace(b"content-length: %d" % len(smuggled), b"transfer-encoding: chunked")
        head = head[: -len(smuggled)] + b"%x\r\n%b\r\n0\r\n\r\n" % (len(smuggled), smuggled)
    received = answers(server.port, head + smuggled)
    assert received.count(b"HTTP/1.1 ") == 1
    assert received.startswith(b"HTTP/1.1 400")  # The body is no notification.


def test_sender_that_ends_its_side_is_answered(server: Receiver) -> None:
    """20 of 20, also if the end comes in one packet with the request."""
    statuses, heads = [], []
    for number in range(20):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sender:
            sender.sendall(request(*signed(f"half-closed-{number}")))
            sender.shutdown(socket.SHUT_WR)
            with sender.makefile("rb") as answer:
                statuses.append(answer.readline())
                heads.append(answer.read())
    assert statuses == [b"HTTP/1.1 202 Accepted\r\n"] * 20
    # The receiver closes its side, too, and says so if the end has come before the answer.
    assert any(b"connection: close" in head for head in heads)


def test_half_a_request_of_a_sender_that_ends_its_side_is_not_answered(server: Receiver) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sender:
        sender.sendall(request(*signed("half"))[:-1])
        sender.shutdown(socket.SHUT_WR)
        assert sender.recv(65_536) == b""


LATER = b"<later>"
LONG = HEAD + CHUNKED + LATER + b"1\r\na\r\n" * 4_000
LARGE_HEAD = "head_too_large", 413, "The headers are too large."
NO_HTTP = "invalid_http", 400, "This is not a valid HTTP request."
ASKED = HEAD + b"content-length: 0\r\n\r\n"
TUNNEL = b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org:443\r\n\r\n" + b"GET / HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "reason", "status", "detail", "hint"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", *NO_HTTP, "the sender speaks TLS: let a proxy end it"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", *NO_HTTP, "HTTP/2: let the proxy speak HTTP/1.1 to"),
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\n\r\n", *NO_HTTP, "PROXY protocol: switch"),
        (b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c", *NO_HTTP, "the PROXY protocol: switch it off"),
        (b"hello\r\n\r\n", *NO_HTTP, "a scanner, or a sender that does not speak HTTP/1.1"),
        (TUNNEL, "tunnel", 400, "This is no proxy.", "a scanner looks for open proxies: nothing to do"),
        (HEAD + b"x: " + b"a" * 16_384, *LARGE_HEAD, "16384 bytes and 100 lines: see what the sender or"),
        (HEAD + b"x:\r\n" * 101, *LARGE_HEAD, "headers may have 16384 bytes and 100 lines"),
        (HEAD + b"x: " + b"a" * 16_384 + b"\r\n\r\n", *LARGE_HEAD, "16384 bytes and 100 lines"),  # Whole at once.
        (HEAD + b"x:\r\n" * 100 + b"\r\n", *LARGE_HEAD, "16384 bytes and 100 lines"),
        (LONG, "body_too_large", 413, "The body is too large.", "see CREDHOOK_MAX_BODY"),
        (HEAD, "slow_request", 408, "The request did not come in time.", "a request may take 10 s: a slow network"),
        (ASKED * 50, "pipelined", 200, "", "sends its next request before the answer: switch that off"),
    ],
)  # fmt: skip
async def test_rejection_tells_sender_and_operator_why(
    begin: bytes, reason: str, status: int, detail: str, hint: str
) -> None:
    with capture_logs() as logs:
        async with listening() as (port, counted):
            received = await asyncio.to_thread(answers, port, *begin.split(LATER))
    assert received.startswith(b"HTTP/1.1 %d " % status)
    assert received.count(b"HTTP/1.1 ") == 1
    assert detail.encode() in received
    assert counted == {reason: 1}
    (line,) = [line for line in logs if line["event"] == "sender_rejected"]
    assert hint in line["hint"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]"])
def test_restart_binds_the_port_of_closed_connections(host: str) -> None:
    listener = bind_setting(f"{host}:0", "PORT")
    assert listener.proto == socket.IPPROTO_TCP  # Else asyncio leaves Nagle's algorithm on.
    address = listener.getsockname()[:2]
    with socket.create_connection(address) as sender, listener:
        accepted, _ = listener.accept()
        accepted.close()
        assert sender.recv(1) == b""
    with bind_setting(f"{host}:{address[1]}", "PORT"):
        pass


def test_listener_drops_trailers(server: Receiver) -> None:
    *headers, signature = signed("trailed")
    chunk = b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(BODY), BODY, signature.encode())
    sent = request(*headers, "connection: close", "transfer-encoding: chunked", content=chunk, length=False)
    received = answers(server.port, sent)
    assert received.startswith(b"HTTP/1.1 400")
    assert b"webhook-signature" in received
    assert b"\r\nserver:" not in received.lower()


def test_a_long_body_that_is_allowed_leaves_the_connection_to_the_next(tmp_path: Path, redis_url: str) -> None:
    long = BODY.ljust(400_000)
    chunks = b"".join(b"5\r\n%b\r\n" % long[at : at + 5] for at in range(0, len(long), 5)) + b"0\r\n\r\n"
    with (
        receiver(tmp_path, redis_url, CREDHOOK_MAX_BODY=str(len(long))) as process,
        socket.create_connection(("127.0.0.1", process.port), timeout=60) as raw,
    ):
        for number in range(3):
            headers = signed(f"long_{number}", content=long)
            raw.sendall(request(*headers, content=long))
            assert next_response(raw)[0] == 202
            raw.sendall(request(*headers, "transfer-encoding: chunked", content=chunks, length=False))
            assert next_response(raw)[0] == 202


def test_early_answer_keeps_the_connection_usable(server: Receiver) -> None:
    lost, delivery = request(first="POST /nowhere HTTP/1.1"), request(*signed("after_an_early_answer"))
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
        raw.sendall(lost[: -len(BODY)])
        assert next_response(raw)[0] == 404
        raw.sendall(BODY)
        raw.sendall(delivery)
        assert next_response(raw)[0] == 202
