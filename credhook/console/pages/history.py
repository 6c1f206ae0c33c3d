"""What the numbers were over the last hour and day: remembered by the console alone, and bounded. Pure."""

from collections import deque
from typing import Final, NamedTuple

from credhook.console.ui.plot import Plot, Point, plot
from credhook.ops.fleet import Fleet

HOUR: Final = 3_600.0
DAY: Final = 86_400.0
#: Seconds between two points of either.
_FINE: Final = 10.0
_COARSE: Final = 300.0


class Sample(NamedTuple):
    """What is remembered of one moment; None for what was not known."""

    arriving: float | None
    open: float | None
    retrying: float | None
    dead: float | None


class Series(NamedTuple):
    """One number, as it is shown, with its unit, over both spans."""

    name: str
    unit: str
    hour: Plot
    day: Plot


#: Name and unit of each number of a sample, in its order.
_SHOWN: Final = (("arriving", "/s"), ("open", ""), ("retrying", ""), ("given up, kept", ""))


def sample(facts: Fleet) -> Sample:
    """What is remembered of these facts."""
    arriving = sum(receiver.per_second for receiver in facts.own_receivers)
    return Sample(arriving, facts.counts.open, facts.counts.retrying, facts.counts.dead)


class History:
    """Some points of the last hour, and fewer of the last day, each the highest of its span."""

    def __init__(self) -> None:
        """Begin with none."""
        self._fine: deque[tuple[float, Sample]] = deque(maxlen=int(HOUR / _FINE) + 1)
        self._coarse: deque[tuple[float, Sample]] = deque(maxlen=int(DAY / _COARSE) + 1)

    def add(self, at: float, one: Sample) -> None:
        """Remember what was so `at` a time, in seconds."""
        _merge(self._fine, at // _FINE * _FINE, one)
        _merge(self._coarse, at // _COARSE * _COARSE, one)

    @property
    def since(self) -> float | None:
        """When it begins, to some seconds while it is shorter than an hour, to some minutes then."""
        points = self._fine if self._fine and len(self._fine) < (self._fine.maxlen or 0) else self._coarse
        return points[0][0] if points else None

    def series(self, now: float) -> list[Series]:
        """Each number as plots that end `now`."""
        found = []
        for number, (name, unit) in enumerate(_SHOWN):
            fine = [Point(at, one[number]) for at, one in self._fine]
            coarse = [Point(at, one[number]) for at, one in self._coarse]
            hour = plot(fine, start=now - HOUR, end=now, gap=3 * _FINE)
            day = plot(coarse, start=now - DAY, end=now, gap=3 * _COARSE)
            found.append(Series(name, unit, hour, day))
        return found


def _merge(points: deque[tuple[float, Sample]], at: float, one: Sample) -> None:
    """Add to the point of that time, or begin it."""
    if points and points[-1][0] >= at:
        at, before = points.pop()
        one = Sample(*(_higher(*pair) for pair in zip(before, one, strict=True)))
    points.append((at, one))


def _higher(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)
