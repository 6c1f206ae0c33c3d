"""The job: `process(event_id)`. Claim the event, fetch what it refers to, run the handlers, settle.

Stock `rq worker` can run it, our own worker does. It never fails in RQ's eyes: whatever goes wrong is decided here and
kept in the ledger, so that RQ stores neither results nor tracebacks.
"""

import asyncio
import functools
import math
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import rq
import structlog
from redis.exceptions import RedisError

from credhook import configure_logs
from receiver.ledger.connection import open_redis
from worker.api.auth import ClientCredentials
from worker.api.client import AsyncApi, SyncApi
from worker.api.errors import NotAuthenticated, TryLater
from worker.api.models import Issuance, Presentation
from worker.claims import Claim, Claims, NotClaimed
from worker.handlers import Context, FetchedEvent, Handler, Registry, load
from worker.outcome import DONE, GAVE_UP, Outcome
from worker.retry import GiveUp, after_fetch, after_handler, cause
from worker.running import run
from worker.settings import WorkerSettings

log = structlog.get_logger("credhook.worker")

#: RQ counts retries and stops at a maximum of its own; the policy in retry.py stops long before.
_RQ_NEVER_STOPS: Final = 1_000_000


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
    claims = Claims(redis, queue=settings.queue, lease=settings.lease, retention=settings.retention)
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


def _hint(error: Exception) -> str:
    """Which setting is the likely cause, for the operator."""
    if isinstance(error, NotAuthenticated):
        return "check CREDHOOK_CLIENT_ID, CREDHOOK_CLIENT_SECRET and CREDHOOK_TOKEN_URL"
    if isinstance(error, TryLater) and error.status is None:
        return "no answer; check CREDHOOK_API_URL and CREDHOOK_TOKEN_URL"
    return ""


class Processor:
    """Events through claim, fetch, dispatch, settle; many may be under way beside each other."""

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
        """Make one attempt at the event, if it is to be had; seconds until the next one, if there is to be one."""
        claim = await self._claims.claim(event_id)
        if isinstance(claim, NotClaimed):
            log.info("event_left", webhook_id=event_id, reason=claim.value)
            return None
        bound = log.bind(
            webhook_id=event_id, event_type=claim.type, resource_id=claim.resource_id, attempt=claim.attempt
        )
        try:
            outcome = await self._while_ours(claim, self._attempt(claim, bound))
            return await self._settle(claim, outcome, bound)
        except LeaseLost:
            bound.warning("lease_lost")
            return None

    async def _while_ours(self, claim: Claim, attempt: Coroutine[Any, Any, Outcome]) -> Outcome:
        """The attempt's outcome, with the lease renewed beside it.

        Raises:
            LeaseLost: the claim was lost, and the attempt has been cancelled.
        """
        working, keeping = asyncio.create_task(attempt), asyncio.create_task(self._keep(claim))
        try:
            await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise LeaseLost
            return working.result()
        finally:
            for task in (working, keeping):
                task.cancel()
            await asyncio.gather(working, keeping, return_exceptions=True)

    async def _keep(self, claim: Claim) -> None:
        """Renew the lease; return once it is lost, or as good as lost: Redis could not be told for so long."""
        lease = self._claims.lease
        until = time.monotonic() + lease
        while time.monotonic() < until:
            await asyncio.sleep(lease / 4)
            with suppress(RedisError, OSError):
                if not await self._claims.renew(claim):
                    return
                until = time.monotonic() + lease

    async def _attempt(self, claim: Claim, bound: structlog.stdlib.BoundLogger) -> Outcome:
        """Fetch the details and run every handler that has not ended yet."""
        if claim.attempt > self._max_attempts:  # The last one ended without a word: its process died.
            return Outcome(gave_up=("WorkerDied",))
        handlers = [one for one in self._registry.matching(claim.type) if one.name not in claim.ended]
        before = Outcome.before(claim.ended)
        if not handlers:
            if not claim.ended:
                bound.warning("event_unhandled", hint="no handler that is loaded here wants this type")
            return before
        try:
            details = await self._fetch(claim)
        except Exception as error:  # noqa: BLE001  Whatever it is, it is the policy's to judge.
            bound.warning("fetch_failed", error=cause(error), exc_info=error, hint=_hint(error))
            decision = after_fetch(error, claim.attempt, age=claim.age, max_attempts=self._max_attempts)
            return before.after("", error, decision)
        event = FetchedEvent(claim.type, claim.resource_id, claim.event_id, claim.received_at, claim.attempt, details)
        outcome = before
        for handler in handlers:
            if claim.attempt > 1 and await self._claims.has_ended(claim, handler.name):
                continue
            outcome = await self._run(handler, event, claim, bound.bind(handler=handler.name), outcome)
        return outcome

    async def _fetch(self, claim: Claim) -> Issuance | Presentation:
        if claim.type.startswith("openid4vc.issuance."):
            return await self._api.issuances.get(claim.resource_id)
        return await self._api.presentations.get(claim.resource_id)

    async def _run(
        self,
        handler: Handler,
        event: FetchedEvent,
        claim: Claim,
        bound: structlog.stdlib.BoundLogger,
        outcome: Outcome,
    ) -> Outcome:
        """Run one handler and record how it ended; the outcome, with that taken in."""
        context = Context(handler.api(self._api, self._sync_api), bound, f"{event.webhook_id}:{handler.name}")
        error = await run(handler, event, context, timeout=self._handler_timeout)
        if error is None:
            await self._claims.record(claim, handler.name, DONE)
            bound.info("event_handled")
            return outcome
        decision = after_handler(error, claim.attempt, max_attempts=self._max_attempts)
        final = isinstance(decision, GiveUp)
        bound.warning("handler_failed", error=cause(error), exc_info=error, final=final)
        if final:
            await self._claims.record(claim, handler.name, GAVE_UP + cause(error))
        return outcome.after(handler.name, error, decision)

    async def _settle(self, claim: Claim, outcome: Outcome, bound: structlog.stdlib.BoundLogger) -> float | None:
        """Write down what the attempt came to; seconds until the next one, if there is to be one.

        Raises:
            LeaseLost: it was not ours to settle any more.
        """
        if outcome.again is not None:
            settled = await self._claims.wait(claim, outcome.error, outcome.again)
            bound.info("event_waiting", error=outcome.error, seconds=round(outcome.again, 1))
        elif outcome.gave_up:
            settled = await self._claims.dead(claim, outcome.gave_up[0])
            bound.error("event_dead", error=outcome.gave_up[0], hint=f"credhook events show {claim.event_id}")
        else:
            settled = await self._claims.done(claim)
            bound.info("event_done")
        if not settled:
            raise LeaseLost
        return outcome.again
