"""What the fleet has written down about the platform, in Redis, for every process to read.

    credhook:platform:<digest of the API's URL>         the circuit, while it is not simply closed; changes are
                                                        published on a channel of that name
    credhook:platform:<digest of the API's URL>:probe   who tries whether the platform is well
    credhook:platform:<digest of the API's URL>:bucket  when the bucket of calls will be full again, in microseconds

Each has a TTL. Nothing here raises, save `acquire`: where Redis does not answer, the answer is None, and the caller
goes by what it knows itself. What somebody else has written there counts as nothing, and the next thing that we write
replaces it.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from hashlib import sha256
from typing import Final, TypeVar
from uuid import uuid4

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from credhook.store import PREFIX, lua
from credhook.worker.platform.breaker import Circuit
from credhook.worker.platform.circuit_snapshot import LONGEST, CircuitSnapshot, NotACircuit, read, read_message, written
from credhook.worker.platform.unreadable import ANOTHER_TYPE, Unreadable

log = structlog.get_logger("credhook.worker")

T = TypeVar("T")

#: Seconds after which everybody looks, whether or not something was published.
LOOK_EACH: Final = 1.0
#: Seconds that an answer may take: callers wait for it before they call the platform. After silence Redis is left alone
#: for as long.
PATIENCE: Final = 1.0
#: Seconds that failures are remembered after the last, and a pause after its end if nobody tries the platform.
SCORE_LASTS: Final = 60.0
PAUSE_LASTS: Final = 600.0

#: Seconds that somebody may try the platform, and for which calls may have drawn ahead; what is longer is not believed.
#: More where a call may take more.
LONGEST_CALL: Final = 60.0

_MICROSECONDS: Final = 1_000_000

_SWAP: Final = lua.load("swap.lua")
_TAKE_PROBE: Final = lua.load("take_probe.lua")
_DRAW: Final = lua.load("draw.lua")

#: What is said of a key of another type.
_OTHER: Final = b"(another type)"


class CircuitStore:
    """The circuit of one platform, as the whole fleet sees it."""

    def __init__(
        self,
        redis: Redis,
        api_url: str,
        *,
        timeout: float,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout`: seconds for a call; `patience`: until a silent Redis counts as gone, and is left alone."""
        self._clock = clock
        self._patience = patience
        self._key = key_name(api_url)
        self._probe = f"{self._key}:probe"
        self._bucket = f"{self._key}:bucket"
        self._name = uuid4().hex
        self._redis = redis
        self._swap = redis.register_script(_SWAP)
        self._draw = redis.register_script(_DRAW)
        self._take_probe = redis.register_script(_TAKE_PROBE)
        #: Seconds, see there.
        self._longest = max(LONGEST_CALL, 2 * timeout)
        self._unreadable = Unreadable()
        #: Seconds by which Redis's clock is ahead of this process's monotonic one; refined by each answer.
        self._ahead: float | None = None
        self._left_alone_until = 0.0
        self._cut_off = False

    async def load(self) -> CircuitSnapshot | None:
        """What stands there, also when Redis was silent just now."""
        self._left_alone_until = 0.0
        reply = await self._written(b"?", b"", 0.0)
        return reply and reply[0]

    async def compare_and_set(
        self, known: CircuitSnapshot, circuit: Circuit, *, probed: bool
    ) -> tuple[CircuitSnapshot, bool] | None:
        """Write a circuit where `known` still stands, and tell everybody; if `probed`, this process's probe is over.

        Returns:
            What stands there now, and whether it is ours.
        """
        if circuit == known.circuit:
            return await self._written(b"?", b"", 0.0, probed=probed)
        if circuit == Circuit():
            return await self._written(known.text, b"", 0.0, probed=probed)
        lasts = SCORE_LASTS
        if circuit.is_open:
            lasts = PAUSE_LASTS + max(0.0, circuit.until - self._clock())
        return await self._written(known.text, written(circuit, ahead=self._offset), lasts, probed=probed)

    async def take_probe(self, seconds: float) -> bool | None:
        """Be the one who tries the platform, or remain it, for so long from now on; false if somebody else is."""
        arguments: list[str | int] = [self._name, int(seconds * 1_000), int(self._longest * 1_000)]
        reply = await self._ask(lambda: self._take_probe(keys=[self._probe], args=arguments))
        if reply is None:
            return None
        taken, unreadable = reply
        self._judge("probe", self._probe, "it is none of ours, or would never end" if unreadable else "")
        return bool(taken)

    async def end_probe(self) -> None:
        """Release the probe without a result."""
        await self._written(b"?", b"", 0.0, probed=True)

    async def acquire(self, wanted: int, *, rate: float, patience: float = 0.0) -> tuple[int, float]:
        """Take tokens from the fleet's bucket, which holds one second's worth, and at least one.

        Args:
            wanted: how many; fewer than none gives some back.
            rate: tokens a second.
            patience: seconds that the caller would wait for one if there is none now.

        Returns:
            How many were taken; and the seconds until the one that is to be waited for, or the next, is there.

        Raises:
            RedisError, OSError: nobody knows. What others take meanwhile cannot be known either, and so none is there.
        """
        each = _MICROSECONDS / rate
        longest = self._longest * _MICROSECONDS
        arguments: list[float] = [wanted, each, max(1.0, rate) * each, patience * _MICROSECONDS, longest]
        taken, wait, unreadable = await self._draw(keys=[self._bucket], args=arguments)
        self._judge("bucket", self._bucket, "it is no number that we would write" if unreadable else "")
        return taken, wait / _MICROSECONDS

    async def changes(self) -> AsyncGenerator[CircuitSnapshot | None]:
        """Each snapshot when it is published, and what stands there each second; for ever, through all outages."""
        while True:
            try:
                async with self._redis.pubsub() as subscription:
                    await subscription.subscribe(self._key)
                    due = 0.0
                    while True:
                        left = due - self._clock()
                        if left <= 0:
                            yield await self.load()
                            due = self._clock() + LOOK_EACH
                            continue
                        message = await subscription.get_message(ignore_subscribe_messages=True, timeout=left)
                        snapshot = message and self._change(message["data"])
                        if snapshot:
                            yield snapshot
            except (RedisError, OSError):
                yield await self.load()
                await asyncio.sleep(LOOK_EACH * random.uniform(0.5, 1.0))  # noqa: S311  Jitter, no secret.

    async def _written(
        self, expected: bytes, new: bytes, lasts: float, *, probed: bool = False
    ) -> tuple[CircuitSnapshot, bool] | None:
        ended = self._name if probed else ""
        arguments: list[bytes | str | int] = [expected, new, int(lasts * 1_000), ended, LONGEST - 1, _OTHER]
        asked_at = self._clock()
        reply = await self._ask(lambda: self._swap(keys=[self._key, self._probe], args=arguments))
        if reply is None:
            return None
        at, text, is_ours = reply
        self._set_clock(int(at) / _MICROSECONDS, asked_at, self._clock())
        return self._snapshot(int(at), text), bool(is_ours)

    def _set_clock(self, now: float, earliest: float, latest: float) -> None:
        """Learn that Redis's clock said `now` between two readings of ours."""
        if self._ahead is None:
            self._ahead = now - (earliest + latest) / 2
        self._ahead = min(max(self._ahead, now - latest), now - earliest)

    def _snapshot(self, at: int, text: bytes) -> CircuitSnapshot:
        """What stands there; nothing, if it cannot be read."""
        circuit, why = Circuit(), ANOTHER_TYPE if text == _OTHER else ""
        if not why:
            try:
                circuit = read(text, now=self._clock(), ahead=self._offset)
            except NotACircuit as error:
                why = str(error)
        self._judge("circuit", self._key, why)
        return CircuitSnapshot(at, text, circuit)

    def _change(self, data: bytes) -> CircuitSnapshot | None:
        """What was published, if it can be read."""
        try:
            at, text = read_message(data)
        except NotACircuit as error:
            self._judge("change", self._key, str(error))
            return None
        self._judge("change", self._key, "")
        return self._snapshot(at, text)

    def _judge(self, what: str, key: str, why: str) -> None:
        """Say why it cannot be read, or nothing if it can."""
        if why:
            self._unreadable.found(what, why, key=key)
        else:
            self._unreadable.mended(what)

    @property
    def _offset(self) -> float:
        return time.time() - self._clock() if self._ahead is None else self._ahead

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T | None:
        """Redis's answer, or None; silence is logged once."""
        if self._clock() < self._left_alone_until:
            return None
        try:
            async with asyncio.timeout(self._patience):
                answer = await question()
        except (RedisError, OSError) as error:
            self._left_alone_until = self._clock() + self._patience
            if not self._cut_off:
                log.warning("platform_unshared", error=type(error).__name__, hint="Redis does not answer")
            self._cut_off = True
            return None
        self._cut_off = False
        return answer


def key_name(api_url: str) -> str:
    """The name of the Redis key that holds the circuit of this platform; its neighbours' names begin with it."""
    return f"{PREFIX}platform:{sha256(api_url.encode()).hexdigest()[:16]}"
