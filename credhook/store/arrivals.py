"""Arrivals: how many deliveries came in each minute and hour, and whether deliveries that usually come are missing.

accept.lua counts each authentic delivery, duplicates included, in the hash `arrivals`: "m<minute>" → deliveries. After
two days the sweeper turns minutes into hours: "h<hour>" → "<deliveries> <minutes with a delivery>". After two weeks it
removes the hour. Minutes and hours are counted since the epoch, by Redis's clock.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from credhook.store.store import SyncStore

HOUR: Final = 60
DAY: Final = 24 * HOUR
#: Minutes that are kept as minutes.
_MINUTES_KEPT: Final = 2 * DAY
#: Minutes that are kept as part of their hour.
_HOURS_KEPT: Final = 14 * DAY
#: Minutes by which deliveries must be overdue before they are missed.
OVERDUE: Final = 30
#: Minutes with a delivery that the same time of an earlier day must have had. Fewer could be chance.
ENOUGH: Final = 10
#: Minimum number of later days that must have had as many.
_OTHER_DAYS: Final = 2
_MS: Final = 60_000


class Hour(NamedTuple):
    """The deliveries of an hour, or of another span, and the number of its minutes in which a delivery came."""

    deliveries: float = 0
    minutes: float = 0


class Silence(NamedTuple):
    """Deliveries that usually come have been missing.

    Attributes:
        minutes: since the last delivery.
        usual: deliveries in a minute that came at the same time a week ago.
    """

    minutes: int
    usual: float


class Arrivals(NamedTuple):
    """The deliveries of two days by minute, and those of two weeks by hour."""

    minutes: Mapping[int, int]
    hours: Mapping[int, Hour]

    @classmethod
    def read(cls, reply: Mapping[bytes, bytes]) -> "Arrivals":
        """Return the arrivals in a reply to HGETALL. The last two days are also among the hours."""
        minutes = {int(name[1:]): int(count) for name, count in reply.items() if name[:1] == b"m"}
        hours = {int(name[1:]): Hour(*map(int, value.split())) for name, value in reply.items() if name[:1] == b"h"}
        return cls(minutes, {**hours, **_by_hour(minutes)})

    @property
    def last(self) -> int | None:
        """Return the minute of the last delivery, or the last minute of its hour; None without a delivery."""
        return max(self.minutes, default=None) or max((HOUR * hour + HOUR - 1 for hour in self.hours), default=None)

    def between(self, start: int, end: int) -> Hour:
        """Return the deliveries from minute `start` up to minute `end`. An hour counts in proportion to its overlap."""
        deliveries = minutes = 0.0
        for hour in range(start // HOUR, -(-end // HOUR)):
            part = (min(end, HOUR * (hour + 1)) - max(start, HOUR * hour)) / HOUR
            of_hour = self.hours.get(hour, Hour())
            deliveries, minutes = deliveries + part * of_hour.deliveries, minutes + part * of_hour.minutes
        return Hour(deliveries, minutes)

    def silence(self, now: int) -> Silence | None:
        """Return the silence at minute `now`, or None if no usual delivery is missing.

        Take the time since the last delivery, a day at most, without the last half hour. Deliveries are missing if they
        came in ten minutes or more of the same time a week ago, and on two other days since. So quiet nights and
        weekends, a deployment in its first week, and a few deliveries a day are no silence.
        """
        if self.last is None:
            return None
        end = now - OVERDUE
        start = max(self.last, end - DAY)
        if start >= end:
            return None
        *since, week_ago = (self.between(start - days * DAY, end - days * DAY) for days in range(1, 8))
        if week_ago.minutes < ENOUGH or sum(day.minutes >= ENOUGH for day in since) < _OTHER_DAYS:
            return None
        return Silence(now - self.last, week_ago.deliveries / (end - start))


def minute_of(ms: int) -> int:
    """Return the minute of a time in ms."""
    return ms // _MS


def roll_up(store: SyncStore, now: int) -> None:
    """Turn minutes of more than two days ago into hours, and remove hours after two weeks; `now` is in ms."""
    key, minute = store.keys.arrivals, minute_of(now)
    reply: Any = store.redis.hgetall(key)
    kept_from = (minute - _MINUTES_KEPT) // HOUR * HOUR  # Whole hours: each hour is written once.
    old = {
        number: int(count)
        for name, count in reply.items()
        if name[:1] == b"m" and (number := int(name[1:])) < kept_from
    }
    ended = [name for name in reply if name[:1] == b"h" and int(name[1:]) < (minute - _HOURS_KEPT) // HOUR]
    hours: Any = {f"h{hour}": f"{sums.deliveries} {sums.minutes}" for hour, sums in _by_hour(old).items()}
    if gone := [*ended, *(f"m{number}" for number in old)]:
        pipeline = store.redis.pipeline()  # In a transaction, so that no delivery is counted twice or not at all.
        if hours:
            pipeline.hset(key, mapping=hours)
        pipeline.hdel(key, *gone)
        pipeline.execute()


def _by_hour(minutes: Mapping[int, int]) -> dict[int, Hour]:
    hours = dict[int, Hour]()
    for minute, count in minutes.items():
        deliveries, active = hours.get(minute // HOUR, Hour())
        hours[minute // HOUR] = Hour(deliveries + count, active + 1)
    return hours
