"""The circuit of a fleet, in this process and on a clock of the test's own, in place of Redis."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

from credhook.worker.platform.circuit import Circuit
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
        self.probed_until = 0.0
        self.watchers: set[asyncio.Event] = set()


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
