"""`credhook demo`: every part on this machine, and one event of each type delivered twice."""

import json
import os
import sys
import time
from typing import Any

import click
import httpx

from credhook.sandbox.events import EVENT_TYPES
from credhook.sandbox.local.environment import (
    CREDHOOK,
    LOGS_ONLY,
    CannotStart,
    LocalEnvironment,
    Stopped,
    catch_signals,
    local_environment,
)


@click.command()
def demo() -> None:
    """Run every part on this machine, make one event of each type happen, and show the results.

    Starts a Redis (unless REDIS_URL names one), the sandbox, the receiver on HTTPS, and a worker. Leaves nothing
    behind.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CREDHOOK_")}
    environ["CREDHOOK_HANDLERS"] = LOGS_ONLY
    catch_signals()
    try:
        with local_environment(environ, sandbox=("--duplicate", "2")) as local:
            _play(local)
    except Stopped:
        click.echo("stopped; nothing is left running")
        sys.exit(130)


def _play(local: LocalEnvironment) -> None:
    local.start("receiver", *CREDHOOK, "receiver")
    local.wait_for("receiver", f"{local.receiver_url}/readyz")
    local.start("worker", *CREDHOOK, "worker")
    click.echo(f"receiver   {local.receiver_url}/webhooks\nplatform   {local.sandbox_url}")
    click.echo(local.run(*CREDHOOK, "endpoints", "apply").strip())
    happened: dict[str, str] = {}  # webhook-id → type
    with httpx.Client(base_url=local.sandbox_url, trust_env=False) as platform:
        for event_type in EVENT_TYPES:
            answer = platform.post("/sandbox/events", json={"eventType": event_type}).raise_for_status()
            happened[answer.json()["data"][0]["webhookIds"][0]] = event_type
    deadline = time.monotonic() + 60
    while True:
        rows = _rows(local, happened)
        wrong = [event_type for event_type, *cells in rows if cells != ["2", "1", "log.event"]]
        if not wrong or time.monotonic() > deadline:
            break
        time.sleep(0.1)
        local.check()
    for row in (("event type", "delivered", "deduplicated", "handled by"), *rows):
        click.echo("{:42}{:11}{:14}{}".format(*row))
    if wrong:
        raise CannotStart(f"not handled exactly once: {', '.join(wrong)}; worker: {local.tail('worker')}")
    click.echo(f"{len(rows)} events, each delivered twice and handled exactly once")


def _rows(local: LocalEnvironment, happened: dict[str, str]) -> list[tuple[str, ...]]:
    """Return a row for each event from the platform's attempts and the worker's log."""
    attempts = httpx.get(f"{local.sandbox_url}/sandbox/deliveries", trust_env=False).raise_for_status().json()["data"]
    lines = local.logs["worker"].read_text(errors="replace").splitlines()
    # The last line may be incomplete.
    logged: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    rows: list[tuple[str, ...]] = []
    for webhook_id, event_type in happened.items():
        acknowledged = [
            attempt
            for attempt in attempts
            if attempt["webhookId"] == webhook_id and attempt["outcome"] == "acknowledged"
        ]
        done = [line for line in logged if line["event"] == "event_done" and line["webhook_id"] == webhook_id]
        duplicates = sum(attempt["answer"] == "duplicate" for attempt in acknowledged)
        ran = ", ".join(name for line in done for name in line["handlers"])
        rows.append((event_type, str(len(acknowledged)), str(duplicates), ran))
    return rows
