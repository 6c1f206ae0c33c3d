"""Check that Redis loses no events."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from redis.exceptions import NoPermissionError, ResponseError

from credhook.store import Keys
from credhook.store.connection import Command, RedisConnection
from credhook.store.errors import NO_CLUSTER, STORE_ERRORS, USERS, hint, wrong_schema
from credhook.store.store import AsyncStore, SyncStore

#: Older versions lack `LPOS`, `ZMSCORE`, `BLMOVE` or the expiry of script effects.
OLDEST: Final = (6, 2)
#: Matches `*appendfsync*`, `save` and `stop-writes-on-bgsave-error`, and no password. Redis 6.2 takes one pattern only.
CONFIG: Final = "[ans][aopt]*"
#: Older versions lack `WAITAOF`, which returns once a write was fsynced.
WAITAOF: Final = (7, 2)

#: Seconds that the result of a shared examination lasts.
_EXAMINATION_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        name: stable name, shown in metrics and probes.
        passed: True if the check passed.
        remedy: advice for a check that did not pass.
        warning: True if no promise depends on the check. The process stays ready.
    """

    name: str
    passed: bool
    remedy: str
    warning: bool = False

    @property
    def failed(self) -> bool:
        """Return True if the check did not pass and a promise depends on it."""
        return not self.passed and not self.warning

    @property
    def verdict(self) -> str:
        """Return "ok" or the remedy."""
        if self.passed:
            return "ok"
        return f"warning: {self.remedy}" if self.warning else self.remedy


@dataclass(frozen=True, slots=True)
class Facts:
    """The configuration and condition of a Redis.

    Attributes:
        version: major and minor.
        appendonly: True if it keeps an append-only file.
        fsync: `always`, `everysec`, `no`, or "" if it does not tell, since CONFIG is denied.
        eviction: the policy for a full memory.
        cluster: True for a cluster.
        master: False for a replica.
        full: True if the memory is used up.
        writes_fail: True if the last write to the append-only file failed.
        save_fails: True if the last background save failed and Redis refuses writes for that.
        replicas_missing: True if Redis refuses writes without replicas, and has none.
        replicas: replicas that are connected.
        unbounded: True if there is no limit on its memory.
        fsync_pauses: True if it does not fsync while it rewrites the append-only file.
        release: its whole version.
        used_memory, maxmemory: in bytes; `maxmemory` 0 means no limit.
        schema: what to do if the queue's data have the schema number of another version, or "".
    """

    version: tuple[int, int]
    appendonly: bool
    fsync: str
    eviction: str
    cluster: bool
    master: bool = True
    full: bool = False
    writes_fail: bool = False
    save_fails: bool = False
    replicas_missing: bool = False
    replicas: int = 0
    unbounded: bool = False
    fsync_pauses: bool = False
    release: str = ""
    used_memory: int = 0
    maxmemory: int = 0
    schema: str = ""

    @property
    def fsyncs_each_write(self) -> bool:
        """Return True if a reply means that the write is on disk."""
        return self.appendonly and self.fsync == "always" and not self.fsync_pauses

    @property
    def can_wait(self) -> bool:
        """Return True if `WAITAOF` can wait for the fsync."""
        return self.appendonly and self.version >= WAITAOF and self.fsync != "no"


async def ask(store: AsyncStore, connection: RedisConnection | None = None) -> Facts:
    """Ask Redis for the facts, over this connection if one is given.

    Raises:
        RedisError, OSError: Redis does not answer, or denies INFO or the queue's keys.
    """
    if connection:
        return _facts(await connection.query(*_questions(store.keys)), store.queue)
    pipeline = store.redis.pipeline(transaction=False)
    for question in _questions(store.keys):
        pipeline.execute_command(*question)
    return _facts(await pipeline.execute(raise_on_error=False), store.queue)


def ask_sync(store: SyncStore) -> Facts:
    """Do what `ask` does."""
    pipeline = store.redis.pipeline(transaction=False)
    for question in _questions(store.keys):
        pipeline.execute_command(*question)  # type: ignore[no-untyped-call]  # redis-py's gap
    return _facts(pipeline.execute(raise_on_error=False), store.queue)


def _questions(keys: Keys) -> tuple[Command, ...]:
    return ("INFO",), ("GET", keys.schema), ("CONFIG GET", CONFIG)


