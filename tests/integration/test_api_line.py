"""The connection that details are fetched over: what it makes of all that a server can do with a socket."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import httpx
import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import until_async

from credhook.worker.api.client import shared_ssl_context
from credhook.worker.api.line import Line

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nX-Trailer: 1\r\n\r\n"


class Server:
    """Answers each request with the same bytes, in the given pieces.

    Attributes:
        requests: what came, whole.
        connections: how many were opened.
    """

    def __init__(self, *pieces: bytes, close: bool = False) -> None:
        self.pieces = pieces
        self.close = close
        self.requests: list[bytes] = []
        self.connections = 0
        self.url = ""
        self.writers: list[asyncio.StreamWriter] = []

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
                self.requests.append(head + await reader.readexactly(length))
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
async def serving(*pieces: bytes, close: bool = False) -> AsyncIterator[tuple[Server, Line]]:
    server = Server(*pieces, close=close)
    listening = await asyncio.start_server(server.client, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    line = Line(shared_ssl_context())
    try:
        yield server, line
    finally:
        await line.aclose()
        listening.close()
        for writer in server.writers:
            writer.close()


async def get(line: Line, url: str, **more: object) -> httpx.Response:
    response = await line.handle_async_request(httpx.Request("GET", url, **more))  # type: ignore[arg-type]
    try:
        await response.aread()
    finally:
        await response.aclose()
    return response


@pytest.mark.parametrize("sent", [HELLO, CHUNKED])
async def test_answers_of_either_form_are_read_and_the_connection_is_used_again(sent: bytes) -> None:
    async with serving(sent) as (server, line):
        for _ in range(3):
            response = await get(line, server.url + "/a%20b?c=%C3%A9")
            assert (response.status_code, response.content) == (200, b"hello")
        assert server.connections == 1
    head, *lines = server.requests[0].split(b"\r\n")
    assert head == b"GET /a%20b?c=%C3%A9 HTTP/1.1"
    assert f"Host: {httpx.URL(server.url).netloc.decode()}".encode() in lines


async def test_what_is_sent_with_a_request_arrives() -> None:
    async with serving(HELLO) as (server, line):
        request = httpx.Request("POST", server.url, json={"a": 1}, headers={"Authorization": "Bearer x"})
        await (await line.handle_async_request(request)).aclose()
    assert server.requests[0].endswith(b'\r\n\r\n{"a":1}')
    assert b"\r\nAuthorization: Bearer x\r\n" in server.requests[0]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sent=st.sampled_from([HELLO, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + HELLO]),
    cuts=st.sets(st.integers(1, 110), max_size=12),
)
def test_it_does_not_matter_where_an_answer_is_cut(sent: bytes, cuts: set[int]) -> None:
    async def check() -> None:
        places = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
        async with serving(*(sent[start:end] for start, end in pairwise(places))) as (server, line):
            for _ in range(2):
                assert (await get(line, server.url)).content == b"hello"
            assert server.connections == 1

    asyncio.run(check())


@pytest.mark.parametrize(
    "sent",
    [
        HELLO.replace(b"X-A: 1", b"Connection: close"),
        HELLO.replace(b"1.1", b"1.0"),
        HELLO + b"HTTP/1.1 200 OK\r\n",  # More than was asked for.
        HELLO + HELLO,
    ],
)
async def test_a_connection_that_is_no_longer_good_is_not_used_again(sent: bytes) -> None:
    async with serving(sent) as (server, line):
        assert (await get(line, server.url)).content == b"hello"
        assert (await get(line, server.url)).content == b"hello"
        assert server.connections == 2


async def test_an_idle_connection_that_the_server_ends_or_talks_on_is_replaced() -> None:
    async with serving(HELLO) as (server, line):
        await get(line, server.url)
        server.writers[0].write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        await until_async(server.writers[0].transport.is_closing)  # The line has hung up.
        await get(line, server.url)
        server.writers[1].close()
        await server.writers[1].wait_closed()
        for _ in range(5):  # Turns of the loop, in which the other end hears of it.
            await asyncio.sleep(0)
        await get(line, server.url)
        assert server.connections == 3


async def test_what_came_before_it_was_asked_for_is_not_the_next_answer() -> None:
    async with serving(HELLO) as (server, line):
        await get(line, server.url)
        # It is in the socket, and the loop has had no turn to read it, when the next request is about to be sent.
        server.writers[0].write(HELLO.replace(b"hello", b"other"))
        assert (await get(line, server.url)).content == b"hello"
        assert server.connections == 2
        assert (await get(line, server.url)).content == b"hello"
        assert server.connections == 2


async def test_a_few_interim_answers_are_passed_over() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nX-A: 2\r\n\r\n"
    async with serving(early * 3 + HELLO) as (server, line):
        for _ in range(2):
            response = await get(line, server.url)
            assert (response.status_code, response.headers["x-a"], response.content) == (200, "1", b"hello")
        assert server.connections == 1


async def test_an_idle_connection_is_not_used_when_servers_may_close_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five seconds are what many keep an idle connection for: a request that met the end would be lost."""
    async with serving(HELLO) as (server, line):
        loop, later = asyncio.get_running_loop(), 0.0
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + later)
        await get(line, server.url)
        later += 3.0
        await get(line, server.url)
        assert server.connections == 1
        later += 4.5
        await get(line, server.url)
        assert server.connections == 2


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", close=True) as (server, line):
        assert (await get(line, server.url)).content == b"hello"


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_is_complete(status: int) -> None:
    async with serving(b"HTTP/1.1 %d X\r\n\r\n" % status) as (server, line):
        for _ in range(2):
            assert (await get(line, server.url)).content == b""
        assert server.connections == 1


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Le", httpx.RemoteProtocolError),
        (HELLO[:-1], httpx.ReadError),
        (CHUNKED[:-9], httpx.ReadError),
        (b"220 mail.example ESMTP\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", httpx.RemoteProtocolError),
        (HELLO.replace(b"X-A: 1", b"Content-Length: 6"), httpx.RemoteProtocolError),
        (HELLO.replace(b"X-A: 1", b"Transfer-Encoding: chunked"), httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 70_000, httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\n" + b"X-A: aaaaaaaa\r\n" * 5_000, httpx.RemoteProtocolError),
        (b"HTTP/1.1 103 Early Hints\r\nX-A: aaaaaaaa\r\n\r\n" * 3_000 + HELLO, httpx.RemoteProtocolError),
        (CHUNKED[:-2] + b"X-Endless: " + b"a" * 300_000, httpx.RemoteProtocolError),
        (CHUNKED.replace(b"3\r\nhel", b"z\r\nhel"), httpx.RemoteProtocolError),
    ],
)
async def test_an_answer_that_is_none_or_not_whole_is_an_error(sent: bytes, error: type[Exception]) -> None:
    async with serving(sent, close=True) as (server, line):
        with pytest.raises(error):
            await get(line, server.url)
        server.pieces, server.close = (HELLO,), False
        assert (await get(line, server.url)).content == b"hello"


