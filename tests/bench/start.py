"""`python -m bench.start`: how soon each command is ready, from its start in a shell."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import click
from bench import machine, report
from bench.machine import Process, say
from bench.report import Sheet

from credhook.sandbox.local.environment import CREDHOOK, LOGS_ONLY, local_redis

#: Nothing listens there: a worker is ready before it has a token.
_NOBODY: Final = "http://127.0.0.1:1"
_SETTINGS: Final = {
    "CREDHOOK_API_URL": _NOBODY,
    "CREDHOOK_TOKEN_URL": _NOBODY,
    "CREDHOOK_CLIENT_ID": "bench",
    "CREDHOOK_CLIENT_SECRET": "bench",
    "CREDHOOK_HANDLERS": LOGS_ONLY,
    "CREDHOOK_WEBHOOK_SECRETS": "whsec_" + "A" * 32,
    "HOST": "127.0.0.1",
    "PORT": "0",
}


@dataclass(frozen=True)
class Start:
    """A command, and the text of its output that says that it is ready."""

    arguments: tuple[str, ...]
    ready: str
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"credhook {self.arguments[0]}"


STARTS: Final = (
    Start(("--help",), "Commands"),
    Start(("receiver",), "receiver_started", settings=_SETTINGS),
    Start(("worker",), "worker_started", settings=_SETTINGS),
    # With Redis, sandbox and receiver.
    Start(("dev",), "  ready  "),
)


def ready_after(start: Start, folder: Path, redis_url: str) -> float:
    """Start the command in the folder. Return the seconds until it is ready, and stop it."""
    settings = {**start.settings, "REDIS_URL": redis_url} if start.settings else {}
    began = time.monotonic()
    with Process((*CREDHOOK, *start.arguments), settings, folder / "log", machine.ALL, folder) as process:
        process.await_output(start.ready)
        return time.monotonic() - began


@click.command()
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1), help="The table has their medians.")
@click.option("--small", is_flag=True, help="Briefly: check that all this runs.")
@report.OUT
def main(*, rounds: int, small: bool, out: Path) -> None:
    """Measure how soon commands are ready: a table, a plot, and start.json and start.md with the same."""
    results: dict[str, Any] = {"setting": machine.here("redis"), "seconds": {}}
    with report.measuring("start", out, results) as folder, machine.on(machine.ALL), local_redis(folder) as redis_url:
        for number, start in report.taking_turns(1 if small else rounds, STARTS):
            seconds = ready_after(start, folder, redis_url)
            results["seconds"].setdefault(start.title, []).append(seconds)
            say(f"{number}: {start.title}: {seconds:.2f} s")
    rows = [
        [title, f"{median(seconds):.2f}", f"{min(seconds):.2f} to {max(seconds):.2f}"]
        for title, seconds in results["seconds"].items()
    ]
    sheet = Sheet("Seconds until a command is ready", ["command", "seconds", "rounds"], rows, "start")
    report.publish("start", out, results["setting"], [sheet])


if __name__ == "__main__":
    main()
