"""How a script for Redis is put together: a `.lua` file beside the module that runs it, and fragments from this folder.

The line `--! include credhook.ledger/now.lua` stands for that file, once in a script however many of its parts ask for
it. `$EVENT` stands for the constant of that name as Lua writes it: a text in quotes, a number, or a set of texts.
"""

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Final

from credhook import ledger
from credhook.events import EVENT_TYPES
from credhook.events import URGENT as _TYPES

#: Jobs that the urgent list holds at most, and seconds that it lives without a new one: what falls out of it is still
#: in the queue.
MOST_URGENT: Final = 10_000
URGENT_LASTS: Final = 3_600

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

#: Who holds a lock. Needs `ODD`.
LOCKS: Final = f"""
-- The event that holds the lock under that key; nil if nobody does. One without an end is nobody's, nor is one that
-- outlasts every lease: it would keep the resource for ever.
local function holder_of(key)
    local holder = unless_odd('GET', key)
    if not holder then return nil end
    local left = redis.call('PTTL', key)
    if left < 0 or left > {ledger.LONGEST_LOCK} then return nil end
    return holder
end
"""

#: What a record must hold so that it can be worked on. Needs `NOW` and `ODD`.
#:
#: Ids, types and resources are visible ASCII wherever the receiver has written them, and numbers are whole, of 15
#: digits at most: what is neither would end whoever reads it, in Python or here. An event can do without the time at
#: which it was received.
READABLE: Final = f"""
local states = {{{", ".join(f"['{state}'] = true" for state in ledger.State)}}}

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
    if received and (not is_count(received) or tonumber(received) > {ledger.LATEST}) then return 'received' end
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

#: The constants of the ledger, and its states: `$ACCEPTED` and so on.
_CONSTANTS: Final[dict[str, str | int | Iterable[str]]] = {
    **{name: value for name, value in vars(ledger).items() if name.isupper() and isinstance(value, str | int)},
    **{state.name: state for state in ledger.State},
    "STATES": ledger.State,
    "EVENT_TYPES": EVENT_TYPES,
    "URGENT_TYPES": _TYPES,
}

_MARK: Final = re.compile(r"^--! *(.*)$|\$([A-Z_]+)", re.MULTILINE)


class BadScript(Exception):
    """A script cannot be put together; the message names the file and what is wrong with it."""


def load(path: str, **constants: str) -> str:
    """The script in that file, with all that it includes.

    Args:
        path: a package, a slash, and the name of a file in it.
        constants: further ones.

    Raises:
        BadScript: a file is missing, or names something that does not exist.
    """
    known, included = {**_CONSTANTS, **constants}, {path}

    def put_together(path: str, wanted_by: str) -> str:
        def replaced(mark: re.Match[str]) -> str:
            line, name = mark.groups()
            if name in known:
                return _literal(known[name])
            keyword, _, other = (line or "").partition(" ")
            if keyword != "include":
                raise BadScript(f"{path}: the loader does not know {mark[0]}")
            if other in included:
                return ""
            included.add(other)
            return put_together(other, f", which {path} includes")

        try:
            text = _read(path)
        except (FileNotFoundError, ModuleNotFoundError):
            raise BadScript(f"there is no file {path}{wanted_by}") from None
        return _MARK.sub(replaced, text)

    return put_together(path, "")


@cache
def _read(path: str) -> str:
    package, _, name = path.partition("/")
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _literal(value: str | int | Iterable[str]) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, int):
        return str(value)
    return f"{{{', '.join(f'[{_literal(each)}] = true' for each in value)}}}"
