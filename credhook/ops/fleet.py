"""The state of the whole fleet at one moment, and the one reader of it. Times are in seconds; ages end at that moment.

Status, doctor and console all use this reader. It writes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry
from rq.suspension import WORKERS_SUSPENDED

from credhook.store import Keys, health
from credhook.store.address import RedisAddress
from credhook.store.announcements import (
    ANNOUNCEMENT_SECONDS,
    Announced,
    PlatformKeys,
    ReceiverAnnouncement,
    WorkerAnnouncement,
    announced,
)
from credhook.store.connection import clock, open_redis_sync
from credhook.store.counts import EventCounts, counts_of
from credhook.worker.platform.shared_circuit import circuit_in, circuit_key
from credhook.worker.settings import PlatformSettings

#: Seconds that Redis may take for one answer.
ANSWER_SECONDS: Final = 5.0
#: RQ workers that are asked for their queues, at most.
_RQ_WORKERS_LIMIT: Final = 1_000


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)


class RedisServer(_Model):
    """Redis, as it describes itself. Memory is in bytes; `maxmemory` 0 means no limit, `fsync` "" unknown."""

    address: str
    version: str
    used_memory: int
    maxmemory: int
    appendonly: bool
    fsync: str
    checks: tuple[health.Check, ...]


class FleetProcess(_Model):
    """The fields that receivers and workers share.

    Attributes:
        age: seconds since the process first announced itself.
        config_fingerprint: digests of settings that must be the same for all processes of its kind.
    """

    queue: str
    host: str
    version: str
    age: float
    config_fingerprint: dict[str, str] = {}


class ReceiverProcess(FleetProcess):
    """A live receiver process; `per_second` covers its last ten seconds or so."""

    strict: bool
    per_second: float
    idle: float | None
    unauthenticated: int = 0
    outside_tolerance: int = 0
    refused: float | None = None


class WorkerProcess(FleetProcess):
    """A live worker process; None stands for a figure that it does not report."""

    handlers: dict[str, tuple[str, ...]]
    in_flight: int | None
    slots: int | None


class PlatformState(_Model):
    """The platform, as the workers share it.

    Attributes:
        breaker: `closed`, `open` or `half open`.
        paused: seconds until calls resume, 0 if they are made.
        rate: requests per second that the fleet may make, None without a limit.
    """

    breaker: str
    paused: float
    rate: float | None


class Fleet(_Model):
    """The state of the fleet. Receivers and workers are those of all queues.

    Attributes:
        counts: the events of this queue.
        others: the events of other queues that have open events, by queue.
        oldest_open: seconds since the oldest open event of this queue was received.
        suspended: whether `rq suspend` has stopped the workers.
        platforms: more than one if workers have different settings.
    """

    queue: str
    server: RedisServer
    counts: EventCounts = EventCounts()
    others: dict[str, EventCounts] = {}
    oldest_open: float | None = None
    suspended: bool = False
    receivers: tuple[ReceiverProcess, ...] = ()
    workers: tuple[WorkerProcess, ...] = ()
    platforms: tuple[PlatformState, ...] = ()

    @property
    def own_workers(self) -> tuple[WorkerProcess, ...]:
        """Return the workers of this queue."""
        return tuple(worker for worker in self.workers if worker.queue == self.queue)

    @property
    def own_receivers(self) -> tuple[ReceiverProcess, ...]:
        """Return the receivers of this queue."""
        return tuple(receiver for receiver in self.receivers if receiver.queue == self.queue)

    def as_json(self) -> dict[str, Any]:
        """Return everything except the digests of settings."""
        digests = {"__all__": {"config_fingerprint"}}
        hidden: Any = {"receivers": digests, "workers": digests, "server": {"checks"}, "counts": {"oldest_age"}}
        return self.model_dump(mode="json", exclude=hidden)


def open_briefly(address: RedisAddress) -> Redis:
    """Return a client that gives up after a few seconds and does not retry."""
    return open_redis_sync(
        address,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        protocol=2,
    )


def read_fleet(redis: Redis, address: str, queue: str, platform: PlatformKeys | None = None) -> Fleet:
    """Return the state of the fleet; `address` is Redis's address without a password.

    `platform` says where the platform's state is, if no worker reports it.

    Raises:
        RedisError, OSError: Redis failed.
    """
    now = clock(redis) / 1_000
    queues = sorted(queues_of(redis) | {queue})
    counts = {name: counts_of(redis, Keys(name), now=now) for name in queues}
    receivers = read_receivers(redis, queues)
    workers, platforms = _workers(redis, queues, now)
    strict = any(receiver.strict for receiver in receivers) or not receivers  # It is the default.
    return Fleet(
        queue=queue,
        server=_server(redis, address, strict=strict),
        counts=counts[queue],
        others={name: found for name, found in counts.items() if name != queue and found.open},
        oldest_open=counts[queue].oldest_age,
        suspended=bool(redis.exists(WORKERS_SUSPENDED)),
        receivers=receivers,
        workers=workers,
        platforms=tuple(_platform(redis, keys, now) for keys in platforms or ([platform] if platform else [])),
    )


def read_receivers(redis: Redis, queues: Iterable[str]) -> tuple[ReceiverProcess, ...]:
    """Return the live receivers of these queues.

    Raises:
        RedisError, OSError: Redis failed.
    """
    now, found = clock(redis) / 1_000, []
    for _, one in _announced(redis, [Keys(queue).receivers for queue in queues], now):
        said = ReceiverAnnouncement.model_validate_json(one.text)
        later = now - one.renewed / 1_000
        found.append(
            ReceiverProcess(
                **said.model_dump(exclude={"acknowledged", "seconds", "idle", "refused"}),
                age=now - one.since / 1_000,
                per_second=round(said.acknowledged / said.seconds, 2) if said.seconds > 0 else 0.0,
                idle=None if said.idle is None else said.idle + later,
                refused=None if said.refused is None else said.refused + later,
            )
        )
    return tuple(sorted(found, key=lambda receiver: (receiver.queue, receiver.host)))


def platform_of_host(queue: str) -> PlatformKeys | None:
    """Return where the platform's state is, if this host's settings name the platform."""
    try:
        settings = PlatformSettings()
    except ValidationError:
        return None
    return PlatformKeys(circuit=circuit_key(settings.api_url, queue))


def _server(redis: Redis, address: str, *, strict: bool) -> RedisServer:
    info: Any = redis.info()
    try:
        config: Mapping[Any, Any] = redis.config_get("*appendfsync*")
    except ResponseError:  # Managed services forbid CONFIG.
        config = {}
    facts = health.read(info, config)
    return RedisServer(
        address=address,
        version=str(info.get("redis_version", "")),
        used_memory=int(info.get("used_memory", 0)),
        maxmemory=int(info.get("maxmemory", 0)),
        appendonly=facts.appendonly,
        fsync=facts.fsync,
        checks=health.checks(facts, strict=strict),
    )


def _workers(redis: Redis, queues: Sequence[str], now: float) -> tuple[tuple[WorkerProcess, ...], list[PlatformKeys]]:
    """Return the live workers of these queues, and where they keep the platform's state."""
    found, platforms = [], []
    for place, one in _announced(redis, [Keys(queue).handlers for queue in queues], now):
        said = WorkerAnnouncement.model_validate_json(one.text)
        fields = said.model_dump(exclude={"pid", "platform"})
        found.append(WorkerProcess(queue=queues[place], age=now - one.since / 1_000, **fields))
        if said.platform not in platforms:
            platforms.append(said.platform)
    return tuple(sorted(found, key=lambda worker: (worker.queue, worker.host))), platforms


