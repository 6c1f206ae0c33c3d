"""Shapes of a store that are hard on scripts, and what a script costs Redis there.

A shape has thousands of events that agree in what scripts look for: a resource, a moment, a state, a dead worker.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

from claiming import COMPLETED
from redis import Redis
from redis_keys import INDEX

from credhook.store import lua
from credhook.store.store import Script, Store

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
{lua.load("keys")}
local first, count, resource, state, list, kind, start, lasts, padding, queued, holder, cause = unpack(ARGV)
for number = first, first + count - 1 do
    local id = string.format('%07d', number) .. padding
    local of, received = resource ~= '' and resource or 'r' .. id, start + number % {SECOND}
    local type = kind == '' and '{COMPLETED}' or kind .. number
    if state ~= '' then
        redis.call('HSET', EVENT .. id, 'state', state, 'type', type, 'resource', of, 'received', received)
        if lasts ~= '0' then redis.call('EXPIRE', EVENT .. id, lasts) end
    end
    if list ~= '' then redis.call('ZADD', list, received, id) end
    redis.call('ZADD', index_of(type, of), received, id)
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
    if cause ~= '' then
        redis.call('HSET', EVENT .. id, 'c:test.first', cause)
        redis.call('ZADD', causes .. ':' .. cause .. ':events', received, id)
    end
end
"""


def fill_shape(
    redis: Redis,
    number: int,
    *,
    state: str = "accepted",
    listed: str = INDEX.open,
    resource: str = "",
    kind: str = "",
    age: float = 60.0,
    lasts: int = 0,
    padding: str = "",
    queued: str = "",
    holder: str = "",
    cause: str = "",
) -> None:
    """Write that many events; `age` is in seconds."""
    script, start = redis.register_script(_SHAPE), int((time.time() - age) * 1_000)
    for first in range(0, number, _BLOCK):
        common: list[str | int] = [resource, state, listed, kind, start, lasts, padding, queued, holder, cause]
        script(keys=[INDEX.prefix], args=[first, min(_BLOCK, number - first), *common])


class MeasuredStore(Store[Redis]):
    """A store that notes the processor time that each script takes Redis at most, in ms."""

    def __init__(self, redis: Redis, spent: dict[str, float] | None = None, *, is_async: bool = False) -> None:
        super().__init__(redis, "credhook", retention=RETENTION)
        self.spent = {} if spent is None else spent
        self._is_async = is_async

    def for_async_code(self) -> Any:
        """Return this store, with the same notes, for code that awaits its replies."""
        return MeasuredStore(self.redis, self.spent, is_async=True)

    def run(self, script: Script, arguments: Sequence[Any], *, keys: Sequence[str] = ()) -> Any:
        before = processor_ms(self.redis)
        reply = super().run(script, arguments, keys=keys)
        self.spent[script] = max(self.spent.get(script, 0), processor_ms(self.redis) - before)

        async def later() -> Any:
            return reply

        return later() if self._is_async else reply


def processor_ms(redis: Redis) -> float:
    """Return the processor time of Redis's main thread: what other processes take does not count."""
    spent: Any = redis.info("cpu")
    return float(1_000 * (spent["used_cpu_user_main_thread"] + spent["used_cpu_sys_main_thread"]))
