"""Along which axes the work grows, and what is run at each point."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from bench.work.competitors import OURS, Competitor
from bench.work.run import Terms

#: An API of 50 ms, and events for about ten seconds, as beside the peers.
_TERMS: Final = Terms(latency=0.05, events=15_000, seconds=inf, limit=30.0, patience=60.0)

_HANDLERS: Final = "bench.programs.credhook_events"


@dataclass(frozen=True, slots=True)
class Point:
    """One amount of work.

    Attributes:
        terms: what is asked of the worker.
        settings: environment variables of the worker.
    """

    terms: Terms = _TERMS
    settings: Mapping[str, str] = field(default_factory=dict)

    def worker(self) -> Competitor:
        """Ours, with these settings."""
        return replace(OURS, settings=OURS.settings | dict(self.settings))

    def small(self) -> "Point":
        """The same with so few events that it says only whether it runs."""
        return replace(self, terms=replace(self.terms, latency=0.0, events=100, limit=60.0))


@dataclass(frozen=True, slots=True)
class Axis:
    """Something of which there can be more.

    Attributes:
        title: for people.
        points: from little to much, by how a table names them.
    """

    title: str
    points: Mapping[str, Point]


def _again(every: int) -> Point:
    return Point(replace(_TERMS, again=every), {"CREDHOOK_HANDLERS": f"{_HANDLERS}:again", "AGAIN": str(every)})


AXES: Final = {
    "backlog": Axis(
        "events in the queue",
        {f"{events:,}": Point(replace(_TERMS, events=events)) for events in (10_000, 1_000_000)},
    ),
    "handlers": Axis(
        "handlers of each event",
        {
            str(handlers): Point(replace(_TERMS, events=events, limit=120.0), {"HANDLERS": str(handlers)})
            for handlers, events in ((1, 15_000), (10, 5_000), (100, 1_000))
        },
    ),
    "details": Axis(
        "details of each event",
        {f"{size} KB": Point(replace(_TERMS, size=size * 1_000)) for size in (1, 100)},
    ),
    "retries": Axis("events that are tried twice", {"0 %": Point(), "10 %": _again(10)}),
}
