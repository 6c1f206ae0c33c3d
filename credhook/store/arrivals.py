"""Arrivals: how many deliveries came in each minute and hour, and whether deliveries that usually come are missing.

accept.lua counts each authentic delivery, duplicates included, in the counts by minute, which last for two days; see
traffic.py. Once an hour the sweeper sums up the hours of two weeks that have ended, in the hash `arrivals`: "h<hour>" →
"<deliveries> <minutes with a delivery> <last minute with a delivery>". Minutes and hours count from the epoch, by
Redis's clock.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from credhook.store.store import SyncStore
from credhook.store.traffic import DAY, HOUR, minute_of

#: Hours whose sums are kept.
_SUMS_KEPT: Final = 14 * 24
#: Seconds that the sums of hours outlive the last one.
_LASTS_SECONDS: Final = 15 * 86_400
#: Minutes by which deliveries must be overdue before they are missed.
OVERDUE: Final = 30
#: Minutes with a delivery that the same time of an earlier day must have had. Fewer could be chance.
ENOUGH: Final = 10
#: Minimum number of later days that must have had as many.
_OTHER_DAYS: Final = 2


class Hour(NamedTuple):
    """The deliveries of an hour, or of another span.

    Attributes:
        deliveries: their number.
        minutes: the number of minutes in which a delivery came.
        last: the last of these minutes, since the epoch; 0 without a delivery, or of another span.
    """

    deliveries: float = 0
    minutes: float = 0
    last: int = 0


class Silence(NamedTuple):
    """Deliveries that usually come have been missing.

    Attributes:
        minutes: since the last delivery.
        usual: deliveries in a minute that came at the same time a week ago.
    """

    minutes: int
    usual: float


class Arrivals(NamedTuple):
    """The deliveries of two weeks by hour."""

    hours: Mapping[int, Hour]

    @classmethod
    def read(cls, reply: Sequence[Any]) -> "Arrivals":
        """Return the arrivals in a reply of deliveries.lua."""
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        hours = {int(name[1:]): Hour(*map(int, value.split())) for name, value in fields.items() if name[:1] == b"h"}
        minutes = {int(name[1:]): int(value) for name, value in fields.items() if name[:1] == b"m"}
        return cls({**hours, **_by_hour(minutes)})

    @property
    def last(self) -> int | None:
        """Return the minute of the last delivery; None without a delivery."""
        return max((hour.last for hour in self.hours.values()), default=0) or None

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


def sum_up(store: SyncStore, now: int) -> None:
    """Write the sums of the hours of two weeks that have ended; `now` is in ms."""
    hour, key = minute_of(now) // HOUR, store.keys.arrivals
    arrivals = Arrivals.read(store.run("deliveries", []))
    sums = {at: arrivals.hours.get(at, Hour()) for at in range(hour - _SUMS_KEPT, hour)}
    pipeline = store.redis.pipeline()  # In a transaction, so that no sum is missing.
    pipeline.delete(key)
    pipeline.hset(key, mapping={f"h{at}": " ".join(map(str, of_hour)) for at, of_hour in sums.items()})
    pipeline.expire(key, _LASTS_SECONDS)
    pipeline.execute()


def _by_hour(minutes: Mapping[int, int]) -> dict[int, Hour]:
    hours = dict[int, Hour]()
    for minute, count in minutes.items():
        deliveries, active, last = hours.get(minute // HOUR, Hour())
        hours[minute // HOUR] = Hour(deliveries + count, active + 1, max(minute, last))
    return hours
