"""The costs of growing work as tables, one for each axis."""

from bench.growth.results import Growth
from bench.tables import Sheet
from bench.work.results import Work, rate
from bench.work.sheets import COSTS, costs, rates


def sheets(results: Growth) -> list[Sheet]:
    """All tables."""
    return [_sheet(axis, results.titles[axis], points) for axis, points in results.axes.items()]


def _sheet(axis: str, title: str, points: dict[str, list[Work]]) -> Sheet:
    least = rate(next(iter(points.values())))
    rows = [[point, *rates(rounds), f"{rate(rounds) / least:.2f}", *costs(rounds)] for point, rounds in points.items()]
    return Sheet(
        f"By {title}", [title, "events/s", "rounds", "of the first", *COSTS, "MiB"], rows, f"growth-{axis}.png"
    )
