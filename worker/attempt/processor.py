"""One attempt at an event that has been claimed: fetch, run the handlers, settle."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Optional

import structlog
from redis.exceptions import RedisError

from credhook.store import State
from credhook.worker import metrics
from credhook.worker.api.calls.hints import hint
from credhook.worker.attempt.attempt import Attempt, Interruption
from credhook.worker.attempt.details import fetch
from credhook.worker.attempt.dispatch import Dispatch, Dispatcher
from credhook.worker.attempt.failures import of_fetch, stands_with, stopped, story
from credhook.worker.attempt.outcome import SKIPPED, Outcome
from credhook.worker.attempt.retry import ConcurrencyReached, after_fetch, cause
from credhook.worker.attempt.runs import StillRunning
from credhook.worker.attempt.slots import Slot
from credhook.worker.attempt.snapshots import Snapshots
from credhook.worker.attempt.staleness import is_stale, version
from credhook.worker.handlers.given import FetchedEvent
from credhook.worker.handlers.handler import Handler
from credhook.worker.handlers.registry import Registry
from credhook.worker.platform.circuit_breaker import CircuitBreaker
from credhook.worker.queue.claim import Claim, Settlement
from credhook.worker.queue.claims import Claims
from credhook.worker.queue.failure import WORKER, worker_died
from credhook.worker.queue.leases import Leases
from credhook.worker.queue.semaphore import Semaphores
from credhook.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from credhook.worker.tracing.attempts import AttemptTracer

log = structlog.get_logger("credhook.worker")

_DONE: Final = State.DONE  # An enumeration looks its members up in Python, ten times as long as a name takes.
#: Worker processes that one event may take with it.
MOST_KILLED: Final = 2


class Processor:
    """Takes claimed events to their end; many may be under way beside each other."""

    def __init__(
        self,
        settings: WorkerSettings,
        claims: Claims,
        registry: Registry,
        breaker: CircuitBreaker,
        *,
        snapshots: Snapshots,
        semaphores: Semaphores,
        states: Mapping[str, Any],
        tracer: Optional["AttemptTracer"] = None,
    ) -> None:
        """`states`: plugin's name → what its start-up returned; `tracer`: traces attempts and handlers."""
        self.leases = Leases(claims)
        self._claims = claims
        self._registry = registry
        self._breaker = breaker
        self._snapshots = snapshots
        self._semaphores = semaphores
        self._max_attempts = settings.max_attempts
        self._plans: dict[str, tuple[tuple[Handler, ...], int]] = {}
        self._dispatcher = Dispatcher(settings, claims, breaker, states)
        self.runs = self._dispatcher.runs
        self._tracer = tracer
        self._log = log.bind()
        if tracer is not None:
            self._dispatcher.run_handler = tracer.run_handler

    def keep(self, attempt: Attempt) -> None:
        """Have the attempt's lease renewed from now on; losing it breaks the attempt off."""
        self.leases.hold(attempt.claim, lambda: attempt.interrupt(Interruption.LEASE_LOST))

    async def handle(
        self,
        attempt: Attempt,
        slot: Slot,
        *,
        follow: bool = False,
        tried: Callable[[], None] = lambda: None,
    ) -> tuple[Settlement | None, Claim | None]:
        """Make the attempt and write down what it came to.

        Args:
            attempt: at what.
            slot: the clients to use.
            follow: whether to claim the resource's next event, if one has waited for this one.
            tried: called when the slot is needed no more: what follows is writing down.

        Returns:
            How the event was settled, or None if it was not ours to settle any more; and the claim that follows.
        """
        if self._tracer is None:
            return await self._handle(attempt, slot, follow=follow, tried=tried)
        with self._tracer.attempt(attempt.claim) as span:
            settlement, following = await self._handle(attempt, slot, follow=follow, tried=tried)
            span.settled(settlement, attempt.failures)
            return settlement, following

    async def _handle(
        self, attempt: Attempt, slot: Slot, *, follow: bool, tried: Callable[[], None]
    ) -> tuple[Settlement | None, Claim | None]:
        self.keep(attempt)
        attempt.began = self._dispatcher.clock()
        try:
            try:
                attempt.begin()
                await self._try(attempt, slot)
            except asyncio.CancelledError:
                if attempt.interruption is None:
                    raise
            finally:
                wanted = attempt.end()
                tried()
            if not wanted:
                raise asyncio.CancelledError
            if attempt.admitted and not attempt.asks:
                with suppress(RedisError, OSError):  # The bucket fills by itself.
                    await self._breaker.give_back(1)  # Others can have the call that was admitted, and not made.
            return await self._settle(attempt, follow=follow)
        finally:
            self.leases.release(attempt.claim)

    async def _try(self, attempt: Attempt, slot: Slot) -> None:
        """Fetch the details and run every handler that has not ended yet."""
        claim = attempt.claim
        matching, most_attempts = self._plan(claim.type)
        if claim.only or claim.pending:
            here = {one.name for one in matching}
            attempt.missing = tuple(sorted((claim.only | claim.pending) - here - claim.ended.keys()))
        # The last one ended without a word: its process died. Two that died with nothing else under way are enough.
        # How many attempts a handler has that is not here, only others know.
        if (claim.attempt > most_attempts and not attempt.missing) or claim.killed >= MOST_KILLED:
            attempt.outcome = Outcome(gave_up=("WorkerDied",), whole=True)
            if WORKER not in claim.causes:  # Nobody has seen it die.
                attempt.note(worker_died())
            return
        wanted = matching if not claim.only else [one for one in matching if one.name in claim.only]
        if not wanted:
            attempt.outcome = Outcome(unhandled=True)
            return
        handlers = [one for one in wanted if one.name not in claim.ended]
        attempt.outcome = Outcome.before(claim.ended)
        if not handlers:
            return
        if all(self.runs.keeps_waiting(claim.event_id, one.name) for one in handlers):
            # Nothing is fetched for nobody: what is presented may be readable only once.
            still_running = StillRunning()
            attempt.outcome = attempt.outcome.after(handlers[0].name, still_running, still_running)
            return
        if limits := {one.name: one.concurrency for one in handlers if one.concurrency}:
            full = await self._without_place(claim, limits)
            if full is not None:
                no_place = ConcurrencyReached()
                attempt.outcome = attempt.outcome.after(full, no_place, no_place)
                return
        attempt.asks = True
        try:
            api = slot.fetching if attempt.admitted else slot.calling
            attempt.fetched = fetched = await fetch(claim, api, self._snapshots, attempt.known)
        except Exception as error:  # Whatever it is, it is the policy's to judge.
            id_ = attempt.note(of_fetch(error))
            log.warning("fetch_failed", **attempt.ids, error=cause(error), exc_info=error, hint=hint(error), cause=id_)
            pause = self._breaker.pause()
            decision = after_fetch(error, claim.attempt, age=claim.age, max_attempts=most_attempts, pause=pause)
            attempt.outcome = attempt.outcome.after("", error, decision)
            return
        details = fetched.details
        event = FetchedEvent(claim.type, claim.resource_id, claim.event_id, claim.received_at, claim.attempt, details)
        attempt.version = version(claim.type, details.updated_at)
        stale = is_stale(attempt.version, claim.latest)
        names = [*claim.ended, *(one.name for one in wanted)]
        attempt.dispatched = tuple(one.name for one in handlers)
        await Dispatch(self._dispatcher, event, attempt, slot, stale, names).run(handlers)

    def _plan(self, event_type: str) -> tuple[tuple[Handler, ...], int]:
        """The handlers that run for events of a type, and after how many attempts the last of them is given up."""
        plan = self._plans.get(event_type)
        if plan is None:
            matching = self._registry.matching(event_type)
            most = max([self._max_attempts, *(one.most_attempts(self._max_attempts) for one in matching)])
            plan = self._plans[event_type] = matching, most
        return plan

    async def _without_place(self, claim: Claim, limits: Mapping[str, int]) -> str | None:
        """The first handler that can have no further event now, or None; the first if Redis does not say."""
        try:
            return await self._semaphores.acquire(claim, limits)
        except (RedisError, OSError) as error:
            log.warning("places_unknown", webhook_id=claim.event_id, error=type(error).__name__)
            return next(iter(limits))

    async def _settle(self, attempt: Attempt, *, follow: bool) -> tuple[Settlement | None, Claim | None]:
        claim = attempt.claim
        if attempt.interruption is Interruption.LEASE_LOST:
            await self._dispatcher.record(attempt, *attempt.records)
            _report_lost(attempt)
            return None, None
        settlement = self._settlement(attempt)
        ours, following = await self._claims.settle(claim, settlement, follow=follow)
        if not ours:
            _report_lost(attempt)
            return None, None
        metrics.ATTEMPTS.add(settlement.state)
        if settlement.state is _DONE:
            metrics.DELIVERY_TO_DONE.observe(claim.age + self._dispatcher.clock() - attempt.began)
        _report(self._log, settlement, attempt)
        return settlement, following

    def _settlement(self, attempt: Attempt) -> Settlement:
        if attempt.interruption is None:
            settlement = attempt.outcome.settlement(attempt.missing)
        elif attempt.interruption is Interruption.DRAINED:
            settlement = Settlement(State.ACCEPTED, spend=False)
        else:
            settlement = Settlement(State.DEAD, "Stopped")
            attempt.note(stopped())
        claim, fetched, is_done = attempt.claim, attempt.fetched, settlement.state is _DONE
        causes: Mapping[str, str] = {}
        if not is_done:
            causes = stands_with(claim.causes, attempt.failures, attempt.ends, fetched=fetched is not None)
        return settlement._replace(
            records=attempt.records,
            pending=attempt.pending,
            sealed=claim.seen or (fetched is not None and fetched.has_data),
            latest=attempt.version if is_done or attempt.ran else None,
            failures=tuple(attempt.uncounted().values()),
            causes=causes,
            absolved={who: one for who, one in claim.causes.items() if causes.get(who) != one},
            story=story(attempt, settlement),
        )


