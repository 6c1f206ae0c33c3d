"""The first page: the state of the fleet, the findings, and small plots of the last hour."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from starlette.routing import Route

from credhook.console.live import Streams, live_page
from credhook.console.rendering import number
from credhook.ops.attention import Finding, age, look_at
from credhook.ops.fleet import Fleet
from credhook.ops.status import arriving
from credhook.settings import StoreSettings
from credhook.store import Keys
from credhook.store.address import RedisAddress
from credhook.store.connection import open_redis_sync

#: Seconds between two readings of the fleet.
_READ_INTERVAL_SECONDS: Final = 2.0
#: Seconds that the plots cover, and between two of their points.
HISTORY_SECONDS: Final = 3_600.0
_POINT_SECONDS: Final = 10.0
#: Size of a plot.
WIDTH: Final = 240
HEIGHT: Final = 44
#: The page that lists the events of a finding.
_EVENTS_OF: Final = {
    "events.dead": "/events?state=dead&state=data_gone",
    "events.oldest_open": "/events?state=waiting&state=accepted",
    "events.unhandled": "/events?state=unhandled",
    "events.quarantined": "/events?state=quarantined",
    "events.unreadable": "/events?state=unreadable",
}
_MEBIBYTE: Final = 1 << 20

T = TypeVar("T")


class Reading(NamedTuple):
    """The fleet at one moment, in seconds since the epoch. `fleet` is None if Redis did not answer."""

    at: float
    fleet: Fleet | None
    findings: tuple[Finding, ...]


class Sample(NamedTuple):
    """The plotted numbers of one moment; None if a number is unknown."""

    arriving: float | None
    open: float | None
    retrying: float | None
    dead: float | None


#: Name and unit of each number of a sample.
_PLOTTED: Final = (("arriving", "/s"), ("open", ""), ("retrying", ""), ("given up, kept", ""))


class Plot(NamedTuple):
    """One number over the last hour as SVG paths. `highest` and `last` are None if no value is known."""

    name: str
    unit: str
    line: str
    area: str
    highest: float | None
    last: float | None


class History:
    """The last hour, one point per ten seconds; each point keeps the highest values."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, Sample]] = deque(maxlen=int(HISTORY_SECONDS / _POINT_SECONDS) + 1)

    def add(self, at: float, sample: Sample) -> None:
        """Remember a sample taken `at` a time, in seconds."""
        start = at // _POINT_SECONDS * _POINT_SECONDS
        if self._points and self._points[-1][0] >= start:
            start, before = self._points.pop()
            pairs = zip(before, sample, strict=True)
            sample = Sample(*(max((one for one in pair if one is not None), default=None) for pair in pairs))
        self._points.append((start, sample))

    @property
    def since(self) -> float | None:
        """Return the time of the oldest point, or None."""
        return self._points[0][0] if self._points else None

    def plots(self, now: float) -> list[Plot]:
        """Return a plot per number, ending `now`."""
        return [
            plot(name, unit, [(at, sample[column]) for at, sample in self._points], now - HISTORY_SECONDS, now)
            for column, (name, unit) in enumerate(_PLOTTED)
        ]


def plot(name: str, unit: str, points: Sequence[tuple[float, float | None]], start: float, end: float) -> Plot:
    """Draw points between two times, in seconds. Points more than three intervals apart are not joined."""
    known = [(at, value) for at, value in points if value is not None and start <= at <= end]
    if not known:
        return Plot(name, unit, "", "", None, None)
    highest = max(value for _, value in known)
    runs: list[list[tuple[float, float]]] = []
    before = None
    for at, value in known:
        x = (at - start) / (end - start) * WIDTH
        y = HEIGHT - 1 - (value / highest * (HEIGHT - 4) if highest else 0)
        if before is None or at - before > 3 * _POINT_SECONDS:
            runs.append([])
        runs[-1].append((x, y))
        before = at
    line = " ".join(_path(run if len(run) > 1 else [run[0], (run[0][0] + 0.5, run[0][1])]) for run in runs)
    area = " ".join(f"{_path([(run[0][0], HEIGHT), *run, (run[-1][0], HEIGHT)])} Z" for run in runs)
    return Plot(name, unit, line, area, highest, known[-1][1])


