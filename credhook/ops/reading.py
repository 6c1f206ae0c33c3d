"""The facts as Redis has them. Each number costs the same however many events there are; nothing is written."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import ValidationError
from redis import Redis
from redis.exceptions import RedisError, ResponseError
from rq.suspension import WORKERS_SUSPENDED

from credhook.ops.attention import Limits, attention
from credhook.ops.databases import other_databases
from credhook.ops.facts import Counts, Database, Facts, Platform, Receiver, Server, Worker
from credhook.ops.fleet import Remark
from credhook.receiver.announcement import Announcement as ReceiverAnnouncement
from credhook.store import RECEIVERS, Keys, health
from credhook.store.announcements import LASTS, Announced, announced
from credhook.store.opened import oldest_open
from credhook.worker.platform import circuit_store
from credhook.worker.platform.circuit_snapshot import LONGEST, NotACircuit
from credhook.worker.platform.circuit_snapshot import read as read_circuit
from credhook.worker.platform.token_key import name_from
from credhook.worker.process.announcement import Platform as PlatformKeys
from credhook.worker.process.announcement import read as read_worker
from credhook.worker.settings import PlatformSettings

#: Seconds for which a dead event is news.
RECENTLY: Final = 86_400
#: RQ's workers that are asked for their queues.
_ASKED: Final = 1_000
_RQ_WORKERS: Final = "rq:workers"


def look_at(
    redis: Redis, address: str, queue: str, platform: PlatformKeys | None, limits: Limits
) -> tuple[Facts | None, tuple[Remark, ...]]:
    """How the fleet is, and what wants attention: where Redis fails there are no facts, and that alone wants it."""
    try:
        facts = read_facts(redis, address, queue, platform)
    except (RedisError, OSError) as error:
        what, _, remedy = health.unanswered(error).partition("; ")
        return None, (Remark("redis", what, remedy),)
    return facts, attention(facts, limits)


def read_facts(redis: Redis, address: str, queue: str, platform: PlatformKeys | None = None) -> Facts:
    """How the fleet is; `address` is Redis's, as it may be shown.

    `platform` says where the platform's state is, if no worker does.

    Raises:
        RedisError, OSError: Redis failed.
    """
    now = _now(redis)
    index = Keys(queue)
    receivers = read_receivers(redis)
    workers, keys = _workers(redis, {queue, *(one.queue for one in receivers), *_queues_of_rq(redis)}, now)
    strict = any(one.strict for one in receivers) or not receivers  # It is the default.
    whole = receivers and any(one.queue == queue for one in workers)
    return Facts(
        queue=queue,
        server=_server(redis, address, strict=strict),
        counts=_counts(redis, index, now),
        oldest_open=_oldest_open(redis, index, now),
        suspended=bool(redis.exists(WORKERS_SUSPENDED)),
        receivers=receivers,
        workers=workers,
        platforms=tuple(_platform(redis, one, now) for one in keys or ([platform] if platform else [])),
        elsewhere=() if whole else _elsewhere(redis, queue, now),
    )


def _now(redis: Redis) -> float:
    """Seconds since the epoch, as Redis sees it: hosts may disagree."""
    seconds, microseconds = redis.time()
    return float(seconds + microseconds / 1_000_000)


def _server(redis: Redis, address: str, *, strict: bool) -> Server:
    info: Any = redis.info()
    try:
        config: Mapping[Any, Any] = redis.config_get("*appendfsync*")
    except ResponseError:  # Managed services forbid CONFIG.
        config = {}
    facts = health.read(info, config)
    return Server(
        address=address,
        version=str(info.get("redis_version", "")),
        used_memory=int(info.get("used_memory", 0)),
        maxmemory=int(info.get("maxmemory", 0)),
        appendonly=facts.appendonly,
        fsync=facts.fsync,
        checks=health.checks(facts, strict=strict),
    )


def _counts(redis: Redis, index: Keys, now: float) -> Counts:
    sets = {
        "open": index.open,
        "in_flight": index.leases,
        "retrying": index.scheduled,
        "dead": index.dead,
        "quarantined": index.quarantined,
        "unreadable": index.unreadable,
    }
    pipeline = redis.pipeline(transaction=False)
    for key in sets.values():
        pipeline.zcard(key)
    pipeline.llen(index.jobs)
    pipeline.zcount(index.dead, (now - RECENTLY) * 1_000, "+inf")
    for key in index.all_unhandled:
        pipeline.zcard(key)
    # A key of another type, which somebody else has written, has no figure.
    replies = [reply if isinstance(reply, int) else None for reply in pipeline.execute(raise_on_error=False)]
    counts: dict[str, Any] = dict(zip((*sets, "queued", "dead_recently"), replies, strict=False))
    unhandled = zip(index.all_unhandled, replies[len(counts) :], strict=True)
    by_type = {key.removeprefix(index.unhandled): count for key, count in unhandled if count}
    return Counts(**counts, unhandled=by_type)


def _oldest_open(redis: Redis, index: Keys, now: float) -> float | None:
    """Age of the oldest open event, in seconds."""
    try:
        came = oldest_open(redis, index)
    except ResponseError:
        return None
    return None if came is None else max(0.0, now - came / 1_000)


def read_receivers(redis: Redis) -> tuple[Receiver, ...]:
    """The receivers that are alive, those of all queues.

    Raises:
        RedisError, OSError: Redis failed.
    """
    now, found = _now(redis), []
    for one in _announced(redis, RECEIVERS):
        try:
            said = ReceiverAnnouncement.model_validate_json(one.said)
        except ValidationError:
            continue
        if _is_alive(one, now, LASTS):
            later = now - one.renewed / 1_000
            found.append(
                Receiver(
                    **said.model_dump(exclude={"tolerance", "acknowledged", "seconds", "idle", "refused"}),
                    age=now - one.since / 1_000,
                    per_second=round(said.acknowledged / said.seconds, 2) if said.seconds > 0 else 0.0,
                    idle=None if said.idle is None else said.idle + later,
                    refused=None if said.refused is None else said.refused + later,
                )
            )
    return tuple(sorted(found, key=lambda one: (one.queue, one.host)))


def _workers(redis: Redis, queues: Iterable[str], now: float) -> tuple[tuple[Worker, ...], list[PlatformKeys]]:
    """The workers of these queues, and where those of all say that the platform's state is."""
    found, keys = [], []
    for queue in sorted(queues):
        for one in _announced(redis, Keys(queue).handlers):
            said = read_worker(one.said)
            if said is None or not _is_alive(one, now, said.lasts):
                continue
            age = now - one.since / 1_000
            found.append(Worker(queue=queue, age=age, **said.model_dump(exclude={"lasts", "platform"})))
            if said.platform and said.platform not in keys:
                keys.append(said.platform)
    return tuple(sorted(found, key=lambda one: (one.queue, one.host))), keys


