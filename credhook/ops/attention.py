"""What wants an operator's attention, and what to do about it. Pure: facts go in, remarks come out."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from credhook.ops import fleet
from credhook.ops.facts import Counts, Facts, Platform, Receiver, Server
from credhook.ops.fleet import Remark

#: Part of maxmemory from which on there is not much left.
_NEARLY_FULL: Final = 0.8


class Limits(NamedTuple):
    """What is still in order.

    Attributes:
        oldest: seconds that an event may have been open.
        refused: seconds for which a delivery that was refused for its signature is news.
    """

    oldest: float = 900.0
    refused: float = 900.0


def attention(facts: Facts, limits: Limits) -> tuple[Remark, ...]:
    """All remarks, those about what holds everything up first."""
    remarks = (
        *_of_server(facts.server),
        *fleet.remarks(facts),
        *of_refusals(facts.receivers, limits),
        *_of_work(facts, limits),
        *(remark for platform in facts.platforms for remark in _of_platform(platform)),
        *_of_counts(facts.counts),
    )
    return tuple(remarks)


def _of_server(server: Server) -> list[Remark]:
    found = [Remark(f"redis_{one.name}", "Redis is not safe", one.remedy) for one in server.checks if not one.passed]
    return found + of_memory(server)


def of_memory(server: Server) -> list[Remark]:
    """Whether there is not much left of a bounded memory; of one that is full its check speaks."""
    if not server.maxmemory or not _NEARLY_FULL <= server.used_memory / server.maxmemory < 1:
        return []
    used = f"Redis's memory is used up to {server.used_memory / server.maxmemory:.0%}"
    return [Remark("memory_nearly_full", used, "raise its maxmemory, or lower CREDHOOK_RETENTION")]


def of_refusals(receivers: Iterable[Receiver], limits: Limits) -> list[Remark]:
    """A platform whose key is not among ours would otherwise look like one that has nothing to say. A remark a rule."""
    alive = list(receivers)
    late = [one for one in alive if one.refused is not None and one.refused <= limits.refused]
    if not late:
        return []
    last = f"the last {age(min(one.refused or 0.0 for one in late))} ago"
    hosts = {one.host for one in late}
    if others := {one.host for one in alive} - hosts:
        last += f", on {', '.join(sorted(hosts)[:5])} and not on {', '.join(sorted(others)[:5])}"
    outside = sum(one.outside_tolerance for one in late)
    unsigned = sum(one.unauthenticated for one in late) - outside
    found = []
    if unsigned:
        what = f"{unsigned} deliveries had no signature that holds, {last}"
        remedy = (
            "CREDHOOK_WEBHOOK_SECRETS should hold the platform's secret (an old one may stand beside it): compare, and "
            "restart the receivers; delivery_refused in their log says more"
        )
        found.append(Remark("unauthenticated", what, remedy))
    if outside:
        what = f"{outside} deliveries had a timestamp outside CREDHOOK_TOLERANCE, {last}"
        remedy = "compare `date -u` of the receivers' hosts with the sender's; let both follow an NTP server"
        found.append(Remark("outside_tolerance", what, remedy))
    return found


def _of_work(facts: Facts, limits: Limits) -> list[Remark]:
    found = []
    if facts.suspended:
        found.append(Remark("suspended", "workers take nothing: somebody has run `rq suspend`", "run `rq resume`"))
    if facts.counts.open and not facts.ours:
        remedy = f"start `credhook worker` with CREDHOOK_QUEUE={facts.queue}, or see why it does not start"
        found.append(Remark("no_worker", f"{facts.counts.open} events wait, and no worker is alive", remedy))
    if facts.oldest_open is not None and facts.oldest_open > limits.oldest:
        what = f"the oldest open event came {age(facts.oldest_open)} ago"
        remedy = "`credhook causes` says why attempts fail; or there are too few workers"
        found.append(Remark("oldest_open", what, remedy))
    return found


def _of_platform(platform: Platform) -> list[Remark]:
    found = []
    if platform.breaker != "closed":
        what = f"the circuit breaker is {platform.breaker}: the platform is left alone"
        if platform.paused:
            what += f" for another {age(platform.paused)}"
        found.append(
            Remark("breaker", what, "see platform_paused in the workers' log; `credhook doctor` tries the platform")
        )
    if platform.refused:
        remedy = "check CREDHOOK_CLIENT_ID and CREDHOOK_CLIENT_SECRET; `credhook doctor` tries them"
        found.append(Remark("token_refused", "the token endpoint refuses the workers", remedy))
    return found


def _of_counts(counts: Counts) -> list[Remark]:
    found = []
    if counts.dead_recently:
        remedy = "`credhook causes` says why; mend it, then `credhook events replay --cause ID`"
        found.append(Remark("dead", f"{counts.dead_recently} events were given up within a day", remedy))
    if counts.unhandled:
        types = ", ".join(f"{count} of {name}" for name, count in counts.unhandled.items())
        remedy = "start a worker with a handler for them, or register fewer types: `credhook endpoints plan`"
        found.append(Remark("unhandled", f"no worker had a handler for {types}", remedy))
    if counts.quarantined:
        what = f"{counts.quarantined} events are of types that this version does not know"
        remedy = "upgrade, then `credhook events replay --state quarantined`"
        found.append(Remark("quarantined", what, remedy))
    if counts.unreadable:
        what = f"somebody else has written to the records of {counts.unreadable} events"
        remedy = "`credhook events list --state unreadable` names them; repair them, then replay them"
        found.append(Remark("unreadable", what, remedy))
    return found


_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def age(seconds: float) -> str:
    """So many seconds in one unit: `45 s`, `12 min`, `3 h`, `2 d`."""
    for unit, name in _UNITS:
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