def _path(corners: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in corners)


class FleetWatch:
    """Reads the fleet every two seconds for all pages, and runs their questions to Redis in threads.

    Attributes:
        redis: a synchronous client, for use in threads.
    """

    def __init__(self, settings: StoreSettings, *, clock: Callable[[], float] = time.time) -> None:
        """Prepare; nothing is read yet."""
        address = RedisAddress.parse(settings.redis_url.get_secret_value())
        self.redis: Redis = open_redis_sync(address, retry=Retry(NoBackoff(), 0))
        self.keys = Keys(settings.queue)
        self.retention = settings.retention
        self.history = History()
        self._address = str(address)
        self._clock = clock
        self._latest: Reading | None = None

    async def ask(self, question: Callable[[Redis, Keys], T]) -> T:
        """Run the question in a thread.

        Raises:
            RedisError, OSError: Redis failed.
        """
        return await asyncio.to_thread(question, self.redis, self.keys)

    async def latest(self) -> Reading:
        """Return the latest reading; read first if there is none."""
        return self._latest or await self._read()

    async def watch(self) -> None:
        """Read the fleet again and again, until cancelled."""
        while True:
            await self._read()
            await asyncio.sleep(_READ_INTERVAL_SECONDS)

    async def _read(self) -> Reading:
        fleet, findings = await asyncio.to_thread(look_at, self.redis, self._address, self.keys.queue)
        self._latest = reading = Reading(self._clock(), fleet, findings)
        if fleet:
            counts = fleet.counts
            per_second = sum(receiver.per_second for receiver in fleet.own_receivers)
            self.history.add(reading.at, Sample(per_second, counts.open, counts.retrying, counts.dead))
        return reading


class Tile(NamedTuple):
    """A number at the head of the page, with a link to its events. `tone` is `bad` or `warn` if it should be zero."""

    name: str
    value: str
    more: str = ""
    href: str = ""
    tone: str = ""


def routes(fleet: FleetWatch, streams: Streams, clock: Callable[[], float] = time.time) -> list[Route]:
    """Return the routes of the page and its live part."""

    async def read() -> dict[str, Any]:
        return _context(fleet, await fleet.latest(), clock())

    return live_page("/", "now", streams, read)


def _context(watch: FleetWatch, reading: Reading, now: float) -> dict[str, Any]:
    fleet, since, memory = reading.fleet, watch.history.since, ""
    if fleet:
        server = fleet.server
        bound = f"of {server.maxmemory / _MEBIBYTE:.0f} MiB" if server.maxmemory else "without a limit"
        memory = f"{server.used_memory / _MEBIBYTE:.0f} MiB, {bound}"
    return {
        "look": reading,
        "see": _EVENTS_OF,
        "facts": fleet,
        "tiles": tiles(fleet) if fleet else [],
        "plots": watch.history.plots(now) if fleet else [],
        "remembered": age(now - since) if since is not None else "",
        "age": age,
        "memory": memory,
        "queue": watch.keys.queue,
    }


def tiles(fleet: Fleet) -> list[Tile]:
    """Return the numbers at the head of the page."""
    counts = fleet.counts
    per_second, last = arriving(fleet)
    oldest = "none" if fleet.oldest_open is None else age(fleet.oldest_open)
    dead = Tile(
        "given up",
        number(counts.dead_recently),
        f"today, {number(counts.dead)} kept",
        "/events?state=dead&state=data_gone",
        "bad" if counts.dead_recently else "",
    )
    warnings = (
        ("unhandled", sum(counts.unhandled.values()), "no handler"),
        ("quarantined", counts.quarantined, "unknown type"),
        ("unreadable", counts.unreadable, "broken record"),
    )
    return [
        Tile("arriving", f"{per_second:.1f}/s", last),
        Tile("queued", number(counts.queued), "wait for a worker", "/events?state=accepted"),
        Tile("in flight", number(counts.in_flight), "a worker has them"),
        Tile("retrying", number(counts.retrying), "wait for an attempt", "/events?state=waiting"),
        Tile("oldest open", oldest, f"of {number(counts.open)} open"),
        dead,
        *(
            Tile(name, number(value), remark, f"/events?state={name}", "warn")
            for name, value, remark in warnings
            if value != 0
        ),
    ]
