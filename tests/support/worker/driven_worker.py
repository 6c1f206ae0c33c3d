"""A concurrent worker on a clock of its own, with doubles of its collaborators. Signals drive it, as in production."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import uvloop
from fakeredis import FakeRedis

from credhook.store import State
from credhook.worker.attempt.attempt import Attempt
from credhook.worker.attempt.details import Lookups
from credhook.worker.handlers.registry import Registry
from credhook.worker.platform.circuit import Phase
from credhook.worker.platform.limits import Allowance
from credhook.worker.process import concurrent
from credhook.worker.process.concurrent import ConcurrentWorker
from credhook.worker.queue.claims import Candidates, Taken
from support.process.fake_children import own_signals
from support.process.scraping import worker_settings
from support.store.stores import store_on
from support.virtual_time import OwnTimeLoop

NOTHING = Taken((), None)


def claimed(*event_ids: str, **more: Any) -> Taken:
    """Return the result of a take that gives these events."""
    claims: Any = tuple(SimpleNamespace(event_id=one) for one in event_ids)
    return Taken(claims, None, **more)


class PlannedClaims:
    """Gives what is planned, take by take, and then nothing.

    Attributes:
        limits: how many events each take asked for.
        waits: the seconds of each wait for a job.
        takes_seconds: how long a take lasts.
        wait_error: what a wait for a job raises.
    """

    def __init__(self, planned: Iterable[Taken | Exception] = ()) -> None:
        self.planned = iter(planned)
        self.limits: list[int] = []
        self.waits: list[float] = []
        self.takes: list[dict[str, Any]] = []
        self.takes_seconds = 0.0
        self.wait_error: Exception | None = None

    async def take(self, limit: int, **more: Any) -> Taken:
        self.limits.append(limit)
        self.takes.append(more)
        await asyncio.sleep(self.takes_seconds)
        taken = next(self.planned, NOTHING)
        if isinstance(taken, Exception):
            raise taken
        return taken

    async def wait_for_job(self, seconds: float) -> None:
        self.waits.append(seconds)
        if self.wait_error:
            raise self.wait_error
        await asyncio.sleep(seconds)


class PlannedBreaker:
    """Allows all that is asked for, once `refusals` are over.

    Attributes:
        unfetched: of each question, how many events may still fetch.
        claims: of each take, the events and the allowance.
    """

    credential_error = ""
    phase = Phase.CLOSED

    def __init__(self) -> None:
        self.refusals = 0
        self.retry_seconds = self.pause_seconds = 0.0
        self.unfetched: list[int] = []
        self.claims: list[tuple[int, Allowance]] = []

    def clock(self) -> float:
        return asyncio.get_running_loop().time()

    def return_unused(self, *, unfetched: int) -> None:
        self.unfetched.append(unfetched)

    def allows(self, wanted: int, *, unfetched: int) -> int:
        assert unfetched == self.unfetched[-1]
        self.refusals -= 1
        return 0 if self.refusals >= 0 else wanted

    def retry_in(self) -> float:
        return self.retry_seconds

    def pause(self) -> float:
        return self.pause_seconds

    def for_claims(self) -> str:
        return "the platform's limits"

    def claimed(self, number: int, allowance: Allowance) -> None:
        self.claims.append((number, allowance))


@dataclass
class PlannedProcessor:
    """Ends each attempt when it may, and settles it when it may.

    Attributes:
        claims, breaker, runs, lookups, waits: as the worker reads them; `waits` are what `turns` returns.
        following: the events that follow in turn; each has to wait for `may_end` anew.
        errors: what an attempt raises in place of a settlement, in turn.
        state: how each event is settled.
        attempts: the attempts that began, in order.
        follows: whether an event could have followed, when each attempt ended.
    """

    claims: PlannedClaims
    breaker: PlannedBreaker = field(default_factory=PlannedBreaker)
    runs: Any = field(default_factory=lambda: SimpleNamespace(hung=0, limit=1, are_too_many=False))
    lookups: Lookups = field(default_factory=Lookups)
    waits: dict[str, tuple[int, float]] = field(default_factory=dict)
    following: list[Any] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    state: State = State.WAITING
    attempts: list[Attempt] = field(default_factory=list)
    follows: list[bool] = field(default_factory=list)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    may_settle: asyncio.Event = field(default_factory=asyncio.Event)

    def turns(self) -> dict[str, tuple[int, float]]:
        return self.waits

    async def handle(
        self, attempt: Attempt, *, handled: Callable[[Attempt], None], may_follow: Callable[[], bool]
    ) -> tuple[Any, Any]:
        self.attempts.append(attempt)
        await self.may_end.wait()
        handled(attempt)
        self.follows.append(may_follow())
        await self.may_settle.wait()
        if self.errors:
            raise self.errors.pop(0)
        if not self.following:
            return SimpleNamespace(state=self.state), None
        self.may_end.clear()
        return None, self.following.pop(0)


class _Silent:
    """RQ's commands, of which none comes."""

    @asynccontextmanager
    async def pubsub(self) -> AsyncIterator[Any]:
        async def pong(**_: object) -> dict[str, str]:
            await asyncio.sleep(1.0)
            return {"type": "pong"}

        yield SimpleNamespace(subscribe=_at_once, get_message=pong)


