"""Reclaim what a dead worker process held: its events go to the head of the queue.

The process that takes its place hears of it from their supervisor, which has seen it die, and sees to it before
anything else. With its host its supervisor dies as well: then the others miss its heartbeat, and it speaks
against no event. Leases, which lapse by themselves, remain for what nobody has seen.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog
from redis import Redis
from redis.exceptions import RedisError

from credhook.store import Keys, lua
from credhook.worker.queue.failure import worker_died
from credhook.worker.queue.put_back import PutBack

log = structlog.get_logger("credhook.worker")

RECLAIM: Final = lua.load("reclaim.lua")


def reclaim(redis: Redis, token: str, how: str, *, queue: str, retention: int) -> bool:
    """Note a death, and put what the dead process held at the head of the queue; whether Redis has noted it.

    `how`: 1 if nobody from outside has ended it, 0 if somebody has, `host` if nobody knows. What cannot be read is kept
    for `retention` seconds.
    """
    put_back = PutBack(redis, queue=queue, retention=retention)
    try:
        redis.zrem(Keys(queue).workers, token)
        script = redis.register_script(RECLAIM)
        held = script(keys=[Keys(queue).prefix], args=arguments(token, how, retention=retention))
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
