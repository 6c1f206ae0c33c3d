"""Process claimed events. `Processor` makes one attempt: fetch the details, run the handlers, settle the event."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Optional

import structlog

from credhook.settings import WorkerSettings
from credhook.store import FETCH, GAVE_UP, LONGEST_WAIT, TOOK, WORKER, State
from credhook.store.errors import STORE_ERRORS
from credhook.worker import metrics
from credhook.worker.api.client import Api, AsyncApi
from credhook.worker.api.errors import NotFound, hint
from credhook.worker.attempt import retry
from credhook.worker.attempt.attempt import (
    DONE,
    SKIPPED,
    Attempt,
    Interruption,
    failure_of,
)
from credhook.worker.attempt.details import SEALED, Lookups, Snapshots, fetch, state_of
from credhook.worker.attempt.running import Runs, StillRunning, run
from credhook.worker.handlers.arguments import (
    Context,
    Details,
    FailedRun,
    FetchedEvent,
    Progress,
    refuse_progress,
)
from credhook.worker.handlers.registry import HOOK_SECONDS, Handler, Registry
from credhook.worker.platform.circuit_breaker import CircuitBreaker
from credhook.worker.queue.claims import Claim, Claims, Settlement, is_stale
from credhook.worker.queue.failure import WORKER_DIED
from credhook.worker.queue.leases import Leases

if TYPE_CHECKING:
    from credhook.worker.tracing import AttemptTracer

log = structlog.get_logger("credhook.worker")

#: An event is given up once this many workers have died while it was their only event.
MAX_KILLED: Final = 2
#: An event is given up after this many claims that ended without a settlement, for any reason. Deaths of hosts are
#: not its fault, so the number is far above what a fleet meets in a day.
MAX_LAPSES: Final = 30
#: In place of a span, if nothing is traced.
_NO_SPAN: Final = nullcontext()
#: What to do about a handler's error, by its class.
_HINTS: Final = {
    "HandlerTimeout": "Give its calls time-outs, or raise CREDHOOK_HANDLER_TIMEOUT or the handler's own timeout=",
    "BlockingError": "Make the handler a plain def, which runs in a thread, or await a call that does not block",
}


class Clients(NamedTuple):
    """The platform's client, for the loop and for threads."""

    api: AsyncApi
    in_thread: Api