async def test_nobody_there_is_an_error() -> None:
    async with serving() as (_, line):
        with pytest.raises(httpx.ConnectError):
            await get(line, "http://127.0.0.1:1")
        with pytest.raises(httpx.ConnectError):
            await get(line, "http://nowhere.invalid")
        with pytest.raises(httpx.UnsupportedProtocol):
            await get(line, "ftp://127.0.0.1")


async def test_a_request_that_is_given_up_takes_its_connection_along() -> None:
    async with serving() as (server, line):
        waiting = asyncio.create_task(get(line, server.url))
        await until_async(lambda: server.requests)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        server.pieces = (HELLO,)
        assert (await get(line, server.url)).content == b"hello"
        assert server.connections == 2


async def test_a_body_that_is_left_unread_takes_its_connection_along() -> None:
    async with serving(HELLO[:-1]) as (server, line):
        response = await line.handle_async_request(httpx.Request("GET", server.url))
        await response.aclose()
        server.pieces = (HELLO,)
        assert (await get(line, server.url)).content == b"hello"
        assert server.connections == 2


async def test_a_body_that_nobody_reads_is_not_taken_from_the_socket() -> None:
    body = b"x" * 50_000_000
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body) as (server, line):
        response = await line.handle_async_request(httpx.Request("GET", server.url))
        await asyncio.sleep(0.2)
        assert server.writers[0].transport.get_write_buffer_size() > 20_000_000
        assert len(await response.aread()) == len(body)
        await response.aclose()
        server.pieces = (HELLO,)
        assert (await get(line, server.url)).content == b"hello"
        assert server.connections == 1


@pytest.mark.parametrize("value", ["a\r\nX-B: 2", "a\nb", "a\rb", "a\0b"])
async def test_no_value_becomes_another_header(value: str) -> None:
    async with serving(HELLO) as (server, line):
        with pytest.raises(httpx.LocalProtocolError):
            await get(line, server.url, headers={"X-A": value})
        assert server.requests == []
        assert (await get(line, server.url)).content == b"hello"


async def test_tls_is_verified() -> None:
    authority, server = trustme.CA(), Server(HELLO)
    theirs, ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(theirs)
    authority.configure_trust(ours)
    async with await asyncio.start_server(server.client, "127.0.0.1", 0, ssl=theirs) as listening:
        url = f"https://localhost:{listening.sockets[0].getsockname()[1]}"
        line = Line(ours)
        for _ in range(2):
            assert (await get(line, url)).content == b"hello"
        assert server.connections == 1
        await line.aclose()
        with pytest.raises(httpx.ConnectError, match="SSLCertVerificationError"):
            await get(Line(shared_ssl_context()), url)
        with pytest.raises(
            httpx.ConnectError, match="SSLCertVerificationError"
        ):  # The certificate is for another name.
            await get(Line(ours), url.replace("localhost", "127.0.0.1"))
        for writer in server.writers:
            writer.close()
