"""`python -m bench.work`: the worker beside its peers, on one machine, in one run.

Every competitor gets the same events, one process, one core, and a Redis of its own, configured alike; all fetch the
same details from the same stub, over loopback and without TLS.
"""

import json
import platform
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
from bench import cores, environments, machine, tables
from bench.environments import PROGRAMS, SCRATCH, Missing
from bench.generator import Broken
from bench.run import RunFailed
from bench.work.api import NotAnswering, answering
from bench.work.competitors import COMPETITORS, LIMIT, OURS, Competitor
from bench.work.plan import Plan, Runs
from bench.work.results import Results
from bench.work.sheets import sheets
from rich.console import Console

from credhook.sandbox.local.local_redis import NoRedis

_PLAN: Final = Plan()

#: Enough to see that everything works, too little for figures.
_SMALL: Final = Plan(
    rounds=1,
    events=200,
    seconds=1,
    limit=60,
    latencies=(0.0,),
    processes=(2,),
    rate=10.0,
    end_to_end_seconds=1.0,
    warm_up=10,
)

#: Seconds for which the stub is asked to show what it can do.
_STUB_SECONDS: Final = 0.5


@click.command()
@click.option("--rounds", default=_PLAN.rounds, show_default=True, type=click.IntRange(1), help="Medians are of these.")
@click.option("--events", default=_PLAN.events, show_default=True, type=click.IntRange(100), help="In a queue at most.")
@click.option("--limit", default=_PLAN.limit, show_default=True, help="Seconds after which a slow worker is stopped.")
@click.option("--latency", default=_PLAN.latency, show_default=True, help="Seconds after which the API answers.")
@click.option("--competitors", default=",".join(COMPETITORS), show_default=True, help="Names, comma-separated.")
@click.option("--latencies/--no-latencies", "by_latency", default=True, show_default=True, help="Other latencies.")
@click.option("--processes/--no-processes", "by_processes", default=True, show_default=True, help="More processes.")
@click.option("--end-to-end/--no-end-to-end", default=True, show_default=True, help="From delivery to handler.")
@click.option("--small", is_flag=True, help="Credhook and bare httpx, briefly: whether all this runs.")
@click.option(
    "--out",
    default=SCRATCH / "results",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    help="Folder for the results.  [default: .credhook/bench/results]",
)
def main(
    *, competitors: str, by_latency: bool, by_processes: bool, end_to_end: bool, small: bool, out: Path, **amounts: Any
) -> None:
    """Measure the worker beside its peers: tables, and work.json and work.md with the same."""
    plan = _SMALL if small else replace(_PLAN, **amounts)
    names = [OURS.name, LIMIT.name] if small else competitors.split(",")
    able = [competitor for competitor in map(_named, names) if _is_able(competitor)]
    if not able:
        raise click.ClickException("no competitor is left")
    out.mkdir(parents=True, exist_ok=True)
    with cores.on(cores.LOAD), TemporaryDirectory(prefix="runs-", dir=out) as folder:
        titles = {competitor.name: competitor.title for competitor in able}
        runs = Runs(plan, able, Path(folder), environments.say)
        results = Results({}, titles, plan.latency)
        try:
            results.setting = _setting(plan, Path(folder))
            runs.throughput(results)
            if by_latency:
                runs.latencies(results)
            if by_processes and _has_processes():
                runs.processes(results)
            if end_to_end:
                runs.end_to_end(results)
        except (RunFailed, NoRedis, NotAnswering, Broken) as error:
            raise click.ClickException(str(error)) from error
        finally:  # An hour's figures should not be lost to the last run.
            results.write(out / "work.json")
    found = sheets(results)
    tables.show(results.setting, found, Console(width=None if sys.stdout.isatty() else 120))
    (out / "work.md").write_text(tables.markdown(results.setting, found))
    environments.say(f"results: {out}")


def _setting(plan: Plan, folder: Path) -> dict[str, str]:
    """What the figures depend on, for people."""
    with answering(0, folder) as api:
        capacity = api.capacity(folder, _STUB_SECONDS)
    ours = ", ".join(f"{name} {version(name)}" for name in ("rq", "pyreqwest", "httpx", "redis"))
    packages = json.loads((PROGRAMS / "package.json").read_text())["dependencies"]
    nodes = ", ".join(f"{name} {packages[name]}" for name in ("bullmq", "undici"))
    theirs = f"dramatiq {_pinned('dramatiq', 'dramatiq_actors')}"
    return machine.here() | {
        "software": f"Python {platform.python_version()}, {ours}, {theirs}, {machine.node_version()}, {nodes}, "
        f"{machine.redis_version()}",
        "api": f"a stub on the other core, HTTP on loopback without TLS; alone it answers {capacity:,.0f} requests/s",
        "events": f"each fetched once, {plan.events:,} at most; a worker that is not done is stopped after "
        f"{plan.limit:g} s; median of {plan.rounds} rounds",
        "redis": "a new one for every run, no rewrites meanwhile; credhook's fsyncs always, as we ship it, "
        "its peers' every second, which is faster",
        "logs": "to a file: credhook's at its default level, which names every event; the others' at warning",
    }


def _pinned(name: str, lock: str) -> str:
    found = re.search(rf"^{name}==(\S+)", (PROGRAMS / f"{lock}.txt").read_text(), re.MULTILINE)
    return found[1] if found else "of unknown version"


def _has_processes() -> bool:
    """Whether the worker can be several processes."""
    told = subprocess.run([*OURS.works(), "--help"], cwd=environments.ROOT, capture_output=True, text=True, check=False)
    if "--processes" in told.stdout:
        return True
    environments.say("no figures for several processes: `credhook worker` has no --processes")
    return False


def _named(name: str) -> Competitor:
    if name not in COMPETITORS:
        raise click.BadParameter(f"{name!r} is none of {', '.join(COMPETITORS)}", param_hint="--competitors")
    return COMPETITORS[name]


def _is_able(competitor: Competitor) -> bool:
    """Whether its environment is there, or could be made."""
    try:
        competitor.works()
    except Missing as missing:
        environments.say(f"{competitor.title} does not take part: {missing}")
        return False
    return True


if __name__ == "__main__":
    main()
