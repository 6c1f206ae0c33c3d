"""Events planted in the store as receiver and worker leave them, and what is there afterwards."""

import math
import time
from collections.abc import Mapping
from itertools import count
from types import MappingProxyType
from typing import Any

from redis import Redis
from redis.client import Pipeline

from credhook.store import HANDLER, State
from credhook.store.traffic import DAY, HOUR, hour_key, minute_of
from support.store.accepting import everything
from support.store.store_rules import LISTS, OPEN
from support.store.stores import EVENT, INDEX
from support.worker.harness import COMPLETED

#: No two planted events have the same place, so that all may be of one millisecond.
_PLACES = count(1)

HANDLED = {"a.good": "done", "a.bad": "dead: ValueError"}


def plant(
    redis: Redis,
    webhook_id: str,
    state: State,
    kind: str = COMPLETED,
    resource: str = "r1",
    age: float = 0,
    ended: Mapping[str, str] = MappingProxyType({}),
    schedules: Mapping[str, str] = MappingProxyType({}),
    causes: Mapping[str, str] = MappingProxyType({}),
    **fields: str,
) -> None:
    """Leave an event as receiver and worker leave it; `age`: seconds since it came."""
    now = int(time.time() * 1000)
    received = now - int(age * 1000)
    entry: dict[Any, Any] = {"type": kind, "resource": resource, "state": state.value, "received": received, **fields}
    entry |= {"h:" + handler: how for handler, how in ended.items()}
    entry |= {"p:" + handler: schedule for handler, schedule in schedules.items()}
    entry |= {"c:" + handler: cause for handler, cause in causes.items()}
    if state in OPEN:
        redis.zadd(INDEX.open, {webhook_id: now})
        redis.zadd(INDEX.delayed, {webhook_id: received})
    elif state is not State.QUARANTINED:
        entry["settled"] = now
    redis.hset(EVENT + webhook_id, mapping=entry | {"place": list_event(redis, webhook_id, received, resource)})
    if state not in OPEN:
        redis.expire(EVENT + webhook_id, 3_600)
    if state is State.UNHANDLED:
        redis.zadd(INDEX.unhandled + kind, {webhook_id: now})
    if state in LISTS:
        redis.zadd(LISTS[state], {webhook_id: now})


def plant_traffic(redis: Redis, handler: str = "a.bad") -> None:
    """Leave counts of two days, as scripts and sweeper leave them: most now, fewest half a day ago, and an outage.

    They are the same at each time of day.
    """
    minute = minute_of(redis.time()[0] * 1_000)
    pipeline = redis.pipeline(transaction=False)
    for ago in range(2 * DAY, -1, -1):
        hour, of_hour = divmod(minute - ago, HOUR)
        arrived = int(50 + 28 * math.cos(2 * math.pi * ago / DAY) + 8 * math.sin(ago / 7))
        failed = 10 if 25 < ago < 40 else 0
        given_up = 4 if failed and ago % 5 == 3 else 0
        counts = {"arrived": arrived, "done": arrived - failed, "failed": failed, "given_up": given_up}
        fields: dict[Any, Any] = {f"{of_hour} {what} {COMPLETED}": count for what, count in counts.items() if count}
        fields |= {f"{of_hour} {what} {HANDLER}{handler}": counts[what] for what in ("done", "failed") if counts[what]}
        fields |= {f"{of_hour} open": 3 + 6 * failed, f"{of_hour} oldest": 2 + 9 * failed}
        pipeline.hset(hour_key(INDEX, hour), mapping=fields)
    pipeline.execute()


def list_event(redis: Redis, webhook_id: str, received: int, resource: str) -> str:
    """List an event in the index, and return its place. A pipeline has to list events in the order of receipt."""
    number, ms = next(_PLACES), received
    if not isinstance(redis, Pipeline):  # As after Redis's clock was set back.
        last: Any = redis.xrevrange(INDEX.by_time, count=1)
        ms = max([received, *(int(entry.partition(b"-")[0]) for entry, _ in last)])
    entry = f"{ms}-{number}"
    redis.xadd(INDEX.by_time, {"event": webhook_id}, id=entry)
    redis.zadd(INDEX.by_resource, {entry: INDEX.resource_score(resource)})
    return str(number) if ms == received else entry


def plant_many(redis: Redis, number: int, state: State, **more: Any) -> None:
    with redis.pipeline(transaction=False) as pipeline:
        for each in range(number):
            plant(pipeline, f"msg_{each:05}", state, age=number - each, **more)
        pipeline.execute()


def hasten(redis: Redis, webhook_id: str) -> None:
    """Let a waiting event, its fetch and all its handlers be due now."""
    key = EVENT + webhook_id
    record: Any = redis.hgetall(key)
    due = {name: schedule.split()[0] + b" 0" for name, schedule in record.items() if name.startswith(b"p:")}
    redis.hset(key, mapping={"due": 1, **due})


def contents(redis: Redis) -> list[str]:
    """All that Redis holds, to be compared."""
    return sorted(everything(redis).splitlines())


#: What the keys of events, their lists and their jobs begin with. Others say which processes are there.
OF_EVENTS = (
    *("event:", "snapshot:", "history:", "by_time", "by_resource", "open", "leases", "locks"),
    *("dead", "cause"),
    "rq:queue:",
)


def of_events(redis: Redis) -> list[str]:
    """Return what the store holds of events."""
    return [key for key in contents(redis) if key.removeprefix("b'").removeprefix(INDEX.prefix).startswith(OF_EVENTS)]
