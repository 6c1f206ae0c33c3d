"""A fleet within one process, and its platform. Members share only what is in Redis."""

import asyncio
import http.server
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from caller import credentials, fetch_for_ever
from in_thread import in_thread
from serving import Process
from waiting import until_async

from credhook.store.connection import open_redis
from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.errors import ApiError
from credhook.worker.platform.circuit_breaker import CircuitBreaker

CALLER = Path(__file__).parent / "caller.py"

Answer = tuple[int, dict[str, str]]
WELL: Answer = (200, {})
DOWN: Answer = (500, {})
BODY = b'{"data": {"id": "p", "status": "verified"}}'


class Stub:
    """A platform of one answer, that notes when it is called.

    Attributes:
        url: its root.
        answer: what the call of that number gets, counted from 1.
        takes: seconds that each call takes.
        arrivals: when each call came, in monotonic seconds.
        most: how many were under way at once, at most.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.answer: Callable[[int], Answer] = lambda _: WELL
        self.takes = 0.01
        self.arrivals: list[float] = []
        self.under_way = self.most = 0
        self._lock = threading.Lock()

    def call(self) -> Answer:
        with self._lock:
            self.arrivals.append(time.monotonic())
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            answer = self.answer(len(self.arrivals))
        time.sleep(self.takes)
        with self._lock:
            self.under_way -= 1
        return answer


@contextmanager
def serving() -> Iterator[Stub]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            status, headers = platform.call()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(BODY)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  The library's name.
            pass

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 512  # With its own 5 a call would be late by the second in which TCP tries again.

        def handle_error(self, *_: object) -> None:
            pass  # A caller that was killed.

    server = Server(("127.0.0.1", 0), Handler)
    platform = Stub(f"http://127.0.0.1:{server.server_port}")
    with in_thread(server):
        yield platform


class Member:
    """One process's condition and clients; several in one process know of each other only what Redis tells them."""

    def __init__(self, breaker: CircuitBreaker, url: str) -> None:
        self.breaker = breaker
        self.fetching = AsyncApi(url, credentials(), guard=breaker.fetches, timeout=60.0)
        self.calling = AsyncApi(url, credentials(), guard=breaker.calls, timeout=60.0)
        self.in_thread = SyncApi(self.calling)

    async def call(self) -> object:
        """Return the result of a handler's call."""
        return await end_of(self.calling)

    async def call_in_thread(self) -> object:
        def call() -> object:
            try:
                return self.in_thread.presentations.get("p").status
            except ApiError as error:
                return error

        return await asyncio.to_thread(call)

    async def fetch(self) -> object:
        """Return the result of an admitted fetch."""
        return await end_of(self.fetching)


async def end_of(api: AsyncApi) -> object:
    try:
        return (await api.presentations.get("p")).status
    except ApiError as error:
        return error


@asynccontextmanager
async def member(
    redis_url: str, url: str, *, rate: float | None = None, watches: bool = True, redis_timeout: float = 20.0
) -> AsyncIterator[Member]:
    """Yield a member of the fleet. If a busy machine makes Redis slow, it waits."""
    async with open_redis(redis_url) as client:
        one = Member(
            CircuitBreaker(client, api_url=url, queue="credhook", rate=rate, timeout=5.0, redis_timeout=redis_timeout),
            url,
        )
        watching = asyncio.create_task(one.breaker.watch() if watches else asyncio.sleep(0))
        try:
            yield one
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await one.breaker.aclose()
            await one.fetching.aclose()
            await one.calling.aclose()


@asynccontextmanager
async def members(
    count: int, redis_url: str, url: str, rate: float | None = None, redis_timeout: float = 20.0
) -> AsyncIterator[list[Member]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(member(redis_url, url, rate=rate, redis_timeout=redis_timeout))
            for _ in range(count)
        ]


@asynccontextmanager
async def fetching(fleet: list[Member], at_once: int) -> AsyncIterator[Counter[str]]:
    """Each member has so many calls under way, as far as it is let; yields how many `calls` have not ended."""
    under_way: Counter[str] = Counter()
    tasks = [
        asyncio.create_task(fetch_for_ever(one.breaker, one.fetching, under_way))
        for one in fleet
        for _ in range(at_once)
    ]
    try:
        yield under_way
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def callers(tmp_path: Path, redis_url: str, url: str, *, rate: float = 0, at_once: int = 8) -> Iterator[list[Process]]:
    """Four real processes that call as much as they are let."""
    arguments = (str(CALLER), redis_url, url, str(rate), str(at_once))
    with ExitStack() as stack:
        processes = [Process(tmp_path / f"caller{number}.log", *arguments, environment={}) for number in range(4)]
        for process in processes:
            stack.callback(process.kill)
        yield processes


async def paused_briefly(fleet: list[Member], stub: Stub) -> None:
    """Let the platform have asked for a second, which is over."""
    stub.answer = lambda _: (429, {"Retry-After": "1"})
    await fleet[0].call()
    stub.answer = lambda _: WELL
    await until_async(lambda: all(one.breaker.pause() for one in fleet), what="the pause")
    await until_async(lambda: not any(one.breaker.pause() for one in fleet), what="its end")
