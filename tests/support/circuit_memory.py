"""The circuit and the rate limit of a fleet, in this process and on a clock of the test's own, in place of Redis."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

from credhook.worker.platform.circuit import Circuit
from credhook.worker.platform.circuit_breaker import CircuitBreaker
from credhook.worker.platform.shared_circuit import READ_EVERY_SECONDS, SharedCircuit

#: Seconds that an answer takes, and a published change.
LATENCY: Final = 0.001


class CircuitMemory:
    """The state that all members share; `clock` is the clock of all."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.shared = SharedCircuit()
        self.changes = 0
        self.prober: object = None
        self.probed_until = self.full_at = 0.0
        self.watchers: set[asyncio.Event] = set()

    def serve(self, breaker: CircuitBreaker, rate: float | None) -> None:
        """Let a member use this memory."""
        breaker._store = CircuitStoreInMemory(self)  # type: ignore[assignment]
        breaker._rate_limit = RateLimitInMemory(self, rate) if rate else None  # type: ignore[assignment]


class CircuitStoreInMemory:
    """One member's `CircuitStore`."""

    def __init__(self, memory: CircuitMemory) -> None:
        self._memory = memory

    async def load(self) -> SharedCircuit | None:
        await asyncio.sleep(LATENCY)
        return self._memory.shared

    async def compare_and_set(self, known: str, circuit: Circuit) -> tuple[bool, SharedCircuit] | None:
        await asyncio.sleep(LATENCY)
        memory = self._memory
        if known != memory.shared.version:
            return False, memory.shared
        memory.changes += 1
        memory.shared = SharedCircuit(str(memory.changes), circuit)
        for watcher in memory.watchers:
            watcher.set()
        return True, memory.shared

    async def take_probe(self, seconds: float) -> bool | None:
        await asyncio.sleep(LATENCY)
        memory, now = self._memory, self._memory.clock()
        if memory.prober not in {None, self} and now < memory.probed_until:
            return False
        memory.prober, memory.probed_until = self, now + seconds
        return True

    async def release_probe(self) -> None:
        await asyncio.sleep(LATENCY)
        if self._memory.prober is self:
            self._memory.prober = None

    async def changes(self) -> AsyncGenerator[SharedCircuit | None]:
        changed = asyncio.Event()
        self._memory.watchers.add(changed)
        while True:
            yield await self.load()
            try:
                await asyncio.wait_for(changed.wait(), READ_EVERY_SECONDS)
            except TimeoutError:
                continue
            changed.clear()


class RateLimitInMemory:
    """One member's `RateLimit`."""

    def __init__(self, memory: CircuitMemory, rate: float) -> None:
        self._memory, self._rate = memory, rate

    async def take(self, wanted: int, *, max_wait: float = 0.0) -> tuple[int, float]:
        await asyncio.sleep(LATENCY)
        memory, now, each, depth = self._memory, self._memory.clock(), 1 / self._rate, max(1.0, 1 / self._rate)
        full_at = max(now, memory.full_at)
        taken = min(wanted, max(0, int((now + depth - full_at) / each + 0.001)))
        wait = full_at + each - depth - now if taken == 0 else 0.0
        taken = 1 if taken == 0 and wait <= max_wait else taken
        memory.full_at = max(now, full_at + taken * each)
        return taken, memory.full_at + each - depth - now if 0 < taken < wanted else wait
