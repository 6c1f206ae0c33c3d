"""Read the state of the whole fleet at one moment, for status, doctor and console. Nothing is written.

Times are in seconds; ages end at that moment.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pydantic import BaseModel
from rq.suspension import WORKERS_SUSPENDED

from credhook.ops.verdict import Outside, read_outside
from credhook.store import Keys, health
from credhook.store.announcements import (
    ANNOUNCEMENT_SECONDS,
    MISSED_SECONDS,
    Announced,
    PlatformKeys,
    ReceiverAnnouncement,
    Refusals,
    WorkerAnnouncement,
    announced,
    host_of,
    missing,
)
from credhook.store.arrivals import Arrivals, Silence
from credhook.store.counts import EventCounts, counts_of
from credhook.store.store import SyncStore
from credhook.store.traffic import HOUR, Column, minute_of, read_columns
from credhook.worker.platform.circuit import Phase
from credhook.worker.platform.limits import pause_of

#: Checks of Redis. If one of these fails, no process can announce itself. A full Redis still takes announcements.
REFUSING: Final = ("master", "disk", "save", "replicas", "schema")
#: RQ workers whose queues are read, at most.
_RQ_WORKERS_LIMIT: Final = 1_000


class RedisServer(BaseModel):
    """Redis, as it describes itself. Memory is in bytes; `maxmemory` 0 means no limit, `fsync` "" unknown."""

    address: str
    version: str
    used_memory: int
    maxmemory: int
    appendonly: bool
    fsync: str
    checks: tuple[health.Check, ...]


class ReceiverProcess(ReceiverAnnouncement):
    """A live receiver process; `age` is in seconds, `per_second` covers its last ten seconds or so."""

    age: float
    per_second: float


class WorkerProcess(WorkerAnnouncement):
    """A worker process; `age` and `silent`, since its last beat, are in seconds."""

    name: str
    host: str
    queue: str
    age: float
    silent: float = 0.0


FleetProcess = ReceiverProcess | WorkerProcess


class PlatformState(BaseModel):
    """The platform, as workers with the same settings see it.

    Attributes:
        open_breakers: processes whose circuit breaker is open or half open.
        broken: seconds since the first of these opened; None without an open breaker.
        paused: seconds until the fleet calls again; 0 without a pause.
        cause: why the fleet pauses: a status, or a word for the error; "" without a pause.
        rate: `CREDHOOK_RATE`.
        passed: requests per second that passed before the platform answered 429; None without a recent 429.
    """

    open_breakers: int
    broken: float | None = None
    paused: float
    cause: str
    rate: float | None
    passed: float | None


class ClockStep(BaseModel):
    """A step of Redis's clock: its length, negative if the clock was set back, and its age, in seconds."""

    seconds: float
    age: float


class Fleet(BaseModel):
    """The state of the fleet. Receivers and workers are those of all queues.

    Attributes:
        counts: the events of this queue.
        others: the events of other queues in which events wait, by queue.
        oldest_open: seconds since the oldest open event of this queue was received.
        suspended: whether `rq suspend` has stopped the workers.
        clock_step: the last step of Redis's clock, if it was noticed within 15 minutes.
        missing: workers of this queue that fell silent within a day, and that no younger worker replaces.
        platforms: of the workers of this queue; more than one if they have different settings.
        last_delivery: seconds since the last delivery of this queue; None if none came within two weeks.
        last_hour: what came in each of the last sixty minutes, and what became of it.
        silence: deliveries of this queue that usually come and are missing.
        outside: the last checks of public URL and endpoint; None if no worker has made them.
        outside_age: seconds since then.
    """

    queue: str
    server: RedisServer
    counts: EventCounts = EventCounts()
    others: dict[str, EventCounts] = {}
    oldest_open: float | None = None
    suspended: bool = False
    clock_step: ClockStep | None = None
    receivers: tuple[ReceiverProcess, ...] = ()
    workers: tuple[WorkerProcess, ...] = ()
    missing: tuple[WorkerProcess, ...] = ()
    platforms: tuple[PlatformState, ...] = ()
    last_delivery: float | None = None
    last_hour: tuple[Column, ...] = ()
    silence: Silence | None = None
    outside: Outside | None = None
    outside_age: float | None = None

    @property
    def own_workers(self) -> tuple[WorkerProcess, ...]:
        """Return the workers of this queue."""
        return tuple(worker for worker in self.workers if worker.queue == self.queue)

    @property
    def own_receivers(self) -> tuple[ReceiverProcess, ...]:
        """Return the receivers of this queue."""
        return tuple(receiver for receiver in self.receivers if receiver.queue == self.queue)

    @property
    def refuses_writes(self) -> bool:
        """Return True if Redis lets no process announce itself."""
        return any(check.failed and check.name in REFUSING for check in self.server.checks)

    def as_json(self) -> dict[str, Any]:
        """Return everything except the digests of settings."""
        digests = {"__all__": {"config_fingerprint"}}
        return self.model_dump(
            mode="json", exclude={"receivers": digests, "workers": digests, "missing": digests, "server": {"checks"}}
        )


