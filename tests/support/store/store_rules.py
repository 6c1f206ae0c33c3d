"""What holds of every store: which keys there are, when each of them expires, and that lists agree with records."""

import re
import time
from fnmatch import fnmatchcase
from typing import Any, Final

from redis import Redis

from credhook import store
from credhook.events import EVENT_TYPES
from credhook.store import BLAMED, PREFIX, State
from support.store.accepting import everything
from support.store.stores import EVENT, INDEX, SNAPSHOT

#: Seconds that two clocks may differ by.
_ROUNDED: Final = 0.1
_UNITS: Final = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}
#: The table of keys in credhook/store/__init__.py: pattern → when such a key expires. The longest that fits counts.
EXPIRIES: Final = dict(re.findall(r"^ {4}([a-z_:*]+) {2,}(\S.*)$", store.__doc__ or "", re.MULTILINE))
OPEN: Final = {State.ACCEPTED, State.WAITING}
#: The lists of settled events, by state.
LISTS: Final = {
    State.DEAD: INDEX.dead,
    State.DATA_GONE: INDEX.dead,
    State.QUARANTINED: INDEX.quarantined,
    State.UNREADABLE: INDEX.unreadable,
}


def pattern_of(key: str) -> str:
    """Return the pattern in the table that fits the key best, or the key itself."""
    name = key.removeprefix(f"{PREFIX}credhook:")
    return max((one for one in EXPIRIES if fnmatchcase(name, one)), key=len, default=key)


def wrong_expiries(redis: Redis, *, began: float, retention: int, pause: float = 0.0) -> list[str]:
    """Return the keys of ours that the table does not have, or that last shorter or longer than it says.

    `began`: monotonic time before the first write; `pause`: seconds that the platform is paused.
    """
    wrong = []
    for key in redis.scan_iter(PREFIX + "*"):
        left: float = redis.pttl(key) / 1_000
        elapsed = time.monotonic() - began + _ROUNDED
        phrases = EXPIRIES.get(pattern_of(key.decode()), "not in the table")
        if not any(_fits(left, phrase, elapsed, retention, pause) for phrase in phrases.split("; ")):
            wrong.append(f"{key!r} has {left} s left: {phrases}")
    return wrong


def _fits(left: float, phrase: str, elapsed: float, retention: int, pause: float) -> bool:
    if phrase.startswith("never"):
        return left < 0
    if phrase == "with the bucket":  # It holds one token of one call a second.
        return 0 <= left <= 1.1
    if phrase.startswith("with "):
        return left >= 0
    if phrase == "any":
        return True
    read = re.match(r"(\d+ )?(retention|rounds|s|min|h|d)\b(?:, at least (\d+) d)?( after its pause)?", phrase)
    if read is None:
        return False
    number, unit, least, is_paused = read.groups()
    seconds: float = int(number or 1) * {**_UNITS, "retention": retention, "rounds": 1}[unit]
    seconds = max(seconds, 86_400 * int(least or 0)) + (pause if is_paused else 0)
    return seconds - elapsed <= left <= seconds


def disagreements(redis: Redis) -> list[str]:
    """Return the entries of lists that no record confirms, and the records that their list lacks."""
    found, ids = [], {key.decode().removeprefix(EVENT) for key in redis.scan_iter(EVENT + "*")}
    records: Any = {one: redis.hgetall(EVENT + one) for one in ids}
    states = {one: State(record[b"state"].decode()) for one, record in records.items()}
    expected = {
        **{INDEX.unhandled + one: set() for one in EVENT_TYPES},
        **{key: {one for one in ids if LISTS.get(states[one]) == key} for key in LISTS.values()},
        **{key: {one for one in ids if states[one] in OPEN} for key in (INDEX.open, INDEX.delayed)},
    }
    for one in ids:
        for name, cause in records[one].items():
            if name.startswith(BLAMED.encode()) and not redis.exists(INDEX.cause + cause.decode()):
                found.append(f"{one} names the cause {cause!r}, which is not described")
        if states[one] is State.UNHANDLED:
            expected[INDEX.unhandled + records[one][b"type"].decode()].add(one)
        if (redis.ttl(EVENT + one) < 0) != (states[one] in OPEN):
            found.append(f"{one} is {states[one]} and expires, or does not")
    for key in redis.scan_iter(SNAPSHOT + "*"):
        resource = key.decode().removeprefix(SNAPSHOT)
        if all(states[one] is State.DONE for one in ids if records[one].get(b"resource") == resource.encode()):
            found.append(f"the presented data of {resource} is kept, and all of its events are done")
    for key, members in expected.items():
        listed: Any = redis.zrange(key, 0, -1)
        if (listing := {one.decode() for one in listed}) != members:
            found.append(f"{key} lists {listing} and should list {members}")
    found += _differences_of_index(redis, records)
    return [*found, everything(redis)] if found else []


def _differences_of_index(redis: Redis, records: dict[str, dict[bytes, bytes]]) -> list[str]:
    """Return how the index differs from the records. It may have more entries, of which a script was cut."""
    by_time: Any = redis.xrange(INDEX.by_time)
    listed = {entry: fields[b"event"].decode() for entry, fields in by_time}
    scores: Any = redis.zrange(INDEX.by_resource, 0, -1, withscores=True)
    by_resource = dict(scores)
    found = []
    for one, record in records.items():
        place = record.get(b"place", b"0")
        entry = place if b"-" in place else record[b"received"] + b"-" + place
        if listed.get(entry) != one or by_resource.get(entry) != INDEX.resource_score(record[b"resource"].decode()):
            found.append(f"the record of {one} leads to {entry!r} in vain")
    return found
