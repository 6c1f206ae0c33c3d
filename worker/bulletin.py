"""What the fleet has written down about the platform, in Redis, for every process to read.

    credhook:platform:<digest of the API's URL>         the circuit, while it is not simply closed; changes are
                                                        published on a channel of that name
    credhook:platform:<digest of the API's URL>:probe   who tries whether the platform is well
    credhook:platform:<digest of the API's URL>:bucket  when the bucket of calls will be full again, in microseconds

Each has a TTL. Nothing here raises: where Redis does not answer, the answer is None, and the caller goes by what it
knows itself.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, TypeVar
from uuid import uuid4

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from receiver.ledger import PREFIX
from worker.breaker import Circuit

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

#: Microseconds by which Redis's clock may have been set back before a look from the past is believed.
_SET_BACK: Final = 5_000_000
_MICROSECONDS: Final = 1_000_000

#: KEYS: circuit, probe. ARGV: the circuit as it should still stand, or `?` to look only; the new one, or '' for none;
#: its TTL in ms; whose probe is over, or ''. Each text that is written is unique, so that no change between two looks
#: goes unnoticed. Returns now, the circuit, and whether it was written.
_SWAP: Final = """
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local current = redis.call('GET', KEYS[1]) or ''
if ARGV[4] ~= '' and redis.call('GET', KEYS[2]) == ARGV[4] then redis.call('DEL', KEYS[2]) end
if current ~= ARGV[1] then return {now, current, 0} end
if ARGV[2] == '' then
    redis.call('DEL', KEYS[1])
    current = ''
else
    current = ARGV[2] .. ' ' .. now
    redis.call('SET', KEYS[1], current, 'PX', ARGV[3])
end
redis.call('PUBLISH', KEYS[1], now .. ' ' .. current)
return {now, current, 1}
"""

#: The generic cell rate algorithm: one number says how full the bucket is. KEYS: bucket. ARGV: tokens wanted, or given
#: back if negative; in microseconds, how long one takes to grow, the bucket to fill, and the caller would wait if there
#: is none. Returns how many were taken, and the microseconds until the one to be waited for, or the next, is there.
_DRAW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local wanted, each, depth, patience = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local full = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0))
local taken = math.min(wanted, math.max(0, math.floor((now + depth - full) / each + 0.001)))
local wait = 0
if taken == 0 then
    wait = math.ceil(full + each - depth - now)
    if wait <= patience then taken = 1 end
end
if taken ~= 0 then
    full = math.max(now, full + taken * each)
    if taken > 0 and taken < wanted then wait = math.ceil(full + each - depth - now) end
    redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.max(1, math.ceil((full - now) / 1000)))
end
return {taken, wait}
"""


@dataclass(frozen=True, slots=True)
class Notice:
    """What stood there at some moment.

    Attributes:
        at: that moment, in microseconds of Redis's clock; 0 for never.
        text: as it is written; empty for a circuit of which there is nothing to say.
        circuit: what it says, on this process's monotonic clock.
    """

    at: int = 0
    text: bytes = b""
    circuit: Circuit = field(default_factory=Circuit)

    def precedes(self, other: "Notice") -> bool:
        """Whether it is the older one, and not of a clock that was set back."""
        return other.at - _SET_BACK < self.at < other.at


