"""What the fleet shares about a platform in Redis: the circuit and the probe's lease.

credhook:<queue>:platform:<digest of the API's URL>         the circuit, a hash; also the channel of its changes
credhook:<queue>:platform:<digest of the API's URL>:probe   lease of the process that probes the platform
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Final, NamedTuple, TypeVar

import structlog

from credhook.store import Keys
from credhook.store.errors import STORE_ERRORS
from credhook.store.lease import RedisLease
from credhook.store.store import AsyncStore
from credhook.worker.platform.circuit import Circuit

log = structlog.get_logger("credhook.worker")

T = TypeVar("T")

#: Seconds between two reads of the circuit, if no change is published.
READ_EVERY_SECONDS: Final = 1.0
#: Seconds that an answer of Redis may take: calls wait for it. After a time-out Redis is not asked for as long.
REDIS_TIMEOUT_SECONDS: Final = 1.0
#: Seconds that Redis remembers the last failure, and a pause after its end if no process probes.
SCORE_LASTS_SECONDS: Final = 60.0
PAUSE_LASTS_SECONDS: Final = 600.0


def circuit_key(api_url: str, queue: str) -> str:
    """Return the Redis key of a platform's circuit. Processes with the same API URL and queue share it."""
    return Keys(queue).platform + sha256(api_url.encode()).hexdigest()[:16]


def circuit_in(fields: Mapping[bytes, bytes], *, redis_now: float, now: float) -> Circuit:
    """Read the circuit's hash. `now` is by the clock that its `until` will be on; both in seconds."""
    until = int(fields.get(b"until", 0)) / 1_000 - redis_now + now
    return Circuit(fields.get(b"open") == b"1", int(fields.get(b"score", 0)), int(fields.get(b"trips", 0)), until)


class SharedCircuit(NamedTuple):
    """The circuit as Redis had it: its version there, and its state on this process's clock."""

    version: str = ""
    circuit: Circuit = Circuit()


class CircuitStore:
    """The circuit of one platform in Redis. Where Redis does not answer, methods return None and raise nothing."""

    def __init__(self, store: AsyncStore, key: str, *, clock: Callable[[], float]) -> None:
        self._store, self._key, self._clock = store, key, clock
        self._probe = RedisLease(store, f"{key}:probe")
        self._one_at_a_time = asyncio.Lock()  # Replies must be read in the order in which Redis gave them.
        self._silent_until = 0.0
        self._is_silent = False

    async def load(self) -> SharedCircuit | None:
        """Return the circuit."""
        reply = await self._run([])
        return reply and reply[1]

    async def compare_and_set(self, known: str, circuit: Circuit) -> tuple[bool, SharedCircuit] | None:
        """Replace the circuit of the version `known`. Return whether that was done, and the circuit in Redis now."""
        lasts, pause = SCORE_LASTS_SECONDS, circuit.pause(self._clock())
        if circuit.is_open:
            lasts = PAUSE_LASTS_SECONDS + pause
        elif circuit == Circuit():
            lasts = 0.0
        state = int(circuit.is_open), circuit.score, circuit.trips, int(pause * 1_000)
        return await self._run([known, int(lasts * 1_000), *state])

    async def take_probe(self, seconds: float) -> bool | None:
        """Acquire or renew the probe lease; return False if another process has it."""
        return await self._ask(lambda: self._probe.acquire(seconds))

    async def release_probe(self) -> None:
        """Let another process probe."""
        await self._ask(self._probe.release)

    async def changes(self) -> AsyncGenerator[SharedCircuit | None]:
        """Yield the circuit after each change, and at least once a second, through all outages of Redis."""
        while True:
            try:
                async with self._store.redis.pubsub() as subscription:
                    await subscription.subscribe(self._key)
                    while True:
                        yield await self.load()
                        await subscription.get_message(ignore_subscribe_messages=True, timeout=READ_EVERY_SECONDS)
            except STORE_ERRORS:
                yield await self.load()
                await asyncio.sleep(READ_EVERY_SECONDS * random.uniform(0.5, 1.0))  # noqa: S311  Jitter, no secret.

    async def _run(self, arguments: list[str | int]) -> tuple[bool, SharedCircuit] | None:
        async with self._one_at_a_time:
            reply = await self._ask(lambda: self._store.run("circuit", arguments, keys=[self._key]))
            if reply is None:
                return None
            replaced, version, is_open, score, trips, left = reply
            until = self._clock() + left / 1_000 if is_open else 0.0
            return bool(replaced), SharedCircuit(version.decode(), Circuit(bool(is_open), score, trips, until))

    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Return the answer of Redis, or None; the beginning of an outage is logged."""
        if self._clock() < self._silent_until:
            return None
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_SECONDS):
                answer = await ask()
        except STORE_ERRORS as error:
            self._silent_until = self._clock() + REDIS_TIMEOUT_SECONDS
            if not self._is_silent:
                log.warning("platform_unshared", error=type(error).__name__, hint="Redis does not answer")
            self._is_silent = True
            return None
        self._is_silent = False
        return answer
