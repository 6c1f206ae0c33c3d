"""Reclaim what a dead worker process held: its events go to the head of the queue.

The process that takes its place hears of it from their supervisor, which has seen it die, and sees to it before
anything else. With its host its supervisor dies as well: then the others miss it at the roll call, and it speaks
against no event. Leases, which lapse by themselves, remain for what nobody has seen.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, cast

import structlog
from redis import Redis
from redis.exceptions import RedisError

from credhook.store import Keys, lua
from credhook.worker.queue import scripts
from credhook.worker.queue.failure import worker_died
from credhook.worker.queue.put_back import PutBack

log = structlog.get_logger("credhook.worker")

#: Seconds of silence after which a process counts as dead: as many as this, or this part of its lease if that is more,
#: and never more than the lease.
_SILENCE, _PART = 6.0, 0.4
#: Roll calls within that time: some may fail.
_CALLS: Final = 3
#: What is said of a process that was missed: reclaim.lua knows it.
_WITH_ITS_HOST: Final = "host"

RECLAIM: Final = lua.load("reclaim.lua")
ROLL_CALL: Final = lua.load("roll_call.lua")


def reclaim(redis: Redis, token: str, how: str, *, queue: str, retention: int) -> bool:
    """Note a death, and put what the dead process held at the head of the queue; whether Redis has noted it.

    `how`: 1 if nobody from outside has ended it, 0 if somebody has, `host` if nobody knows. What cannot be read is kept
    for `retention` seconds.
    """
    put_back = PutBack(redis, queue=queue, retention=retention)
    try:
        redis.zrem(Keys(queue).workers, token)
        script = redis.register_script(RECLAIM)
        held = script(keys=scripts.keys(Keys(queue)), args=arguments(token, how, retention=retention))
        became = [put_back(one.decode(errors="surrogateescape"), in_transit=0, first=True) for one in held]
    except RedisError as error:
        log.warning("death_not_noted", error=type(error).__name__)
        return False
    with suppress(RedisError):  # It lapses by itself.
        redis.hdel(Keys(queue).handlers, token)
    log.info("death_noted", events=len(held), put_back=became.count(1), own_fault=how == "1")
    _count(became.count(1))
    return True


def _count(events: int) -> None:
    from credhook.worker import metrics  # noqa: PLC0415  Once what was held is back: it takes a tenth of a second.

    metrics.RECLAIMED.add(by=events)


def arguments(token: str, how: str, *, retention: int) -> list[str | int]:
    """ARGV of the script; see `reclaim`."""
    return [token, how, json.dumps(worker_died().counted()), retention]


def reclaim_all(redis: Redis, died: Sequence[str], *, queue: str, retention: int) -> list[str]:
    """Reclaim for those of whom a supervisor tells its next worker; return those that Redis could not be told of.

    `died`: of each its token, a colon, and `how` as `reclaim` takes it.
    """
    return [
        one
        for one, (token, _, how) in ((one, one.partition(":")) for one in died)
        if not reclaim(redis, token, how, queue=queue, retention=retention)
    ]


class RollCall:
    """Says again and again that this process is alive, and sees to those that do not."""

    def __init__(
        self,
        redis: Redis,
        *,
        queue: str,
        token: str,
        lease: float,
        retention: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`token`: under which this process holds events; `lease`: seconds that its claims last."""
        self._redis = redis
        self._queue = queue
        self._token = token
        self._retention = retention
        self._clock = clock
        self._script = redis.register_script(ROLL_CALL)
        self._silence = min(lease, max(_SILENCE, _PART * lease))
        #: Seconds between two calls.
        self.interval = self._silence / _CALLS
        self._last = self._since = -float("inf")

    def call(self) -> None:
        """One roll call.

        Others are judged only by who has been heard itself for as long: after an outage of Redis, or of this process,
        nobody has been.

        Raises:
            RedisError: it could not be held.
        """
        asked_at = self._clock()
        if asked_at - self._last > 2 * self.interval:
            self._since = asked_at
        judges = asked_at - self._since >= self._silence
        arguments: list[str | int | float | bytes] = [self._token, int(self._silence * 1_000), int(judges)]
        silent = cast(list[bytes], self._script(keys=[Keys(self._queue).workers], args=arguments))
        self._last = asked_at
        for token in silent:
            log.warning("worker_missed", silent=self._silence, hint="its host is down, or out of reach of Redis")
            name = token.decode(errors="replace")
            reclaim(self._redis, name, _WITH_ITS_HOST, queue=self._queue, retention=self._retention)

    def leave(self) -> None:
        """Be missed by nobody."""
        try:
            self._redis.zrem(Keys(self._queue).workers, self._token)
        except RedisError as error:
            log.debug("roll_call_not_left", error=type(error).__name__)
