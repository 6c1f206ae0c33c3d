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

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from credhook.store import HANDLER, TRAFFIC_HOURS, Keys
from credhook.store.counts import EventCounts
from credhook.store.store import SyncStore

HOUR: Final = 60
DAY: Final = 24 * HOUR
_OPEN: Final = "open"
_OLDEST: Final = "oldest"
#: What is counted, as the fields name it.
_OUTCOMES: Final = ("arrived", "done", "failed", "given_up")
_LASTS_SECONDS: Final = 3_600 * TRAFFIC_HOURS


class Column(NamedTuple):
    """One step of a graph.

    Attributes:
        start: its first minute, since the epoch.
        arrived, done, failed, given_up: counts of its minutes; see above.
        open: most open events that the sweeper saw; None without a sample.
        oldest: the highest age in s of the oldest open event; None without a sample.
    """

    start: int
    arrived: int = 0
    done: int = 0
    failed: int = 0
    given_up: int = 0
    open: int | None = None
    oldest: int | None = None


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


def read_columns(
    store: SyncStore, now: int, spans: Sequence[tuple[int, int]], *, name: str = ""
) -> list[tuple[Column, ...]]:
    """Return the columns of graphs that end at `now`, in ms. A span is the minutes of a graph, and of each column.

    `name`: an event type, or `h:` and a handler; "" for the events of all types.
    """
    minute = minute_of(now)
    first = (minute - max(span for span, _ in spans)) // HOUR
    hours = range(first, minute // HOUR + 1)
    pipeline = store.redis.pipeline(transaction=False)
    for hour in hours:
        pipeline.hgetall(hour_key(store.keys, hour))
    entries = [
        (HOUR * hour + of_hour, what, count)
        for hour, reply in zip(hours, pipeline.execute(), strict=True)
        for of_hour, what, count in _entries(reply, name)
    ]
    return [_columns(entries, minute, span, step) for span, step in spans]


def _entries(reply: Any, name: str) -> Iterator[tuple[int, str, int]]:
    """Yield minute of the hour, outcome or sample, and number. Leave out what something else has written."""
    for field, value in reply.items():
        minute, _, what = field.decode(errors="replace").partition(" ")
        if not (minute.isdigit() and value.isdigit()):
            continue
        outcome, _, subject = what.partition(" ")
        if subject == name if name or not subject else not subject.startswith(HANDLER):
            yield int(minute), outcome, int(value)


def _columns(entries: Iterable[tuple[int, str, int]], minute: int, span: int, step: int) -> tuple[Column, ...]:
    end = (minute // step + 1) * step
    columns: dict[int, dict[str, int]] = {start: {} for start in range(end - span, end, step)}
    for at, what, number in entries:
        column = columns.get(at - (at - end) % step)
        if column is None:
            continue
        if what in _OUTCOMES:
            column[what] = column.get(what, 0) + number
        elif what in {_OPEN, _OLDEST}:
            column[what] = max(column.get(what, 0), number)
    return tuple(Column(start, **numbers) for start, numbers in columns.items())
