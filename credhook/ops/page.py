"""The facts as lines for people. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from credhook.ops.attention import age
from credhook.ops.facts import Facts, Process, Receiver, Server, Worker
from credhook.ops.fleet import Remark

_MEBIBYTE: Final = 1 << 20


def lines(facts: Facts | None, remarks: Sequence[Remark]) -> Iterator[str]:
    """Everything that there is to show; without facts, why there are none."""
    if facts is not None:
        yield from _of_facts(facts)
        yield ""
    if not remarks:
        retrying = facts is not None and facts.counts.retrying
        yield "nothing wants attention yet: what is retried may come right by itself" if retrying else "all is well"
    for one in remarks:
        yield f"attention: {one.what}: {one.remedy}" if one.what else f"attention: {one.remedy}"


def _of_facts(facts: Facts) -> Iterator[str]:
    counts = facts.counts
    yield f"queue {facts.queue} on {_server(facts.server)}"
    yield ""
    yield _row("arriving", _arriving(facts))
    yield _row("queued", _count(counts.queued))
    yield _row("in flight", _count(counts.in_flight))
    yield _row("retrying", _count(counts.retrying) + ("; `credhook causes` says why" if counts.retrying else ""))
    yield _row("open", _count(counts.open))
    oldest = "none" if facts.oldest_open is None else f"{age(facts.oldest_open)} ago"
    yield _row("oldest open", oldest)
    yield _row("dead", f"{_count(counts.dead)}, {_count(counts.dead_recently)} of them within a day")
    yield _row("unhandled", str(sum(counts.unhandled.values())))
    yield _row("quarantined", _count(counts.quarantined))
    yield _row("unreadable", _count(counts.unreadable))
    for platform in facts.platforms:
        rate = "no rate" if platform.rate is None else f"at most {platform.rate:g} requests/s"
        token = "no token" if platform.token is None else f"token for another {age(platform.token)}"
        yield _row("platform", f"breaker {platform.breaker}, {rate}, {token}")
    yield from _list("receivers", [_receiver(one) for one in facts.receivers])
    yield from _list("workers", [_worker(one, facts.queue) for one in facts.workers])


def _row(name: str, value: str) -> str:
    return f"{name:<13}{value}"


def _count(number: int | None) -> str:
    return "?" if number is None else str(number)


def _list(name: str, values: Sequence[str]) -> Iterator[str]:
    yield _row(name, str(len(values)) if values else "none alive")
    for value in values:
        yield f"  {value}"


def _server(server: Server) -> str:
    limit = f" of {server.maxmemory / _MEBIBYTE:.0f} MiB" if server.maxmemory else " MiB, without a bound"
    memory = f"{server.used_memory / _MEBIBYTE:.1f}{limit}"
    keeps = f"fsync {server.fsync or 'unknown'}" if server.appendonly else "no append-only file"
    return f"{server.address}, Redis {server.version}, {memory}, {keeps}"


def _arriving(facts: Facts) -> str:
    ours = [one for one in facts.receivers if one.queue == facts.queue]
    idle = [one.idle for one in ours if one.idle is not None]
    last = f"the last {age(min(idle))} ago" if idle else "none since the receivers started" if ours else "no receiver"
    return f"{sum(one.per_second for one in ours):.1f}/s, {last}"


def _receiver(one: Receiver) -> str:
    return f"{_process(one)}  queue {_text(one.queue)}  {one.per_second:.1f}/s"


def _worker(one: Worker, queue: str) -> str:
    load = "?" if one.in_flight is None else str(one.in_flight)
    slots = "?" if one.slots is None else str(one.slots)
    elsewhere = "" if one.queue == queue else f"  queue {_text(one.queue)}"
    names = ", ".join(map(_text, sorted(one.handlers))) or "no handlers"
    return f"{_process(one)}{elsewhere}  {load}/{slots} under way  {names}"


def _process(one: Process) -> str:
    return f"{_text(one.host)}  {_text(one.version)}  up {age(one.age)}"


def _text(value: str) -> str:
    """As a terminal may have it: whoever writes to Redis could have put anything there."""
    return "".join(letter if letter.isprintable() else "?" for letter in value[:100])
