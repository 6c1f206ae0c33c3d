"""A thousand requests to a server that ends idle connections whenever it likes: all are answered, none twice."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count

import pytest
from cancellation import TurningLoop, cancelled_after, on_turning_loop
from scripted_server import GRANTED, PRESENTATION, TOKEN, presentation
from waiting import until_async

from credhook.worker.api.client import AsyncApi, Unguarded
from credhook.worker.api.token import ClientCredentials

REQUESTS, AT_ONCE = 1_000, 100


class Capricious:
    """Answers, and ends connections that wait for their next request: after a while, or just as that arrives.

    Attributes:
        answered: target → how often a request for it was answered.
        connections: how many were opened.
        crossed: requests that arrived together with the end, and were not looked at.
        url: its root.
    """

    def __init__(self, seed: int) -> None:
        self.answered: Counter[str] = Counter()
        self.connections = self.crossed = self._open = 0
        self.url = ""
        self._drawn = random.Random(seed)
        self._over: asyncio.Event

    async def serve(self, ready: threading.Event) -> None:
        self._over, self._loop = asyncio.Event(), asyncio.get_running_loop()
        async with await asyncio.start_server(self._client, "127.0.0.1", 0, backlog=1_000) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            await self._over.wait()
        await until_async(lambda: not self._open, what="the end of connections whose clients are gone")

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open += 1
        with closing(writer), suppress(OSError, asyncio.IncompleteReadError):
            for number in count():
                # Of most, a few tens of milliseconds: shorter than what a client keeps its own for.
                patience = self._drawn.choice([0.0, 0.005, 0.02, 60.0]) if number else 60.0
                async with asyncio.timeout(patience):
                    head = await reader.readuntil(b"\r\n\r\n")
                if number and self._drawn.random() < 0.1:
                    self.crossed += 1
                    break
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
                await reader.readexactly(length)
                target = head.split()[1].decode()
                self.answered[target] += 1
                await asyncio.sleep(self._drawn.uniform(0.0, 0.01))
                writer.write(GRANTED if target == TOKEN else presentation(target.removeprefix(PRESENTATION)))
                await writer.drain()
        with suppress(OSError):
            await writer.wait_closed()
        self._open -= 1


@contextmanager
def capricious(seed: int) -> Iterator[Capricious]:
    server, ready = Capricious(seed), threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(server.serve(ready),))
    thread.start()
    assert ready.wait(60)
    try:
        yield server
    finally:
        server.stop()
        thread.join()


async def fetched(url: str, names: list[str]) -> list[str]:
    """The ids that come back, in order, of requests that are made so many at a time."""
    auth = ClientCredentials(url + TOKEN, "me", "s3cret")
    async with AsyncApi(url, auth, timeout=60.0) as api:
        places = asyncio.Semaphore(AT_ONCE)

        async def fetch(name: str) -> str:
            async with places:
                return (await api.presentations.get(name)).id

        return await asyncio.gather(*(fetch(name) for name in names))


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_server_that_ends_idle_connections_costs_no_request(seed: int) -> None:
    names = [f"p{number}" for number in range(REQUESTS)]
    with capricious(seed) as server:
        assert await fetched(server.url, names) == names
        assert server.answered == dict.fromkeys([TOKEN, *(PRESENTATION + name for name in names)], 1)
        assert server.crossed > 0
        assert server.connections > AT_ONCE


class Counting(Unguarded):
    """A guard that knows how its permits ended.

    Attributes:
        acquired: how many there were.
        ended: how they ended.
    """

    def __init__(self) -> None:
        self.acquired = 0
        self.ended: Counter[str] = Counter()

    async def acquire(self, operation: str) -> "Counting":
        self.acquired += 1
        return self

    def answered(self, status: int, retry_after: float | None) -> None:
        self.ended["answered"] += 1

    def unanswered(self, cause: str) -> None:
        self.ended["unanswered"] += 1

    def cancelled(self) -> None:
        self.ended["cancelled"] += 1


@pytest.mark.parametrize("kept", [False, True], ids=["over a new connection", "over a kept one"])
def test_a_call_can_be_cancelled_after_any_turn_of_the_loop(kept: bool) -> None:
    """It ends, its permit hears of it, and the next call gets its own answer."""

    async def work(loop: TurningLoop) -> int:
        guard = Counting()
        auth = ClientCredentials(server.url + TOKEN, "me", "s3cret")
        for turns in range(1_000):
            async with AsyncApi(server.url, auth, timeout=60.0, guard=guard) as api:
                if kept:
                    await api.presentations.get("before")
                task, was_asked = await cancelled_after(turns, api.presentations.get(f"p{turns}"), loop)
                assert task.cancelled() is was_asked, turns
                assert (await api.presentations.get("after")).id == "after"
            assert sum(guard.ended.values()) == guard.acquired, turns
            if not was_asked:
                assert guard.ended["cancelled"] > 0
                return turns
        raise AssertionError("it did not come to an end")

    with capricious(0) as server:
        assert on_turning_loop(work) > 1