def _announced(redis: Redis, keys: Iterable[str], now: float) -> Iterator[tuple[int, Announced]]:
    """Yield the announcements of live processes in these hashes, each with its hash's place among the keys."""
    for place, key in enumerate(keys):
        for one in announced(redis.hgetall(key)):
            if now - one.renewed / 1_000 <= ANNOUNCEMENT_SECONDS:
                yield place, one


def queues_of(redis: Redis) -> set[str]:
    """Return the queues that RQ lists, and the queues that RQ's workers (ours as well) take jobs from.

    Raises:
        RedisError, OSError: Redis failed.
    """
    keys: Any = redis.smembers("rq:queues")
    names: Any = redis.srandmember("rq:workers", _RQ_WORKERS_LIMIT)
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.hget(name, "queues")
    listed = [reply.decode().split(",") for reply in pipeline.execute() if reply]
    return {key.decode().removeprefix("rq:queue:") for key in keys} | {
        name for names in listed for name in names if name
    }


def _platform(redis: Redis, keys: PlatformKeys, now: float) -> PlatformState:
    fields: Any = redis.hgetall(keys.circuit)
    circuit = circuit_in(fields, redis_now=now, now=now)
    paused = circuit.pause(now)
    return PlatformState(
        breaker=("open" if paused else "half open") if circuit.is_open else "closed",
        paused=paused,
        rate=keys.rate,
    )
