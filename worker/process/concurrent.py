"""The RQ worker that keeps many events under way on one event loop.

RQ's own workers do one job at a time, and a job here mostly waits for an API. This one takes events from RQ's queue in
groups, works on up to `CREDHOOK_CONCURRENCY` of them beside each other, and settles them in groups. For RQ's tools it
is a worker like any other: it registers, beats, and obeys suspend, stop-job and shutdown.
"""

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any, Final

import structlog
import uvloop
from redis import Redis
from redis.exceptions import RedisError
from rq.serializers import JSONSerializer

from credhook.backoff import Backoff, Waits
from credhook.stopping import stops
from credhook.store import State
from credhook.store.hints import hint
from credhook.worker import metrics
from credhook.worker.attempt.attempt import Attempt, Interruption
from credhook.worker.attempt.parts import assembled
from credhook.worker.attempt.slots import Slot, Slots
from credhook.worker.handlers.registry import Registry
from credhook.worker.process.rq_presence import BEAT, VisibleWorker
from credhook.worker.process.rq_worker import EventJob
from credhook.worker.process.supervisor import HAND_BACK
from credhook.worker.queue.claim import Claim, Worker
from credhook.worker.queue.intake import Intake
from credhook.worker.settings import WorkerSettings

log = structlog.get_logger("credhook.worker")

#: Seconds that free slots wait for more of them, so that one round trip takes several events: slots become free one by
#: one. At 1,000 events a second it saves three of four round trips, and keeps a slot idle for a twentieth of its time.
GATHER: Final = 0.002
#: A full worker takes its events in so many groups at least: those that begin together end together, and then all wait
#: for Redis at once.
GROUPS: Final = 4
#: Seconds between two signs of life to the supervisor.
PULSE: Final = 0.5
#: Seconds that an idle worker waits for a job before it looks again.
IDLE: Final = 1.0
#: Waits between two tries to reach Redis.
_BACKOFF: Final = Backoff(first=0.1, longest=5.0)
#: Seconds that broken-off attempts get to be written down.
_LAST_WORDS: Final = 5.0


