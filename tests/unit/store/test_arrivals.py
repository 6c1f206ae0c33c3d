"""When deliveries are missing, from counts alone."""

from collections.abc import Callable
from typing import Final

import pytest

from credhook.store.arrivals import Arrivals, Silence
from credhook.store.traffic import DAY, HOUR

#: A Monday at midnight, in minutes since the epoch.
MONDAY: Final = 4 * DAY + 2_900 * 7 * DAY
WEEK: Final = 7 * DAY

Pattern = Callable[[int], int]


def every(minutes: int) -> Pattern:
    return lambda minute: int(minute % minutes == 0)


def by_day(minute: int) -> int:
    """One a minute from 8 to 20 o'clock, on weekdays."""
    return int(8 * HOUR <= minute % DAY < 20 * HOUR and (minute - MONDAY) % WEEK < 5 * DAY)


def on_days(number: int) -> Pattern:
    """One a minute on the first days of a week, and on the next Monday."""
    return lambda minute: int(0 <= (minute - MONDAY) % WEEK < number * DAY and minute >= MONDAY)


def batch(minute: int) -> int:
    """A thousand at nine o'clock or some minutes later."""
    return 1_000 * (minute % DAY == 9 * HOUR + minute // DAY % 20)


def counted(pattern: Pattern, start: int, end: int) -> Arrivals:
    """The counts of the deliveries from one minute until before another, as Redis has them at `end`."""
    fields: list[bytes | int] = []
    summed = (end - 2 * DAY) // HOUR * HOUR
    for hour in range(start // HOUR, summed // HOUR):
        came = [minute for minute in range(hour * HOUR, (hour + 1) * HOUR) if minute >= start and pattern(minute)]
        fields += [b"h%d" % hour, b"%d %d %d" % (sum(map(pattern, came)), len(came), max(came, default=0))]
    for minute in range(max(start, summed), end):
        if count := pattern(minute):
            fields += [b"m%d" % minute, count]
    return Arrivals.read(fields)


#: What usually comes; days for which it came; when it ceased; how long ago that is; whether deliveries are missing.
SILENT: list[tuple[str, Pattern, float, int, int, bool]] = [
    ("no delivery for 40 min, usually one a minute", every(1), 10, MONDAY + 700, 40, True),
    ("not half an hour yet", every(1), 10, MONDAY + 700, 30, False),
    ("a few overdue could be chance", every(1), 10, MONDAY + 700, 39, False),
    ("deliveries come", every(1), 10, MONDAY + 700, 0, False),
    ("hundreds a second", lambda _: 20_000, 10, MONDAY + 700, 41, True),
    ("a new deployment: no week ago", every(1), 6, MONDAY + 700, 600, False),
    ("a deployment in its second week", every(1), 7.2, MONDAY + 700, 60, True),
    ("a quiet night", by_day, 13, MONDAY + DAY + 20 * HOUR, 10 * HOUR, False),
    ("a morning like others", by_day, 13, MONDAY + DAY + 20 * HOUR, 12 * HOUR + 30, False),
    ("a morning without deliveries", by_day, 13, MONDAY + DAY + 20 * HOUR, 12 * HOUR + 41, True),
    ("a weekend like others", by_day, 13, MONDAY + 4 * DAY + 20 * HOUR, 30 * HOUR, False),
    ("the Monday after it", by_day, 13, MONDAY + 4 * DAY + 20 * HOUR, 60 * HOUR + 41, True),
    ("the second day of an outage", every(1), 13, MONDAY + 700, DAY + 700, True),
    ("the fifth day of an outage", every(1), 13, MONDAY + 700, 5 * DAY, True),
    ("five an hour, missing for an hour", every(12), 13, MONDAY + 700, 60, False),
    ("five an hour, missing for three hours", every(12), 13, MONDAY + 700, 180, True),
    ("one delivery a day", every(DAY), 13, MONDAY + 1, 3 * DAY, False),
    ("one batch a day that is late", batch, 13, MONDAY + DAY, DAY, False),
    ("busy a week ago and on one day since", on_days(2), 13, MONDAY + WEEK + 60, 60, False),
    ("busy a week ago and on two days since", on_days(3), 13, MONDAY + WEEK + 60, 60, True),
    ("one busy day a week ago", lambda minute: int(MONDAY <= minute < MONDAY + DAY), 13, MONDAY + WEEK + 60, 60, False),
    ("nothing ever came", lambda _: 0, 13, MONDAY, 60, False),
]


@pytest.mark.parametrize(("case", "pattern", "days", "ceased", "ago", "is_missing"), SILENT)
def test_missing_deliveries_are_found_by_the_same_time_of_earlier_days(
    case: str, pattern: Pattern, days: float, ceased: int, ago: int, is_missing: bool
) -> None:
    now = ceased - 1 + ago
    came = counted(lambda minute: pattern(minute) if minute < ceased else 0, ceased - int(days * DAY), now + 1)
    assert (came.silence(now) is not None) == is_missing, case


def test_silence_says_for_how_long_and_what_usually_comes() -> None:
    assert counted(every(1), MONDAY - 10 * DAY, MONDAY).silence(MONDAY + 59) == Silence(60, 1.0)
