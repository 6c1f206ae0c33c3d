"""What is run, and in which order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, ParamSpec, TypeVar

from bench.competitors import LIMITS, STRICT, Competitor
from bench.deliveries import Deliveries, sign
from bench.results import HALF, LOADS, Latency, Results, Throughput
from bench.run import Run, RunFailed, run

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds that a run takes beside its load: Redis, the server, counting, and time to spare.
_AROUND: Final = 60

#: One delivery in so many is kept for warming up.
_WARM_UP_PART: Final = 8

#: How often a run that was spoilt is made again.
_AGAIN: Final = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run.

    Attributes:
        rounds: how often; competitors take turns, and a figure is the median of its rounds.
        seconds: of full load in a run.
        latency_seconds: at each of the steady rates.
        warm_up_seconds: of full load before a run.
        connections: kept alive between the load and a server.
        requests: signed for a run, none of which is sent twice.
    """

    rounds: int = 3
    seconds: int = 10
    latency_seconds: float = 5.0
    warm_up_seconds: int = 2
    connections: int = 64
    requests: int = 800_000


class Runs:
    """The runs of a plan, with what they have in common."""

    def __init__(self, plan: Plan, competitors: Sequence[Competitor], folder: Path, say: Callable[[str], None]) -> None:
        """`folder`: for what is written meanwhile; `say`: told what is going on."""
        self._plan = plan
        self._competitors = competitors
        self._folder = folder
        self._signed: Deliveries | None = None
        self._say = say

    def throughput(self, results: Results) -> None:
        """As much as each takes; every round begins with another competitor."""
        for number in range(self._plan.rounds):
            turn = number % len(self._competitors)
            for competitor in (*self._competitors[turn:], *self._competitors[:turn]):
                measured = self._again(self._throughput, competitor)
                results.throughput.setdefault(competitor.name, []).append(measured)
                self._say(f"round {number + 1}: {competitor.title}: {measured.rate:,.0f} deliveries a second")

    def latency(self, results: Results) -> None:
        """How long each takes to answer at parts of what it takes at most."""
        for number in range(self._plan.rounds):
            for competitor in self._competitors:
                rates = {part: results.rate(competitor.name) * part for part in LOADS}
                found = results.latency.setdefault(competitor.name, {})
                for part, measured in zip(LOADS, self._again(self._latencies, competitor, rates.values()), strict=True):
                    found.setdefault(str(part), []).append(measured)
                    self._say(
                        f"round {number + 1}: {competitor.title} at {part:.0%}: "
                        f"p50 {measured.p50:.1f} ms, p99 {measured.p99:.1f} ms"
                    )
                if competitor in LIMITS and STRICT.name in results.throughput:
                    (measured,) = self._again(self._latencies, competitor, [results.rate(STRICT.name) * HALF])
                    results.same_rate.setdefault(competitor.name, []).append(measured)

    def _again(self, measure: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What is measured; a run that was spoilt is made again, for hours should not be lost to a disk that stalls.

        Raises:
            RunFailed: time and again.
        """
        for _ in range(_AGAIN):
            try:
                return measure(*args, **kwargs)
            except RunFailed as error:
                self._say(f"{error}; once more")
        return measure(*args, **kwargs)

    def _throughput(self, competitor: Competitor) -> Throughput:
        with self._run(competitor) as running:
            return running.throughput(self._plan.seconds)

    def _latencies(self, competitor: Competitor, rates: Iterable[float]) -> list[Latency]:
        with self._run(competitor) as running:
            return [running.latency(rate, self._plan.latency_seconds) for rate in rates]

    @contextmanager
    def _run(self, competitor: Competitor) -> Iterator[Run]:
        """A run that has been warmed up."""
        plan, deliveries = self._plan, self._deliveries()
        with (
            TemporaryDirectory(dir=self._folder) as folder,
            run(competitor, deliveries, Path(folder), connections=plan.connections) as running,
        ):
            running.warm_up(plan.warm_up_seconds, plan.requests // _WARM_UP_PART)
            yield running

    def _deliveries(self) -> Deliveries:
        """The signed deliveries, signed anew when their signatures would become too old within the run.

        Every run has an empty Redis, so the same deliveries are new to each.
        """
        plan = self._plan
        seconds = plan.warm_up_seconds + max(plan.seconds, 2 * len(LOADS) * plan.latency_seconds) + _AROUND
        if self._signed is None or not self._signed.fresh_for(seconds):
            self._signed = sign(self._folder / "deliveries", plan.requests)
        return self._signed
