"""Findings about the parts of a fleet, and what to do about each. The state goes in, findings come out.

Status, console and doctor show these findings under the same names.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

from credhook.ops.fleet import Fleet, FleetProcess, RedisServer, read_fleet
from credhook.store import health
from credhook.store.announcements import DEPLOY_SECONDS
from credhook.store.counts import EventCounts, counted
from credhook.store.errors import STORE_ERRORS
from credhook.store.store import SyncStore

#: Seconds that an event may be open before it needs attention.
OLDEST_SECONDS: Final = 900.0
#: Seconds during which a refused delivery is reported.
_REFUSED_SECONDS: Final = 900.0
#: Seconds during which a conflict is reported: nothing but this report tells of it later.
_CONFLICT_SECONDS: Final = 86_400.0
#: Hosts or processes that one finding names.
_MOST_NAMED: Final = 5
#: Used part of maxmemory from which a warning is given.
_NEARLY_FULL: Final = 0.8
#: Checks that fail where Redis refuses all writes, so that nobody can announce itself. A full Redis takes that.
REFUSING: Final = ("master", "disk", "save", "replicas")


class Verdict(StrEnum):
    """The result of one check."""

    OK = "ok"
    #: It works now, but needs attention.
    WARN = "warn"
    FAIL = "fail"
    #: The check does not apply to this host.
    SKIPPED = "skipped"


class Finding(NamedTuple):
    """The result of one check, as one line.

    Attributes:
        name: stable name of the check: its group, a dot, its subject.
        what: what the check found, or why the check was skipped.
        remedy: what to do; empty if there is nothing to do.
    """

    verdict: Verdict
    name: str
    what: str
    remedy: str = ""

    @property
    def needs_attention(self) -> bool:
        """Return True for a warning or a failure."""
        return self.verdict in {Verdict.WARN, Verdict.FAIL}


ok = partial(Finding, Verdict.OK)
warn = partial(Finding, Verdict.WARN)
fail = partial(Finding, Verdict.FAIL)
skipped = partial(Finding, Verdict.SKIPPED)

#: A problem, and what to do about it.
Problem = tuple[str, str]


def split_remedy(text: str) -> Problem:
    """Split `problem; remedy` at the first semicolon. The remedy may be missing."""
    problem, _, remedy = text.partition("; ")
    return problem, remedy


def look_at(store: SyncStore, address: str) -> tuple[Fleet | None, tuple[Finding, ...]]:
    """Return the fleet and what needs attention. If Redis fails, the fleet is None and that is the only finding."""
    try:
        store.check_schema(write=False)
        fleet = read_fleet(store, address)
    except STORE_ERRORS as error:
        return None, (fail("redis.reached", *split_remedy(health.unanswered(error))),)
    return fleet, attention(fleet)


def attention(fleet: Fleet) -> tuple[Finding, ...]:
    """Return what needs attention, most urgent first. A queue without open events needs no worker."""
    findings = [*of_server(fleet.server), *of_fleet(fleet), *of_events(fleet)]
    idle = not fleet.counts.open
    return tuple(one for one in findings if one.needs_attention and not (idle and one.name == "fleet.workers"))


def of_server(server: RedisServer) -> Iterator[Finding]:
    """Check what in Redis would lose events."""
    for check in server.checks:
        name = f"redis.{check.name}"
        used = server.used_memory / server.maxmemory if server.maxmemory else 0.0
        if not check.passed:
            yield (warn if check.warning else fail)(name, *split_remedy(check.remedy))
        elif check.name == "memory" and used >= _NEARLY_FULL:
            yield warn(
                name, f"Redis uses {used:.0%} of its maxmemory", "raise maxmemory, or run `credhook events erase`"
            )
        else:
            yield ok(name, "as it should be")


def of_fleet(fleet: Fleet) -> Iterator[Finding]:
    """Check whether receivers and workers are alive and fit together."""
    refuses = any(check.failed and check.name in REFUSING for check in fleet.server.checks)
    alive = {"receivers": _receivers, "workers": _workers, "missing": _missing}
    checks: dict[str, Callable[[Fleet], Iterator[Problem]]] = {
        **({} if refuses else alive),
        "credentials": _credentials,
        "queues": _queues,
        "versions": _versions,
        "handlers": _handlers,
        "settings": _settings,
        "refusals": _refusals,
        "unavailable": _unavailable,
    }
    for name, problems in checks.items():
        yield _finding(f"fleet.{name}", problems(fleet))


def of_events(fleet: Fleet) -> Iterator[Finding]:
    """Check whether events move, and the platform is called."""
    yield _finding("platform.breaker", _breakers(fleet))
    counts, oldest = fleet.counts, fleet.oldest_open or 0.0
    conflicts = sum(one.conflicts for one in fleet.own_receivers if (one.conflicted or 0.0) <= _CONFLICT_SECONDS)
    unhandled = ", ".join(f"{count} of {name}" for name, count in counts.unhandled.items())
    for name, is_wrong, what, remedy in (
        ("suspended", fleet.suspended, "`rq suspend` has stopped all workers", "run `rq resume`"),
        (
            "oldest_open",
            oldest > OLDEST_SECONDS,
            f"the oldest open event was received {age(oldest)} ago",
            "`credhook causes` says why attempts fail; if none fail, start more workers",
        ),
        (
            "dead",
            counts.dead_recently,
            f"{counted(counts.dead_recently, 'event was', 'events were')} given up within a day",
            "`credhook causes` says why; fix it, then `credhook events replay --cause ID`",
        ),
        (
            "unhandled",
            counts.unhandled,
            f"no worker had a handler for {unhandled}",
            (
                "start a worker with a handler for them, or register fewer types (`credhook endpoints plan`); "
                "after a handler was renamed, `credhook events replay --state unhandled --renamed`"
            ),
        ),
        (
            "quarantined",
            counts.quarantined,
            f"{counted(counts.quarantined, 'event has', 'events have')} an unknown type, or an id that has no URL",
            "see event_quarantined in the receivers' log; upgrade, then `credhook events replay --state quarantined`",
        ),
        (
            "conflicts",
            conflicts,
            f"{counted(conflicts, 'delivery', 'deliveries')} had the webhook-id of another event, and no handler",
            "`credhook events show` with the id of event_conflict in the receivers' log; `credhook events backfill`",
        ),
        (
            "unreadable",
            counts.unreadable,
            f"the records of {counted(counts.unreadable, 'event', 'events')} are damaged: something else wrote there",
            "`credhook events list --state unreadable` names them; repair them, then replay them",
        ),
    ):
        yield _finding(f"events.{name}", [(what, remedy)] if is_wrong else [])


def elsewhere(counts: EventCounts) -> str:
    """Return how many events wait in another queue, and since when."""
    oldest = f", the oldest since {age(counts.oldest_age)}" if counts.oldest_age is not None else ""
    return counted(counts.waiting, "event waits", "events wait") + oldest


def process(one: FleetProcess) -> str:
    """Return host and process id."""
    return f"{one.host} pid {one.pid}"


def age(seconds: float) -> str:
    """Return the duration in one unit: `45 s`, `12 min`, `3 h`, `2 d`."""
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def _finding(name: str, problems: Iterable[Problem]) -> Finding:
    found = list(problems)
    if not found:
        return ok(name, "as it should be")
    return warn(name, "; ".join(what for what, _ in found), "; ".join(dict.fromkeys(remedy for _, remedy in found)))


def _hosts(processes: Iterable[FleetProcess]) -> str:
    return ", ".join(sorted({one.host for one in processes})[:_MOST_NAMED])


def _processes(processes: Sequence[FleetProcess]) -> str:
    return ", ".join(map(process, processes[:_MOST_NAMED]))


def _receivers(fleet: Fleet) -> Iterator[Problem]:
    if not fleet.receivers:
        what = "no receiver has announced itself on this Redis, so no delivery is accepted here"
        yield what, "start `credhook receiver` with the REDIS_URL of the workers, database number included"


def _workers(fleet: Fleet) -> Iterator[Problem]:
    if not fleet.own_workers:
        waiting = f", and {counted(fleet.counts.open, 'event waits', 'events wait')}" if fleet.counts.open else ""
        what = f"no worker of the queue {fleet.queue} is alive{waiting}"
        yield what, f"start `credhook worker` with CREDHOOK_QUEUE={fleet.queue} and the REDIS_URL of the receivers"


def _missing(fleet: Fleet) -> Iterator[Problem]:
    if fleet.missing:
        gone = ", ".join(f"{process(one)} {age(one.silent)} ago" for one in fleet.missing[-_MOST_NAMED:])
        who = counted(len(fleet.missing), "worker has", "workers have")
        what = f"{who} ended without a goodbye and without a replacement, the last: {gone}"
        yield what, "see their hosts, and start `credhook worker` there or elsewhere"


def _unavailable(fleet: Fleet) -> Iterator[Problem]:
    for one in fleet.receivers:
        if one.unavailable:
            what, remedy = split_remedy(one.unavailable)
            yield f"the receiver {process(one)} answered its last delivery with 503: {what}", remedy


def _credentials(fleet: Fleet) -> Iterator[Problem]:
    refused = [worker for worker in fleet.workers if worker.credential_error]
    for worker in refused[:_MOST_NAMED]:
        what, remedy = split_remedy(worker.credential_error)
        more = f" ({len(refused)} workers in all)" if len(refused) > _MOST_NAMED else ""
        yield f"worker {process(worker)} takes no events: {what}{more}", remedy


def _queues(fleet: Fleet) -> Iterator[Problem]:
    """Find queues that only receivers or only workers have, and other queues whose events cannot move."""
    written = {receiver.queue for receiver in fleet.receivers}
    taken = {worker.queue for worker in fleet.workers}
    for queue in sorted(fleet.others.keys() - taken):
        remedy = (
            f"set the right CREDHOOK_QUEUE for its receivers, and start `credhook worker` with CREDHOOK_QUEUE={queue} "
            "until the queue is empty"
        )
        yield f"{elsewhere(fleet.others[queue])} in the queue {queue}, and no worker takes from it", remedy
    if not written or not taken:
        return
    remedy = "set the same CREDHOOK_QUEUE for both, unless that is intended"
    for queue in sorted(written - taken):
        yield f"receivers write to {queue}, and no worker takes from it", remedy
    for queue in sorted(taken - written):
        yield f"workers take from {queue}, and no receiver writes to it", remedy


def _versions(fleet: Fleet) -> Iterator[Problem]:
    groups = _settled_groups([*fleet.receivers, *fleet.workers], lambda process: process.version)
    if len(groups) > 1:
        versions = "; ".join(f"{version} on {_hosts(groups[version])}" for version in sorted(groups))
        yield f"processes run different versions: {versions}", "upgrade the hosts that a deploy has left out"


def _handlers(fleet: Fleet) -> Iterator[Problem]:
    settled = [worker.handlers for worker in fleet.own_workers if worker.age >= DEPLOY_SECONDS]
    names = sorted({name for types in settled for name in types})
    if different := [name for name in names if len({types.get(name) for types in settled}) > 1]:
        remedy = "start all workers of the queue with the same version and CREDHOOK_HANDLERS"
        yield f"workers of {fleet.queue} have different handlers: {', '.join(different[:10])}", remedy


def _settings(fleet: Fleet) -> Iterator[Problem]:
    for kind, processes in (("receivers", fleet.own_receivers), ("workers", fleet.own_workers)):
        for name in sorted({name for process in processes for name in process.config_fingerprint}):
            groups = _settled_groups(processes, lambda process, name=name: process.config_fingerprint.get(name, ""))  # type: ignore[misc]
            groups.pop("", None)
            if len(groups) > 1:
                hosts = "; ".join(sorted(f"{len(group)} on {_hosts(group)}" for group in groups.values()))
                yield f"{kind} have different {name}: {hosts}", f"start all {kind} of the queue with the same {name}"


def _settled_groups(
    processes: Iterable[FleetProcess], value: Callable[[FleetProcess], str]
) -> dict[str, list[FleetProcess]]:
    """Group the processes by a value. Younger ones than a deploy takes are left out: they may differ for a while."""
    groups: dict[str, list[FleetProcess]] = {}
    for process in processes:
        if process.age >= DEPLOY_SECONDS:
            groups.setdefault(value(process), []).append(process)
    return groups


def _refusals(fleet: Fleet) -> Iterator[Problem]:
    """Find refused deliveries. With a wrong secret, the platform would otherwise just look silent."""
    recent = [one for one in fleet.receivers if one.refused is not None and one.refused <= _REFUSED_SECONDS]
    if not recent:
        return
    last = f"the last {age(min(one.refused or 0.0 for one in recent))} ago"
    if others := [one for one in fleet.receivers if one not in recent]:
        last += f", on {_processes(recent)} and not on {_processes(others)}"
    # Strangers reach all alike. A receiver with another secret accepts nothing.
    elif 0 < len(silent := [one for one in recent if one.idle is None or one.idle > _REFUSED_SECONDS]) < len(recent):
        last += f", and {_processes(silent)} accepted none"
    outside = sum(one.outside_tolerance for one in recent)
    unsigned = sum(one.unauthenticated for one in recent) - outside
    if unsigned:
        remedy = (
            "compare CREDHOOK_WEBHOOK_SECRETS with the platform's secret, and restart the receivers; delivery_refused "
            "in their log says more"
        )
        yield f"{counted(unsigned, 'delivery', 'deliveries')} had no valid signature, {last}", remedy
    if outside:
        remedy = "compare `date -u` of the receivers' hosts with the sender's; let both follow an NTP server"
        yield f"{counted(outside, 'delivery', 'deliveries')} had a timestamp outside CREDHOOK_TOLERANCE, {last}", remedy
    for rule in sorted({rule for one in recent for rule in one.other_refusals}):
        remedy = "see delivery_refused in the receivers' log"
        if rule == "path":
            remedy = "let the URL at the platform end as CREDHOOK_WEBHOOK_PATH and CREDHOOK_PATH_SECRET do"
        count = counted(sum(one.other_refusals.get(rule, 0) for one in recent), "delivery was", "deliveries were")
        yield f"{count} refused for the {rule}, {last}", remedy


def _breakers(fleet: Fleet) -> Iterator[Problem]:
    for platform in fleet.platforms:
        remedy = "see platform_paused in the workers' log; `credhook doctor` calls the platform"
        if platform.paused:
            paused = f"{age(platform.paused)} (cause {platform.cause})"
            yield f"no worker calls the platform for another {paused}", remedy
        elif platform.open_breakers:
            workers = counted(platform.open_breakers, "worker", "workers")
            yield f"the circuit breaker of {workers} is open or half open", remedy
        if platform.passed is not None:
            what = f"the platform has answered 429: about {platform.passed:.1f} requests/s passed"
            yield what, "set CREDHOOK_RATE to what the platform allows"