async def _at_once(*_: object) -> None: ...


class DrivenWorker:
    """The worker, and the doubles beside it.

    Attributes:
        seconds: how long `work` has run, on the worker's clock.
        watched: what `watch` was told.
        starting: the start-up functions of the plugins.
        has_started: True if all of them succeed.
        redis: holds RQ's record of the worker.
        reports: how often it has reported that poison candidates wait.
    """

    def __init__(
        self,
        *planned: Taken | Exception,
        concurrency: int = 4,
        grace: float = 60.0,
        candidates: Candidates = Candidates.NONE,
    ) -> None:
        self.claims = PlannedClaims(planned)
        self.processor = PlannedProcessor(self.claims)
        self.breaker = self.processor.breaker
        self.redis = FakeRedis()
        settings = worker_settings().model_copy(update={"concurrency": concurrency, "grace": grace})
        self.reports = 0
        self.worker = ConcurrentWorker(
            settings,
            Registry([]),
            store_on(self.redis),
            name="w",
            candidates=candidates,
            report_candidates=self._report,
        )
        self.starting: Callable[[], Awaitable[None]] = _at_once
        self.has_started = True
        self.seconds = 0.0
        self.watched: list[bool] = []

    def _report(self) -> None:
        self.reports += 1

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal to the worker."""
        os.kill(os.getpid(), number)
        # The clock jumps when a turn has nothing to do, and skips the signal.
        asyncio.get_running_loop().call_soon(int)

    def works(self, *steps: Callable[[], Awaitable[None]], burst: bool = False) -> bool:
        """Let it work beside the steps, and stop it after them. Return what `work` does."""

        async def run() -> None:
            await asyncio.sleep(0.01)  # It has begun to take events.
            for step in steps:
                await step()
            self.signal()

        @asynccontextmanager
        async def build(*_: object, **__: object) -> AsyncIterator[Any]:
            begun, running = loop.time(), asyncio.ensure_future(run()) if not burst or steps else None
            auth = SimpleNamespace(token=_at_once, keep=_at_once)
            lifespan = SimpleNamespace(start=self.starting, has_started=self.has_started)
            store = SimpleNamespace(redis=_Silent())
            yield SimpleNamespace(store=store, lifespan=lifespan, processor=self.processor, auth=auth, transport=None)
            self.seconds = loop.time() - begun
            if running is not None:
                await running

        loop = OwnTimeLoop()
        with (
            own_signals(),
            patch.object(concurrent, "build_worker", build),
            patch.object(uvloop, "new_event_loop", lambda: loop),
        ):
            try:
                return self.worker.work(burst, watch=self.watched.append)
            finally:
                for task in asyncio.all_tasks(loop):
                    task.cancel()
                loop.run_until_complete(asyncio.sleep(0))
                loop.close()
                asyncio.set_event_loop(None)


def sleeping(seconds: float) -> Callable[[], Awaitable[None]]:
    """Return a step that waits."""
    return lambda: asyncio.sleep(seconds)