def _facts(replies: Sequence[Any], queue: str) -> Facts:
    info, number, config = replies
    for reply in (info, number):
        if isinstance(reply, Exception):
            raise reply
    if isinstance(config, Exception):  # Access control lists and managed services forbid CONFIG.
        config = {}
    return replace(read(info, config), schema=wrong_schema(queue, number))


def read(info: Mapping[str, Any], config: Mapping[Any, Any]) -> Facts:
    """Read the facts from the answers to INFO and CONFIG."""

    def number(name: str, default: int = 0) -> int:
        value = info.get(name)
        return value if isinstance(value, int) else default  # Servers that only speak Redis's protocol may write text.

    release = str(info.get("redis_version", ""))
    major, minor = map(int, [*re.findall("[0-9]+", release), "0", "0"][:2])
    return Facts(
        version=(major, minor),
        appendonly=bool(number("aof_enabled")),
        fsync=config.get("appendfsync") or "",
        eviction=str(info.get("maxmemory_policy", "")),
        cluster=bool(number("cluster_enabled")),
        master=info.get("role", "master") == "master",
        full=0 < number("maxmemory") <= number("used_memory"),
        writes_fail=info.get("aof_last_write_status", "ok") != "ok",
        save_fails=info.get("rdb_last_bgsave_status", "ok") != "ok"
        and config.get("stop-writes-on-bgsave-error") == "yes"
        and config.get("save") != "",
        replicas_missing=number("min_slaves_good_slaves", 1) == 0,
        replicas=number("connected_slaves"),
        unbounded=number("maxmemory", 1) == 0,
        fsync_pauses=config.get("no-appendfsync-on-rewrite") == "yes",
        release=release,
        used_memory=number("used_memory"),
        maxmemory=number("maxmemory"),
    )


def replicas_wanted(durability: str) -> int:
    """Return the number of replicas that must have an event before it is acknowledged: 2 for `replicated:2`."""
    profile, _, number = durability.partition(":")
    return int(number or 1) if profile == "replicated" else 0


def checks(facts: Facts, *, durability: str | None) -> tuple[Check, ...]:
    """Return all checks; `durability` is the receivers' `CREDHOOK_DURABILITY`, or None where it is not known."""
    return (
        *promises(facts, durability=durability),
        Check("memory", not facts.full, "Redis is full and refuses writes; raise maxmemory"),
        Check("disk", not facts.writes_fail, "Redis cannot write its append-only file; see its log"),
        Check(
            "save", not facts.save_fails, "Redis cannot save its data and refuses writes; see its log, then run BGSAVE"
        ),
        Check(
            "replicas",
            not facts.replicas_missing,
            "Redis has no replica and refuses writes; start its replicas, or lower min-replicas-to-write",
        ),
        Check(
            "maxmemory",
            not facts.unbounded,
            "maxmemory is 0: a Redis that fills the machine's memory is killed; set maxmemory, and it refuses instead",
            warning=True,
        ),
    )


def promises(facts: Facts, *, durability: str | None) -> tuple[Check, ...]:
    """Return the checks on which each 202 depends. Redis accepts writes if they fail, so the receiver refuses."""
    return (
        Check(
            "version", facts.version >= OLDEST, f"Redis is {'.'.join(map(str, facts.version))}; 6.2 or newer is needed"
        ),
        Check("no_cluster", not facts.cluster, f"Redis is a cluster; {NO_CLUSTER}"),
        Check("schema", not facts.schema, facts.schema),
        Check(
            "noeviction",
            facts.eviction == "noeviction",
            f"maxmemory-policy is {facts.eviction or 'not known'}: a full Redis would drop events; set noeviction",
        ),
        # A replica with `replica-read-only no` accepts writes, until its master's data replaces them.
        Check("master", facts.master, "Redis is a replica; REDIS_URL should name the master, or Sentinel"),
        *(_kept(facts, durability) if durability else ()),
    )


def unusable(facts: Facts) -> str:
    """Return why a worker cannot use this Redis, and what to do, or "" if it can.

    A Redis that evicts loses events, and its events should be handled all the same.
    """
    failed = (check for check in checks(facts, durability=None) if check.failed and check.name != "noeviction")
    return next((check.remedy for check in failed), "")


