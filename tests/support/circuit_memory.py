"""What a fleet shares through Redis about its platform, in this process and on a clock of the test's own."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

from credhook.worker.platform.breaker import Circuit
from credhook.worker.platform.circuit_snapshot import CircuitSnapshot
from credhook.worker.platform.circuit_store import LOOK_EACH

#: Seconds from a question to its answer, and from a change to whoever watches.
LATENCY: Final = 0.001


class CircuitMemory:
    """What stands there for all; `clock` tells the seconds that everybody goes by."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.snapshot = CircuitSnapshot(at=1)
        self.prober: object = None
        self.probed_until = self.full_at = 0.0
        self.watchers: set[asyncio.Queue[CircuitSnapshot]] = set()


class CircuitStoreInMemory:
    """One member's way to it, in place of a `CircuitStore`."""

    def __init__(self, memory: CircuitMemory) -> None:
        self._memory = memory

    async def load(self) -> CircuitSnapshot | None:
        await asyncio.sleep(LATENCY)
        return self._memory.snapshot

    async def compare_and_set(
        self, known: CircuitSnapshot, circuit: Circuit, *, probed: bool
    ) -> tuple[CircuitSnapshot, bool] | None:
        await asyncio.sleep(LATENCY)
        memory = self._memory
        if probed and memory.prober is self:
            memory.prober = None
        if circuit == known.circuit or known.text != memory.snapshot.text:
            return memory.snapshot, False
        at = max(int(memory.clock() * 1_000_000), memory.snapshot.at + 1)
        memory.snapshot = CircuitSnapshot(at, b"" if circuit == Circuit() else b"%d" % at, circuit)
        for watcher in memory.watchers:
            watcher.put_nowait(memory.snapshot)
        return memory.snapshot, True

    async def take_probe(self, seconds: float) -> bool | None:
        await asyncio.sleep(LATENCY)
        memory, now = self._memory, self._memory.clock()
        if memory.prober not in {None, self} and now < memory.probed_until:
            return False
        memory.prober, memory.probed_until = self, now + seconds
        return True

    async def end_probe(self) -> None:
        await self.compare_and_set(self._memory.snapshot, self._memory.snapshot.circuit, probed=True)

    async def acquire(self, wanted: int, *, rate: float, patience: float = 0.0) -> tuple[int, float]:
        await asyncio.sleep(LATENCY)
        memory, now, each, depth = self._memory, self._memory.clock(), 1 / rate, max(1.0, 1 / rate)
        full_at = max(now, memory.full_at)
        taken = min(wanted, max(0, int((now + depth - full_at) / each + 0.001)))
        wait = full_at + each - depth - now if taken == 0 else 0.0
        taken = 1 if taken == 0 and wait <= patience else taken
        memory.full_at = max(now, full_at + taken * each)
        return taken, memory.full_at + each - depth - now if 0 < taken < wanted else wait

    async def changes(self) -> AsyncGenerator[CircuitSnapshot | None]:
        heard: asyncio.Queue[CircuitSnapshot] = asyncio.Queue()
        self._memory.watchers.add(heard)
        due = 0.0
        while True:
            if (left := due - self._memory.clock()) <= 0:
                yield await self.load()
                due = self._memory.clock() + LOOK_EACH
                continue
            try:
                yield await asyncio.wait_for(heard.get(), left)
            except TimeoutError:
                continue