class ConcurrentWorker(VisibleWorker):
    """Works on many events of one queue, until told to stop."""

    job_class = EventJob

    #: When it was told to stop, in seconds of the loop.
    _stopped_at: float | None = None

    def __init__(
        self, settings: WorkerSettings, registry: Registry, *, name: str, token: str, connection: Redis
    ) -> None:
        """`token`: by which the ledger knows what this process holds; `connection`: for RQ at birth and death alone."""
        super().__init__(
            [settings.queue], name=name, connection=connection, serializer=JSONSerializer, log_job_description=False
        )
        self._settings = settings
        self._registry = registry
        self._concurrency = settings.concurrency
        #: Events that are ours, with a slot or waiting for one; not those that are only being written down.
        self._attempts: set[Attempt] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._token = token
        self._exhausted = False

    def work(self, burst: bool = False, *_: Any, pulse: Callable[[], None] = lambda: None, **__: Any) -> bool:
        """Work until stopped by a signal or by RQ's shutdown command; with `burst`, until the queue is empty.

        `pulse` is called from the event loop twice a second.

        Returns:
            Whether it ended because it was to end; otherwise it wants to be replaced.
        """
        rq: Any = super()  # Its methods have no types.
        rq.register_birth()
        try:
            # uvloop, since half of an event's time goes to the sockets.
            # And without a runner, which would wait for handlers that swallow their cancellation.
            loop = uvloop.new_event_loop()
            asyncio.set_event_loop(loop)
            loop.run_until_complete(self._work(burst=burst, pulse=pulse))
        finally:
            try:
                rq.register_death()
            except RedisError as error:
                log.warning("death_not_registered", error=type(error).__name__)
        return not self._exhausted

    async def _work(self, *, burst: bool, pulse: Callable[[], None]) -> None:
        settings = self._settings
        self._stopping = asyncio.Event()
        self._freed = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in stops():
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(HAND_BACK, self._interrupt_all)
        worker = Worker(self.name, self._token)
        async with assembled(settings, self._registry, worker=worker) as parts:
            self._claims, self._breaker, self._processor = parts.claims, parts.breaker, parts.processor
            self._slots = Slots(settings.concurrency, parts.new_slot)
            self._intake = Intake(
                self._claims,
                group=max(1, settings.concurrency // GROUPS),
                room=self._room,
                admit=self._breaker.admit,
                give_back=self._breaker.give_back,
                start=self._start,
            )
            background = [
                asyncio.create_task(_restarted(work))
                for work in (
                    self._processor.leases.keep,
                    self._breaker.watch,
                    lambda: _pulse(pulse),
                    lambda: self._beat(parts.redis),
                    lambda: self._listen(parts.redis),
                )
            ]
            try:
                await self._first(parts.lifespan.start())
                await self._take_and_start(burst=burst)
                self._slots.evict(0)
                await self._intake.finish()
                await self._drain()
            finally:
                for work in background:
                    work.cancel()
                await asyncio.wait(background, timeout=BEAT)

    async def _take_and_start(self, *, burst: bool) -> None:
        """Fill the slots, again and again, until told to stop."""
        waits, intake = Waits(_BACKOFF), self._intake
        while not self._stopping.is_set():
            idle = not self._tasks and not intake.is_under_way
            full = intake.room <= 0 or (intake.wanted_alone and not idle)
            if not intake.is_under_way and (full or self._suspended):
                await (self._until_freed(None) if full else self._until_stopped(BEAT))
                await asyncio.sleep(GATHER)
                continue
            try:
                taken = await intake.take(more=not full and not self._suspended, idle=idle)
                if taken is None:
                    await self._until_freed(max(0.01, min(self._breaker.retry_in(), BEAT)))
                    continue
                if not taken.claims and not taken.suspects and not intake.is_under_way:
                    if burst and not self._tasks:
                        return
                    await self._until_work(IDLE if taken.due is None else min(IDLE, taken.due))
                waits.reset()
            except (RedisError, OSError) as error:
                wait = waits.next()
                log.error("redis_unusable", error=type(error).__name__, retry_in=wait, hint=hint(error))  # noqa: TRY400  No traceback.
                await self._until_stopped(wait)
            except Exception as error:  # A defect of ours; what is under way should not suffer from it.
                log.error("take_failed", exc_info=error)  # noqa: TRY400  Our processor keeps the message out.
                await self._until_stopped(_BACKOFF.longest)

    def _room(self) -> int:
        """How many more events may be under way."""
        if self._stopping.is_set():
            return 0
        return min(self._slots.places - len(self._attempts), 2 * self._concurrency - len(self._tasks))

    def _start(self, claim: Claim) -> None:
        attempt = Attempt(claim, admitted=True)
        self._attempts.add(attempt)
        self._processor.keep(attempt)
        task = asyncio.create_task(self._process(attempt))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._freed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            # A defect of ours. The lease lapses, and the event is put back.
            log.error("attempt_failed", exc_info=error)

    async def _process(self, attempt: Attempt) -> None:
        """Handle the event, then those of the same resource that have waited for it.

        Its slot is free for others as soon as the handlers are done: what was done is written down beside.
        """
        while True:
            slot = await self._slots.acquire(attempt)
            follow, freeing = self._may_follow(), functools.partial(self._free, attempt, slot)
            settlement, following = await self._processor.handle(attempt, slot, follow=follow, tried=freeing)
            if settlement is not None:
                self._finished += settlement.state is State.DONE
            if following is None:
                return
            attempt = Attempt(following, known=attempt.fetched)
            self._attempts.add(attempt)
            self._processor.keep(attempt)

    def _free(self, attempt: Attempt, slot: Slot) -> None:
        self._attempts.discard(attempt)
        self._slots.release(slot)
        self._freed.set()

    def _may_follow(self) -> bool:
        """Whether a slot may go on with the next event of its resource."""
        going_on = not self._stopping.is_set() and not self._suspended and not self._intake.wanted_alone
        return going_on and self._breaker.pause() == 0

    async def _until_work(self, seconds: float) -> None:
        """Return when there may be something to take, when a slot ends, or after so many seconds."""
        if seconds > 0:
            await self._first(self._claims.wait_for_job(seconds))

    async def _until_stopped(self, seconds: float) -> None:
        await self._first(asyncio.sleep(seconds))

    async def _until_freed(self, seconds: float | None) -> None:
        """Return when a slot has become free, or after so many seconds."""
        self._freed.clear()

        async def freed() -> None:
            await asyncio.wait_for(self._freed.wait(), seconds)

        with suppress(TimeoutError):
            await self._first(freed())

    async def _first(self, awaited: Awaitable[object]) -> None:
        """Wait for it, or until told to stop."""
        task, stop = asyncio.ensure_future(awaited), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            for one in (task, stop):
                one.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    def _stop(self) -> None:
        """Take nothing more and finish what is under way. A signal to the whole group comes twice: it says the same."""
        if self._stopping.is_set():
            return
        log.info("worker_draining", under_way=len(self._attempts))
        self._stop_requested = True
        self._stopped_at = asyncio.get_running_loop().time()
        self._stopping.set()

    async def _drain(self) -> None:
        """Finish what is under way, or hand it back when the grace time is over."""
        self._slots.evict(0)
        if self._tasks:
            # What Redis has let us wait for meanwhile is a part of it: the supervisor waits no longer.
            spent = 0.0 if self._stopped_at is None else asyncio.get_running_loop().time() - self._stopped_at
            await asyncio.wait(self._tasks, timeout=max(0.0, self._settings.grace - spent))
        if self._tasks:
            self._interrupt_all()
            await asyncio.wait(self._tasks, timeout=_LAST_WORDS)

    def _interrupt_all(self) -> None:
        self._stopped_at = -math.inf  # What comes after this has no grace either.
        self._slots.evict(0)
        for attempt in list(self._attempts):
            attempt.interrupt(Interruption.DRAINED)

    def _before_beat(self) -> None:
        metrics.IN_FLIGHT.set(len(self._attempts))
        metrics.HANDLERS_HUNG.set(self._processor.runs.hung)
        self._look_for_exhaustion()
        self._slots.evict()

    def _under_way(self) -> Collection[Attempt]:
        return self._attempts

    def _look_for_exhaustion(self) -> None:
        """Handlers that hang, in threads or in tasks, can only be ended with their process."""
        runs = self._processor.runs
        if runs.are_too_many and not self._stopping.is_set():
            log.error("handlers_hung", hung=runs.hung, limit=runs.limit, hint="give the handlers' calls time-outs")
            self._exhausted = True
            self._stop()


async def _pulse(pulse: Callable[[], None]) -> None:
    while True:
        pulse()
        await asyncio.sleep(PULSE)


async def _restarted(work: Callable[[], Awaitable[None]]) -> None:
    """Keep background work going for the life of the worker, whatever happens to Redis."""
    while True:
        try:
            await work()
        except (RedisError, OSError):
            pass  # Whoever takes events says so.
        except Exception as error:
            log.error("background_task_failed", exc_info=error)  # noqa: TRY400  Our processor keeps the message out.
        await asyncio.sleep(BEAT)
