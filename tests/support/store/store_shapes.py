"""Shapes of a store that are hard on scripts, and what a script costs Redis there.

A shape has thousands of events that agree in what scripts look for: a resource, a moment, a state, a dead worker.
"""

import time
from collections import Counter
from collections.abc import Sequence
from copy import copy
from typing import Any, Final

from redis import Redis

from credhook.store import lua
from credhook.store.store import Script, Store
from support.store.stores import INDEX
from support.worker.claiming import COMPLETED

#: Events that one script writes.
_BLOCK: Final = 2_000
#: Milliseconds in which all events of a shape come, unless they are of one moment.
SECOND: Final = 1_000
RETENTION: Final = 3_600
DEAD_WORKER: Final = "dead"

# KEYS: as in keys.lua.
# ARGV: first number and how many; what they have in common, "" for nothing: resource, state, list, prefix of the type;
#   time of the first in ms; seconds until records expire, 0 for never; padding of the ids; '1' if RQ has their jobs;
#   the worker that holds them; and their cause.
_SHAPE: Final = f"""
{lua.load("index")}
local first, count, resource, state, list, kind, start, lasts, padding, queued, holder, cause = unpack(ARGV)
for number = first, first + count - 1 do
    local id = string.format('%07d', number) .. padding
    local of, received = resource ~= '' and resource or 'r' .. id, start + number % {SECOND}
    local type = kind == '' and '{COMPLETED}' or kind .. number
    local entry = append_entry(id)
    redis.call('ZADD', by_resource, score_of(of), entry)
    if state ~= '' then
        redis.call('HSET', EVENT .. id, 'state', state, 'type', type, 'resource', of, 'received', received)
        redis.call('HSET', EVENT .. id, 'place', entry)
        if lasts ~= '0' then redis.call('EXPIRE', EVENT .. id, lasts) end
    end
    if list ~= '' then redis.call('ZADD', list, received, id) end
    local hexed_id = string.gsub(id, '.', function(one) return string.format('%02x', string.byte(one)) end)
    local job = padding == '' and legible .. id or hexed .. hexed_id
    if queued == '1' then redis.call('RPUSH', jobs, job) end
    if queued == 'due' then redis.call('ZADD', scheduled, 1, job) end
    if queued == 'blocked' then redis.call('ZADD', blocked .. of, received, job) end
    if queued ~= '' then redis.call('HSET', 'rq:job:' .. job, 'status', 'queued') end
    if holder ~= '' then
        redis.call('ZADD', leases, start + 3600000, id)
        redis.call('HSET', locks, of, id .. ' 5 1 ' .. holder)
    end
    if cause ~= '' then redis.call('HSET', EVENT .. id, 'c:test.first', cause) end
end
"""


#: What the script takes, after the first number and how many.
_ARGUMENTS: Final = ("resource", "state", "listed", "kind", "age", "lasts", "padding", "queued", "holder", "cause")


def fill_shape(redis: Redis, number: int, **shape: Any) -> None:
    """Write that many events; `shape` says in what they agree, with their `age` in seconds."""
    common = {"state": "accepted", "listed": INDEX.open, "age": 60.0, "lasts": 0, **shape}
    assert common.keys() <= set(_ARGUMENTS)
    common["age"] = int((time.time() - common["age"]) * 1_000)
    script, given = redis.register_script(_SHAPE), [common.get(name, "") for name in _ARGUMENTS]
    for first in range(0, number, _BLOCK):
        script(keys=[INDEX.prefix], args=[first, min(_BLOCK, number - first), *given])


#: Stands before a script, and counts its commands and the entries that these return or remove.
_COUNTER: Final = """
local real = redis
local removing = {ZREM = true, ZREMRANGEBYSCORE = true, SREM = true, HDEL = true, LREM = true}
local function counted(run)
    return function(name, ...)
        local reply = run(name, ...)
        local entries = type(reply) == 'table' and #reply or removing[name] and tonumber(reply) or 0
        real.call('INCRBY', 'test:entries', 1 + entries)
        return reply
    end
end
local redis = {call = counted(real.call), pcall = counted(real.pcall), sha1hex = real.sha1hex}
"""


class MeasuredStore(Store[Redis]):
    """A store that notes what each script costs Redis at most, over a synchronous client.

    Attributes:
        costs: script → entries that it has looked at, or ms of Redis's main thread, if `is_timed`.
    """

    def __init__(self, redis: Redis, *, is_timed: bool = False) -> None:
        super().__init__(redis, "credhook", retention=RETENTION)
        self.costs: dict[str, float] = {}
        self._is_timed, self.is_async = is_timed, False

    def for_async_code(self) -> Any:
        """Return this store, with the same notes, for code that awaits its replies."""
        store = copy(self)
        store.is_async = True
        return store

    def run(self, script: Script, arguments: Sequence[Any], *, keys: Sequence[str] = ()) -> Any:
        before = self._processor_ms()
        run = self.redis.register_script(("" if self._is_timed else _COUNTER) + lua.load(script))
        reply = run(keys or [self.keys.prefix], arguments)
        cost = self._processor_ms() - before if self._is_timed else int(self.redis.getdel("test:entries") or 0)
        self.costs[script] = max(self.costs.get(script, 0), cost)

        async def later() -> Any:
            return reply

        return later() if self.is_async else reply

    def _processor_ms(self) -> float:
        """Return what the slow log would, less the time that the machine gives to other processes."""
        spent: Any = self.redis.info("cpu") if self._is_timed else Counter[str]()
        return float(1_000 * (spent["used_cpu_user_main_thread"] + spent["used_cpu_sys_main_thread"]))
