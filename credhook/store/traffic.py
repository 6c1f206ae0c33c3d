"""Traffic: how many deliveries came in each minute, and what became of events and of handlers' runs.

accept.lua and write.lua count, and the sweeper writes samples, in a hash for each hour since the epoch. It lasts two
days:

    credhook:<queue>:traffic:<hour>
        <minute> arrived <type>             authentic deliveries, duplicates included. The type is `unknown` if the
                                            version does not know it
        <minute> done <type>                events that were done
        <minute> failed <type>              attempts that failed; the events wait for the next attempt
        <minute> given_up <type>            events that ended as dead or data_gone
        <minute> done h:<handler>           runs of the handler that ended so. `fetch` stands for the fetch
        <minute> failed h:<handler>
        <minute> given_up h:<handler>
        <minute> open                       open events, as the sweeper last saw them in that minute
        <minute> oldest                     age of the oldest of them, in s

The minute is the one in the hour, from 0 to 59, by Redis's clock.
"""

from typing import Final

from credhook.store import Keys
from credhook.store.counts import EventCounts
from credhook.store.store import SyncStore

HOUR: Final = 60
#: Hours before the current one whose counts are kept.
HOURS_KEPT: Final = 48
_OPEN: Final = "open"
_OLDEST: Final = "oldest"
_LASTS_SECONDS: Final = 3_600 * (HOURS_KEPT + 1)


def minute_of(ms: int) -> int:
    """Return the minute of a time in ms."""
    return ms // 60_000


def hour_key(keys: Keys, hour: int) -> str:
    """Return the key of the counts of an hour."""
    return f"{keys.traffic}{hour}"


def write_sample(store: SyncStore, counts: EventCounts, now: int) -> None:
    """Note how many events are open, and how old the oldest is; `now` is in ms."""
    hour, minute = divmod(minute_of(now), HOUR)
    key, oldest = hour_key(store.keys, hour), int(counts.oldest_age or 0)
    pipeline = store.redis.pipeline()  # In a transaction, so that the counts have their expiry.
    pipeline.hset(key, mapping={f"{minute} {_OPEN}": counts.open, f"{minute} {_OLDEST}": oldest})
    pipeline.expire(key, _LASTS_SECONDS)
    pipeline.execute()
