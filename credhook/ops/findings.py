"""What can be wrong with a fleet: one row for each finding.

Status, doctor and console show these rows. A row that Prometheus has figures of has an alert in deploy/alerts.yaml.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

from credhook.events import path_advice
from credhook.ops.fleet import (
    Fleet,
    FleetProcess,
    RedisServer,
    WorkerProcess,
    read_fleet,
)
from credhook.ops.verdict import Finding, Problem, Verdict, fail, ok, split_remedy, warn
from credhook.store import health
from credhook.store.announcements import DEPLOY_SECONDS, family_of
from credhook.store.counts import EventCounts, counted
from credhook.store.errors import STORE_ERRORS
from credhook.store.store import SyncStore

#: Seconds that an event may be open before it needs attention.
OLDEST_SECONDS: Final = 900.0
#: Seconds during which a refused delivery is reported.
_REFUSED_SECONDS: Final = 900.0
#: Refused deliveries up to which they may be stray requests.
_STRAY: Final = 5
_SEE_LOG: Final = "see delivery_refused in the receivers' log"
#: Rule → what refused deliveries lacked, and what to do.
_REFUSED_FOR: Final[dict[str, Problem]] = {
    "signature": (
        "had no valid signature",
        "compare CREDHOOK_WEBHOOK_SECRETS with the platform's secret, and restart the receivers; see delivery_refused",
    ),
    "clock": (
        "had a timestamp outside CREDHOOK_TOLERANCE",
        "compare `date -u` of the receivers' hosts with the sender's; let both follow an NTP server",
    ),
    "path": (
        "had another path",
        "let the URL at the platform end as CREDHOOK_WEBHOOK_PATH and CREDHOOK_PATH_SECRET do",
    ),
}
#: Reasons of the listener that real senders meet.
_HURTING: Final = frozenset({"full", "answer_unread"})
#: Seconds during which a conflict is reported.
_CONFLICT_SECONDS: Final = 86_400.0
#: Hosts or processes that one finding names.
_MAX_NAMED: Final = 5
#: Seconds after which a start that has not ended is reported.
_SLOW_START_SECONDS: Final = 60.0
#: Seconds in which all worker processes of a supervisor should have started.
_START_SECONDS: Final = 30.0
#: Seconds after which the checks from outside should have been repeated.
_OUTSIDE_SECONDS: Final = 1_200.0
#: Used part of maxmemory from which a warning is given.
_NEARLY_FULL: Final = 0.8


class Row(NamedTuple):
    """A finding about the fleet. It is a warning, since only checks of Redis fail.

    It is about the fleet's own queue, since two fleets on one Redis have operators of their own. Only `fleet.queues`
    looks at other queues.

    Attributes:
        name: its stable name, as in `Finding`.
        reads: returns an item for each problem, or no item.
        sentence: returns the problem of an item in words. By default an item is a `Problem`.
        remedy: what to do, or a function that returns what to do about an item.
        alert: the alert of deploy/alerts.yaml about the same problem, or "".
        verdict: NOTE if the problem needs no attention.
    """

    name: str
    reads: Callable[[Fleet], Iterable[Any]]
    sentence: Callable[[Any], str] = itemgetter(0)
    remedy: str | Callable[[Any], str] = itemgetter(1)
    alert: str = ""
    verdict: Verdict = Verdict.WARN

    def finding(self, fleet: Fleet) -> Finding:
        """Look at the fleet."""
        items = list(self.reads(fleet))
        if not items:
            return ok(self.name, "as it should be")
        remedies = [self.remedy if isinstance(self.remedy, str) else self.remedy(item) for item in items]
        problems = "; ".join(map(self.sentence, items))
        return Finding(self.verdict, self.name, problems, "; ".join(dict.fromkeys(remedies)))


def look_at(store: SyncStore, address: str) -> tuple[Fleet | None, tuple[Finding, ...]]:
    """Return the fleet and what needs attention. If Redis fails, return None and the one finding about Redis."""
    try:
        fleet = read_fleet(store, address)
    except STORE_ERRORS as error:
        return None, (unreached(error),)
    return fleet, attention(fleet)


def unreached(error: Exception) -> Finding:
    """Return the finding about a Redis that does not answer."""
    return fail("redis.reached", *split_remedy(health.unanswered(error)))


def attention(fleet: Fleet) -> tuple[Finding, ...]:
    """Return what needs attention, most urgent first, then notes. A queue without open events needs no worker."""
    idle = not fleet.counts.open
    shown = [each for each in findings(fleet) if each.needs_attention or each.verdict is Verdict.NOTE]
    needed = (each for each in shown if not (idle and each.name == "fleet.workers"))
    return tuple(sorted(needed, key=lambda each: not each.needs_attention))


def findings(fleet: Fleet) -> Iterator[Finding]:
    """Return the result of each check of Redis, of each row, and of each check from outside."""
    yield from check_server(fleet.server)
    for row in ROWS:
        yield row.finding(fleet)
    if fleet.outside is not None:
        yield from fleet.outside.findings


def check_server(server: RedisServer) -> Iterator[Finding]:
    """Check whether Redis would lose events."""
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


def elsewhere(counts: EventCounts) -> str:
    """Return how many events wait in another queue, and since when."""
    oldest = f", the oldest since {age(counts.oldest_age)}" if counts.oldest_age is not None else ""
    return counted(counts.waiting, "event waits", "events wait") + oldest


def label(process: FleetProcess) -> str:
    """Return host and process id."""
    return f"{process.host} pid {process.pid}"


def age(seconds: float) -> str:
    """Return the duration in one unit: `45 s`, `12 min`, `3 h`, `2 d`."""
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def _turns(fleet: Fleet) -> Iterator[tuple[str, int, float]]:
    """Yield each handler whose turn events wait for, their number, and the seconds until the last asks again."""
    for name in sorted({name for worker in fleet.own_workers for name in worker.turns}):
        events, seconds = zip(
            *(worker.turns[name] for worker in fleet.own_workers if name in worker.turns), strict=True
        )
        yield name, sum(events), max(seconds)


def _hosts(processes: Iterable[FleetProcess]) -> str:
    return ", ".join(sorted({process.host for process in processes})[:_MAX_NAMED])


def _processes(processes: Sequence[FleetProcess]) -> str:
    return ", ".join(map(label, processes[:_MAX_NAMED]))


def _item_if(value: Any) -> Iterable[Any]:
    """Return the value as the only item, or no item if it is 0, None, False or empty."""
    return (value,) if value else ()


def _missing(fleet: Fleet) -> Iterator[str]:
    if not fleet.missing or fleet.refuses_writes:
        return
    last = ", ".join(f"{label(worker)} {age(worker.silent)} ago" for worker in fleet.missing[-_MAX_NAMED:])
    workers = counted(len(fleet.missing), "worker has", "workers have")
    yield f"{workers} ended without deregistering and without a replacement, the last: {last}"


def _too_few(fleet: Fleet) -> Iterator[Problem]:
    """Yield each supervisor that lacks some of its worker processes, unless it has just started."""
    families: dict[str, list[WorkerProcess]] = {}
    for worker in fleet.own_workers:
        families.setdefault(family_of(worker.name), []).append(worker)
    for _, workers in sorted(families.items()):
        wanted = max(worker.processes for worker in workers)
        if len(workers) < wanted and max(worker.age for worker in workers) >= _START_SECONDS:
            yield f"{len(workers)} of {wanted} worker processes run on {workers[0].host}", "see the log of its worker"


def _starting(fleet: Fleet) -> Iterator[Problem]:
    """Yield workers whose start-up has not ended. Another row reports those that lack a token."""
    for worker in fleet.own_workers:
        if not worker.started and worker.age >= _SLOW_START_SECONDS and not worker.credential_error:
            problem = f"handlers of worker {label(worker)} wait: its start has not ended after {age(worker.age)}"
            yield problem, "see startup_failed and startup_slow in its log"


def _no_worker(fleet: Fleet) -> Iterator[Problem]:
    if fleet.own_workers or fleet.refuses_writes:
        return
    waiting = f", and {counted(fleet.counts.open, 'event waits', 'events wait')}" if fleet.counts.open else ""
    remedy = f"start `credhook worker` with CREDHOOK_QUEUE={fleet.queue} and the REDIS_URL of the receivers"
    yield f"no worker of the queue {fleet.queue} is alive{waiting}", remedy


def _receivers(fleet: Fleet) -> Iterator[str]:
    """Find a queue without a live receiver, unless it has never had a delivery and another queue has receivers."""
    if fleet.own_receivers or fleet.refuses_writes:
        return
    if fleet.last_delivery is not None:
        yield f"no receiver of the queue {fleet.queue} is alive; its last delivery came {_minutes(fleet.last_delivery)}"
    elif not fleet.receivers:
        yield "no receiver has announced itself on this Redis, so no delivery is accepted here"


def _minutes(seconds: float) -> str:
    """Return the time since a minute, which is all that is known of a delivery."""
    return f"{age(seconds)} ago" if seconds else "within a minute"


def _silence(fleet: Fleet) -> Iterator[str]:
    """Find missing deliveries, unless something else explains them: no receiver, refusals, a paused platform."""
    is_explained = (
        not fleet.own_receivers
        or fleet.refuses_writes
        or any(platform.paused for platform in fleet.platforms)
        or any(_refusals(fleet, is_all=True))
    )
    if fleet.silence and not is_explained:
        usual = f"at this time a week ago, {fleet.silence.usual:.1f} deliveries a minute came"
        yield f"no delivery for {age(60.0 * fleet.silence.minutes)}; {usual}"


def _unavailable(fleet: Fleet) -> Iterator[Problem]:
    for receiver in fleet.own_receivers:
        if receiver.unavailable:
            reason, remedy = split_remedy(receiver.unavailable)
            yield f"the receiver {label(receiver)} answered its last delivery with 503: {reason}", remedy


def _credentials(fleet: Fleet) -> Iterator[Problem]:
    refused = [worker for worker in fleet.own_workers if worker.credential_error]
    more = f" ({len(refused)} workers in all)" if len(refused) > _MAX_NAMED else ""
    for worker in refused[:_MAX_NAMED]:
        reason, remedy = split_remedy(worker.credential_error)
        yield f"worker {label(worker)} takes no events: {reason}{more}", remedy


def _conflicts(fleet: Fleet) -> int:
    return sum(
        receiver.conflicts for receiver in fleet.own_receivers if (receiver.conflicted or 0.0) <= _CONFLICT_SECONDS
    )


def _queues(fleet: Fleet) -> Iterator[Problem]:
    """Find queues that only receivers or only workers have, and other queues whose events cannot move."""
    if fleet.refuses_writes:  # Then workers cannot announce themselves.
        return
    written = {receiver.queue for receiver in fleet.receivers}
    served = {worker.queue for worker in fleet.workers}
    for queue in sorted(fleet.others.keys() - served):
        remedy = (
            f"if {queue} is misspelt, set the right CREDHOOK_QUEUE for its receivers, and start `credhook worker` with "
            f"CREDHOOK_QUEUE={queue} until the queue is empty; if it is another fleet's, see its own `credhook status`"
        )
        yield f"{elsewhere(fleet.others[queue])} in the queue {queue}, and no worker takes from it", remedy
    if not written or not served:
        return
    remedy = "set the same CREDHOOK_QUEUE for both, unless that is intended"
    reported = {*fleet.others, fleet.queue} if fleet.counts.open else fleet.others.keys()
    for queue in sorted(written - served - reported):
        yield f"receivers write to {queue}, and no worker takes from it", remedy
    if fleet.last_delivery is not None:
        served.discard(fleet.queue)  # Its receivers are gone, and another row says so.
    for queue in sorted(served - written):
        yield f"workers take from {queue}, and no receiver writes to it", remedy


def _versions(fleet: Fleet) -> Iterator[Problem]:
    groups = _settled_groups([*fleet.own_receivers, *fleet.own_workers], lambda process: process.version)
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
    receivers, workers = (
        {name for process in processes for name in process.config_fingerprint}
        for processes in (fleet.own_receivers, fleet.own_workers)
    )
    named = set[str]()
    kinds: tuple[tuple[str, set[str], Sequence[FleetProcess]], ...] = (
        ("receivers", receivers, fleet.own_receivers),
        ("workers", workers, fleet.own_workers),
        ("receivers and workers", receivers & workers, [*fleet.own_receivers, *fleet.own_workers]),
    )
    for kind, names, processes in kinds:
        for name in sorted(names - named):
            groups = _settled_groups(processes, lambda process, name=name: process.config_fingerprint.get(name, ""))  # type: ignore[misc]
            groups.pop("", None)
            if len(groups) > 1:
                named.add(name)
                hosts = "; ".join(sorted(f"{len(group)} on {_hosts(group)}" for group in groups.values()))
                yield f"{kind} have different {name}: {hosts}", f"start all {kind} of the queue with the same {name}"


def _settled_groups(
    processes: Iterable[FleetProcess], value: Callable[[FleetProcess], str]
) -> dict[str, list[FleetProcess]]:
    """Group the processes by a value. Leave out processes younger than a deploy, which may differ for a while."""
    groups: dict[str, list[FleetProcess]] = {}
    for process in processes:
        if process.age >= DEPLOY_SECONDS:
            groups.setdefault(value(process), []).append(process)
    return groups


def _refusals(fleet: Fleet, *, is_all: bool) -> Iterator[Problem]:
    """Find refused deliveries, by rule. Without this, a wrong secret would look like a silent platform.

    `is_all`: find only those during which no receiver has accepted a delivery, and that are too many for a
    stray request; otherwise only the others, which may be forged.
    """
    receivers = fleet.own_receivers
    for rule in sorted({rule for receiver in receivers for rule in receiver.refusals}):
        refusing = [
            receiver
            for receiver in receivers
            if rule in receiver.refusals and receiver.refusals[rule].ago <= _REFUSED_SECONDS
        ]
        refusals = [receiver.refusals[rule] for receiver in refusing]
        count = sum(each.count for each in refusals)
        since = max((each.since for each in refusals), default=0.0)
        accepts = any(receiver.idle is not None and receiver.idle < since for receiver in receivers)
        if not count or is_all != (count >= _STRAY and not accepts):
            continue
        last = f"the last {age(min(each.ago for each in refusals))} ago"
        if unaffected := [receiver for receiver in receivers if receiver not in refusing]:
            last += f", on {_processes(refusing)} and not on {_processes(unaffected)}"
        deliveries = counted(count, "delivery", "deliveries")
        reason, remedy = _REFUSED_FOR.get(rule, (f"broke the rule for {rule}", _SEE_LOG))
        yield f"{deliveries} {reason}, {last}", remedy


def _turned_away(fleet: Fleet) -> Iterator[Problem]:
    """Find senders that the listener turned away.

    Scanners reach a public port every day. So what may be a scanner counts only while a receiver accepts nothing.
    """
    for receiver in fleet.own_receivers:
        ago = receiver.turned_away_ago
        if ago is None or ago > _REFUSED_SECONDS:
            continue
        accepts = receiver.idle is not None and receiver.idle <= _REFUSED_SECONDS
        reasons = {name: count for name, count in receiver.turned_away.items() if name in _HURTING or not accepts}
        if reasons:
            shown = ", ".join(f"{count} {name}" for name, count in sorted(reasons.items()))
            problem = f"{_processes([receiver])} has turned senders away ({shown}), the last {age(ago)} ago"
            yield problem, "sender_rejected in its log says why, and what to do"


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
            problem = f"the platform has answered 429: about {platform.passed:.1f} requests/s passed"
            yield problem, "set CREDHOOK_RATE to what the platform allows"


def _paths(fleet: Fleet) -> Iterator[Problem]:
    """Find kinds of resources that no worker has ever found. The default paths of details are guesses."""
    for kind in sorted({kind for worker in fleet.own_workers for kind in worker.never_found}):
        workers = [worker for worker in fleet.own_workers if kind in worker.never_found]
        yield f"the platform answers every fetch of {kind}s with 404, on {_processes(workers)}", path_advice(kind)


#: Every finding about the fleet, the most urgent first.
ROWS: Final = (
    Row(
        "fleet.receivers",
        _receivers,
        str,
        "start `credhook receiver` with the REDIS_URL of the workers, database number included",
        alert="CredhookNoReceiver",
    ),
    Row(
        "fleet.silence",
        _silence,
        str,
        "`credhook doctor` tries public URL and endpoint; look at the platform's own list of deliveries",
        alert="CredhookNoDeliveries",
    ),
    Row("fleet.workers", _no_worker, alert="CredhookNoWorker"),
    Row(
        "fleet.missing",
        _missing,
        str,
        "see their hosts, and start `credhook worker` there or elsewhere; else `credhook status --acknowledge`",
    ),
    Row("fleet.processes", _too_few),
    Row("fleet.starting", _starting),
    Row("fleet.credentials", _credentials, alert="CredhookTokenNotGranted"),
    Row("fleet.queues", _queues, alert="CredhookForsaken"),
    Row("fleet.versions", _versions, alert="CredhookVersionsDiffer"),
    Row("fleet.handlers", _handlers),
    Row("fleet.settings", _settings),
    Row(
        "fleet.refuses_alone",
        lambda fleet: (receiver for receiver in fleet.own_receivers if receiver.refuses_alone),
        lambda receiver: f"the receiver {label(receiver)} refuses every delivery while its neighbours accept",
        "it is not ready: compare its CREDHOOK_WEBHOOK_SECRETS and its clock with theirs, and restart it",
        alert="CredhookReceiverRefuses",
    ),
    Row("fleet.refusals", partial(_refusals, is_all=True), alert="CredhookRefusing"),
    Row("fleet.forged", partial(_refusals, is_all=False), verdict=Verdict.NOTE),
    Row("fleet.turned_away", _turned_away, alert="CredhookTurnedAway"),
    Row("fleet.unavailable", _unavailable, alert="CredhookNotStored"),
    Row(
        "outside.age",
        lambda fleet: _item_if(
            fleet.own_workers and (fleet.outside_age or 0.0) > _OUTSIDE_SECONDS and fleet.outside_age
        ),
        lambda seconds: f"public URL and endpoint were last checked {age(seconds)} ago",
        "see background_task_failed with task=outside in the workers' log",
    ),
    Row("platform.breaker", _breakers, alert="CredhookBreakerOpen"),
    Row("platform.paths", _paths),
    Row(
        "redis.clock_step",
        lambda fleet: _item_if(fleet.clock_step),
        lambda step: (
            f"Redis's clock was set {'back' if step.seconds < 0 else 'forward'} by {age(abs(step.seconds))}, "
            f"{age(step.age)} ago"
        ),
        "let the host of Redis correct its clock slowly, and keep the clocks of its replicas alike",
    ),
    Row(
        "events.suspended",
        lambda fleet: _item_if(fleet.suspended),
        lambda _: "`rq suspend` has stopped all workers",
        "run `rq resume`",
    ),
    Row(
        "events.oldest_open",
        lambda fleet: _item_if((fleet.oldest_open or 0.0) > OLDEST_SECONDS and fleet.oldest_open),
        lambda oldest: f"the oldest open event was received {age(oldest)} ago",
        "`credhook causes` says why attempts fail; if none fail, start more workers",
        alert="CredhookOldestEvent",
    ),
    Row(
        "events.turns",
        _turns,
        lambda turn: (
            f"{counted(turn[1], 'event waits', 'events wait')} for a turn with {turn[0]}, "
            f"the last for another {age(turn[2])}"
        ),
        "nothing to do: rate= and concurrency= of a handler, or its start-up, hold back its runs",
        verdict=Verdict.NOTE,
    ),
    Row(
        "events.dead",
        lambda fleet: _item_if(fleet.counts.dead_recently),
        lambda dead: f"{counted(dead, 'event was', 'events were')} given up within a day",
        "`credhook causes` says why; fix it, then `credhook events replay --cause ID`",
        alert="CredhookDeadRate",
    ),
    Row(
        "events.unhandled",
        lambda fleet: _item_if(fleet.counts.unhandled),
        lambda by_type: (
            "no worker had a handler for " + ", ".join(f"{count} of {name}" for name, count in by_type.items())
        ),
        (
            "start a worker with a handler for them, or register fewer types (`credhook endpoints plan`); "
            "after a handler was renamed, `credhook events replay --state unhandled --renamed`"
        ),
        alert="CredhookUnhandled",
    ),
    Row(
        "events.quarantined",
        lambda fleet: _item_if(fleet.counts.quarantined),
        lambda events: f"{counted(events, 'event has', 'events have')} an unknown type, or an id that has no URL",
        "see event_quarantined in the receivers' log; upgrade, then `credhook events replay --state quarantined`",
        alert="CredhookQuarantined",
    ),
    Row(
        "events.conflicts",
        lambda fleet: _item_if(_conflicts(fleet)),
        lambda count: (
            f"{counted(count, 'delivery', 'deliveries')} had the webhook-id of another event, so no handler ran"
        ),
        "`credhook events show` with the id of event_conflict in the receivers' log; `credhook events backfill`",
        alert="CredhookConflicts",
    ),
    Row(
        "events.vanished",
        lambda fleet: _item_if(fleet.counts.vanished and fleet.counts),
        lambda counts: (
            f"Redis has lost the records of {counted(counts.vanished, 'acknowledged event', 'acknowledged events')}, "
            f"the first {age(counts.vanished_age or 0.0)} ago"
        ),
        "see events_vanished and store_emptied in the workers' log; `credhook events backfill` accepts them again",
        alert="CredhookVanished",
    ),
    Row(
        "events.unreadable",
        lambda fleet: _item_if(fleet.counts.unreadable),
        lambda count: (
            f"the records of {counted(count, 'event', 'events')} are damaged: another program wrote to their keys"
        ),
        "`credhook events list --state unreadable` names them; repair them, then replay them",
        alert="CredhookUnreadable",
    ),
)
