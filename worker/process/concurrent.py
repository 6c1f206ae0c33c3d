"""The RQ worker that handles many events at a time on one event loop.

RQ's own workers do one job at a time, and our jobs mostly wait for an API. This worker claims events from RQ's queue in
groups, handles up to `CREDHOOK_CONCURRENCY` of them at a time, and settles them in groups. To RQ's tools it is a normal
worker: it registers, shows its heartbeat, and obeys suspend and shutdown.
"""

import asyncio
import math
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import structlog
import uvloop
from rq.command import parse_payload
from rq.serializers import JSONSerializer
from rq.suspension import WORKERS_SUSPENDED
from rq.worker import BaseWorker, WorkerStatus

from credhook.background import beside
from credhook.backoff import Backoff, Waits
from credhook.settings import WorkerSettings
from credhook.store import State
from credhook.store.errors import STORE_ERRORS, hint
from credhook.store.store import SyncStore
from credhook.supervisor import stops
from credhook.worker import metrics
from credhook.worker.api.errors import ApiError
from credhook.worker.attempt.attempt import Attempt, Interruption
from credhook.worker.attempt.running import Run
from credhook.worker.handlers.registry import Registry
from credhook.worker.platform.circuit import Phase
from credhook.worker.process.supervisor import HAND_BACK
from credhook.worker.queue.claims import Candidates, Claim, Taken
from credhook.worker.wiring import build_worker

log = structlog.get_logger("credhook.worker")

#: Seconds that a free place waits for more free places, so that one round trip claims several events. At 1,000 events a
#: second it saves three of four round trips, and keeps a place idle for a twentieth of its time.
BATCH_WINDOW_SECONDS: Final = 0.002
#: A full worker claims its events in this many groups at least. Events that begin together end together, and would all
#: wait for Redis at once.
GROUPS: Final = 4
#: Seconds between two looks of a worker at itself.
ROUND_SECONDS: Final = 0.5
#: Seconds that an idle worker waits for a job before it looks again, and a suspended worker before it asks again.
IDLE_SECONDS: Final = 1.0
#: Seconds of silence after which a subscription is checked. After the same time without a reply, it counts as lost.
_SILENT_SECONDS: Final = 5.0
#: Characters of an unknown command that the log repeats.
_COMMAND_LIMIT: Final = 64
#: Waits between two tries to reach Redis.
_BACKOFF: Final = Backoff(first=0.1, longest=5.0)
#: Seconds that interrupted attempts get to be settled.
SETTLE_SECONDS: Final = 5.0


