"""`credhook demo`: every part on this machine, one event of each type delivered twice, and what became of them."""

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import httpx
from honcho.environ import parse_procfile
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from credhook.sandbox.events import EVENT_TYPES
from credhook.sandbox.local.environment import CannotStart, LocalEnvironment, started
from credhook.sandbox.local.local_redis import NoRedis
from credhook.sandbox.local.stopping import Stopped, stoppable

#: Seconds until all ten must have been delivered twice and handled.
DEADLINE: Final = 60.0


@dataclass(frozen=True)
class Row:
    """What became of one event: how often it was taken, and as known; what was fetched; how often each handler ran."""

    event_type: str
    delivered: int
    deduplicated: int
    fetched: str
    handlers: Counter[str]
    milliseconds: int | None

    @property
    def right(self) -> bool:
        """Delivered twice, known the second time, fetched, and handled exactly once."""
        once = bool(self.handlers) and set(self.handlers.values()) == {1}
        settled = self.milliseconds is not None
        return (self.delivered, self.deduplicated) == (2, 1) and bool(self.fetched) and once and settled


@click.command()
def demo() -> None:
    """Run every part on this machine, make one event of each type happen, and show what became of it.

    Starts a Redis (unless REDIS_URL names one), the sandbox, the receiver on HTTPS, and a worker. Leaves nothing
    behind.
    """
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        with stoppable(), started() as local:
            _play(local, console)
    except (NoRedis, CannotStart) as error:
        raise click.ClickException(str(error)) from error
    except Stopped:
        console.print("stopped; nothing is left running")
        sys.exit(130)


def _play(local: LocalEnvironment, console: Console) -> None:
    commands = _procfile()
    local.start("web", *shlex.split(commands["web"]))
    local.wait_for("web", f"{local.receiver_url}/readyz")
    local.start("worker", *shlex.split(commands["worker"]))
    console.print(f"receiver   {local.receiver_url}/webhooks\nplatform   {local.sandbox_url}", highlight=False)
    console.print(local.run(*shlex.split(commands["release"])).strip(), highlight=False, soft_wrap=True)
    rows = _watch(local, _trigger(local), console)
    console.print(_table(rows))
    wrong = [row.event_type for row in rows if not row.right]
    if wrong:
        raise CannotStart(f"not handled exactly once: {', '.join(wrong)}; worker: {local.tail('worker')}")
    console.print(f"{len(rows)} events, each delivered twice and handled exactly once")


def _procfile() -> dict[str, str]:
    """Process → command.

    Raises:
        CannotStart: there is no Procfile here.
    """
    try:
        text = Path("Procfile").read_text()
    except FileNotFoundError:
        raise CannotStart("there is no Procfile here; run the demo from the root of the checkout") from None
    return dict(parse_procfile(text).processes)


def _trigger(local: LocalEnvironment) -> dict[str, str]:
    """Make one event of each type happen; its webhook-id → its type."""
    with httpx.Client(base_url=local.sandbox_url, trust_env=False) as platform:
        happened: dict[str, str] = {}
        for event_type in EVENT_TYPES:
            answer = platform.post("/sandbox/events", json={"eventType": event_type, "count": 1}).raise_for_status()
            for event in answer.json()["data"]:
                happened[event["webhookIds"][0]] = event_type
    return happened


def _watch(local: LocalEnvironment, happened: dict[str, str], console: Console) -> list[Row]:
    """Look until every event is as it should be, or the deadline has passed."""
    deadline = time.monotonic() + DEADLINE
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        handled = progress.add_task("events handled", total=len(happened))
        while True:
            local.check()
            rows = _rows(local, happened)
            right = sum(row.right for row in rows)
            progress.update(handled, completed=right)
            if right == len(rows) or time.monotonic() > deadline:
                return rows
            time.sleep(0.1)


def _rows(local: LocalEnvironment, happened: dict[str, str]) -> list[Row]:
    attempts = httpx.get(f"{local.sandbox_url}/sandbox/deliveries", trust_env=False).raise_for_status().json()["data"]
    ledger = {
        record["webhook_id"]: record
        for record in map(json.loads, local.run("credhook", "events", "list", "--json").splitlines())
    }
    logged = list(_log_lines(local.logs["worker"]))
    return [_row(webhook_id, happened[webhook_id], attempts, ledger, logged) for webhook_id in happened]


def _row(
    webhook_id: str,
    event_type: str,
    attempts: list[dict[str, Any]],
    ledger: dict[str, dict[str, Any]],
    logged: list[dict[str, Any]],
) -> Row:
    """Three witnesses for one event: the platform's attempts, the ledger's record, the worker's log."""
    answers = [one for one in attempts if one["webhookId"] == webhook_id and one["status"] == httpx.codes.ACCEPTED]
    lines = [line for line in logged if line.get("webhook_id") == webhook_id]
    record = ledger.get(webhook_id, {})
    return Row(
        event_type,
        delivered=len(answers),
        deduplicated=sum(one["answer"] == "duplicate" for one in answers),
        fetched=next((str(line["status"]) for line in lines if line["event"] == "event_fetched"), ""),
        handlers=Counter(name for line in lines if line["event"] == "event_done" for name in line["handlers"]),
        milliseconds=record.get("milliseconds") if record.get("state") == "done" else None,
    )


def _log_lines(log: Path) -> Iterator[dict[str, Any]]:
    for line in log.read_text(errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue  # The last line may still be being written.


def _table(rows: list[Row]) -> Table:
    table = Table("event type", "delivered", "deduplicated", "fetched", "handled by", "milliseconds")
    for row in rows:
        handled = ", ".join(name if times == 1 else f"{name}, {times} times" for name, times in row.handlers.items())
        milliseconds = "" if row.milliseconds is None else str(row.milliseconds)
        counts = str(row.delivered), str(row.deduplicated)
        table.add_row(*map(Text, (row.event_type, *counts, row.fetched, handled or "nobody", milliseconds)))
    return table
