"""`python -m bench.sizing`: what receiver and worker cost Redis together, and what so many events a day need."""

import sys
from pathlib import Path

import click
from bench import results, tables, targets
from bench.environments import SCRATCH
from bench.sizing.model import Costs, NotMeasured, costs, redis_of_both, sheet
from bench.work import results as work
from rich.console import Console

#: Microseconds of Redis's own processor time that an event may cost, from the delivery until it is settled.
_MOST_REDIS = 60


@click.command()
@click.option(
    "--out",
    default=SCRATCH / "results",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    help="Folder with the results of bench.ingest and bench.work.  [default: .credhook/bench/results]",
)
def main(*, out: Path) -> None:
    """Print both, and write them to sizing.md."""
    try:
        ingested, worked = results.Results.read(out / "ingest.json"), work.Results.read(out / "work.json")
        found = costs(ingested, worked)
    except FileNotFoundError as error:
        raise click.ClickException(f"{error.filename} is missing: run bench.ingest and bench.work first") from error
    except NotMeasured as error:
        raise click.ClickException(str(error)) from error
    judged = [redis_target(what, each) for what, each in redis_of_both(ingested, worked).items()]
    sheets = [targets.sheet(judged), sheet(found)]
    tables.show(_setting(found), sheets, Console(width=None if sys.stdout.isatty() else 120))
    (out / "sizing.md").write_text(tables.markdown(_setting(found), sheets))


def redis_target(of: str, each: float) -> targets.Target:
    """Whether one Redis carries enough; `each` in microseconds."""
    what = f"Redis's own processor time per event, receiver and worker together, µs: {of} ({1e6 / each:,.0f} a second)"
    return targets.at_most(what, each, _MOST_REDIS, "{:.1f}")


def _setting(found: Costs) -> dict[str, str]:
    return {
        "from": f"{found.deliveries:,.0f} deliveries/s for a receiver process, {found.events:,.0f} events/s for a "
        f"worker process, {found.redis:.0f} µs of Redis for both, {found.kept:,.0f} bytes of its memory for a settled "
        f"event; one Redis carries {1e6 / found.redis:,.0f} events/s at most"
    }


if __name__ == "__main__":
    main()