def _report_lost(attempt: Attempt) -> None:
    metrics.LEASES_LOST.add()
    log.warning("lease_lost", **attempt.ids)


def _report(log: Any, settlement: Settlement, attempt: Attempt) -> None:
    """One line for each attempt, at least: what it came to, with the handlers that have ended in it and their times.

    `log` is bound: one that is not binds anew for each line, which takes a third of what the line takes.
    """
    said = attempt.ids | {"handlers": [*attempt.ran], "ms": [*attempt.ran.values()]}
    if skipped := [name for name, how in attempt.ends.items() if how == SKIPPED]:
        said["skipped"] = skipped
    if settlement.state is _DONE:
        log.info("event_done", **said)
    elif settlement.state is State.WAITING:
        log.info("event_waiting", error=settlement.error, seconds=round(settlement.wait, 1), **said)
    elif settlement.state is State.ACCEPTED:
        log.info("event_handed_back", **said)
    elif settlement.state is State.UNHANDLED:
        hint = "no handler that is loaded here wants it; it waits for a worker that has one"
        lacking = settlement.only or sorted(attempt.claim.only)
        log.warning("event_unhandled", lacking=[*lacking] or "any", hint=hint, **said)
    else:
        hint = f"credhook events show {attempt.claim.event_id}"
        log.error("event_" + settlement.state.value, error=settlement.error, hint=hint, **said)