class ConcurrentWorker(BaseWorker):
    """Handles many events of one queue at a time, until told to stop."""

    #: True once this worker takes events: it has asked for a token, and at least one plugin has started.
    _takes_events: bool = False
    #: When the grace time ends, in seconds of the loop. It includes waits for Redis: the supervisor waits no longer.
    _drained_by: float = math.inf

    def __init__(
        self,
        settings: WorkerSettings,
        registry: Registry,
        store: SyncStore,
        *,
        name: str,
        candidates: Candidates = Candidates.ALL,
        report_candidates: Callable[[], None] = lambda: None,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare to work.

        `store`: for RQ's record of this worker; `name`: of this process in the fleet, which holds the events;
        `candidates`: which poison candidates it takes; `report_candidates`: called when some wait for another process;
        `on_start`: called after the start-up functions.
        """
        super().__init__(
            [settings.queue], name=name, connection=store.redis, serializer=JSONSerializer, log_job_description=False
        )
        self._settings = settings
        self._registry = registry
        #: Claimed events whose handlers have not ended.
        self._attempts: set[Attempt] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._exhausted = False
        #: What the heartbeat announces, renewed twice a second: fields of `WorkerAnnouncement`.
        self.announced: dict[str, Any] = {}
        #: True once an event was not done here.
        self._left_undone = False
        self._suspended = False
        self._candidates, self._report_candidates, self._on_start = candidates, report_candidates, on_start
        #: Events done that RQ's record does not count yet.
        self._finished = 0
        #: Held while RQ's record is written. It is written from birth to death, and not again after death.
        self._registration = threading.Lock()
        self._is_registered = False

    def _set_connection(self, connection: Any) -> Any:
        """Keep the time-out of the client. RQ sets seven minutes, because its own workers block on the queue."""
        return connection

    def _set_ip_address(self, _: Any) -> None:
        """Do without: RQ would give our connection a name and list all connections, which our users may not."""
        self.ip_address = "unknown"

    def work(self, burst: bool = False, *_: Any, watch: Callable[[bool], None] = lambda _: None, **__: Any) -> bool:
        """Work until stopped by a signal or by RQ's shutdown command; with `burst`, until the queue is empty.

        `watch` is called from the event loop twice a second, with True while plugins start or shut down.

        Returns:
            False if this process must be replaced, because handlers hang.
        """
        rq: Any = super()  # Its methods have no types.
        rq.register_birth()
        self._is_registered = True
        self.show_to_rq()
        try:
            # uvloop, because sockets take half of an event's time. Without a runner, which would wait for handlers that
            # swallow their cancellation.
            loop = uvloop.new_event_loop()
            asyncio.set_event_loop(loop)
            task = loop.create_task(self._work(burst=burst, watch=watch))
            while not task.done():
                try:
                    loop.run_until_complete(task)
                except (SystemExit, KeyboardInterrupt) as error:  # A task of a handler has raised it: go on.
                    log.error("task_exited", exc_info=error, hint="a handler's task called sys.exit: raise an error")  # noqa: TRY400
            task.result()
        finally:
            with self._registration:
                self._is_registered = False
                try:
                    rq.register_death()
                except STORE_ERRORS as error:
                    log.warning("death_not_registered", error=type(error).__name__)
        return not self._exhausted

    async def _work(self, *, burst: bool, watch: Callable[[bool], None]) -> None:
        self._stopping = asyncio.Event()
        self._freed = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in stops():
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(HAND_BACK, self._interrupt_all)
        async with (
            build_worker(self._settings, self._registry, worker=self.name) as parts,
            beside(
                lambda: parts.auth.keep(parts.transport),
                lambda: self._watch_process(watch),
                lambda: self._listen(parts.store.redis),
            ),
        ):
            self._processor = parts.processor
            self._claims, self._breaker = parts.processor.claims, parts.processor.breaker
            with suppress(ApiError):  # The breaker then claims no events.
                await self._unless_stopped(parts.auth.token(parts.transport))
            self._lifespan = parts.lifespan
            await self._unless_stopped(parts.lifespan.start())
            self._on_start()
            self._takes_events = True
            watch(False)  # An event may block the loop before the next round.
            await self._take_and_start(burst=burst)
            await self._drain()
            watch(True)  # The plugins shut down next.

    async def _take_and_start(self, *, burst: bool) -> None:
        """Keep as many events in flight as there are places, until told to stop."""
        waits = Waits(_BACKOFF)
        while not self._stopping.is_set():
            if self._candidates is Candidates.ONLY and self._left_undone:
                return
            if self._room() <= 0:
                await self._until_freed()
                await asyncio.sleep(BATCH_WINDOW_SECONDS)
                continue
            if self._suspended:
                await _until(self._stopping, IDLE_SECONDS)
                continue
            try:
                group = min(self._room(), max(1, self._settings.concurrency // GROUPS))
                unfetched = sum(not attempt.calls_platform for attempt in self._attempts)
                self._breaker.return_unused(unfetched=unfetched)
                allowed = self._breaker.allows(group, unfetched=unfetched)
                if allowed == 0:
                    await self._until_freed(max(0.01, min(self._breaker.retry_in(), IDLE_SECONDS)))
                    continue
                taken = await self._take(allowed)
                is_over = taken.is_empty and not self._tasks and not taken.poison_candidates
                if is_over and (burst or self._candidates is Candidates.ONLY):
                    return
                await self._wait_after(taken)
                end_outage(waits)
            except STORE_ERRORS as error:
                wait = waits.next()
                log.error("redis_unusable", error=type(error).__name__, retry_in=wait, hint=hint(error))  # noqa: TRY400  No traceback.
                await _until(self._stopping, wait)
            except Exception as error:  # A defect of ours, which must not stop the events in flight.
                log.error("take_failed", exc_info=error)  # noqa: TRY400  Our processor keeps the message out.
                await _until(self._stopping, _BACKOFF.longest)

    async def _take(self, allowed: int) -> Taken:
        """Claim and start up to `allowed` events."""
        taken = await self._claims.take(allowed, candidates=self._candidates, platform=self._breaker.for_claims())
        self._breaker.claimed(len(taken.claims), taken.allowance)
        if taken.poison_candidates and self._candidates is Candidates.NONE:
            self._report_candidates()
        for claim in taken.claims:
            self._start(claim)
        return taken

    async def _wait_after(self, taken: Taken) -> None:
        """Wait until another take may give an event, but no longer than an idle worker waits."""
        if platform_wait := taken.allowance.seconds:
            await _until(self._stopping, min(platform_wait, IDLE_SECONDS))
        elif taken.is_empty:
            wait = IDLE_SECONDS if taken.due is None else min(IDLE_SECONDS, taken.due)
            if self._candidates is Candidates.ONLY:  # Its candidates are blocked. Other jobs do not concern it.
                await _until(self._stopping, IDLE_SECONDS)
            elif wait > 0:
                await self._unless_stopped(self._claims.wait_for_job(wait))

    def _room(self) -> int:
        if self._stopping.is_set():
            return 0
        # Events that wait for their settlement hold no place, but their number is limited as well.
        return min(self._settings.concurrency - len(self._attempts), 2 * self._settings.concurrency - len(self._tasks))

    def _start(self, claim: Claim) -> None:
        attempt = Attempt(claim)
        self._attempts.add(attempt)
        task = asyncio.create_task(self._process(attempt))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._freed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            # A defect of ours. The lease lapses, and the event is put back.
            self._left_undone = True
            log.error("attempt_failed", exc_info=error)

    async def _process(self, attempt: Attempt) -> None:
        """Handle the event, then the events of the same resource that have waited for it."""
        while True:
            settlement, following = await self._processor.handle(
                attempt, handled=self._handled, may_follow=self._may_follow
            )
            is_done = settlement is not None and settlement.state is State.DONE
            self._finished += is_done
            # What a candidate leaves behind, such as a timer that ends the process, must not blame the next candidate.
            self._left_undone = self._left_undone or not is_done
            if following is None:
                return
            attempt = Attempt(following, known=attempt.fetched)
            self._attempts.add(attempt)

    def _handled(self, attempt: Attempt) -> None:
        """Give the place to another event. This one is settled meanwhile."""
        self._attempts.discard(attempt)
        self._freed.set()

    def _may_follow(self) -> bool:
        """Return True if the next event of the resource may be claimed with the settlement."""
        going_on = not self._stopping.is_set() and not self._suspended
        return going_on and self._candidates is not Candidates.ONLY and self._breaker.pause() == 0

    async def _until_freed(self, seconds: float | None = None) -> None:
        """Return when a place has become free, when told to stop, or after so many seconds."""
        if not self._stopping.is_set():
            self._freed.clear()
        await _until(self._freed, seconds)

    async def _unless_stopped(self, awaited: Awaitable[object]) -> None:
        """Wait for the awaitable. If the worker is told to stop first, cancel it."""
        task, stop = asyncio.ensure_future(awaited), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    def _stop(self) -> None:
        """Claim no more events, and drain. A signal to the process group arrives twice and must not count as two."""
        if self._stopping.is_set():
            return
        log.info("worker_draining", under_way=len(self._attempts))
        self._drained_by = asyncio.get_running_loop().time() + self._settings.grace
        self._stopping.set()
        self._freed.set()

    async def _drain(self) -> None:
        """Finish the events in flight, or hand them back when the grace time is over."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, self._drained_by - asyncio.get_running_loop().time()))
        if self._tasks:
            self._interrupt_all()
            await asyncio.wait(self._tasks, timeout=SETTLE_SECONDS)

    def _interrupt_all(self) -> None:
        self._drained_by = 0.0  # Events that start later get no grace time either.
        for attempt in list(self._attempts):
            attempt.interrupt(Interruption.DRAINED)

    async def _watch_process(self, watch: Callable[[bool], None]) -> None:
        """Do the work due twice a second. Hung handlers can only be ended with their process."""
        runs = self._processor.runs
        closed_at = self._breaker.clock()
        while True:
            watch(not self._takes_events)
            now, phase = self._breaker.clock(), self._breaker.phase
            closed_at = now if phase is Phase.CLOSED else closed_at
            self.announced = {
                "in_flight": len(self._attempts),
                "started": self._takes_events and self._lifespan.has_started,
                "credential_error": self._breaker.credential_error,
                "breaker": phase.value,
                "breaker_seconds": round(now - closed_at, 1),
                "never_found": self._processor.lookups.never_found,
                "turns": self._processor.turns(),
            }
            metrics.BREAKER.set(phase is not Phase.CLOSED)
            metrics.IN_FLIGHT.set(len(self._attempts))
            metrics.HANDLERS_HUNG.set(runs.hung)
            if runs.are_too_many and not self._stopping.is_set():
                log.error("handlers_hung", hung=runs.hung, limit=runs.limit, hint="give the handlers' calls time-outs")
                self._exhausted = True
                self._stop()
            await asyncio.sleep(ROUND_SECONDS)

    def live_runs(self) -> list[Run]:
        """Return the runs of handlers that have not ended."""
        return [*self._processor.runs.alive.values()] if self._takes_events else []

    def show_to_rq(self) -> None:
        """Renew RQ's record of this worker, and ask whether RQ suspends workers. The heartbeat's thread calls it."""
        with self._registration:
            if not self._is_registered:
                return
            status = WorkerStatus.BUSY if self._attempts else WorkerStatus.IDLE
            finished = self._finished
            pipeline = self.connection.pipeline(transaction=False)
            pipeline.exists(WORKERS_SUSPENDED)
            pipeline.exists(self.key)
            self.heartbeat(pipeline=pipeline)
            self.set_state(WorkerStatus.SUSPENDED if self._suspended else status, pipeline=pipeline)
            pipeline.hincrby(self.key, "successful_job_count", finished)
            suspended, registered, *_ = pipeline.execute()
            self._finished -= finished
            if not registered:  # The record had expired, and these commands have created a part of it.
                self.connection.delete(self.key)
                rq: Any = super()
                rq.register_birth()
        if bool(suspended) != self._suspended:
            log.info("worker_suspended" if suspended else "worker_resumed")
        self._suspended = bool(suspended)

    async def _listen(self, redis: Any) -> None:
        """Obey the commands that RQ's tools send to this worker.

        Raises:
            RedisError, OSError: the subscription is lost. A box on the way may have forgotten it.
        """
        async with redis.pubsub() as channel:
            await channel.subscribe(self.pubsub_channel_name)
            while True:
                message = await channel.get_message(ignore_subscribe_messages=True, timeout=_SILENT_SECONDS)
                if message is None:
                    await channel.ping()
                    message = await channel.get_message(timeout=_SILENT_SECONDS)
                if message is None:
                    raise TimeoutError
                if message["type"] != "message":
                    continue
                command = parse_payload(message).get("command")
                if command == "shutdown":
                    log.warning("shutdown_commanded", hint="one of RQ's tools sent it, or another client of this Redis")
                    os.kill(os.getpid(), signal.SIGINT)
                else:
                    log.info("command_ignored", command=str(command)[:_COMMAND_LIMIT])


def end_outage(waits: Waits) -> None:
    """Start the waits for Redis again. If it was away, log for how long."""
    if away := waits.reset():
        log.info("redis_recovered", seconds=round(away, 1))


async def _until(event: asyncio.Event, seconds: float | None) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