class Bulletin:
    """The fleet's notice about one platform."""

    def __init__(self, redis: Redis, api_url: str) -> None:
        digest = sha256(api_url.encode()).hexdigest()[:16]
        self._key = f"{PREFIX}platform:{digest}"
        self._probe = f"{self._key}:probe"
        self._bucket = f"{self._key}:bucket"
        self._name = uuid4().hex
        self._redis = redis
        self._swap = redis.register_script(_SWAP)
        self._draw = redis.register_script(_DRAW)
        #: Seconds by which Redis's clock is ahead of this process's monotonic one; refined by each answer.
        self._ahead: float | None = None
        self._left_alone_until = 0.0
        self._cut_off = False

    async def look(self) -> Notice | None:
        """What stands there, also when Redis was silent just now."""
        self._left_alone_until = 0.0
        reply = await self._written(b"?", b"", 0.0)
        return reply and reply[0]

    async def replace(self, known: Notice, circuit: Circuit, *, probed: bool) -> tuple[Notice, bool] | None:
        """Write a circuit where `known` still stands, and tell everybody.

        Args:
            known: what was read.
            circuit: what follows from it.
            probed: whether this process's probe is over.

        Returns:
            What stands there now, and whether it is ours.
        """
        if circuit == known.circuit:
            return await self._written(b"?", b"", 0.0, probed=probed)
        if circuit == Circuit():
            return await self._written(known.text, b"", 0.0, probed=probed)
        lasts = SCORE_LASTS
        if circuit.is_open:
            lasts = PAUSE_LASTS + max(0.0, circuit.until - time.monotonic())
        return await self._written(known.text, self._text(circuit), lasts, probed=probed)

    async def take_probe(self, seconds: float) -> bool | None:
        """Be the one who tries the platform, for so long at most; false if somebody is."""

        async def take() -> bool:
            return bool(await self._redis.set(self._probe, self._name, nx=True, px=int(seconds * 1_000)))

        return await self._ask(take)

    async def keep_probe(self, seconds: float) -> None:
        """Remain it for so long from now on."""

        async def keep() -> bool:
            return bool(await self._redis.set(self._probe, self._name, xx=True, px=int(seconds * 1_000)))

        await self._ask(keep)

    async def end_probe(self) -> None:
        """Be it no longer, without having learnt anything."""
        await self._written(b"?", b"", 0.0, probed=True)

    async def draw(self, wanted: int, *, rate: float, patience: float = 0.0) -> tuple[int, float] | None:
        """Take tokens from the fleet's bucket, which holds one second's worth, and at least one.

        Args:
            wanted: how many; fewer than none gives some back.
            rate: tokens a second.
            patience: seconds that the caller would wait for one if there is none now.

        Returns:
            How many were taken; and the seconds until the one that is to be waited for, or the next, is there.
        """
        each = _MICROSECONDS / rate
        arguments = [wanted, each, max(1.0, rate) * each, patience * _MICROSECONDS]

        async def take() -> tuple[int, float]:
            taken, wait = await self._draw(keys=[self._bucket], args=arguments)
            return taken, wait / _MICROSECONDS

        return await self._ask(take)

    async def changes(self) -> AsyncGenerator[Notice | None]:
        """Each notice when it is published, and what stands there each second; for ever, through all outages."""
        while True:
            try:
                async with self._redis.pubsub() as subscription:
                    await subscription.subscribe(self._key)
                    due = 0.0
                    while True:
                        left = due - time.monotonic()
                        if left <= 0:
                            yield await self.look()
                            due = time.monotonic() + LOOK_EACH
                        elif message := await subscription.get_message(ignore_subscribe_messages=True, timeout=left):
                            at, _, text = message["data"].partition(b" ")
                            yield self._notice(int(at), text)
            except (RedisError, OSError):
                yield await self.look()
                await asyncio.sleep(LOOK_EACH * random.uniform(0.5, 1.0))  # noqa: S311  Jitter, no secret.

    async def _written(
        self, expected: bytes, new: bytes, lasts: float, *, probed: bool = False
    ) -> tuple[Notice, bool] | None:
        arguments: list[bytes | str | int] = [expected, new, int(lasts * 1_000), self._name if probed else ""]
        asked_at = time.monotonic()

        async def swap() -> tuple[int, bytes, int]:
            at, text, written = await self._swap(keys=[self._key, self._probe], args=arguments)
            return int(at), text, written

        reply = await self._ask(swap)
        if reply is None:
            return None
        at, text, written = reply
        self._set_clock(at / _MICROSECONDS, asked_at, time.monotonic())
        return self._notice(at, text), bool(written)

    def _set_clock(self, now: float, earliest: float, latest: float) -> None:
        """Learn that Redis's clock said `now` between two readings of ours."""
        if self._ahead is None:
            self._ahead = now - (earliest + latest) / 2
        self._ahead = min(max(self._ahead, now - latest), now - earliest)

    def _text(self, circuit: Circuit) -> bytes:
        until = circuit.until + self._offset if circuit.is_open else 0.0
        return f"{int(circuit.is_open)} {circuit.score} {circuit.trips} {until:.3f}".encode()

    def _notice(self, at: int, text: bytes) -> Notice:
        if not text:
            return Notice(at)
        is_open, score, trips, until, _ = text.split()
        if is_open == b"0":
            return Notice(at, text, Circuit(score=int(score)))
        return Notice(at, text, Circuit(is_open=True, trips=int(trips), until=float(until) - self._offset))

    @property
    def _offset(self) -> float:
        return time.time() - time.monotonic() if self._ahead is None else self._ahead

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T | None:
        """Redis's answer, or None; silence is logged once."""
        if time.monotonic() < self._left_alone_until:
            return None
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await question()
        except (RedisError, OSError) as error:
            self._left_alone_until = time.monotonic() + PATIENCE
            if not self._cut_off:
                log.warning("platform_unshared", error=type(error).__name__, hint="Redis does not answer")
            self._cut_off = True
            return None
        self._cut_off = False
        return answer
