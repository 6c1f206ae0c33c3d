"""`credhook status`: the state of the fleet, for people and (`--json`) for programs."""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import click

from credhook.ops.findings import age, elsewhere, label, look_at
from credhook.ops.fleet import Fleet, FleetProcess, RedisServer, WorkerProcess, forget
from credhook.ops.verdict import Finding
from credhook.settings import StoreSettings
from credhook.store.connection import BRIEFLY
from credhook.terminal import blocks, plain

_MEBIBYTE: Final = 1 << 20


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--acknowledge", is_flag=True, help="Stop reporting workers that are gone and were not replaced.")
def status(*, as_json: bool, acknowledge: bool) -> None:
    """Show the state of the fleet, and what needs attention.

    It needs only REDIS_URL and CREDHOOK_QUEUE. Exit codes: 0 all is well, 1 something needs attention, 2 wrong usage or
    a wrong setting.
    """
    settings = StoreSettings()
    store = settings.open_store_sync(**BRIEFLY)
    with store.redis:
        fleet, findings = look_at(store, settings.redis_address)
        if acknowledge and fleet:
            forget(store, fleet.missing)
            fleet, findings = look_at(store, settings.redis_address)
    if as_json:
        shown = fleet.as_json() if fleet else {"queue": settings.queue}
        needed = {"attention": [finding._asdict() for finding in findings if finding.needs_attention]}
        notes = {"notes": [finding._asdict() for finding in findings if not finding.needs_attention]}
        click.echo(json.dumps({**shown, **needed, **notes}))
    else:
        for line in lines(fleet, findings):
            click.echo(plain(line))
    sys.exit(int(any(finding.needs_attention for finding in findings)))


def lines(fleet: Fleet | None, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the page line by line. Without a fleet, show only the findings."""
    if fleet is not None:
        yield f"queue {fleet.queue} on {_server(fleet.server)}"
        yield ""
        for name, value in _rows(fleet):
            yield f"{name:<13}{value}".rstrip()
        yield ""
    if not any(finding.needs_attention for finding in findings):
        yield verdict(fleet)
    for finding in findings:
        kind = "attention" if finding.needs_attention else "note"
        yield f"{kind}: {finding.what}: {finding.remedy}" if finding.remedy else f"{kind}: {finding.what}"


def verdict(fleet: Fleet | None) -> str:
    """Return the last line if nothing needs attention."""
    if fleet and fleet.counts.retrying:
        return "nothing needs attention yet: events that are retried may still succeed"
    if fleet and not fleet.own_workers:
        return "no worker runs: nothing waits, but the next event will"
    return "all is well"


def arriving(fleet: Fleet) -> tuple[float, str]:
    """Return the deliveries per second of the queue, and when the last delivery came."""
    receivers = fleet.own_receivers
    idle = [receiver.idle for receiver in receivers if receiver.idle is not None]
    last = f"last {age(min(idle))} ago" if idle else "none since the start" if receivers else "no receiver"
    return sum(receiver.per_second for receiver in receivers), last


def _rows(fleet: Fleet) -> Iterator[tuple[str, str]]:
    counts, columns = fleet.counts, fleet.last_hour
    per_second, last = arriving(fleet)
    yield "arriving", f"{per_second:.1f}/s, {last}"
    if columns:
        yield "last hour", blocks([column.arrived for column in columns])
        arrived, done, failed, given_up = (sum(numbers) for numbers in list(zip(*columns, strict=True))[1:5])
        yield "", f"{arrived} arrived, {done} done, {failed} failed attempts, {given_up} given up"
    yield from (
        ("queued", str(counts.queued)),
        ("in flight", str(counts.in_flight)),
        ("retrying", f"{counts.retrying}; `credhook causes` says why" if counts.retrying else "0"),
        ("postponed", str(counts.postponed)),
        ("open", str(counts.open)),
        ("oldest open", "none" if fleet.oldest_open is None else f"{age(fleet.oldest_open)} ago"),
        ("dead", f"{counts.dead}, {counts.dead_recently} of them within a day"),
        ("unhandled", str(sum(counts.unhandled.values()))),
        ("quarantined", str(counts.quarantined)),
        ("unreadable", str(counts.unreadable)),
    )
    if counts.vanished:
        yield "vanished", str(counts.vanished)
    for queue, other in fleet.others.items():
        yield "other queue", f"{queue}: {elsewhere(other)}"
    for platform in fleet.platforms:
        rate = "no rate limit" if platform.rate is None else f"at most {platform.rate:g} requests/s"
        paused = f"paused for {age(platform.paused)} ({platform.cause})" if platform.paused else "not paused"
        passed = "" if platform.passed is None else f"; about {platform.passed:.1f} requests/s passed before a 429"
        broken = "" if platform.broken is None else f", breaker open for {age(platform.broken)}"
        yield "platform", f"{paused}{broken}, {rate}{passed}"
    yield "public URL", _outside(fleet)
    yield "receivers", str(len(fleet.receivers)) if fleet.receivers else "none alive"
    for receiver in fleet.receivers:
        yield "", f"{_process(receiver)}  queue {receiver.queue}  {receiver.per_second:.1f}/s"
    yield "workers", str(len(fleet.workers)) if fleet.workers else "none alive"
    for worker in fleet.workers:
        yield "", _worker(worker, fleet.queue)
    for worker in fleet.missing:
        yield "missing", f"{label(worker)}  {worker.version}  last heard {age(worker.silent)} ago"


def _outside(fleet: Fleet) -> str:
    """Return when public URL and endpoint were checked, and which checks were not made."""
    if fleet.outside is None or fleet.outside_age is None:
        return "not checked: a worker checks it every five minutes"
    skipped = "; ".join(finding.what for finding in fleet.outside.skipped)
    if len(fleet.outside.skipped) == len(fleet.outside.findings):
        return f"not checked: {skipped}"
    return f"checked {age(fleet.outside_age)} ago" + (f"; endpoint not checked: {skipped}" if skipped else "")


def _server(server: RedisServer) -> str:
    limit = f" of {server.maxmemory / _MEBIBYTE:.0f} MiB" if server.maxmemory else " MiB, no limit"
    memory = f"{server.used_memory / _MEBIBYTE:.1f}{limit}"
    keeps = f"fsync {server.fsync or 'unknown'}" if server.appendonly else "no append-only file"
    return f"{server.address}, Redis {server.version}, {memory}, {keeps}"


def _worker(worker: WorkerProcess, queue: str) -> str:
    other = "" if worker.queue == queue else f"  queue {worker.queue}"
    names = ", ".join(sorted(worker.handlers)) or "no handlers"
    return f"{_process(worker)}{other}  {worker.in_flight}/{worker.slots} in flight  {names}"


def _process(process: FleetProcess) -> str:
    return f"{label(process)}  {process.version}  up {age(process.age)}"
