"""What is run, and in which order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import cores
from bench.work.competitors import OURS, SWIFT, Competitor
from bench.work.end_to_end import Pace, end_to_end
from bench.work.results import Results, Work
from bench.work.run import Terms, run


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run.

    Attributes:
        rounds: how often; competitors take turns, and a figure is the median of its rounds.
        events: in the queue at most.
        seconds: that a worker whose slots are never empty would be busy, at most.
        limit: seconds after which a slow worker is stopped.
        latency: seconds after which the API answers.
        latencies: others to compare it with.
        processes: of credhook, likewise.
        rate: deliveries per second, from delivery to handler.
        end_to_end_seconds: for so long.
        warm_up: deliveries that are sent before.
    """

    rounds: int = 3
    events: int = 40_000
    seconds: float = 10.0
    limit: float = 30.0
    latency: float = 0.05
    latencies: tuple[float, ...] = (0.0, 0.5)
    processes: tuple[int, ...] = (1, 2, 4)
    rate: float = 300.0
    end_to_end_seconds: float = 20.0
    warm_up: int = 300


class Runs:
    """The runs of a plan, with what they have in common."""

    def __init__(self, plan: Plan, competitors: Sequence[Competitor], folder: Path, say: Callable[[str], None]) -> None:
        """`folder`: for what is written meanwhile; `say`: told what is going on."""
        self._plan = plan
        self._competitors = competitors
        self._folder = folder
        self._say = say
        self._terms = Terms(plan.latency, plan.events, plan.seconds, plan.limit)

    def throughput(self, results: Results) -> None:
        """Everybody, one process on one core each; every round begins with another competitor."""
        for number in range(self._plan.rounds):
            turn = number % len(self._competitors)
            for competitor in (*self._competitors[turn:], *self._competitors[:turn]):
                work = self._measure(number, competitor, self._terms)
                results.throughput.setdefault(competitor.name, []).append(work)

    def latencies(self, results: Results) -> None:
        """The fastest before APIs that are faster and slower."""
        for number in range(self._plan.rounds):
            for latency in self._plan.latencies:
                found = results.latencies.setdefault(f"{latency * 1_000:g}", {})
                for competitor in (each for each in self._competitors if each in SWIFT):
                    terms = Terms(latency, self._plan.events, self._plan.seconds, self._plan.limit)
                    work = self._measure(number, competitor, terms, f", an API of {latency * 1_000:g} ms")
                    found.setdefault(competitor.name, []).append(work)

    def processes(self, results: Results) -> None:
        """One command, several processes; they share all cores with Redis and the API."""
        for number in range(self._plan.rounds):
            for count in self._plan.processes:
                terms = Terms(
                    self._plan.latency,
                    self._plan.events,
                    self._plan.seconds,
                    self._plan.limit,
                    options=("--processes", str(count)),
                    processes=count,
                    cores=cores.ALL,
                )
                work = self._measure(number, OURS, terms, f", {count} processes on all cores")
                results.processes.setdefault(str(count), []).append(work)

    def end_to_end(self, results: Results) -> None:
        """From delivery to handler at a steady rate."""
        pace = Pace(self._plan.latency, self._plan.rate, self._plan.end_to_end_seconds, self._plan.warm_up)
        for number in range(self._plan.rounds):
            with TemporaryDirectory(dir=self._folder) as folder:
                found = end_to_end(pace, Path(folder))
            results.end_to_end.append(found)
            self._say(
                f"round {number + 1}: from delivery to handler at {found.rate:g} a second: p50 {found.p50:.1f} ms, "
                f"p99 {found.p99:.1f} ms beyond the API; {found.handled:,} of {found.deliveries:,} handled in time"
            )

    def _measure(self, number: int, competitor: Competitor, terms: Terms, how: str = "") -> Work:
        with TemporaryDirectory(dir=self._folder) as folder, run(competitor, terms, Path(folder)) as running:
            work = running.measure()
        enough = "" if work.whole else f" ({work.events:,} until its time was up)"
        self._say(f"round {number + 1}: {competitor.title}{how}: {work.rate:,.0f} events a second{enough}")
        return work
