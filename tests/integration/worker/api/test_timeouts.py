"""A platform that takes its time: what a request may take as a whole is bound, however it is spent."""

import asyncio
import threading
import time
from contextlib import suppress
from resource import RUSAGE_SELF, getrusage
from socketserver import BaseRequestHandler

import pytest

from credhook.worker.api.errors import Unavailable, hint
from credhook.worker.api.token import ClientCredentials
from support.in_thread import Server, in_thread
from support.platform.scripted_server import PRESENTATION, TOKEN, answering, credentials, presentation
from support.platform.transports import api_over
from support.waiting import until_async

#: Seconds that a request may take, in which several bytes drip.
TIMEOUT, DRIP = 0.6, 0.05

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
#: What comes at once, and what follows byte by byte.
DRIPS = {
    "nothing": (b"", b""),
    "the head": (HEAD + b"X-Padding: ", b"a"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "the body": (HEAD + b"Content-Length: 60000\r\n\r\n{", b" "),
    "the body of a refusal": (HEAD.replace(b"200 OK", b"500 X") + b"Content-Length: 60000\r\n\r\n", b" "),
}


class Dripping(Server):
    """Sends `begins` at once, then `goes_on` byte by byte, until the other end hangs up or a minute has passed."""

    def __init__(self, begins: bytes, goes_on: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.begins = begins
        self.goes_on = goes_on
        self.dripped = 0
        self.ended = threading.Semaphore(0)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Connection(BaseRequestHandler):
    server: Dripping

    def handle(self) -> None:
        with suppress(OSError):
            self.request.recv(65_536)
            self.request.sendall(self.server.begins)
            self.request.settimeout(DRIP)
            for number in range(int(60 / DRIP)):  # Whoever does not hang up fails, and does not wait for ever.
                with suppress(TimeoutError):
                    if not self.request.recv(65_536):
                        break
                if self.server.goes_on:
                    self.request.sendall(self.server.goes_on[number % len(self.server.goes_on) :][:1])
                    self.server.dripped += 1
        self.server.ended.release()


async def timed_out(carrier: str, api_url: str, auth: ClientCredentials) -> Unavailable:
    """How a call ends, which has not ended before its time."""
    async with api_over(carrier, api_url, auth, timeout=TIMEOUT) as api:
        began = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            await api.presentations.get("p")
        assert time.monotonic() - began >= TIMEOUT - 0.01
    assert (caught.value.cause, caught.value.status) == ("timeout", None)
    assert "CREDHOOK_FETCH_TIMEOUT" in hint(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("what", "scheme"),
    [*((what, "http") for what in DRIPS), ("nothing", "https")],  # A handshake that does not go on counts as well.
)
async def test_an_answer_that_drips_is_hung_up_on_when_the_time_is_over(what: str, scheme: str, carrier: str) -> None:
    with in_thread(Dripping(*DRIPS[what])) as platform:
        drips = 3 if DRIPS[what][1] else 0
        for _ in range(20):  # Until some have come within the time: each of them early enough for a bound on pauses.
            before = platform.dripped
            error = await timed_out(carrier, platform.url.replace("http", scheme), credentials())
            assert error.operation == "presentations.get"
            assert platform.ended.acquire(timeout=60)  # Nobody reads on in the background.
            if platform.dripped >= before + drips:
                return
    raise AssertionError("it never dripped")


class _Flooding(_Connection):
    """Sends what goes on without a pause, thousands at a time, until the other end hangs up."""

    def handle(self) -> None:
        with suppress(OSError):
            self.request.recv(65_536)
            for _ in range(50_000):
                self.request.sendall(self.server.goes_on * 2_000)
        self.server.ended.release()


@pytest.mark.parametrize("status", [b"100 Continue", b"103 Early Hints"])
async def test_flood_of_interim_answers_ends_with_a_bound(status: bytes, carrier: str) -> None:
    """libcurl bounds the bytes of headers. httpx has the time alone."""
    timeout, cause = (60.0, "protocol") if carrier == "libcurl" else (1.0, "timeout")
    flood = Dripping(b"", b"HTTP/1.1 %b\r\n\r\n" % status)
    flood.RequestHandlerClass = _Flooding
    before = getrusage(RUSAGE_SELF).ru_maxrss
    with in_thread(flood):
        async with api_over(carrier, flood.url, credentials(), timeout=timeout) as api:
            with pytest.raises(Unavailable) as caught:
                await api.presentations.get("p")
        assert caught.value.cause == cause
        assert await asyncio.to_thread(flood.ended.acquire, timeout=60)
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB.


async def test_others_do_not_wait_for_those_that_are_not_answered(carrier: str) -> None:
    answers = threading.Event()

    def script(target: str, _: int) -> bytes:
        name = target.removeprefix(PRESENTATION)
        if name.startswith("slow"):
            answers.wait(60)
        return presentation(name)

    with answering(script) as platform:
        auth = ClientCredentials(platform.url + TOKEN, "me", "s3cret")
        async with api_over(carrier, platform.url, auth, timeout=60.0) as api:
            slow = [asyncio.create_task(api.presentations.get(f"slow-{number}")) for number in range(3)]
            await until_async(lambda: len(platform.targets) == len(slow), what="their requests")
            assert (await api.presentations.get("quick")).id == "quick"
            assert not any(task.done() for task in slow)
            answers.set()
            assert [each.id for each in await asyncio.gather(*slow)] == ["slow-0", "slow-1", "slow-2"]
