"""The fleet's circuit breaker for one platform, shared through Redis, and the guard that every call passes.

The circuit opens. Attempts are not consumed. One probe is sent; then traffic ramps up. circuit.py decides, and
shared_circuit.py tells the fleet. Each process decides from memory, so a healthy platform costs no Redis command.
Without Redis each process goes by its own calls. With a rate limit it then sends only the calls that the bucket has
already counted.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import structlog

from credhook.settings import WorkerSettings
from credhook.store.errors import STORE_ERRORS
from credhook.store.store import AsyncStore
from credhook.worker import metrics
from credhook.worker.api.client import Guard, Permit
from credhook.worker.api.errors import CAUSES, ApiError, advice, hint
from credhook.worker.platform.circuit import (
    CallOutcome,
    CallResult,
    Circuit,
    Phase,
    PlatformPaused,
    SlowStart,
    outcome_of,
)
from credhook.worker.platform.rate_limit import RateLimit
from credhook.worker.platform.shared_circuit import (
    REDIS_TIMEOUT_SECONDS,
    CircuitStore,
    SharedCircuit,
    circuit_key,
)

log = structlog.get_logger("credhook.worker")

#: Seconds in which an event that was admitted as the probe must call; then another process may probe.
PROBE_BEGINS_SECONDS: Final = 5.0
#: Seconds after which a process asks again whether the probe is free, about.
PROBE_RETRY_SECONDS: Final = 0.2
#: Seconds by which a pause must differ to be worth a log line, or a second message.
WORTH_SAYING_SECONDS: Final = 1.0
#: Seconds for which a process claims no event after the platform has refused its fresh token.
REFUSED_SECONDS: Final = 10.0
TOKEN_POLL_SECONDS: Final = 0.1
SLOW_START_POLL_SECONDS: Final = 0.05


class CircuitBreaker:
    """The fleet's circuit breaker as one process knows it. Create it on its running event loop.

    Attributes:
        clock: monotonic seconds.
        credential_error: why the platform accepts no credential of this process; "" if it does.
        fetches: guard of calls that `admit` has admitted, each once.
        calls: guard of all other calls.
    """

    def __init__(
        self,
        store: AsyncStore,
        *,
        api_url: str,
        rate: float | None = None,
        timeout: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a closed circuit. Processes with the same `api_url` and queue share it.

        `rate`: requests per second of the whole fleet. `timeout`: seconds that a call may take, and that it may wait
        for the rate limit.
        """
        self.clock, self._timeout = clock, timeout
        self.credential_error = ""
        key = circuit_key(api_url, store.queue)
        self._store = CircuitStore(store, key, clock=clock)
        self._rate_limit = RateLimit(store, f"{key}:bucket", per_second=rate) if rate is not None else None
        #: The circuit in Redis (None before its first answer), the outcomes that Redis lacks, the circuit after both.
        self._shared: SharedCircuit | None = None
        self._unpublished: list[CallOutcome] = []
        self._circuit = Circuit()
        self._publisher: asyncio.Task[None] | None = None
        self._slow_start = SlowStart()
        #: Until when our own probe may be under way, and until when an event admitted as the probe may call.
        self._probing_until = self._admitted_until = 0.0
        self._probe_ended = False
        self._ask_again_at = 0.0
        #: Until when this process claims no events, since its credentials are refused, and if it lacks a token.
        self._held_until, self._lacks_token = 0.0, False
        self.fetches: Guard = partial(self.acquire, admitted=True)
        self.calls: Guard = partial(self.acquire, admitted=False)

    @classmethod
    def from_settings(cls, store: AsyncStore, settings: WorkerSettings) -> Self:
        """Create the breaker of the platform in the settings."""
        return cls(store, api_url=settings.api_url, rate=settings.rate, timeout=settings.fetch_timeout)

    async def watch(self) -> None:
        """Follow the circuit in Redis until cancelled."""
        next_second = self.clock()
        async with aclosing(self._store.changes()) as changes:
            async for shared in changes:
                self._adopt(shared)
                if self.clock() >= next_second:
                    next_second = self.clock() + 1.0
                    self._slow_start.second_passed()

    async def aclose(self) -> None:
        """Finish publishing."""
        if self._publisher is not None:
            await self._publisher

    def pause(self) -> float:
        """Return the seconds until calls may be sent, from memory; 0 if now."""
        now = self.clock()
        return max(self._circuit.pause(now), self._held_until - now, TOKEN_POLL_SECONDS * self._lacks_token)

    def retry_in(self) -> float:
        """Return the seconds after which to call `admit` again, when it gave less than was wanted."""
        wait = max(self.pause(), self._ask_again_at - self.clock())
        return wait if wait > 0 or self._slow_start.allows(1) else SLOW_START_POLL_SECONDS

    async def admit(self, wanted: int) -> int:
        """Return how many of `wanted` events may be claimed: 0 if the circuit is open, 1 if it is half open.

        Slow start and the rate limit may allow fewer than wanted.

        Raises:
            RedisError, OSError: There is a rate limit, and Redis does not answer.
        """
        await self._know_circuit()
        phase = self._circuit.phase(now := self.clock())
        if wanted <= 0 or phase is Phase.OPEN or self._lacks_token or now < max(self._ask_again_at, self._held_until):
            return 0
        if self.credential_error:  # One event tries whether the platform accepts our tokens again.
            self._held_until, wanted = now + REFUSED_SECONDS, 1
        if phase is Phase.HALF_OPEN:
            return int(await self._admit_probe())
        allowed, granted = self._slow_start.allows(wanted), 0
        self._slow_start.spend(allowed)
        try:
            taken = allowed
            if allowed and self._rate_limit is not None:
                taken, wait = await self._rate_limit.take(allowed)
                self._ask_again_at = self.clock() + wait
            granted = 0 if self._circuit.is_open else taken
        finally:
            self._slow_start.spend(granted - allowed)
        return granted

    async def _admit_probe(self) -> bool:
        """Return True if one event may be claimed as the probe. It takes no token: the bucket filled in the pause."""
        if await self._take_probe(PROBE_BEGINS_SECONDS):
            self._admitted_until = self.clock() + PROBE_BEGINS_SECONDS
            return True
        self._ask_again_at = self.clock() + PROBE_RETRY_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311  Jitter.
        return False

    async def give_back(self, unused: int) -> None:
        """Return admissions for which no event was found. Raises as `admit` does."""
        if unused <= 0:
            return
        self._slow_start.spend(-unused)
        if self.clock() < self._admitted_until:
            self._admitted_until = self._probing_until = 0.0
            await self._store.release_probe()
        elif self._rate_limit is not None:
            await self._rate_limit.take(-unused)

    async def acquire(self, operation: str, *, admitted: bool) -> "BreakerPermit":
        """Wait until the call may be sent. `admitted`: `admit` has counted the call already.

        Raises:
            PlatformPaused: The call may not be sent.
        """
        await self._know_circuit()
        if not admitted and self._rate_limit is not None and not self._circuit.is_open:
            await self._wait_for_rate_limit(operation, self._rate_limit)
        if self._circuit.phase(self.clock()) is Phase.HALF_OPEN and await self._may_probe(admitted=admitted):
            log.info("platform_probed", operation=operation)
            return BreakerPermit(self, admitted=admitted, probe=True)
        if self._circuit.is_open:
            seconds = self.pause() or PROBE_RETRY_SECONDS
            raise _refusal(operation, f"the platform is paused for another {seconds:.1f} s", seconds)
        return BreakerPermit(self, admitted=admitted)

    def record(self, outcome: CallOutcome | None, *, probe: bool, admitted: bool) -> None:
        """Take in the end of a call. None says nothing about the platform."""
        if probe:
            self._probing_until, self._probe_ended = 0.0, True
        if outcome is not None:
            answered = outcome.result is CallResult.ANSWERED
            if outcome.cause == "401":
                self._hold(_hint("401"), REFUSED_SECONDS)
            elif answered and not self._lacks_token:
                self.credential_error, self._held_until = "", 0.0
            if answered and admitted:
                self._slow_start.succeeded()
            if probe or not answered or self._circuit.score:
                self._unpublished.append(outcome)
                self._set(self._circuit.after(outcome))
        self._publish_soon()

    def token_fetched(self, error: ApiError | None) -> None:
        """Take in the end of a token request. After a failure, claim no events until a token is granted.

        Each failure counts in the fleet's circuit, which opens if most processes get no token.
        """
        if error is None:
            metrics.TOKEN_FETCHES.add("granted")
            if self._lacks_token:
                self.credential_error, self._held_until, self._lacks_token = "", 0.0, False
            return
        metrics.TOKEN_FETCHES.add("unanswered" if error.status is None else "refused")
        seconds, self._lacks_token = error.retry_after or 0.0, True
        self._hold(str(error), seconds)
        log.warning("token_refused", error=str(error), seconds=round(seconds, 1), hint=hint(error))
        self.record(outcome_of(None, None, at=self.clock(), cause="token"), probe=False, admitted=False)

    def _hold(self, error: str, seconds: float) -> None:
        """Claim no events for some seconds. They cost no attempts here, and another process may have a credential."""
        self.credential_error, self._held_until = error, self.clock() + seconds

    async def _know_circuit(self) -> None:
        """Read the circuit if it was never read: a process may start during a pause."""
        if self._shared is None:
            self._adopt(await self._store.load())

    async def _wait_for_rate_limit(self, operation: str, limit: RateLimit) -> None:
        taken, wait = 0, REDIS_TIMEOUT_SECONDS
        with suppress(*STORE_ERRORS):
            taken, wait = await limit.take(1, max_wait=self._timeout)
        if not taken:
            raise _refusal(operation, f"CREDHOOK_RATE leaves no turn for {wait:.1f} s", wait)
        await asyncio.sleep(wait)

    async def _may_probe(self, *, admitted: bool) -> bool:
        now, lasts = self.clock(), self._timeout + 1.0
        if now < self._admitted_until:
            self._admitted_until, self._probing_until = 0.0, now + lasts
            return await self._store.take_probe(lasts) is not False
        return not admitted and await self._take_probe(lasts)

    async def _take_probe(self, seconds: float) -> bool:
        """Acquire the fleet's probe; without Redis, this process's."""
        now = self.clock()
        if now < self._probing_until:
            return False
        self._probing_until = now + seconds
        is_ours = await self._store.take_probe(seconds) is not False
        if not is_ours:
            self._probing_until = 0.0
        return is_ours

    def _adopt(self, shared: SharedCircuit | None) -> None:
        """Take in the circuit of Redis, followed by the outcomes that Redis does not know.

        A pause never ends early: if Redis has forgotten it, it is published again.
        """
        if shared is None:
            return
        now, known = self.clock(), self._shared.circuit if self._shared else Circuit()
        self._shared = shared
        if known.is_open and known.until - max(now, shared.circuit.until) > WORTH_SAYING_SECONDS:
            forgotten = CallOutcome(CallResult.REFUSED, now, 0.0, known.until - now, cause="forgotten")
            self._unpublished.append(forgotten)
        self._set(shared.circuit.after_all(self._unpublished))
        self._publish_soon()

    def _set(self, circuit: Circuit) -> None:
        before, self._circuit = self._circuit, circuit
        if before.is_open and not circuit.is_open:
            self._slow_start.begin()
            self._ask_again_at = 0.0

    def _publish_soon(self) -> None:
        if (self._unpublished or self._probe_ended) and (self._publisher is None or self._publisher.done()):
            self._publisher = asyncio.create_task(self._publish(), context=Context())  # No caller's trace applies.

    async def _publish(self) -> None:
        """Write all outcomes that have come together to Redis; start again if another process was faster."""
        while self._unpublished or self._probe_ended:
            if not self._unpublished:
                self._probe_ended = False
                await self._store.release_probe()
                continue
            count, known = len(self._unpublished), self._shared or SharedCircuit()
            circuit, cause = known.circuit.after_all(self._unpublished), self._unpublished[-1].cause
            if circuit == known.circuit:
                self._unpublished.clear()
                continue
            reply = await self._store.compare_and_set(known.version, circuit)
            if reply is None:  # Until Redis is back, this process goes by its own calls.
                self._log_transition(known.circuit, self._circuit, cause)
                self._shared = known._replace(circuit=self._circuit)
                self._unpublished.clear()
                continue
            replaced, shared = reply
            if replaced:
                del self._unpublished[:count]
                self._log_transition(known.circuit, circuit, cause)
            self._adopt(shared)

    def _log_transition(self, before: Circuit, after: Circuit, cause: str) -> None:
        now = self.clock()
        longer = after.until - max(now, before.until)
        if after.is_open and longer > (WORTH_SAYING_SECONDS if before.until > now else 0.0):
            log.warning("platform_paused", seconds=round(after.until - now, 1), cause=cause, hint=_hint(cause))
        elif before.is_open and not after.is_open:
            log.info("platform_resumed")