@dataclass(eq=False)
class Processor:
    """Makes the attempts of one process, up to `CREDHOOK_CONCURRENCY` at a time. `states`: see `Lifespan`."""

    settings: WorkerSettings
    claims: Claims
    registry: Registry
    breaker: CircuitBreaker
    clients: Clients
    snapshots: Snapshots
    states: Mapping[str, Any]
    tracer: Optional["AttemptTracer"] = None

    def __post_init__(self) -> None:
        concurrency = self.settings.concurrency
        self.leases, self.runs, self._places = Leases(self.claims), Runs(concurrency), asyncio.Semaphore(concurrency)
        self.lookups = Lookups()
        #: Handler → when each event that waits for it asks again, in monotonic seconds, in the order of their turns.
        self._turns: dict[str, deque[float]] = {}
        self._plugins = {plugin.name: plugin for plugin in self.registry.plugins}
        self._log = log.bind()  # The module's logger would bind anew for each event.

    async def handle(
        self,
        attempt: Attempt,
        *,
        handled: Callable[[Attempt], None] = lambda _: None,
        may_follow: Callable[[], bool] = lambda: False,
    ) -> tuple[Settlement | None, Claim | None]:
        """Make the attempt and settle. Return the settlement, or None if the lease was lost; and the next claim.

        `handled` is called when the handlers have ended, before the event is settled. Then `may_follow` returns True if
        the settlement may also claim the next event of the resource, which waits for this event.
        """
        with self.tracer.attempt(attempt.claim) if self.tracer else _NO_SPAN as span:
            self.leases.hold(attempt.claim, lambda: attempt.interrupt(Interruption.LEASE_LOST))
            try:
                try:
                    attempt.begin()
                    async with self._places:  # Only an event that follows another one may have to wait.
                        attempt.began = time.monotonic()
                        await self._try(attempt)
                except asyncio.CancelledError:
                    if attempt.interruption is None:
                        raise
                finally:
                    attempt.end()
                    handled(attempt)
                self._note_given_up(attempt)
                # The calls of hooks may take longer than the lease of a following event lasts.
                may_follow_now = not attempt.hook_calls and may_follow()
                settlement, following = await self._settle(attempt, follow=may_follow_now)
            finally:
                self.leases.release(attempt.claim)
            if span is not None:
                span.settled(settlement, attempt.failures)
            if settlement is not None:
                await self._run_hooks(attempt)
            return settlement, following

    async def _try(self, attempt: Attempt) -> None:
        """Fetch the details and run every handler that is due."""
        claim = attempt.claim
        matching = self.registry.matching(claim.type)
        attempt.wanted = [handler for handler in matching if not claim.only or handler.name in claim.only]
        if claim.lapses >= MAX_LAPSES or claim.killed >= MAX_KILLED:
            attempt.given_up = retry.WorkerDied()
            if WORKER not in claim.causes:  # The worker's death was not noted yet.
                attempt.add_failure(WORKER_DIED)
            return
        if awaited := claim.only | claim.pending:
            attempt.missing = tuple(sorted(awaited.difference(claim.ended, [handler.name for handler in matching])))
        handlers = await self._ready(attempt)
        if not handlers:  # Nothing is fetched: presented data may be readable only once.
            return
        attempt.calls_platform = True
        try:
            fetched = await fetch(claim, self.clients.api, self.snapshots, attempt.known)
        except Exception as error:  # noqa: BLE001  The retry policy judges all errors.
            number = claim.attempt(FETCH)
            decision = retry.after_fetch(
                error, number, age=claim.age, max_attempts=self.settings.max_attempts, pause=self.breaker.pause()
            )
            late = error.fetched if isinstance(error, retry.DetailsLate) else None
            if late is None or not isinstance(decision, retry.GiveUp):
                self._fetch_failed(attempt, error, number, decision)
                return
            log.warning(
                "details_without_data", **attempt.ids, hint="The handlers run: event.details.raw is all that came"
            )
            fetched = late
        else:
            self.lookups.note(claim.type, claim.resource_id, is_found=True)
        attempt.fetched = fetched
        attempt.version = state_of(claim.type, fetched.details.updated_at)
        await self.run_handlers(attempt, fetched.details, handlers)

    def _fetch_failed(
        self, attempt: Attempt, error: Exception, number: int, decision: retry.Retry | retry.GiveUp
    ) -> None:
        cause_id, advice = attempt.add_failure(failure_of(error)), hint(error)
        if isinstance(error, NotFound):
            self.lookups.note(attempt.claim.type, attempt.claim.resource_id, is_found=False)
            advice = self.lookups.hint(attempt.claim.type)
        log.warning(
            "fetch_failed",
            **attempt.ids,
            attempt=number,
            error=retry.error_text(error),
            exc_info=error,
            retry_in=_retry_in(decision),
            hint=advice,
            cause=cause_id,
        )
        attempt.failed(FETCH, error, decision)

    async def _ready(self, attempt: Attempt) -> list[Handler]:
        """Return the handlers that can run now: those that are due, whose `after` has ended or is among them."""
        claim = attempt.claim
        if not claim.is_due(FETCH):
            return []
        ready, waiting = list[Handler](), set[str]()
        for handler in attempt.wanted:
            name = handler.name
            if name in claim.ended:
                continue
            if not claim.is_due(name) or handler.after in waiting:
                waiting.add(name)
            elif obstacle := await self._obstacle(claim, handler):
                waiting.add(name)
                _defer(attempt, handler, obstacle)
            else:
                ready.append(handler)
        return ready

    async def _obstacle(self, claim: Claim, handler: Handler) -> retry.Defer | None:
        """Return why a due handler cannot run now, or None."""
        if self.runs.defer_to(claim.event_id, handler.name):
            return StillRunning()
        if self._plugins[handler.plugin].startup_function and handler.plugin not in self.states:
            return retry.PluginNotStarted(self._turn(handler, retry.START_AGAIN_SECONDS))
        # At a first attempt presented data may not wait, and a condition may yet forbid the run.
        return None if claim.first else await self._place(claim, handler)

    async def _place(self, claim: Claim, handler: Handler) -> retry.Defer | None:
        """Take a place for a handler with a concurrency limit or a rate. Return why there is none."""
        limit, rate = handler.concurrency, handler.runs_per_second
        if not limit and not rate:
            return None
        try:
            has_place, wait = await self.claims.acquire_place(claim, handler.name, limit, rate)
        except STORE_ERRORS as error:
            log.warning("places_unknown", webhook_id=claim.event_id, error=type(error).__name__)
            has_place, wait = False, 0.0
        if has_place:
            if wait:
                await asyncio.sleep(wait)
            return None
        if rate and wait:  # Events that wait ask in turn, no more often than there are turns.
            return retry.RateReached(self._turn(handler, wait, 1 / rate))
        return retry.ConcurrencyReached(self._turn(handler, retry.PLACE_AGAIN_SECONDS))

    def _turn(self, handler: Handler, seconds: float, apart: float | None = None) -> float:
        """Return the seconds, at least `seconds`, until the event asks again for a handler that cannot run.

        `apart`: seconds between two events of this process that ask for the handler; None: PLACE_TURN_SECONDS.
        """
        now, turns = time.monotonic(), self._turns.setdefault(handler.name, deque())
        following = (turns[-1] if turns else 0.0) + (apart or retry.PLACE_TURN_SECONDS)
        earliest = now + seconds
        turns.append(max(earliest, min(following, earliest + retry.LAST_TURN_SECONDS)))
        return min(turns[-1] - now, LONGEST_WAIT)

    def turns(self) -> dict[str, tuple[int, float]]:
        """Return handler → how many events wait for their turn with it, and the seconds until the last asks again."""
        now, waiting = time.monotonic(), dict[str, tuple[int, float]]()
        for name, turns in self._turns.items():
            while turns and turns[0] <= now:
                turns.popleft()
            # They are not sorted, because a handler's rate may put an event off for longer than its places do.
            if ahead := [turn for turn in turns if turn > now]:
                waiting[name] = len(ahead), round(max(ahead) - now, 1)
        return waiting

    async def run_handlers(self, attempt: Attempt, details: Details, handlers: Sequence[Handler]) -> None:
        """Run the handlers concurrently, but those with `after=` once the other has ended. Record each as it ends."""
        attempt.dispatched = tuple([handler.name for handler in handlers])
        if len(handlers) == 1:  # Most events: no task beside this one.
            await self._run_handler(attempt, details, handlers[0])
            return
        running = len(handlers)
        tasks: dict[str, asyncio.Task[None]] = {}

        async def run_one(handler: Handler, before: "asyncio.Task[None] | None") -> None:
            nonlocal running
            if before is not None:
                await asyncio.wait({before})
            await self._run_handler(attempt, details, handler)
            running -= 1
            if running:  # The settlement records the last handler, and releases its place.
                await self._record(attempt, handler)
                if handler.concurrency:
                    await self.claims.release_place(attempt.claim, handler.name)

        for handler in handlers:
            tasks[handler.name] = asyncio.create_task(run_one(handler, tasks.get(handler.after or "")))
        # Not a task group: if Redis refuses the record of one handler, the others run to their end.
        for error in await asyncio.gather(*tasks.values(), return_exceptions=True):
            if error is not None:
                raise error

    async def _run_handler(self, attempt: Attempt, details: Details, handler: Handler) -> None:
        """Run one handler and note its status or failure in the attempt."""
        claim, name = attempt.claim, handler.name
        # A worker that lost this event may have recorded the handler after our claim.
        status = "" if claim.first else await self.claims.ended(claim, name)
        attempt.check()
        if status:
            attempt.statuses[name] = status
            return
        number = attempt.run_number(name)
        event = _event(claim, number, details)
        if not self._may_run(attempt, event, handler):
            return
        if claim.first and (obstacle := await self._place(claim, handler)):
            _defer(attempt, handler, obstacle)
            return
        attempt.check()
        context = self._context(attempt, handler, number)
        timeout, began = handler.timeout or self.settings.handler_timeout, time.monotonic()
        with self.tracer.handler(handler, event) if self.tracer else _NO_SPAN as span:
            failure = await run(handler, event, context, timeout=timeout, runs=self.runs)
            if span is not None and failure is not None and not isinstance(failure, retry.Retry):
                span.failed(failure)
        seconds = time.monotonic() - began
        ms = round(seconds * 1000, 1)
        if not isinstance(failure, StillRunning):
            metrics.HANDLER_SECONDS.observe(seconds, name)
        if failure is not None:
            self._fail(attempt, handler, failure, ms)
            return
        self._end(attempt, handler, DONE, took=f"{TOOK}{ms:.0f}")
        attempt.durations[name] = ms

    def _context(self, attempt: Attempt, handler: Handler, number: int) -> Context[Any, Any]:
        """Return the context of the handler's run with this number."""
        return Context(
            self.clients.api if handler.is_async else self.clients.in_thread,
            self._log.bind(**attempt.ids, attempt=number, handler=handler.name),
            f"{attempt.claim.event_id}:{handler.name}",
            is_stale(attempt.version or (0, 0), attempt.claim.latest),
            self.states.get(handler.plugin),
            Progress(
                partial(self._progress, attempt, handler),
                partial(self._save_progress, attempt, handler) if handler.types else refuse_progress,
                asyncio.get_running_loop(),
            ),
            self.settings.queue,
        )

    def _progress(self, attempt: Attempt, handler: Handler) -> bytes | None:
        """Return what the handler has saved in an earlier attempt, or None."""
        saved = attempt.claim.progress.get(handler.name)
        if saved is None:
            return None
        if not saved.startswith(SEALED):
            return saved.encode()
        progress = self.snapshots.unseal(f"{attempt.claim.event_id} {handler.name}", saved.encode())
        if progress is None:
            hint = "It begins anew. Add the key that sealed its progress to CREDHOOK_SNAPSHOT_KEY"
            log.warning("progress_unreadable", **attempt.ids, handler=handler.name, hint=hint)
        return progress

    async def _save_progress(self, attempt: Attempt, handler: Handler, progress: bytes) -> None:
        sealed = self.snapshots.seal(f"{attempt.claim.event_id} {handler.name}", progress)
        if not await self.claims.save_progress(attempt.claim, handler.name, sealed.decode()):
            raise RuntimeError("progress not saved: this worker no longer has the event")

    def _note_given_up(self, attempt: Attempt) -> None:
        """Note the handlers that do not run again because the whole event was given up."""
        if attempt.given_up is not None and attempt.interruption is None:
            for handler in attempt.wanted:
                if handler.name in attempt.unfinished:
                    self._note_failed_run(attempt, handler, attempt.given_up, will_retry=False, is_run=False)

    def _note_failed_run(
        self, attempt: Attempt, handler: Handler, error: Exception, *, will_retry: bool, is_run: bool
    ) -> None:
        """Note which functions of the plugin to call. If not `is_run`, the handler was given up without a run."""
        hooks = self._plugins[handler.plugin].hooks(is_run=is_run, will_retry=will_retry)
        details = attempt.fetched.details if attempt.fetched else None
        event = _event(attempt.claim, attempt.run_number(handler.name) - (not is_run), details)
        failure = FailedRun(error, event, handler.name, will_retry)
        attempt.hook_calls += [(failure, hook) for hook in hooks]

    async def _run_hooks(self, attempt: Attempt) -> None:
        """Call the functions of `on_error` and `on_give_up`, one after the other. A failure of theirs is logged."""
        for failure, hook in attempt.hook_calls:
            event = failure.event
            context = self._context(attempt, hook, event.attempt)
            error = await run(hook, event, context, timeout=HOOK_SECONDS, runs=self.runs, failure=failure)
            if error is not None:
                ids = attempt.ids | {"handler": failure.handler, "hook": hook.name}
                log.warning("hook_failed", **ids, error=retry.error_text(error), exc_info=error, at=[hook.at])

    def _may_run(self, attempt: Attempt, event: FetchedEvent, handler: Handler) -> bool:
        """Return False if the handler's `after` or `condition` forbids the run, and note its status if it has ended."""
        ended = attempt.claim.ended
        if handler.after and (handler.after in ended or any(wanted.name == handler.after for wanted in attempt.wanted)):
            needed = attempt.statuses.get(handler.after) or ended.get(handler.after)
            if needed is None:
                return False  # That handler will be retried, and this one runs after it.
            if needed == SKIPPED:
                self._end(attempt, handler, SKIPPED)
                return False
            if needed.startswith(GAVE_UP):
                self._fail(attempt, handler, retry.GiveUp(f"{handler.after} was given up"), is_run=False)
                return False
        try:
            is_wanted = handler.wants(event)
        except Exception as error:  # noqa: BLE001  The author's code.
            self._fail(attempt, handler, error)
            return False
        if not is_wanted:
            self._end(attempt, handler, SKIPPED)
        return is_wanted

    def _fail(
        self, attempt: Attempt, handler: Handler, error: Exception, ms: float | None = None, *, is_run: bool = True
    ) -> None:
        """Note the failure. If not `is_run`, the handler has not run, since its `after` was given up."""
        claim, name = attempt.claim, handler.name
        decision = retry.after_handler(
            error,
            claim.attempt(name),
            age=claim.age,
            max_attempts=handler.max_attempts(self.settings.max_attempts),
            pause=self.breaker.pause(),
            backoff=handler.backoff or retry.BACKOFF,
            give_up_on=handler.give_up_on,
        )
        if is_run and retry.is_chosen(error, decision):
            reason, retry_in = retry.error_text(error), _retry_in(decision)
            ids = attempt.ids | {"handler": name, "attempt": attempt.run_number(name)}
            log.info("retry_chosen", **ids, reason=reason, retry_in=retry_in, ms=ms)
            attempt.retries[name] = {"who": name, "what": reason, "ms": ms}
            _count(attempt, handler, "retried")
            attempt.failed(name, error, decision)
            return
        cause = attempt.add_failure(failure_of(error, handler, ms)) if is_run else None
        is_final = isinstance(decision, retry.GiveUp)
        if cause or is_final:
            self._note_failed_run(attempt, handler, error, will_retry=not is_final, is_run=is_run)
        log.warning(
            "handler_failed",
            **attempt.ids,
            handler=name,
            attempt=attempt.run_number(name),
            error=retry.error_text(error),
            exc_info=error,
            at=[handler.at],  # The log replaces it by the lines of the author that the error came through.
            final=is_final,
            retry_in=_retry_in(decision),
            hint=_HINTS.get(type(error).__name__, ""),
            ms=ms,
            cause=cause,
        )
        if is_final:
            self._end(attempt, handler, GAVE_UP + retry.error_text(error))
        else:
            _count(attempt, handler, "deferred" if isinstance(decision, retry.Defer) else "failed")
        attempt.failed(name, error, decision)

    @staticmethod
    def _end(attempt: Attempt, handler: Handler, status: str, took: str = "") -> None:
        attempt.statuses[handler.name] = status
        attempt.unwritten[handler.name] = took or status
        _count(attempt, handler, "gave_up" if status.startswith(GAVE_UP) else status)

    async def _record(self, attempt: Attempt, handler: Handler) -> None:
        """Write down how the handler has ended, if it has."""
        name = handler.name
        if status := attempt.unwritten.get(name):
            failure = next((failure for failure in attempt.failures if failure.who == name), None)
            await self.claims.record(attempt.claim, name, status, attempt.pending, failure)
            attempt.unwritten.pop(name, None)

    async def _settle(self, attempt: Attempt, *, follow: bool) -> tuple[Settlement | None, Claim | None]:
        claim, settlement = attempt.claim, attempt.settlement()
        is_ours, following = await self.claims.settle(claim, settlement, follow=follow)
        if not is_ours:
            metrics.LEASES_LOST.add()
            log.warning("lease_lost", **attempt.ids)
            return None, None
        if settlement.state is not State.WAITING:
            self.snapshots.recent.drop(claim.event_id)
        metrics.ATTEMPTS.add(settlement.state)
        if settlement.state is State.DONE:
            metrics.DELIVERY_TO_DONE.observe(claim.age + time.monotonic() - attempt.began)
        self._log_result(attempt, settlement)
        return settlement, following

    def _log_result(self, attempt: Attempt, settlement: Settlement) -> None:
        fields = attempt.ids | {"handlers": [*attempt.durations], "ms": [*attempt.durations.values()]}
        if skipped := [name for name, status in attempt.statuses.items() if status == SKIPPED]:
            fields["skipped"] = skipped
        if attempts := {name: number for name, (number, *_) in settlement.schedules.items() if number > 1}:
            fields["attempts"] = attempts
        if settlement.state is State.DONE:
            self._log.info("event_done", **fields)
        elif settlement.state is State.WAITING:
            fields["retry_in"] = {name: round(wait.seconds, 1) for name, wait in attempt.waits.items()}
            # An event that only waits for its turn is no news: of a backlog, each asks again and again.
            write = log.info if attempt.failures or attempt.retries else log.debug
            write("event_waiting", error=settlement.error, seconds=round(settlement.wait, 1), **fields)
        elif settlement.state is State.ACCEPTED:
            log.info("event_handed_back", **fields)
        elif settlement.state is State.UNHANDLED:
            lacking = attempt.missing or sorted(attempt.claim.only)
            hint = "No handler that is loaded here wants it. It waits for a worker that has one"
            if lacking:
                rename = "credhook events replay --state unhandled --renamed"
                hint = f"It waits for a handler of this name. If renamed: {rename}"
            log.warning("event_unhandled", lacking=[*lacking] or "any", hint=hint, **fields)
        else:
            hint = f"credhook events show {quote(attempt.claim.event_id)}"
            log.error("event_" + settlement.state.value, error=settlement.error, hint=hint, **fields)


def _event(claim: Claim, number: int, details: Details | None) -> FetchedEvent[Any]:
    """Return the event as a handler gets it. `number`: of the handler's run."""
    age = timedelta(milliseconds=round(claim.age * 1_000))
    return FetchedEvent(claim.type, claim.resource_id, claim.event_id, claim.received_at, number, details, age)


def _retry_in(decision: retry.Retry | retry.GiveUp) -> float | None:
    """Return the seconds until the next attempt, for the log; None if there is none."""
    return round(decision.after or 0.0, 1) if isinstance(decision, retry.Retry) else None


def _defer(attempt: Attempt, handler: Handler, obstacle: retry.Defer) -> None:
    attempt.failed(handler.name, obstacle, obstacle)
    _count(attempt, handler, "deferred")


def _count(attempt: Attempt, handler: Handler, outcome: str) -> None:
    metrics.HANDLER_RUNS.add(handler.name, attempt.claim.type, outcome)
