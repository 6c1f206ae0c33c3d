"""The circuit breaker of one process, and the guard that every call to the platform passes.

circuit.py decides when the circuit opens and closes. A circuit that opens pauses the whole fleet, see limits.py. Each
process learns of the fleet's pause when it claims events, and from its own calls once a second. During a pause no
attempt is spent. After the pause each process sends one probe; then traffic ramps up.

Without Redis the process goes by its own calls. If calls are limited, it then sends only the fetches that the bucket
has already counted.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Final, Self

import structlog

from credhook.settings import WorkerSettings
from credhook.store.errors import STORE_ERRORS
from credhook.store.store import AsyncStore
from credhook.worker import metrics
from credhook.worker.api.client import Permit
from credhook.worker.api.errors import CAUSES, ApiError, advice, hint
from credhook.worker.platform.circuit import (
    AnswerCount,
    CallOutcome,
    CallResult,
    Circuit,
    Phase,
    PlatformPaused,
    SlowStart,
    outcome_of,
)
from credhook.worker.platform.limits import Allowance, FleetLimits

log = structlog.get_logger("credhook.worker")

#: Seconds after which a call that was refused beside a probe may be tried again.
PROBE_RETRY_SECONDS: Final = 0.2
#: Seconds for which a call trusts what Redis said last about the fleet's pause.
ALLOWANCE_LASTS_SECONDS: Final = 1.0
#: Seconds that an answer of Redis may take, because calls wait for it.
REDIS_TIMEOUT_SECONDS: Final = 1.0
#: A pause that is longer than the current one by fewer seconds is neither shared nor logged.
WORTH_SAYING_SECONDS: Final = 1.0
#: Seconds for which a process claims no event after the platform has refused its fresh token.
REFUSED_SECONDS: Final = 10.0
TOKEN_POLL_SECONDS: Final = 0.1
SLOW_START_POLL_SECONDS: Final = 0.05


class CircuitBreaker:
    """The circuit breaker of one process. Create it on its running event loop.

    Attributes:
        clock: monotonic seconds.
        credential_error: why the platform accepts no credential of this process; "" if it does.
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
        """Create a closed circuit. Processes with the same `api_url` and queue share pause and rate.

        `rate`: requests per second of the whole fleet. `timeout`: seconds that a call may wait for the rate limit.
        """
        self.clock = clock
        self.credential_error = ""
        self._limits = FleetLimits(store, api_url, rate=rate, longest_wait=timeout)
        self._circuit = Circuit()
        self._slow_start = SlowStart()
        self._answers = AnswerCount()
        #: True while this process's probe is under way.
        self._probing = False
        #: True if each call needs a token of the bucket, as far as this process knows.
        self._limited = rate is not None
        self._allowance_until = 0.0
        #: Fetches that claims have counted in the bucket, and that are not made yet.
        self._fetches_due = 0
        #: Tokens of claimed events that needed no fetch. The next claim gives them back.
        self._unused = 0
        #: Until when this process claims no events, because its credentials are refused.
        self._held_until = 0.0
        self._lacks_token = False
        self._sharing: set[asyncio.Task[None]] = set()

    @classmethod
    def from_settings(cls, store: AsyncStore, settings: WorkerSettings) -> Self:
        """Create the breaker of the platform in the settings."""
        return cls(store, api_url=settings.api_url, rate=settings.rate, timeout=settings.fetch_timeout)

    async def aclose(self) -> None:
        """Finish sharing."""
        if self._sharing:
            await asyncio.wait(self._sharing)

    @property
    def phase(self) -> Phase:
        """Return the phase of this process's circuit."""
        return self._circuit.phase(self.clock())

    def pause(self) -> float:
        """Return the seconds until this process may claim events and send calls; 0 if now. Redis is not asked."""
        now = self.clock()
        return max(self._circuit.pause(now), self._held_until - now, TOKEN_POLL_SECONDS * self._lacks_token)

    def return_unused(self, *, unfetched: int) -> None:
        """Let the next claim give back the tokens of claimed events that have ended without a fetch.

        `unfetched`: claimed events that may still fetch their details.
        """
        unused = max(0, self._fetches_due - unfetched)
        self._fetches_due -= unused
        self._unused += unused

    def allows(self, wanted: int, *, unfetched: int) -> int:
        """Return how many of `wanted` events may be claimed: 0 if the circuit is open, 1 if it is half open.

        Slow start may allow fewer than wanted. `unfetched`: claimed events that may still fetch their details.
        """
        now = self.clock()
        phase = self._circuit.phase(now)
        if phase is Phase.OPEN or self._lacks_token or now < self._held_until:
            return 0
        if phase is Phase.HALF_OPEN:
            wanted = 0 if self._probing or unfetched else min(wanted, 1)
        if self.credential_error:
            wanted = min(wanted, 1)
        return self._slow_start.allows(wanted, now)

    def retry_in(self) -> float:
        """Return the seconds after which to call `allows` again, when it returned 0."""
        return self.pause() or SLOW_START_POLL_SECONDS

    def for_claims(self) -> tuple[str | float, ...]:
        """Return the platform's arguments of a claim; see `FleetLimits.for_claims`."""
        return tuple(self._limits.for_claims(self._unused))

    def claimed(self, count: int, allowance: Allowance) -> None:
        """Take in the reply to a claim."""
        self._unused = 0
        self._fetches_due += count
        self._slow_start.spend(count)
        self._adopt(allowance)
        if count and self.credential_error:  # One event tries whether the platform accepts our tokens again.
            self._held_until = self.clock() + REFUSED_SECONDS

    async def acquire(self, operation: str) -> "BreakerPermit":
        """Wait until the call may be sent. A call that no claim has counted asks Redis if calls are limited.

        Raises:
            PlatformPaused: The call may not be sent now.
        """
        self._check(operation)
        # Calls of handlers may come first, and then the fetch asks. The number of calls that ask is the same.
        is_counted = self._fetches_due > 0
        if is_counted:
            self._fetches_due -= 1
        elif self._limited or self.clock() >= self._allowance_until:
            await self._ask(operation)
            self._check(operation)
        is_probe = self._circuit.is_open
        if is_probe:
            self._probing = True
            log.info("platform_probed", operation=operation)
        return BreakerPermit(self, is_counted=is_counted, is_probe=is_probe)

    def record(self, outcome: CallOutcome | None, *, is_counted: bool, is_probe: bool) -> None:
        """Take in the end of a call.

        `outcome`: None says nothing about the platform. `is_counted`: True if a claim has counted the call.
        """
        if is_probe:
            self._probing = False
        if outcome is None:
            return
        if outcome.cause == "401":
            self._hold(_hint("401"), REFUSED_SECONDS)
        elif outcome.result is CallResult.ANSWERED:
            self._answers.add(outcome.at)
            if not self._lacks_token:
                self.credential_error, self._held_until = "", 0.0
            if is_counted:
                self._slow_start.succeeded()
        before, after = self._circuit, self._circuit.after(outcome)
        if after is before:
            return
        self._set(after)
        seconds = self._circuit.pause(outcome.at)
        if seconds - before.pause(outcome.at) > (WORTH_SAYING_SECONDS if before.pause(outcome.at) else 0.0):
            # A probe without an answer may have met a fault of our own network, which must not pause the fleet again.
            if outcome.result is CallResult.UNANSWERED and before.is_open:
                _log_pause(seconds, outcome.cause)
            else:
                task = asyncio.create_task(self._share(seconds, outcome), context=Context())  # In no caller's trace.
                self._sharing.add(task)
                task.add_done_callback(self._sharing.discard)

    def token_fetched(self, error: ApiError | None) -> None:
        """Take in the end of a token request. After a failure, claim no events until a token is granted."""
        if error is None:
            metrics.TOKEN_FETCHES.add("granted")
            if self._lacks_token:
                self.credential_error, self._held_until, self._lacks_token = "", 0.0, False
            return
        metrics.TOKEN_FETCHES.add("unanswered" if error.status is None else "refused")
        seconds, self._lacks_token = error.retry_after or 0.0, True
        self._hold(str(error), seconds)
        log.warning("token_refused", error=str(error), seconds=round(seconds, 1), hint=hint(error))

    def _hold(self, error: str, seconds: float) -> None:
        """Claim no events for some seconds. They cost no attempts here, and another process may have a credential."""
        self.credential_error, self._held_until = error, self.clock() + seconds

    def _check(self, operation: str) -> None:
        """Raise `PlatformPaused` during a pause, and beside a probe."""
        if self._circuit.is_open and (self._probing or self._circuit.pause(self.clock())):
            seconds = self.pause() or PROBE_RETRY_SECONDS
            raise _refusal(operation, f"the platform is paused for another {seconds:.1f} s", seconds)

    async def _ask(self, operation: str) -> None:
        """Take a token for the call and wait for it, if calls are limited. Learn of the fleet's pause."""
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_SECONDS):
                permitted, allowance = await self._limits.permit()
        except STORE_ERRORS:
            if self._limited:
                seconds = REDIS_TIMEOUT_SECONDS
                reason = "Redis does not answer, and CREDHOOK_RATE or an earlier 429 limits the calls"
                raise _refusal(operation, reason, seconds) from None
            self._allowance_until = self.clock() + ALLOWANCE_LASTS_SECONDS
            return
        self._adopt(allowance)
        self._check(operation)
        if not permitted:
            reason = f"CREDHOOK_RATE, or the pace after a 429, leaves no turn for {allowance.wait:.1f} s"
            raise _refusal(operation, reason, allowance.wait)
        await asyncio.sleep(allowance.wait)

    def _adopt(self, allowance: Allowance) -> None:
        now = self.clock()
        self._limited = allowance.limited
        self._allowance_until = now + ALLOWANCE_LASTS_SECONDS
        if allowance.pause:
            self._set(self._circuit.paused(now + allowance.pause))

    def _set(self, circuit: Circuit) -> None:
        before, self._circuit = self._circuit, circuit
        if before.is_open and not circuit.is_open:
            self._slow_start.begin(self.clock())
            log.info("platform_resumed")

    async def _share(self, seconds: float, outcome: CallOutcome) -> None:
        """Pause the fleet, and log the pause unless another process has begun it. This process pauses in any case."""
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_SECONDS):
                answers = self._answers.per_second(outcome.at)
                before, passed = await self._limits.pause(seconds, outcome.cause, answers=answers)
        except STORE_ERRORS as error:
            log.warning("platform_unshared", error=type(error).__name__, hint="other processes find out by themselves")
            before, passed = 0.0, None
        if seconds - before > WORTH_SAYING_SECONDS or not before:
            _log_pause(seconds, outcome.cause, passed)