def read_fleet(store: SyncStore, address: str, *, durability: str | None = "strict") -> Fleet:
    """Return the state of the fleet; `address` is Redis's address without a password.

    Redis is checked against the durability that live receivers promise, or else against `durability`.
    """
    facts, now, queue = health.ask_sync(store), store.clock() / 1_000, store.queue
    # In another layout, announcements may have other fields. A cluster refuses our scripts.
    if facts.schema or facts.cluster:
        return Fleet(queue=queue, server=server_of(facts, address, durability))
    queues = sorted(queues_of(store) | {queue})
    counts = {name: counts_of(store, Keys(name), now=now) for name in queues}
    receivers, workers_by_queue = list[ReceiverProcess](), dict[str, list[Announced]]()
    for name in queues:
        keys = Keys(name)
        receivers += (_receiver(entry, now) for entry in _announced(store, keys.receivers, now, ANNOUNCEMENT_SECONDS))
        workers_by_queue[name] = _announced(store, keys.announcements, now, MISSED_SECONDS)
    alive = [(entry, name) for name in queues for entry in workers_by_queue[name] if entry.is_alive(now * 1_000)]
    workers = [_worker(entry, name, now) for entry, name in alive]
    arrivals, minute = Arrivals.read(store.run("deliveries", [])), minute_of(int(now * 1_000))
    outside = read_outside(store)
    promised = max((receiver.durability for receiver in receivers), key=_strength, default=durability)
    return Fleet(
        queue=queue,
        server=server_of(facts, address, promised),
        counts=counts[queue],
        others={name: events for name, events in counts.items() if name != queue and events.waiting},
        oldest_open=counts[queue].oldest_age,
        clock_step=_clock_step(store, now),
        suspended=bool(store.redis.exists(WORKERS_SUSPENDED)),
        receivers=tuple(sorted(receivers, key=lambda receiver: (receiver.queue, receiver.host))),
        workers=tuple(sorted(workers, key=lambda worker: (worker.queue, worker.host))),
        missing=tuple(_worker(entry, queue, now) for entry in missing(workers_by_queue[queue], now * 1_000)),
        last_delivery=None if arrivals.last is None else 60.0 * max(0, minute - arrivals.last),
        last_hour=read_columns(store, int(now * 1_000), [(HOUR, 1)])[0],
        silence=arrivals.silence(minute),
        outside=outside,
        outside_age=outside and max(0.0, now - outside.at / 1_000),
        platforms=tuple(
            _platform(store, keys, workers)
            for keys in dict.fromkeys(worker.platform for worker in workers if worker.queue == queue)
        ),
    )


def _strength(durability: str) -> tuple[bool, int]:
    return durability == "strict", health.replicas_wanted(durability)


def server_of(facts: health.Facts, address: str, durability: str | None) -> RedisServer:
    """Return Redis as these facts describe it, checked against the durability."""
    return RedisServer(
        address=address,
        version=facts.release,
        used_memory=facts.used_memory,
        maxmemory=facts.maxmemory,
        appendonly=facts.appendonly,
        fsync=facts.fsync,
        checks=health.checks(facts, durability=durability),
    )


def _announced(store: SyncStore, key: str, now: float, seconds: float) -> list[Announced]:
    """Return the announcements in this hash that were renewed within so many seconds."""
    return [entry for entry in announced(store.redis.hgetall(key)) if abs(now - entry.renewed / 1_000) <= seconds]


def _clock_step(store: SyncStore, now: float) -> ClockStep | None:
    at, step = store.redis.hmget(store.keys.clock, ["at", "step"])
    return ClockStep(seconds=int(step) / 1_000, age=max(0.0, now - int(at) / 1_000)) if at and step else None


def _receiver(entry: Announced, now: float) -> ReceiverProcess:
    receiver, later = ReceiverAnnouncement.model_validate_json(entry.text), max(0.0, now - entry.renewed / 1_000)
    then = receiver.model_dump(include={"idle", "conflicted"}, exclude_none=True)
    until_now = {name: seconds + later for name, seconds in then.items()}
    refusals = {
        rule: Refusals(count=each.count, since=each.since + later, ago=each.ago + later)
        for rule, each in receiver.refusals.items()
    }
    per_second = round(receiver.acknowledged / receiver.seconds, 2) if receiver.seconds > 0 else 0.0
    return ReceiverProcess(
        **{**receiver.model_dump(), **until_now, "refusals": refusals},
        age=max(0.0, now - entry.since / 1_000),
        per_second=per_second,
    )


def _worker(entry: Announced, queue: str, now: float) -> WorkerProcess:
    worker = WorkerAnnouncement.model_validate_json(entry.text)
    age, silent = (max(0.0, now - at / 1_000) for at in (entry.since, entry.renewed))
    return WorkerProcess(
        **worker.model_dump(), name=entry.name, host=host_of(entry.name), queue=queue, age=age, silent=silent
    )


def forget(store: SyncStore, missing: Iterable[WorkerProcess]) -> None:
    """Report these missing workers no longer."""
    if names := [worker.name for worker in missing]:
        store.redis.hdel(store.keys.announcements, *names)


def queues_of(store: SyncStore) -> set[str]:
    """Return the queues that RQ lists, and the queues that workers, RQ's and ours, take jobs from."""
    keys: Any = store.redis.smembers("rq:queues")
    names: Any = store.redis.srandmember("rq:workers", _RQ_WORKERS_LIMIT)
    pipeline = store.redis.pipeline(transaction=False)
    for name in names:
        pipeline.hget(name, "queues")
    listed = {key.decode().removeprefix("rq:queue:") for key in keys}
    return listed.union(*(reply.decode().split(",") for reply in pipeline.execute() if reply)) - {""}


def _platform(store: SyncStore, keys: PlatformKeys, workers: Sequence[WorkerProcess]) -> PlatformState:
    pause = pause_of(store, keys.key)
    broken = [worker for worker in workers if worker.platform == keys and worker.breaker != Phase.CLOSED.value]
    return PlatformState(
        open_breakers=len(broken),
        broken=max((worker.breaker_seconds for worker in broken), default=None),
        paused=pause.seconds,
        cause=pause.cause,
        rate=keys.rate,
        passed=pause.passed,
    )
