"""What the fleet knows of the platform's breaker, and the guards that every call passes.

One process learns that the platform wants to be left alone, and all leave it alone: `breaker` decides, `circuit_store`
tells the others, and what is needed to decide about a call is in memory. Without Redis each process goes by what it
meets itself; but under a rate it makes no call that the fleet's bucket has not counted.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from contextvars import Context
from dataclasses import replace
from typing import Final, Self

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from credhook.worker import metrics
from credhook.worker.api.calls.hints import CAUSES, advice
from credhook.worker.api.guard import Guard
from credhook.worker.platform.breaker import Circuit, Kind, Outcome, Phase, PlatformPaused, SlowStart
from credhook.worker.platform.breaker_guard import BreakerGuard, BreakerPermit
from credhook.worker.platform.circuit_snapshot import CircuitSnapshot
from credhook.worker.platform.circuit_store import PATIENCE, CircuitStore
from credhook.worker.platform.trial import Trial
from credhook.worker.settings import WorkerSettings

log = structlog.get_logger("credhook.worker")

#: Seconds in which an event that was admitted as the probe must have called; then another may.
BEGIN: Final = 5.0
#: Seconds after which to ask again whether the probe is free, about.
ASK_AGAIN: Final = 0.2
#: Seconds by which a pause must differ to be worth a log line, or a second message.
WORTH_SAYING: Final = 1.0
#: Poll interval while slow start's budget is spent, in seconds.
SOON: Final = 0.05


class SharedBreaker:
    """The fleet's circuit breaker for one platform, as this process knows it; to be made on its running event loop.

    Attributes:
        clock: tells the seconds that it decides by.
        fetches: the guard of calls that `admit` has admitted, each once.
        calls: the guard of all others.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        api_url: str,
        rate: float | None = None,
        timeout: float = 10.0,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Know nothing yet.

        Args:
            redis: where the fleet's circuit is; not closed by us.
            api_url: root of the API: who has the same sees the same breaker.
            rate: requests per second that the whole fleet makes, or None for any number.
            timeout: seconds that a call may take, and that it may wait for its turn.
            patience: seconds until a silent Redis counts as gone: each process then goes by what it meets itself.
            clock: tells monotonic seconds.
            chance: draws from 0 to 1.
        """
        self.clock, self._chance = clock, chance
        self._store = CircuitStore(redis, api_url, timeout=timeout, patience=patience, clock=clock)
        self._rate, self._timeout = rate, timeout
        #: What Redis said last; what follows from that, and from the outcomes that it has not been told.
        self._snapshot, self._circuit = CircuitSnapshot(), Circuit()
        self._unpublished: list[Outcome] = []
        self._publisher: asyncio.Task[None] | None = None
        self._slow_start, self._trial = SlowStart(), Trial(clock)
        #: Until when a probe of ours may be under way, and until when one that was admitted may begin.
        self._probing_until = self._admitted_until = 0.0
        self._ask_again_at, self._probe_is_over = 0.0, False
        self.fetches: Guard = BreakerGuard(self, prepaid=True)
        self.calls: Guard = BreakerGuard(self, prepaid=False)

    @classmethod
    def from_settings(cls, redis: Redis, settings: WorkerSettings) -> Self:
        """Take what is to be known from the worker's settings."""
        return cls(redis, api_url=settings.api_url, rate=settings.rate, timeout=settings.fetch_timeout)

    async def watch(self) -> None:
        """Learn what the others find out; until cancelled."""
        second_passes_at = self.clock()
        async with aclosing(self._store.changes()) as snapshots:
            async for snapshot in snapshots:
                self._read(snapshot)
                if self.clock() >= second_passes_at:
                    second_passes_at = self.clock() + 1.0
                    self._slow_start.second_passed()

    async def aclose(self) -> None:
        """Finish telling the others what is being told."""
        if self._publisher is not None:
            await self._publisher

    def pause(self) -> float:
        """Seconds until calls may be made again, from memory; 0 if now."""
        return max(0.0, self._circuit.until - self.clock()) if self._circuit.is_open else 0.0

    def retry_in(self) -> float:
        """Seconds after which to ask `admit` again when it gave less than was wanted; from memory."""
        wait = max(self.pause(), self._ask_again_at - self.clock())
        return wait if wait > 0 or self._slow_start.allows(1) else SOON

    async def admit(self, wanted: int) -> int:
        """How many of so many events may be taken now.

        None while the platform is left alone; one for the whole fleet to try whether it is well; few at first when it
        is well again; with a rate, no more than the fleet's bucket has.

        Raises:
            RedisError, OSError: nobody says how many it has.
        """
        if not self._snapshot.at:
            await self._load()
        phase = self._circuit.phase(now := self.clock())
        if wanted <= 0 or phase is Phase.OPEN or now < self._ask_again_at:
            return 0
        if phase is Phase.HALF_OPEN:
            return await self._admit_probe()
        allowed, granted = self._slow_start.allows(wanted), 0
        self._slow_start.took(allowed)
        try:
            drawn = await self._draw(allowed, self._rate) if allowed and self._rate is not None else allowed
            granted = 0 if self._circuit.is_open else drawn
        finally:
            self._slow_start.took(granted - allowed)
        return granted

    async def give_back(self, unused: int) -> None:
        """Let others have what `admit` allowed and no event was found for. Free of cost where nothing is short."""
        if unused <= 0:
            return
        self._slow_start.took(-unused)
        if self.clock() < self._admitted_until:
            self._admitted_until = self._probing_until = 0.0
            await self._store.end_probe()
        elif self._rate is not None:
            await self._store.acquire(-unused, rate=self._rate)

    async def _admit_probe(self) -> int:
        """One, if nobody else tries. It draws no token: the bucket has filled while nothing was called."""
        if await self._take_probe(BEGIN):
            self._admitted_until = self.clock() + BEGIN
            return 1
        self._ask_again_at = self.clock() + ASK_AGAIN * (0.5 + self._chance())
        return 0

    async def _draw(self, wanted: int, rate: float) -> int:
        taken, wait = await self._store.acquire(wanted, rate=rate)
        self._ask_again_at = self.clock() + wait
        return taken

    async def acquire(self, operation: str, *, prepaid: bool) -> BreakerPermit:
        """Wait until the call may be sent.

        Raises:
            PlatformPaused: it may not.
        """
        if not self._snapshot.at:
            await self._load()
        due = None if prepaid else self._rate
        while True:
            phase = self._circuit.phase(self.clock())
            if phase is Phase.HALF_OPEN and await self._may_probe(prepaid=prepaid):
                log.info("platform_probed", operation=operation)
                return BreakerPermit(self, probe=True, prepaid=prepaid)
            if self._circuit.is_open:
                seconds = self.pause() or ASK_AGAIN
                raise self._refusal(operation, f"the platform is left alone for another {seconds:.1f} s", seconds)
            if due is not None:
                await self._pay(operation, due)
                due = None
            elif self._trial.is_over:
                return BreakerPermit(self, prepaid=prepaid)
            elif self._trial.begin_turn():
                return BreakerPermit(self, trial=True, prepaid=prepaid)
            else:
                await self._trial.wait()

    async def _pay(self, operation: str, rate: float) -> None:
        """Draw one token from the fleet's bucket, and wait until it is there.

        Raises:
            PlatformPaused: that would take too long, or nobody says how long.
        """
        taken, wait = 0, PATIENCE  # What is to be said while Redis says nothing.
        with suppress(RedisError, OSError):
            taken, wait = await self._store.acquire(1, rate=rate, patience=self._timeout)
        if not taken:
            raise self._refusal(operation, f"CREDHOOK_RATE leaves no turn for {wait:.1f} s", wait)
        await asyncio.sleep(wait)

    @staticmethod
    def _refusal(operation: str, why: str, seconds: float) -> PlatformPaused:
        metrics.CALLS_REFUSED.add()
        return PlatformPaused(f"{operation}: not sent: {why}", operation=operation, retry_after=seconds)

    async def _may_probe(self, *, prepaid: bool) -> bool:
        """Whether this call is the one that tries the platform."""
        now, lasts = self.clock(), self._timeout + 1.0
        if now < self._admitted_until:
            self._admitted_until, self._probing_until = 0.0, now + lasts
            return await self._store.take_probe(lasts) is not False
        return not prepaid and await self._take_probe(lasts)

    async def _take_probe(self, seconds: float) -> bool:
        """Become the fleet's prober; without Redis, this process's."""
        now = self.clock()
        if now < self._probing_until:
            return False
        self._probing_until = now + seconds
        is_ours = await self._store.take_probe(seconds) is not False
        if not is_ours:
            self._probing_until = 0.0
        return is_ours

    def record(self, outcome: Outcome | None, *, probe: bool, trial: bool, prepaid: bool) -> None:
        """Take in what a call came to; None says nothing of the platform."""
        if probe:
            self._probing_until, self._probe_is_over = 0.0, True
        if not self._trial.is_over:
            self._judge_credentials(outcome, trial=trial)
        if outcome is not None:
            if outcome.kind is Kind.ANSWERED and prepaid:
                self._slow_start.succeeded()
            if probe or outcome.kind is not Kind.ANSWERED or self._circuit.score:
                self._unpublished.append(outcome)
                self._set(self._circuit.after(outcome))
        self._publish_soon()

    def takes_success(self, *, prepaid: bool) -> bool:
        """See `Breaker`. Nearly always there is nothing more to it: no outcome need be made and weighed."""
        if self._circuit.score or not self._trial.is_over:
            return False
        if prepaid:
            self._slow_start.succeeded()
        return True

    def _judge_credentials(self, outcome: Outcome | None, *, trial: bool) -> None:
        """Whatever a call is answered, its token was taken, unless it was refused."""
        if outcome is not None and outcome.kind is not Kind.UNAUTHORIZED:
            self._trial.end()
        elif trial:
            self._trial.end_turn()

    def doubt(self) -> None:
        """A token was refused: find out about the next one by one call."""
        self._trial.begin_again()

    async def _load(self) -> None:
        """Look once, if nothing has been heard yet: a process may start while the platform is left alone."""
        self._read(await self._store.load())

    def _read(self, snapshot: CircuitSnapshot | None) -> None:
        """Take in what Redis has, and what it has not been told on top.

        A pause never ends early: where Redis has none, it was away or has forgotten, and is told again.
        """
        if snapshot is None:
            return
        if not snapshot.precedes(self._snapshot):
            known, self._snapshot = self._snapshot.circuit, snapshot
            if known.is_open and known.until - max(now := self.clock(), snapshot.circuit.until) > WORTH_SAYING:
                self._unpublished.append(Outcome(Kind.REFUSED, now, known.until - now, cause="forgotten"))
        self._set(self._snapshot.circuit.after_all(self._unpublished))
        self._publish_soon()

    def _set(self, circuit: Circuit) -> None:
        was, self._circuit = self._circuit, circuit
        if was.is_open and not circuit.is_open:
            self._slow_start.begin()
            self._ask_again_at = 0.0

    def _publish_soon(self) -> None:
        if not self._unpublished and not self._probe_is_over:
            return
        if self._publisher is None or self._publisher.done():
            self._publisher = asyncio.create_task(self._publish(), context=Context())  # It speaks for all.

    async def _publish(self) -> None:
        """Tell the others, all that has come together in the meantime at once."""
        while self._unpublished or self._probe_is_over:
            count, known = len(self._unpublished), self._snapshot
            probed, self._probe_is_over = self._probe_is_over, False
            circuit = known.circuit.after_all(self._unpublished)
            if circuit == known.circuit and not probed:
                self._unpublished.clear()
                continue
            cause = self._unpublished[-1].cause if self._unpublished else ""
            reply = await self._store.compare_and_set(known, circuit, probed=probed)
            if reply is None:
                # Ours is all there is to go by, until Redis is back.
                self._log_transition(known.circuit, self._circuit, cause)
                self._snapshot = replace(self._snapshot, circuit=self._circuit)
                self._unpublished.clear()
                return
            snapshot, is_ours = reply
            if is_ours or (circuit, snapshot.text) == (known.circuit, known.text):
                del self._unpublished[:count]
            self._read(snapshot)
            if is_ours:
                self._log_transition(known.circuit, circuit, cause)
            else:
                await asyncio.sleep(0.005)  # Others write as well.

    def _log_transition(self, before: Circuit, after: Circuit, cause: str) -> None:
        now = self.clock()
        if after.is_open and after.until - max(now, before.until) > (WORTH_SAYING if before.until > now else 0.0):
            log.warning("platform_paused", seconds=round(after.until - now, 1), cause=cause, hint=_hint(cause))
        elif before.is_open and not after.is_open:
            log.info("platform_resumed")


def _hint(cause: str) -> str:
    """Which settings are the likely reason, for the operator."""
    if cause == "401":
        return (
            "the platform refuses tokens that are fresh; check CREDHOOK_CLIENT_ID and its permissions, "
            "CREDHOOK_TOKEN_URL and CREDHOOK_API_URL"
        )
    return (
        advice("", cause) if cause in CAUSES else "the platform's trouble, or its wish; calls begin again by themselves"
    )