@dataclass(slots=True)  # Not frozen, as in api/http/exchange.py.
class BreakerPermit(Permit):
    """Permission for one call."""

    breaker: CircuitBreaker
    is_counted: bool
    is_probe: bool

    def ended(self, status: int | None, *, retry_after: float | None = None, cause: str = "") -> None:
        """Report the end of the call."""
        self._record(outcome_of(status, retry_after, at=self.breaker.clock(), probe=self.is_probe, cause=cause))

    def cancelled(self) -> None:
        """Report that the call was cancelled or never sent."""
        self._record(None)

    def _record(self, outcome: CallOutcome | None) -> None:
        self.breaker.record(outcome, is_counted=self.is_counted, is_probe=self.is_probe)


def _refusal(operation: str, reason: str, seconds: float) -> PlatformPaused:
    metrics.CALLS_REFUSED.add()
    return PlatformPaused(f"{operation}: not sent: {reason}", operation=operation, retry_after=seconds)


def _log_pause(seconds: float, cause: str, passed: float | None = None) -> None:
    fields = {} if passed is None else {"passed_per_second": round(passed, 1)}
    log.warning("platform_paused", seconds=round(seconds, 1), cause=cause, **fields, hint=_hint(cause, passed))


def _hint(cause: str, passed: float | None = None) -> str:
    if passed is not None:
        return f"about {passed:.1f} requests/s have passed; set CREDHOOK_RATE to what the platform allows"
    if cause == "401":
        return (
            "the platform refuses fresh tokens; check CREDHOOK_CLIENT_ID and its permissions, CREDHOOK_TOKEN_URL and "
            "CREDHOOK_API_URL"
        )
    return (
        advice("", cause) if cause in CAUSES else "the platform failed or asked for a pause; calls resume by themselves"
    )
