"""A store of as many events as one likes, listed as the receiver lists them, in seconds: a minute for a million.

They came evenly over six days, the last just now. Of a thousand, 20 are dead, 1 is unhandled and the others are done;
the newest hundred wait. Types are as frequent as their place in `EVENT_TYPES` says, the last by far the rarest; three
events, far from each other, have one resource. One handler has ended for all, another for one in a hundred.
"""

import time
from typing import Final

from redis import Redis

from credhook.events import EVENT_TYPES
from credhook.store import HANDLER, Keys, State, lua

#: Events that one script writes.
_BLOCK: Final = 2_000
_SPREAD: Final = 6 * 86_400_000
_RETENTION: Final = 604_800
OPEN: Final = 100
RARE_TYPE: Final = EVENT_TYPES[-1]
COMMON_HANDLER, RARE_HANDLER = "accounts.activate", "notify.send"

# KEYS: as in keys.lua.
# ARGV: first number, how many, of how many; now and the time of the first, in ms; seconds until records expire; then
#   the types.
_FILL: Final = f"""
{lua.load("keys")}
local first, count, total, now, start = unpack(ARGV)
local retention = ARGV[6]
for number = first, first + count - 1 do
    local nth = number % 997 == 0 and 9 or math.floor((number * 7919 % 1000 / 1000) ^ 3 * 9)
    local kind = ARGV[7 + nth]
    local id, resource = string.format('msg_%024x', number), string.format('iss_%020x', number % math.ceil(total / 3))
    local received = string.format('%.0f', start + math.floor((now - start) * number / total))
    local state, error = '{State.DONE}', ''
    if number % 50 == 7 then state, error = '{State.DEAD}', '{COMMON_HANDLER}: ValueError' end
    if number % 1000 == 11 then state, error = '{State.UNHANDLED}', 'NoHandler' end
    if number >= total - {OPEN} then state, error = '{State.WAITING}', 'Unavailable' end
    local key = EVENT .. id
    redis.call('HSET', key, 'type', kind, 'resource', resource, 'received', received, 'state', state,
               '{HANDLER}{COMMON_HANDLER}', state == '{State.DEAD}' and 'dead: ValueError' or 'done')
    if number % 100 == 3 then redis.call('HSET', key, '{HANDLER}{RARE_HANDLER}', 'done') end
    if error ~= '' then redis.call('HSET', key, 'error', error) end
    if state == '{State.WAITING}' then
        redis.call('ZADD', open, received, id)
        redis.call('ZADD', open_by_received, received, id)
    else
        redis.call('HSET', key, 'settled', received + 200)
        redis.call('EXPIRE', key, retention)
    end
    if state == '{State.DEAD}' then redis.call('ZADD', dead, received + 200, id) end
    if state == '{State.UNHANDLED}' then redis.call('ZADD', unhandled .. kind, received + 200, id) end
    redis.call('ZADD', index_of(kind, resource), received, id)
end
"""


def fill(redis: Redis, number: int, *, queue: str = "credhook") -> None:
    """Write that many events into an empty store."""
    now, index = int(time.time() * 1_000), Keys(queue)
    script = redis.register_script(_FILL)
    for first in range(0, number, _BLOCK):
        count = min(_BLOCK, number - first)
        script(keys=[index.prefix], args=[first, count, number, now, now - _SPREAD, _RETENTION, *EVENT_TYPES])
