"""Lua that several of our scripts begin with."""

from typing import Final

from credhook.events import URGENT as _TYPES
from credhook.ledger import State

#: Jobs that the urgent list holds at most, and seconds that it lives without a new one: what falls out of it is still
#: in the queue.
MOST_URGENT: Final = 10_000
URGENT_LASTS: Final = 3_600

#: Milliseconds since the epoch beyond which no time can be written: the end of the year 9999.
LATEST: Final = 253_402_300_799_999

#: Milliseconds from now within which a retry is due: a handler may ask for a week, and clocks may be set.
FURTHEST: Final = 30 * 86_400_000

#: `now`, in ms, by Redis's clock: hosts may disagree.
NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

#: For whatever meets keys that somebody else may have written to.
ODD: Final = """
-- The reply; nil if the key is of another type than ours.
local function unless_odd(...)
    local reply = redis.pcall(...)
    if type(reply) == 'table' and reply.err then
        if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply.err, 0) end
        return nil
    end
    return reply
end
"""

#: Milliseconds that a lock of a resource, or a lease, can last: twice the longest that CREDHOOK_LEASE allows.
LONGEST_LOCK: Final = 600_000

#: Who holds a lock. Needs `ODD`.
LOCKS: Final = f"""
-- The event that holds the lock under that key; nil if nobody does. One without an end is nobody's, nor is one that
-- outlasts every lease: it would keep the resource for ever.
local function holder_of(key)
    local holder = unless_odd('GET', key)
    if not holder then return nil end
    local left = redis.call('PTTL', key)
    if left < 0 or left > {LONGEST_LOCK} then return nil end
    return holder
end
"""

#: What a record must hold so that it can be worked on. Needs `NOW` and `ODD`.
#:
#: Ids, types and resources are visible ASCII wherever the receiver has written them, and numbers are whole, of 15
#: digits at most: what is neither would end whoever reads it, in Python or here. An event can do without the time at
#: which it was received.
READABLE: Final = f"""
local states = {{{", ".join(f"['{state}'] = true" for state in State)}}}

local function is_word(text)
    return text and text ~= '' and #text <= 256 and not string.find(text, '[^!-~]')
end

local function is_count(text)
    return text and text ~= '' and #text <= 15 and not string.find(text, '[^0-9]')
end

-- What of an open event's record cannot be read; nil if all can.
local function unreadable_part(id, state, type, resource, received, fence, attempts, due)
    if not is_word(id) then return 'webhook-id' end
    if not (state and states[state]) then return 'state' end
    if not is_word(type) then return 'type' end
    if not is_word(resource) then return 'resource' end
    if received and (not is_count(received) or tonumber(received) > {LATEST}) then return 'received' end
    if fence and not is_count(fence) then return 'fence' end
    if attempts and not is_count(attempts) then return 'attempts' end
    if due and (not is_count(due) or tonumber(due) > now + {FURTHEST}) then return 'due' end
    return nil
end
"""

#: For whatever puts jobs into the queue: which of them are urgent, and how workers are told. Needs `ODD`.
#:
#: The list is a hint: where it cannot be written, since it is of another type or for another reason, its jobs are still
#: in the queue.
URGENT: Final = f"""
local function is_urgent(type)
    return {" or ".join(f"type == '{name}'" for name in _TYPES)}
end

local function hint(urgent, ...)
    local trimmed = redis.pcall('LTRIM', urgent, select('#', ...) - {MOST_URGENT}, -1)
    if trimmed.err then return end
    redis.pcall('RPUSH', urgent, ...)
    redis.pcall('EXPIRE', urgent, {URGENT_LASTS})
end
"""
