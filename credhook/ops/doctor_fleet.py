"""The fleet: receivers and workers that are alive, and whether they fit together. Pure."""

from collections.abc import Iterator
from typing import Final

from credhook.ops import fleet
from credhook.ops.attention import Limits, of_refusals
from credhook.ops.facts import Facts, Process
from credhook.ops.finding import Finding, ok, warn
from credhook.ops.fleet import Remark
from credhook.store.announcements import version

FLEET: Final = (
    "fleet.receivers",
    "fleet.workers",
    "fleet.databases",
    "fleet.queues",
    "fleet.versions",
    "fleet.handlers",
    "fleet.settings",
    "fleet.refusals",
)


def of_fleet(facts: Facts) -> Iterator[Finding]:
    """All of them."""
    yield _of("fleet.receivers", fleet.receivers(facts), _alive(facts.receivers))
    yield _of("fleet.workers", _workers(facts), _alive(facts.ours))
    yield _of("fleet.databases", fleet.databases(facts), "what is missing here, if anything, is in no other database")
    yield _of("fleet.queues", fleet.queues(facts), "receivers and workers have the same queues")
    yield _of("fleet.versions", [*fleet.versions(facts), *_own_version(facts)], f"all run {version()}, as this command")
    yield _of("fleet.handlers", fleet.handlers(facts), "the workers of the queue have the same handlers")
    yield _of("fleet.settings", fleet.settings(facts), "receivers have the settings of each other, and so do workers")
    late = Limits()
    otherwise = f"no delivery was refused for its signature or its time within {late.refused / 60:.0f} min"
    yield _of("fleet.refusals", of_refusals(facts.receivers, late), otherwise)


def _of(name: str, remarks: list[Remark], otherwise: str) -> Finding:
    if not remarks:
        return ok(name, otherwise)
    remedies = dict.fromkeys(one.remedy for one in remarks)
    return warn(name, "; ".join(one.what for one in remarks), "; ".join(remedies))


def _alive(processes: tuple[Process, ...]) -> str:
    hosts = sorted({one.host for one in processes})
    return f"{len(processes)} alive, on {', '.join(hosts[:10])}" if hosts else "none alive"


def _workers(facts: Facts) -> list[Remark]:
    if facts.ours:
        return []
    what = f"no worker of the queue {facts.queue} is alive"
    return [Remark("no_worker", what, f"start `credhook worker` with CREDHOOK_QUEUE={facts.queue}")]


def _own_version(facts: Facts) -> list[Remark]:
    """Whether this command is of another version than all that runs: an upgrade that nobody was restarted for."""
    running = sorted({one.version for one in (*facts.receivers, *facts.workers)})
    if not running or version() in running:
        return []
    what = f"{', '.join(running)} runs, and {version()} is installed here"
    return [Remark("versions", what, "restart what runs, or upgrade here")]
