"""`python -m bench.ingest`: the receiver beside its peers, on one machine, in one run.

Every competitor gets the same signed deliveries, one process, one core, and a Redis of its own, configured alike.
"""

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
from bench import cores, environments, report, tables
from bench.competitors import COMPETITORS, LIMITS, STRICT, Competitor
from bench.environments import SCRATCH, Missing
from bench.load import has_wrk
from bench.machine import setting
from bench.plan import Plan, Runs
from bench.results import Results
from bench.run import RunFailed
from rich.console import Console

from credhook.sandbox.local.local_redis import NoRedis

_PLAN: Final = Plan()

#: Enough to see that everything works, too little for figures.
_SMALL: Final = Plan(rounds=1, seconds=1, latency_seconds=0.3, warm_up_seconds=0, connections=16, requests=100_000)


@click.command()
@click.option("--rounds", default=_PLAN.rounds, show_default=True, type=click.IntRange(1), help="Medians are of these.")
@click.option("--seconds", default=_PLAN.seconds, show_default=True, type=click.IntRange(1), help="Of full load, each.")
@click.option("--connections", default=_PLAN.connections, show_default=True, type=click.IntRange(1, 900))
@click.option(
    "--requests",
    default=_PLAN.requests,
    show_default=True,
    type=click.IntRange(10_000),
    help="Deliveries that are signed for a run; none is sent twice.",
)
@click.option("--competitors", default=",".join(COMPETITORS), show_default=True, help="Names, comma-separated.")
@click.option("--latency/--no-latency", default=True, show_default=True, help="Latencies at steady rates.")
@click.option("--small", is_flag=True, help="Credhook and the limits, a second each: whether all this runs.")
@click.option(
    "--out",
    default=SCRATCH / "results",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    help="Folder for the results.  [default: .credhook/bench/results]",
)
def main(*, competitors: str, latency: bool, small: bool, out: Path, **amounts: Any) -> None:
    """Measure the receiver beside its peers: tables, and ingest.json and ingest.md with the same.

    wrk makes the load (Debian: apt install wrk), Node 20 or newer runs one of the competitors; the rest does without.
    """
    plan = _SMALL if small else replace(_PLAN, **amounts)
    names = [STRICT.name, *(limit.name for limit in LIMITS)] if small else competitors.split(",")
    able = [competitor for competitor in map(_named, names) if _is_able(competitor)]
    if not able:
        raise click.ClickException("no competitor is left")
    if not has_wrk():
        environments.say(
            "wrk is missing: install it (Debian: apt install wrk); our own generator stands in, slower than the fastest"
        )
    out.mkdir(parents=True, exist_ok=True)
    with cores.on(cores.LOAD), TemporaryDirectory(prefix="runs-", dir=out) as folder:
        results = Results(setting(plan), {competitor.name: competitor.title for competitor in able})
        runs = Runs(plan, able, Path(folder), environments.say)
        try:
            runs.throughput(results)
            if latency:
                runs.latency(results)
        except (RunFailed, NoRedis) as error:
            raise click.ClickException(str(error)) from error
        finally:  # An hour's figures should not be lost to the last run.
            results.write(out / "ingest.json")
    sheets = report.sheets(results)
    tables.show(results.setting, sheets, Console(width=None if sys.stdout.isatty() else 120))
    (out / "ingest.md").write_text(tables.markdown(results.setting, sheets))
    environments.say(f"results: {out}")


def _named(name: str) -> Competitor:
    if name not in COMPETITORS:
        raise click.BadParameter(f"{name!r} is none of {', '.join(COMPETITORS)}", param_hint="--competitors")
    return COMPETITORS[name]


def _is_able(competitor: Competitor) -> bool:
    """Whether its environment is there, or could be made."""
    try:
        competitor.command()
    except Missing as missing:
        environments.say(f"{competitor.title} does not take part: {missing}")
        return False
    return True


if __name__ == "__main__":
    main()
