"""`python -m bench.ingest`: the receiver beside its peers, on one machine, in one run.

Every contender gets the same signed deliveries, one process, one core, and a Redis of its own, configured alike.
"""

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
from bench import cores, environments, report, tables
from bench.environments import SCRATCH, Missing
from bench.field import BARE, FIELD, STRICT, Contender
from bench.heat import HeatFailed
from bench.load import has_wrk
from bench.machine import setting
from bench.meeting import Meeting, Plan
from bench.results import Results
from rich.console import Console

from credhook.sandbox.local.local_redis import NoRedis

_PLAN: Final = Plan()

#: Enough to see that everything works, too little for figures.
_SMALL: Final = Plan(
    rounds=1, seconds=1, latency_seconds=0.3, warm_up_seconds=0, connections=16, requests=100_000, records=()
)


@click.command()
@click.option("--rounds", default=_PLAN.rounds, show_default=True, type=click.IntRange(1), help="Medians are of these.")
@click.option("--seconds", default=_PLAN.seconds, show_default=True, type=click.IntRange(1), help="Of full load, each.")
@click.option("--connections", default=_PLAN.connections, show_default=True, type=click.IntRange(1, 900))
@click.option(
    "--requests",
    default=_PLAN.requests,
    show_default=True,
    type=click.IntRange(10_000),
    help="Deliveries that are signed for a heat; none is sent twice.",
)
@click.option("--contenders", default=",".join(FIELD), show_default=True, help="Names, comma-separated.")
@click.option("--latency/--no-latency", default=True, show_default=True, help="Latencies at steady rates.")
@click.option("--ledger/--no-ledger", default=True, show_default=True, help="A small ledger beside a large one.")
@click.option("--small", is_flag=True, help="Credhook and bare Starlette, a second each: whether all this runs.")
@click.option(
    "--out",
    default=SCRATCH / "results",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    help="Folder for the results.  [default: .credhook/bench/results]",
)
def main(*, contenders: str, latency: bool, ledger: bool, small: bool, out: Path, **amounts: Any) -> None:
    """Measure the receiver beside its peers: tables, a plot, and ingest.json and ingest.md with the same.

    wrk makes the load (Debian: apt install wrk), Node 20 or newer runs one of the contenders; the rest does without.
    """
    plan = _SMALL if small else replace(_PLAN, **amounts)
    names = [STRICT.name, BARE.name] if small else contenders.split(",")
    field = [contender for contender in map(_named, names) if _is_able(contender)]
    if not field:
        raise click.ClickException("no contender is left")
    if not has_wrk():
        _say(
            "wrk is missing: install it (Debian: apt install wrk); our own generator stands in, slower than the fastest"
        )
    out.mkdir(parents=True, exist_ok=True)
    with cores.on(cores.LOAD), TemporaryDirectory(prefix="meeting-", dir=out) as folder:
        results = Results(setting(plan), {contender.name: contender.title for contender in field})
        meeting = Meeting(plan, field, Path(folder), _say)
        try:
            meeting.throughput(results)
            if latency:
                meeting.latency(results)
            if ledger:
                meeting.ledger(results)
        except (HeatFailed, NoRedis) as error:
            raise click.ClickException(str(error)) from error
        finally:  # An hour's figures should not be lost to the last heat.
            results.write(out / "ingest.json")
    sheets = report.sheets(results)
    tables.show(results.setting, sheets, Console(width=None if sys.stdout.isatty() else 120))
    (out / "ingest.md").write_text(tables.markdown(results.setting, sheets))
    if not small:
        _plot(out)
    _say(f"results: {out}")


def _named(name: str) -> Contender:
    if name not in FIELD:
        raise click.BadParameter(f"{name!r} is none of {', '.join(FIELD)}", param_hint="--contenders")
    return FIELD[name]


def _is_able(contender: Contender) -> bool:
    """Whether its environment is there, or could be made."""
    try:
        contender.command()
    except Missing as missing:
        _say(f"{contender.title} does not take part: {missing}")
        return False
    return True


def _plot(out: Path) -> None:
    try:
        environments.draw("bench.plot", out / "ingest.json", out / "ingest.png")
    except Missing as missing:
        _say(f"no plot: {missing}")


def _say(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    main()
