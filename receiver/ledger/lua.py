"""Lua that several of our scripts begin with."""

from typing import Final

from receiver.events import URGENT as _TYPES

#: Jobs that the urgent list holds at most, and seconds that it lives without a new one: what falls out of it is still
#: in the queue.
MOST_URGENT: Final = 10_000
URGENT_LASTS: Final = 3_600

#: `now`, in ms, by Redis's clock: hosts may disagree.
NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

#: For whatever puts jobs into the queue: which of them are urgent, and how workers are told.
URGENT: Final = f"""
local function is_urgent(type)
    return {" or ".join(f"type == '{name}'" for name in _TYPES)}
end

local function hint(urgent, ...)
    redis.call('RPUSH', urgent, ...)
    redis.call('LTRIM', urgent, -{MOST_URGENT}, -1)
    redis.call('EXPIRE', urgent, {URGENT_LASTS})
end
"""