def _kept(facts: Facts, durability: str) -> tuple[Check, ...]:
    wanted = replicas_wanted(durability)
    return _replicated(facts, wanted) if wanted else _on_disk(facts, durability)


def _replicated(facts: Facts, wanted: int) -> tuple[Check, ...]:
    return (
        Check(
            "replicated",
            facts.replicas >= wanted,
            f"{facts.replicas} of {wanted} replicas are connected, and a failover would lose acknowledged events; "
            "start replicas, or set CREDHOOK_DURABILITY=strict where Redis has an append-only file",
        ),
        Check(
            "every_replica",
            facts.replicas <= wanted,
            f"a failover may choose one of the {facts.replicas} replicas that lacks the last events; "
            f"set CREDHOOK_DURABILITY=replicated:{facts.replicas}",
            warning=True,
        ),
        Check(
            "append_only_file",
            facts.appendonly,
            "a master that restarts before a failover comes back empty, and empties its replicas; set appendonly yes, "
            "or let a failover always come first, as managed services do",
            warning=True,
        ),
    )


def _on_disk(facts: Facts, durability: str) -> tuple[Check, ...]:
    if durability != "strict":
        kept = facts.fsync != "no" and not facts.fsync_pauses
        remedy = (
            "a power failure would lose more than a second of events; set appendfsync everysec "
            "and no-appendfsync-on-rewrite no"
        )
    elif facts.fsync:
        kept = facts.fsyncs_each_write or facts.can_wait
        remedy = (
            "a power failure would lose acknowledged events; set appendfsync always and no-appendfsync-on-rewrite no, "
            "or use Redis 7.2, or accept it with CREDHOOK_DURABILITY=standard"
        )
    else:
        kept = facts.can_wait
        remedy = (
            "CONFIG GET is denied, so we cannot tell whether Redis fsyncs each event; allow it as "
            f"{USERS} does, or use Redis 7.2, or accept it with CREDHOOK_DURABILITY=standard"
        )
    lost = (
        "a restart of Redis would lose events; set appendonly yes, or CREDHOOK_DURABILITY=replicated where a replica "
        "takes over"
    )
    return Check("append_only_file", facts.appendonly, lost), Check("fsync", kept, remedy)


def unanswered(error: Exception) -> str:
    """Return why Redis did not report its facts, and what to do. The text holds no values."""
    if isinstance(error, NoPermissionError):
        return f"Redis does not tell about itself; {hint(error)}"
    if isinstance(error, ResponseError):  # Such as BUSY, while a script runs for too long.
        code = re.match("[A-Z]{3,32} ", str(error))  # redis-py drops some, and has a class for each of these.
        return f"Redis refuses to answer ({code[0].strip() if code else type(error).__name__}); {hint(error)}"
    return f"Redis does not answer ({type(error).__name__}); {hint(error)}"


async def examine(ask: Callable[[], Awaitable[Facts]], *, durability: str | None) -> tuple[Check, ...]:
    """Return all checks of what `ask` returns. The first says whether Redis answers."""
    try:
        facts = await ask()
    except STORE_ERRORS as error:
        return (Check("redis", False, unanswered(error)),)
    return (Check("redis", True, ""), *checks(facts, durability=durability))


class SharedExamination:
    """Examines one Redis for many callers: once at a time, and once a second at most. Some callers are strangers."""

    def __init__(self, ask: Callable[[], Awaitable[Facts]], *, durability: str | None) -> None:
        """`ask` returns the facts of Redis; `durability`: see `checks`."""
        self._ask, self._durability = ask, durability
        self._task: asyncio.Task[tuple[Check, ...]] | None = None
        self._until = 0.0

    async def __call__(self) -> tuple[Check, ...]:
        """Return all checks, as they were a second ago at most."""
        if self._task is None or (self._task.done() and time.monotonic() > self._until):
            self._task = asyncio.create_task(self._examine())
        return await asyncio.shield(self._task)  # A caller that is cancelled leaves the answer to the others.

    async def _examine(self) -> tuple[Check, ...]:
        try:
            return await examine(self._ask, durability=self._durability)
        finally:
            self._until = time.monotonic() + _EXAMINATION_SECONDS