@dataclass(slots=True)  # Not frozen, as in api/http/exchange.py.
class BreakerPermit(Permit):
    """Permission for one call."""

    breaker: CircuitBreaker
    admitted: bool
    probe: bool = False

    def ended(self, status: int | None, *, retry_after: float | None = None, cause: str = "") -> None:
        """Report the end of the call."""
        self._record(outcome_of(status, retry_after, at=self.breaker.clock(), probe=self.probe, cause=cause))

    def cancelled(self) -> None:
        """Report that the call was cancelled or never sent."""
        self._record(None)

    def _record(self, outcome: CallOutcome | None) -> None:
        self.breaker.record(outcome, probe=self.probe, admitted=self.admitted)


def _refusal(operation: str, reason: str, seconds: float) -> PlatformPaused:
    metrics.CALLS_REFUSED.add()
    return PlatformPaused(f"{operation}: not sent: {reason}", operation=operation, retry_after=seconds)


def _hint(cause: str) -> str:
    if cause == "token":
        return "workers get no access token: see token_refused in their logs"
    if cause == "401":
        return (
            "the platform refuses fresh tokens; check CREDHOOK_CLIENT_ID and its permissions, CREDHOOK_TOKEN_URL and "
            "CREDHOOK_API_URL"
        )
    return (
        advice("", cause) if cause in CAUSES else "the platform failed or asked for a pause; calls resume by themselves"
    )
