"""The connections that the platform is reached over: what becomes of all that a server can do with a socket."""

import asyncio
import gzip
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from credhook.worker.api.http.exchange import (
    LONGEST_REFUSAL,
    BodyRefused,
    Request,
    Response,
    Transport,
    Unanswered,
    Unsendable,
)
from credhook.worker.api.http.transport import KEPT, CurlTransport
from support.platform.scripted_server import answering, ok, tls_for
from support.platform.transports import ALL, BOTH, transport_of
from support.waiting import until_async

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nX-Trailer: 1\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nX-A: 2\r\n\r\n"

over_all = pytest.mark.parametrize("carrier", ALL)


class Server:
    """Answers each request with the same bytes, in the given pieces.

    Attributes:
        requests: what came, whole.
        connections: how many were opened.
        ended: how many of these are closed when the next request comes over them.
    """

    def __init__(self, *pieces: bytes, close: bool = False) -> None:
        self.pieces = pieces
        self.close = close
        self.requests: list[bytes] = []
        self.connections = self.ended = 0
        self.url = ""
        self.writers: list[asyncio.StreamWriter] = []

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self.writers.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
                self.requests.append(head + await reader.readexactly(length))
                if number <= self.ended:
                    break
                for piece in self.pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if self.close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(
    *pieces: bytes, close: bool = False, carrier: str = "libcurl", limit: float = 5.0, **options: Any
) -> AsyncIterator[tuple[Server, Transport]]:
    server = Server(*pieces, close=close)
    listening = await asyncio.start_server(server.client, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    transport = CurlTransport(limit, **options) if options else transport_of(carrier, limit)
    try:
        yield server, transport
    finally:
        await transport.aclose()
        listening.close()
        for writer in server.writers:
            writer.transport.abort()  # With all that the client has not read.
            with suppress(ConnectionError):
                await writer.wait_closed()


async def get(transport: Transport, url: str, **headers: str) -> Response:
    return await transport.send(Request("GET", url, headers, repeatable=True))


def compressed(body: bytes, encoding: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nContent-Encoding: {encoding}\r\n\r\n"
    return head.encode() + body


@over_all
@pytest.mark.parametrize(
    ("sent", "connections"),
    [
        (HELLO, 1),
        (CHUNKED, 1),
        (EARLY * 3 + HELLO, 1),
        (compressed(gzip.compress(b"hello", mtime=0), "gzip"), 1),
        (compressed(zlib.compress(b"hello"), "deflate"), 1),
        (HELLO.replace(b"X-A: 1", b"Connection: close"), 3),
        (HELLO.replace(b"1.1", b"1.0"), 3),
        (HELLO + HELLO, 3),  # More than was asked for.
    ],
)
async def test_answers_of_each_form_are_read_and_a_good_connection_is_used_again(
    carrier: str, sent: bytes, connections: int
) -> None:
    async with serving(sent, carrier=carrier) as (server, transport):
        for _ in range(3):
            response = await get(transport, server.url.upper() + "/a%20b?c=%C3%A9")
            assert (response.status, response.body) == (200, b"hello")
        assert server.connections == (connections if carrier == "libcurl" else 3)
    head, *lines = server.requests[0].split(b"\r\n")
    assert head == b"GET /a%20b?c=%C3%A9 HTTP/1.1"
    assert f"Host: {urlsplit(server.url).netloc}".encode() in lines


async def test_idle_connections_are_closed_even_if_nothing_more_is_sent() -> None:
    assert KEPT < 5.0  # Many servers keep theirs for five seconds: a request that met the end would be lost.
    async with serving(HELLO, keep=0.05) as (server, forgetful):
        await asyncio.gather(*(get(forgetful, server.url) for _ in range(3)))
        assert server.connections == 3
        await until_async(lambda: all(writer.transport.is_closing() for writer in server.writers))
        await get(forgetful, server.url)
        assert server.connections == 4


async def test_connection_in_use_is_not_closed_as_idle() -> None:
    async with serving(keep=0.05) as (server, transport):
        request = asyncio.create_task(get(transport, server.url))
        await until_async(lambda: bool(server.requests))
        await asyncio.sleep(0.2)
        assert not request.done()
        server.writers[0].write(HELLO)
        assert (await request).body == b"hello"


async def test_idle_connection_is_replaced_after_the_server_talks_on_it() -> None:
    async with serving(HELLO) as (server, transport):
        await get(transport, server.url)
        server.writers[0].write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        await server.writers[0].drain()
        await turns()
        assert (await get(transport, server.url)).status == 200
        assert server.connections == 2


async def test_idle_connection_is_replaced_after_the_server_closes_it() -> None:
    async with serving(HELLO) as (server, transport):
        await get(transport, server.url)
        server.writers[0].close()
        await server.writers[0].wait_closed()
        await turns()
        assert (await get(transport, server.url)).status == 200
        assert (server.connections, len(server.requests)) == (2, 2)


async def turns() -> None:
    """Let the other end hear of what was done."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_request_after_aclose_opens_a_new_connection() -> None:
    async with serving(HELLO) as (server, transport):
        await get(transport, server.url)
        await transport.aclose()
        await until_async(server.writers[0].transport.is_closing)
        assert (await get(transport, server.url)).body == b"hello"
        assert server.connections == 2


@pytest.mark.parametrize("carrier", BOTH)
async def test_aclose_fails_requests_under_way_and_cancels_no_task(carrier: str) -> None:
    async with serving(carrier=carrier) as (server, transport):
        request = asyncio.create_task(get(transport, server.url))
        await until_async(lambda: bool(server.requests))
        await transport.aclose()
        with pytest.raises(Unanswered) as failure:
            await request
        assert failure.value.cause == "closed"


async def test_requests_wait_for_one_of_a_limited_number_of_connections() -> None:
    async with serving(HELLO, max_connections=2) as (server, transport):
        answers = await asyncio.gather(*(get(transport, server.url) for _ in range(20)))
        assert [answer.body for answer in answers] == [b"hello"] * 20
        assert server.connections == 2


async def test_waiting_for_a_connection_is_part_of_the_time_of_a_request() -> None:
    async with serving(limit=0.3, max_connections=1) as (server, transport):
        failures = await asyncio.gather(*(get(transport, server.url) for _ in range(2)), return_exceptions=True)
        assert [failure.cause for failure in failures if isinstance(failure, Unanswered)] == ["timeout"] * 2
        assert len(server.requests) <= 1  # On a busy machine, the time may be over before the first is sent.


async def test_hang_up_ends_connections_after_their_answers() -> None:
    async with serving(HELLO) as (server, transport):
        answer = await get(transport, server.url)
        server.pieces = ()
        under_way = asyncio.create_task(get(transport, server.url))
        await until_async(lambda: len(server.requests) == 2)
        answer.hang_up()
        server.writers[0].write(HELLO)
        assert (await under_way).body == b"hello"
        await until_async(server.writers[0].transport.is_closing)
        server.pieces = (HELLO,)
        await get(transport, server.url)
        answer.hang_up()  # Its connection is gone: the new one stays.
        await get(transport, server.url)
        assert server.connections == 2


@over_all
@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Le", "closed"),
        (HELLO[:-1], "closed"),
        (CHUNKED[:-9], "closed"),
        (HELLO.replace(b"X-A: 1", b"Content-Length: 6"), "protocol"),
        (HELLO.replace(b"X-A: 1", b"Transfer-Encoding: chunked"), "protocol"),
        (b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 700_000, "protocol"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-A: aaaaaaaa\r\n" * 6_000, "protocol"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "closed"),
        (EARLY + b"HTTP/1.1 200 OK\r\nContent-Le", "closed"),
        (b"hello", "protocol"),
        (CHUNKED[:-2] + b"X-Endless: " + b"a" * 300_000, "protocol"),
        (CHUNKED[:-2] + b"X-Endless: a\r\n" * 30_000, "protocol"),
        (CHUNKED.replace(b"3\r\nhel", b"z\r\nhel"), "protocol"),
        (compressed(b"hello", "gzip"), "protocol"),
    ],
)
async def test_an_answer_that_is_none_or_not_whole_is_an_error(carrier: str, sent: bytes, cause: str) -> None:
    async with serving(sent, close=True, carrier=carrier) as (server, transport):
        with pytest.raises(Unanswered) as failure:
            await get(transport, server.url)
        # httpx reads on for the rest, where libcurl sees that there is none.
        assert failure.value.cause in ({cause} if carrier == "libcurl" else {cause, "closed"})
        server.pieces, server.close = (HELLO,), False
        assert (await get(transport, server.url)).body == b"hello"


@over_all
@pytest.mark.parametrize("status", [500, 407])  # No proxy is on the way.
async def test_a_refusal_is_read_up_to_its_bound_and_takes_its_connection_along(carrier: str, status: int) -> None:
    body = b"x" * 50_000_000
    async with serving(
        b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)), body, carrier=carrier
    ) as served:
        server, transport = served
        response = await get(transport, server.url)
        assert (response.status, len(response.body)) == (status, LONGEST_REFUSAL)
        server.pieces = (HELLO,)
        assert (await get(transport, server.url)).body == b"hello"
        assert server.connections == 2


@over_all
@pytest.mark.parametrize("value", ["a\r\nX-B: 2", "a\nb", "a\rb", "a\0b"])
async def test_no_value_becomes_another_header(carrier: str, value: str) -> None:
    async with serving(HELLO, carrier=carrier) as (server, transport):
        with pytest.raises(Unsendable):
            await get(transport, server.url, **{"X-A": value})
        assert server.requests == []
        assert (await get(transport, server.url)).body == b"hello"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_connection_that_the_server_has_ended_meanwhile_costs_no_attempt(method: str) -> None:
    """The end arrives together with the request, so that nobody could have known."""
    async with serving(HELLO) as (server, transport):
        request = Request(method, server.url, {}, repeatable=True)
        await transport.send(request)
        server.ended = 1
        assert (await transport.send(request)).body == b"hello"
        assert server.connections == 2


@over_all
@pytest.mark.parametrize(("method", "cause"), [("POST", "closed"), ("GET", "timeout")])
async def test_unsafe_requests_are_not_sent_twice(carrier: str, method: str, cause: str) -> None:
    async with serving(HELLO, limit=1.5, carrier=carrier) as (server, transport):
        request = Request(method, server.url, {}, repeatable=method == "GET")
        await transport.send(request)
        server.pieces, server.close = (), cause == "closed"
        with pytest.raises(Unanswered) as failure:
            await transport.send(request)
        assert failure.value.cause == cause
        assert len(server.requests) == 2


@over_all
async def test_a_task_that_was_cancelled_before_may_ask(carrier: str) -> None:
    async with serving(HELLO, carrier=carrier) as (server, transport):
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        assert (await get(transport, server.url)).body == b"hello"


@over_all
@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/", "http://127.0.0.1:1/\x7f", "http:///a", "ftp://a.example"])
async def test_a_url_that_is_none_is_not_sent(carrier: str, url: str) -> None:
    with pytest.raises(Unsendable):
        await get(transport_of(carrier, 5.0), url)


@over_all
async def test_a_bomb_is_refused_by_what_it_becomes(carrier: str) -> None:
    compressor = zlib.compressobj()
    body = b"".join([*(compressor.compress(bytes(1_000_000)) for _ in range(200)), compressor.flush()])
    async with serving(compressed(body, "deflate"), carrier=carrier) as (server, transport):
        before = peak()
        with pytest.raises(BodyRefused):
            await get(transport, server.url)
        assert peak() - before < 100_000_000


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


SCRIPT = """
import asyncio, os, sys
from credhook.worker.api.http.exchange import Request
from credhook.worker.api.http.transport import CurlTransport

transport = CurlTransport(60.0)

async def status(path):
    return (await transport.send(Request("GET", sys.argv[1] + path, {}, repeatable=True))).status

async def in_child():
    try:
        return await status("/of-child")
    finally:
        await transport.aclose()

def fork():
    child = os.fork()
    if not child:
        try:
            os._exit(asyncio.run(in_child()) != 200)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

async def main():
    await status("/kept")
    under_way = asyncio.create_task(status("/late"))
    await status("/begun")
    exit_code = await asyncio.to_thread(fork)
    print(exit_code, await status("/release"), await under_way)
    await transport.aclose()

asyncio.run(main())
"""


async def test_forked_child_opens_its_own_connections(authority: trustme.CA, ca: Path) -> None:
    begun, released = threading.Event(), threading.Event()

    def script(target: str, _: int) -> bytes:
        if target == "/late":
            begun.set()
            released.wait(60)
        elif target == "/begun":
            begun.wait(60)
        elif target == "/release":
            released.set()
        return ok({})

    with answering(script, tls_for(authority)) as server:
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT, server.url]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, env=os.environ | {"SSL_CERT_FILE": str(ca)}
        )
        output, _ = await process.communicate()
        assert output.split() == [b"0", b"200", b"200"]
        assert server.connections == 3  # /late over that of /kept, /begun and /release over another.


UNRESOLVED = """
import asyncio, sys
from credhook.worker.api.http.exchange import Request, Unanswered
from credhook.worker.api.http.transport import CurlTransport

async def main():
    transport = CurlTransport(0.2)
    try:
        await transport.send(Request("GET", "http://platform.test", {}, repeatable=True))
    except Unanswered as failure:
        print(failure.cause)
    await transport.aclose()

asyncio.run(main())
"""


@pytest.mark.skipif(not shutil.which("unshare") or os.geteuid() != 0, reason="unshare, as root, is not there")
def test_closing_does_not_wait_for_a_silent_name_server(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.77", 53))
        (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.77\noptions timeout:30 attempts:5\n")
        script = f'mount --bind {tmp_path}/resolv.conf /etc/resolv.conf && exec {sys.executable} -c "$1"'
        command = ["unshare", "--mount", "sh", "-c", script, "sh", UNRESOLVED]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    assert done.stdout == "timeout\n"