def _elsewhere(redis: Redis, queue: str, now: float) -> tuple[Database, ...]:
    """The other databases in which receivers, or workers of the queue, are alive."""
    found = (
        Database(
            number=number,
            receivers=sum(one.queue == queue for one in read_receivers(other)),
            workers=len(_workers(other, {queue}, now)[0]),
        )
        for number, other in other_databases(redis)
    )
    return tuple(one for one in found if one.receivers or one.workers)


def _announced(redis: Redis, key: str) -> list[Announced]:
    try:
        return list(announced(redis.hgetall(key)))
    except ResponseError:  # Of another type: somebody else's.
        return []


def _is_alive(one: Announced, now: float, lasts: float) -> bool:
    return now - one.renewed / 1_000 <= lasts


def _queues_of_rq(redis: Redis) -> set[str]:
    """The queues that RQ's workers, of which each of ours is one, take jobs from."""
    try:
        names: Any = redis.srandmember(_RQ_WORKERS, _ASKED)
    except ResponseError:
        return set()
    pipeline = redis.pipeline(transaction=False)
    for name in names or ():
        pipeline.hget(name, "queues")
    replies = pipeline.execute(raise_on_error=False) if names else []
    listed = (reply.decode(errors="replace").split(",") for reply in replies if isinstance(reply, bytes))
    return {queue for queues in listed for queue in queues if queue}


def _platform(redis: Redis, keys: PlatformKeys, now: float) -> Platform:
    pipeline = redis.pipeline(transaction=False)
    pipeline.getrange(keys.circuit, 0, LONGEST - 1)
    pipeline.pttl(keys.token)
    pipeline.exists(f"{keys.token}:refused")
    text, left, refused = pipeline.execute(raise_on_error=False)
    try:
        circuit = read_circuit(text if isinstance(text, bytes) else b"", now=now, ahead=0.0)
    except NotACircuit:
        circuit = read_circuit(b"", now=now, ahead=0.0)
    paused = max(0.0, circuit.until - now) if circuit.is_open else 0.0
    return Platform(
        breaker=("open" if paused else "half open") if circuit.is_open else "closed",
        paused=paused,
        rate=keys.rate,
        token=left / 1_000 if isinstance(left, int) and left > 0 else None,
        refused=refused is True or refused == 1,
    )


def platform_of_host() -> PlatformKeys | None:
    """Where the platform's state is, if this host knows the platform."""
    try:
        settings = PlatformSettings()
    except ValidationError:
        return None
    return PlatformKeys(circuit=circuit_store.key_name(settings.api_url), token=name_from(settings))
