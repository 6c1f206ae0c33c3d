"""The job: `process(event_id)`. Claim the event, fetch what it refers to, run the handlers, settle.

Stock `rq worker` can run it, our own worker does. It never fails in RQ's eyes: whatever goes wrong is decided here and
kept in the ledger, so that RQ stores neither results nor tracebacks.
"""

import asyncio
import functools
import math
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Final

import rq
import structlog

from credhook import configure_logs
from receiver.ledger.connection import open_redis
from worker.api.auth import ClientCredentials
from worker.api.client import AsyncApi, SyncApi
from worker.api.models import Issuance, Presentation
from worker.claims import Claim, Claims, NotClaimed
from worker.handlers import Context, FetchedEvent, Handler, Registry, load
from worker.retry import GiveUp, Retry, cause, decide
from worker.settings import WorkerSettings

log = structlog.get_logger("credhook.worker")

#: RQ counts retries and stops at a maximum of its own; the policy in retry.py stops long before.
_RQ_NEVER_STOPS: Final = 1_000_000

#: Seconds that a handler past its time-out gets to clean up after itself.
_CANCEL_GRACE: Final = 1.0


class LeaseLost(Exception):
    """The process stalled for longer than its lease; another worker may have the event by now."""


async def process(event_id: str) -> rq.Retry | None:
    """Work on one event, as the job that the receiver enqueued.

    Returns:
        `rq.Retry` if another attempt is due later, which RQ's scheduler then starts; None otherwise.
    """
    shared = _shared()
    settings = shared.settings
    redis = open_redis(settings.redis_url.get_secret_value())
    claims = Claims(redis, lease=settings.lease, retention=settings.retention)
    asynchronous = AsyncApi.from_settings(settings, auth=shared.auth)
    synchronous = SyncApi.from_settings(settings, auth=shared.auth)
    try:
        again = await Processor(settings, claims, shared.registry, asynchronous, synchronous).process(event_id)
    finally:
        await asynchronous.aclose()
        synchronous.close()
        await redis.aclose()
    # RQ counts whole seconds, and an interval of 0 would enqueue at once.
    return None if again is None else rq.Retry(max=_RQ_NEVER_STOPS, interval=max(1, math.ceil(again)))


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all jobs of a process have in common: reading it anew would cost more than the job."""

    settings: WorkerSettings
    registry: Registry
    auth: ClientCredentials


@functools.cache
def _shared() -> _Shared:
    if (
        not structlog.is_configured()
    ):  # Under stock `rq worker`; structlog's own default would print messages and locals.
        configure_logs()
    settings = WorkerSettings()
    return _Shared(
        settings,
        load(settings.handlers),
        ClientCredentials.from_settings(settings),
    )


class Processor:
    """One event at a time through claim, fetch, dispatch, settle; many may run beside each other."""

    def __init__(
        self,
        settings: WorkerSettings,
        claims: Claims,
        registry: Registry,
        asynchronous: AsyncApi,
        synchronous: SyncApi,
    ) -> None:
        self._claims = claims
        self._registry = registry
        self._api = asynchronous
        self._sync_api = synchronous
        self._handler_timeout = settings.handler_timeout
        self._max_attempts = settings.max_attempts

    async def process(self, event_id: str) -> float | None:
        """Make one attempt at the event, if it is to be had; seconds until the next attempt, if there is to be one."""
        claim = await self._claims.claim(event_id)
        if isinstance(claim, NotClaimed):
            log.info("event_left", webhook_id=event_id, reason=claim.value)
            return None
        bound = log.bind(
            webhook_id=event_id, event_type=claim.type, resource_id=claim.resource_id, attempt=claim.attempt
        )
        try:
            failures = await self._while_ours(claim, self._attempt(claim, bound))
            return await self._settle(claim, failures, bound)
        except LeaseLost:
            bound.warning("lease_lost")
            return None

    async def _while_ours(self, claim: Claim, work: Awaitable[Sequence[Exception]]) -> Sequence[Exception]:
        """The work's result, with the lease renewed beside it.

        Raises:
            LeaseLost: the work was cancelled, since the claim was lost.
        """
        working, keeping = asyncio.ensure_future(work), asyncio.create_task(self._keep(claim))
        try:
            await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise LeaseLost
            return working.result()
        finally:
            working.cancel()
            keeping.cancel()

    async def _keep(self, claim: Claim) -> None:
        """Renew the lease until it is lost."""
        while True:
            await asyncio.sleep(self._claims.lease / 3)
            if not await self._claims.renew(claim):
                return

    async def _attempt(self, claim: Claim, bound: structlog.stdlib.BoundLogger) -> Sequence[Exception]:
        """Fetch the details and run every handler that has not ended yet; what went wrong, if anything."""
        handlers = [one for one in self._registry.matching(claim.type) if one.name not in claim.ended]
        if not handlers:
            return ()
        try:
            details = await self._fetch(claim)
        except Exception as error:  # noqa: BLE001  Whatever it is, it is the policy's to judge.
            bound.warning("fetch_failed", error=cause(error), exc_info=error)
            return (error,)
        event = FetchedEvent(claim.type, claim.resource_id, claim.event_id, claim.received_at, claim.attempt, details)
        failures = []
        for handler in handlers:
            failure = await self._run(handler, event, claim, bound.bind(handler=handler.name))
            if failure is not None:
                failures.append(failure)
        return failures

    async def _fetch(self, claim: Claim) -> Issuance | Presentation:
        if claim.type.startswith("openid4vc.issuance."):
            return await self._api.issuances.get(claim.resource_id)
        return await self._api.presentations.get(claim.resource_id)

    async def _run(
        self, handler: Handler, event: FetchedEvent, claim: Claim, bound: structlog.stdlib.BoundLogger
    ) -> Exception | None:
        """Run one handler and record how it ended; its failure, if the event must come back for it."""
        context = Context(handler.api(self._api, self._sync_api), bound, f"{event.webhook_id}:{handler.name}")
        try:
            await self._within_time(handler, event, context)
        except Exception as error:  # noqa: BLE001  Handlers are other people's code: they may raise anything.
            decision = decide(error, claim.attempt, max_attempts=self._max_attempts)
            bound.warning("handler_failed", error=cause(error), exc_info=error, final=isinstance(decision, GiveUp))
            if isinstance(decision, Retry):
                return error
            await self._claims.record(claim, handler.name, f"dead: {cause(error)}")
            return GiveUp(f"{handler.name}: {cause(error)}")
        await self._claims.record(claim, handler.name, "done")
        bound.info("event_handled")
        return None

    async def _within_time(self, handler: Handler, event: FetchedEvent, context: Context) -> None:
        """Run the handler, and stop waiting for it when its time is over, even if it will not be cancelled."""
        if handler.is_async:
            running = asyncio.ensure_future(handler.function(event, context))
        else:
            running = asyncio.ensure_future(asyncio.to_thread(handler.function, event, context))
        await asyncio.wait({running}, timeout=self._handler_timeout)
        if running.done():
            running.result()
            return
        running.cancel()
        await asyncio.wait({running}, timeout=_CANCEL_GRACE)
        raise TimeoutError(f"the handler took longer than {self._handler_timeout} s")

    async def _settle(
        self, claim: Claim, failures: Sequence[Exception], bound: structlog.stdlib.BoundLogger
    ) -> float | None:
        """Write down what the attempt came to; seconds until the next one, if there is to be one."""
        decisions = [(decide(error, claim.attempt, max_attempts=self._max_attempts), error) for error in failures]
        waits = [(decision.after or 0.0, error) for decision, error in decisions if isinstance(decision, Retry)]
        if waits:
            seconds, error = min(waits, key=lambda wait: wait[0])
            if not await self._claims.wait(claim, cause(error), seconds):
                raise LeaseLost
            bound.info("event_waiting", error=cause(error), seconds=round(seconds, 1))
            return seconds
        final = [decision for decision, _ in decisions if isinstance(decision, GiveUp)]
        given_up = [how for how in claim.ended.values() if how.startswith("dead")]
        if final or given_up:
            reason = final[0].reason if final else given_up[0].removeprefix("dead: ")
            if not await self._claims.dead(claim, reason):
                raise LeaseLost
            bound.error("event_dead", error=reason, hint=f"credhook events show {claim.event_id}")
        else:
            if not await self._claims.done(claim):
                raise LeaseLost
            bound.info("event_done")
        return None
