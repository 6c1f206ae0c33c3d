"""`credhook demo`: every part on this machine, and one event of each type delivered twice."""

import json
import shlex
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import httpx
from honcho.environ import parse_procfile
from rich.console import Console
from rich.table import Table
from rich.text import Text

from credhook.sandbox.events import EVENT_TYPES
from credhook.sandbox.local.environment import CannotStart, LocalEnvironment, NoRedis, Stopped, started, stoppable

#: Seconds within which all events must be delivered twice and handled.
DEADLINE_SECONDS: Final = 60.0


class DemoRow(NamedTuple):
    """The history of one event, as a row of the table."""

    event_type: str
    delivered: int
    deduplicated: int
    fetched: str  #: Status of the platform's API.
    handlers: Counter[str]  #: How often each handler ran.
    milliseconds: int | None  #: From receipt to done; None while it is not done.

    @property
    def right(self) -> bool:
        """Return True if it was delivered twice, recognised the second time, fetched, and handled exactly once."""
        once = bool(self.handlers) and set(self.handlers.values()) == {1}
        counts = (self.delivered, self.deduplicated) == (2, 1)
        return counts and bool(self.fetched) and once and self.milliseconds is not None


@click.command()
def demo() -> None:
    """Run every part on this machine, make one event of each type happen, and show the results.

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
    try:
        text = Path("Procfile").read_text()
    except FileNotFoundError:
        raise CannotStart("there is no Procfile here; run the demo from the root of the checkout") from None
    commands = {name: shlex.split(command) for name, command in parse_procfile(text).processes.items()}
    local.start("web", *commands["web"])
    local.wait_for("web", f"{local.receiver_url}/readyz")
    local.start("worker", *commands["worker"])
    console.print(f"receiver   {local.receiver_url}/webhooks\nplatform   {local.sandbox_url}", highlight=False)
    console.print(local.run(*commands["release"]).strip(), highlight=False, soft_wrap=True)
    happened: dict[str, str] = {}  # webhook-id → type
    with httpx.Client(base_url=local.sandbox_url, trust_env=False) as platform:
        for event_type in EVENT_TYPES:
            answer = platform.post("/sandbox/events", json={"eventType": event_type}).raise_for_status()
            happened[answer.json()["data"][0]["webhookIds"][0]] = event_type
    deadline = time.monotonic() + DEADLINE_SECONDS
    rows = _rows(local, happened)
    while not all(row.right for row in rows) and time.monotonic() < deadline:
        time.sleep(0.1)
        local.check()
        rows = _rows(local, happened)
    console.print(_table(rows))
    wrong = [row.event_type for row in rows if not row.right]
    if wrong:
        raise CannotStart(f"not handled exactly once: {', '.join(wrong)}; worker: {local.tail('worker')}")
    console.print(f"{len(rows)} events, each delivered twice and handled exactly once")


def _rows(local: LocalEnvironment, happened: dict[str, str]) -> list[DemoRow]:
    """Return a row for each event from the platform's attempts, the store's records and the worker's log."""
    attempts = httpx.get(f"{local.sandbox_url}/sandbox/deliveries", trust_env=False).raise_for_status().json()["data"]
    records = _json_lines(local.run("credhook", "events", "list", "--json"))
    logged = _json_lines(local.logs["worker"].read_text(errors="replace"))
    rows = []
    for webhook_id, event_type in happened.items():
        answers = [one for one in attempts if one["webhookId"] == webhook_id and one["status"] == httpx.codes.ACCEPTED]
        lines = [line for line in logged if line.get("webhook_id") == webhook_id]
        done = [one for one in records if one["webhook_id"] == webhook_id and one.get("state") == "done"]
        row = DemoRow(
            event_type,
            delivered=len(answers),
            deduplicated=sum(one["answer"] == "duplicate" for one in answers),
            fetched=next((str(line["status"]) for line in lines if line["event"] == "event_fetched"), ""),
            handlers=Counter(name for line in lines if line["event"] == "event_done" for name in line["handlers"]),
            milliseconds=done[0].get("milliseconds") if done else None,
        )
        rows.append(row)
    return rows


def _json_lines(text: str) -> list[dict[str, Any]]:
    """Return the JSON lines of a text. The last line of a log may be incomplete."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def _table(rows: list[DemoRow]) -> Table:
    table = Table("event type", "delivered", "deduplicated", "fetched", "handled by", "milliseconds")
    for row in rows:
        handled = ", ".join(name if times == 1 else f"{name}, {times} times" for name, times in row.handlers.items())
        milliseconds = "" if row.milliseconds is None else str(row.milliseconds)
        cells = row.event_type, str(row.delivered), str(row.deduplicated), row.fetched, handled or "-", milliseconds
        table.add_row(*map(Text, cells))
    return table
