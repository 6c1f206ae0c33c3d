"""What does not fit together in a fleet: queues, versions, handlers, settings. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from credhook.ops.facts import Facts, Process
from credhook.worker.process.announcement import DEPLOY, difference


class Remark(NamedTuple):
    """Something that wants attention, under a stable name: what is so, and what to do about it, in a line each."""

    name: str
    what: str
    remedy: str


def remarks(facts: Facts) -> list[Remark]:
    """All of them."""
    return [*receivers(facts), *databases(facts), *queues(facts), *versions(facts), *handlers(facts), *settings(facts)]


def receivers(facts: Facts) -> list[Remark]:
    """Whether there is one at all."""
    if facts.receivers:
        return []
    what = "no receiver has announced itself on this Redis: deliveries are accepted nowhere, or elsewhere"
    return [Remark("no_receiver", what, "start `credhook receiver`, with the REDIS_URL of the workers")]


def databases(facts: Facts) -> list[Remark]:
    """Other databases where that is alive which is missing here. Workers beside receivers are a fleet of their own."""
    remedy = "let REDIS_URL end in the same number for receivers, workers and commands"
    found = []
    for one in facts.elsewhere:
        receivers = "receivers" if one.receivers and not facts.receivers else ""
        workers = "workers" if one.workers and not facts.ours and (receivers or not one.receivers) else ""
        if who := " and ".join(filter(None, (receivers, workers))):
            there = f"database {one.number} of this Redis, and not in {facts.server.address}"
            found.append(Remark("database", f"{who} of {facts.queue} are alive in {there}", remedy))
    return found


def queues(facts: Facts) -> list[Remark]:
    """Queues that only one side has: what receivers write there, no worker takes; or the other way about."""
    written, taken = {one.queue for one in facts.receivers}, {one.queue for one in facts.workers}
    if not written or not taken:
        return []
    remedy = "set CREDHOOK_QUEUE to the same for both, where that is not meant"
    unread = [f"receivers write to {one}, and no worker takes from it" for one in written - taken]
    idle = [f"workers take from {one}, and no receiver writes to it" for one in taken - written]
    return [Remark("queue", what, remedy) for what in sorted(unread + idle)]


def versions(facts: Facts) -> list[Remark]:
    """Versions that have differed for longer than a deploy takes."""
    processes: list[Process] = [*facts.receivers, *facts.workers]
    settled = [one for one in processes if one.age >= DEPLOY]
    found = sorted({one.version for one in settled})
    if len(found) < 2:  # noqa: PLR2004  Two differ.
        return []
    hosts = {version: sorted({one.host for one in settled if one.version == version}) for version in found}
    told = "; ".join(f"{version} on {', '.join(names[:5])}" for version, names in hosts.items())
    return [Remark("versions", f"processes run different versions: {told}", "upgrade those that a deploy has left out")]


def handlers(facts: Facts) -> list[Remark]:
    """Handlers by which the workers of the queue have differed for longer than a deploy takes."""
    settled = [one for one in facts.ours if one.age >= DEPLOY]
    if not settled:
        return []
    found = difference(settled[0].handlers, [one.handlers for one in settled[1:]])
    if found is None:
        return []
    names = ", ".join(sorted({*found.only_here, *found.only_elsewhere})[:10])
    remedy = "start all workers of the queue with the same version and CREDHOOK_HANDLERS"
    return [Remark("handlers", f"workers of {facts.queue} differ by {names}", remedy)]


def settings(facts: Facts) -> list[Remark]:
    """Settings by which receivers, or workers, of the queue have differed for longer than a deploy takes."""
    ours = [one for one in facts.receivers if one.queue == facts.queue]
    return [*_differing("receivers", ours), *_differing("workers", facts.ours)]


def _differing(what: str, processes: Sequence[Process]) -> list[Remark]:
    settled = [one for one in processes if one.age >= DEPLOY]
    found = []
    for name in sorted({name for one in settled for name in one.alike}):
        hosts: dict[str, list[str]] = {}
        for one in settled:
            if name in one.alike:
                hosts.setdefault(one.alike[name], []).append(one.host)
        if len(hosts) > 1:
            told = "; ".join(sorted(f"{len(each)} on {', '.join(sorted(set(each))[:5])}" for each in hosts.values()))
            remedy = f"start all {what} of the queue with the same {name}"
            found.append(Remark("settings", f"{what} have different {name}: {told}", remedy))
    return found
