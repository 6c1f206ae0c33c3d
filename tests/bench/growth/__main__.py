"""`python -m bench.growth`: what an event costs the worker and Redis as the work grows."""

import platform
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click
from bench import cores, environments, machine, tables
from bench.environments import SCRATCH
from bench.growth.axes import AXES, Axis
from bench.growth.results import Growth
from bench.growth.sheets import sheets
from bench.run import RunFailed
from bench.work.results import Work
from bench.work.run import run
from rich.console import Console

from credhook.sandbox.local.local_redis import NoRedis

_ROUNDS: Final = 3


@click.command()
@click.option("--rounds", default=_ROUNDS, show_default=True, type=click.IntRange(1), help="Medians are of these.")
@click.option("--axes", default=",".join(AXES), show_default=True, help="Names, comma-separated.")
@click.option("--small", is_flag=True, help="A hundred events at each point, once: whether all this runs.")
@click.option(
    "--out",
    default=SCRATCH / "results",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    help="Folder for the results.  [default: .credhook/bench/results]",
)
def main(*, rounds: int, axes: str, small: bool, out: Path) -> None:
    """Measure one worker process as the work grows: tables, a plot for each axis, growth.json and growth.md."""
    wanted = {name: _named(name) for name in axes.split(",")}
    out.mkdir(parents=True, exist_ok=True)
    results = Growth(_setting(1 if small else rounds), {name: axis.title for name, axis in wanted.items()})
    with cores.on(cores.LOAD), TemporaryDirectory(prefix="runs-", dir=out) as folder:
        try:
            for number in range(1 if small else rounds):
                for name, axis in wanted.items():
                    _measure(number, results.axes.setdefault(name, {}), axis, Path(folder), small=small)
        except (RunFailed, NoRedis) as error:
            raise click.ClickException(str(error)) from error
        finally:
            results.write(out / "growth.json")
    tables.show(results.setting, sheets(results), Console(width=None if sys.stdout.isatty() else 120))
    (out / "growth.md").write_text(tables.markdown(results.setting, sheets(results)))
    if not small:
        environments.draw("bench.growth.plot", out / "growth.json", out)
    environments.say(f"results: {out}")


def _measure(number: int, found: dict[str, list[Work]], axis: Axis, folder: Path, *, small: bool) -> None:
    """One round of an axis."""
    for name, point in axis.points.items():
        what = point.small() if small else point
        with TemporaryDirectory(dir=folder) as own, run(what.worker(), what.terms, Path(own)) as running:
            work = running.measure()
        found.setdefault(name, []).append(work)
        environments.say(f"round {number + 1}: {axis.title}: {name}: {work.rate:,.0f} events a second")


def _setting(rounds: int) -> dict[str, str]:
    return machine.here() | {
        "software": f"Python {platform.python_version()}, {machine.redis_version()}",
        "worker": "one process, 100 events at once, an API of 50 ms; stopped after 30 s where a backlog is longer; "
        f"median of {rounds} rounds",
    }


def _named(name: str) -> Axis:
    if name not in AXES:
        raise click.BadParameter(f"{name!r} is none of {', '.join(AXES)}", param_hint="--axes")
    return AXES[name]


if __name__ == "__main__":
    main()
