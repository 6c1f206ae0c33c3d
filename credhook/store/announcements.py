"""Announcements: each process describes itself in Redis. Status, doctor, console and metrics read it.

The workers of each queue share one hash, and the receivers another. Each value is "<since> <renewed> <announcement>",
both in ms of Redis's clock. Announcements hold no secret and no path.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

#: Seconds that a receiver's announcement lasts unless it is renewed.
ANNOUNCEMENT_SECONDS: Final = 60.0
#: Seconds without a heartbeat until a worker counts as missing.
SILENT_SECONDS: Final = 15.0
#: Seconds for which a missing worker is reported.
MISSED_SECONDS: Final = 86_400.0
#: Seconds before a worker's end from which the start of another counts as its replacement.
_REPLACED_SECONDS: Final = 120.0
#: Deliveries that a receiver must have refused before it leaves deliveries to its neighbours.
_REFUSED_ALONE: Final = 10
#: Deliveries that its neighbours must have accepted meanwhile, each on average.
_ACCEPTED_BESIDE: Final = 20
#: Seconds that a deploy may take, during which processes may differ.
DEPLOY_SECONDS: Final = 600
#: Bytes of the digest of a setting: enough to see a difference, and too few to guess the value.
_DIGEST_BYTES: Final = 2
#: Bytes of the digest of our code.
_BUILD_BYTES: Final = 4


class PlatformKeys(BaseModel, frozen=True):
    """The beginning of the platform's keys in Redis. `rate` is per second."""

    key: str
    rate: float | None = None


class WorkerAnnouncement(BaseModel, frozen=True):
    """A worker process.

    Attributes:
        processes: how many worker processes its supervisor runs.
        handlers: name → the event types that it handles.
        slots: events that it handles at a time, at most.
        in_flight: events that it handles now.
        config_fingerprint: digests of the settings that all workers of a queue should share.
        credential_error: why the platform accepts no credential of the process, or "".
        breaker: phase of the process's circuit breaker: closed, open or half open.
        breaker_seconds: seconds since it was closed last; 0 while it is closed.
        never_found: kinds of resources for which every fetch of the process got a 404.
        started: whether it has asked for a token, and its start-up functions have succeeded.
        turns: handler → how many events wait for their turn with it, and the seconds until the last asks again.
    """

    version: str
    pid: int
    processes: int = 1
    handlers: dict[str, tuple[str, ...]]
    slots: int
    in_flight: int
    platform: PlatformKeys
    config_fingerprint: dict[str, str]
    credential_error: str = ""
    breaker: str = "closed"
    breaker_seconds: float = 0.0
    never_found: tuple[str, ...] = ()
    started: bool = False
    turns: dict[str, tuple[int, float]] = {}


class Refusals(BaseModel, frozen=True):
    """Deliveries that were refused for one rule, without a quarter of an hour between two of them.

    Attributes:
        count: how many.
        since: seconds since the first.
        ago: seconds since the last.
    """

    count: int
    since: float
    ago: float


class ReceiverAnnouncement(BaseModel, frozen=True):
    """A receiver process.

    Attributes:
        queue: the queue that it writes to.
        durability: the value of `CREDHOOK_DURABILITY`: when it acknowledges a delivery.
        config_fingerprint: digests of the settings that all receivers of a queue should share.
        acknowledged: deliveries acknowledged in the last round.
        seconds: length of that round.
        idle: seconds since the last acknowledged delivery; None before the first.
        accepted: deliveries acknowledged since start.
        refusals: refused deliveries, by the rule that they broke.
        refuses_alone: whether it refuses every delivery while its neighbours accept; see `refuses_alone`.
        turned_away: senders since start that the listener turned away, by reason.
        turned_away_ago: seconds since the last of these; None before the first.
        unavailable: why Redis did not take the last delivery, "" if it did: `problem; remedy`.
        conflicts: deliveries since start whose webhook-id had come with another type or resource.
        conflicted: seconds since the last of these; None before the first.
    """

    queue: str
    version: str
    host: str
    pid: int = 0
    durability: str
    config_fingerprint: dict[str, str]
    acknowledged: int = 0
    seconds: float = 0.0
    idle: float | None = None
    accepted: int = 0
    refusals: dict[str, Refusals] = {}
    refuses_alone: bool = False
    turned_away: dict[str, int] = {}
    turned_away_ago: float | None = None
    unavailable: str = ""
    conflicts: int = 0
    conflicted: float | None = None


class Announced(NamedTuple):
    """An announcement in Redis: the process's name, its first and its last renewal in ms, and the JSON."""

    name: str
    since: int
    renewed: int
    text: bytes

    def is_alive(self, now: float) -> bool:
        """Return False if the process fell silent. `now`: Redis's clock, in ms, which may have been set back."""
        return abs(now - self.renewed) <= SILENT_SECONDS * 1_000


def announced(values: Mapping[Any, Any]) -> Iterator[Announced]:
    """Yield the announcements of a hash, including lapsed ones."""
    for name, value in values.items():
        since, renewed, text = value.split(b" ", 2)
        yield Announced(name.decode(), int(since), int(renewed), text)


def family_of(name: str) -> str:
    """Return what the names of all worker processes of one supervisor begin with."""
    return name.rpartition(".")[0]


def host_of(name: str) -> str:
    """Return the host in the name of a worker process."""
    return family_of(name).rpartition(".")[0]


def missing(workers: Sequence[Announced], now: float) -> list[Announced]:
    """Return the silent workers, except as many as others have replaced. `now`: Redis's clock, in ms.

    A replacement is younger. It started after the silent worker fell silent, or shortly before, as in a rolling deploy.
    """
    silent = sorted((worker for worker in workers if not worker.is_alive(now)), key=lambda worker: worker.renewed)
    for since in sorted(worker.since for worker in workers if worker.is_alive(now)):
        if silent and since > max(silent[0].since, silent[0].renewed - _REPLACED_SECONDS * 1_000):
            del silent[0]
    return silent


def refuses_alone(refused: int, accepted: Sequence[int]) -> bool:
    """Return True if a receiver should leave deliveries to its neighbours, because it alone refuses them.

    `refused`: deliveries that it has refused since it last accepted a delivery; `accepted`: deliveries that each live
    neighbour has accepted since then. The chance that a well receiver gets none of so many is
    one in a million, so forged deliveries that reach all receivers make none unready. Without neighbours that accept, a
    receiver always stays.
    """
    return refused >= _REFUSED_ALONE and len(accepted) > 0 and sum(accepted) >= _ACCEPTED_BESIDE * len(accepted)


def fingerprint(settings: Mapping[str, object]) -> dict[str, str]:
    """Return a short digest of each setting, by which a difference between two processes can be seen."""
    return {
        name: blake2b(json.dumps(value).encode(), digest_size=_DIGEST_BYTES).hexdigest()
        for name, value in settings.items()
    }


@cache
def version() -> str:
    """Return the build: the version of this package, and a digest of its code, since not every commit has a version."""
    package = Path(__file__).parents[1]  # In a checkout it holds links to folders, which `rglob` does not follow.
    files = sorted(Path(folder, name) for folder, _, names in os.walk(package, followlinks=True) for name in names)
    code = b"".join(file.read_bytes() for file in files if file.suffix in {".py", ".lua"})
    digest = blake2b(code, digest_size=_BUILD_BYTES).hexdigest()
    try:
        return f"{version_of('credhook')}+{digest}"
    except PackageNotFoundError:  # Started from a folder that is not installed.
        return f"unknown+{digest}"
