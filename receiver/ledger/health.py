"""What in a Redis would lose events, checked one thing at a time. Pure, but for the two commands that ask."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

#: Below it `LPOS`, `ZMSCORE`, `BLMOVE` or the expiry of script effects are missing.
OLDEST: Final = (6, 2)
#: From it on `WAITAOF` says when a write has been fsynced.
WAITAOF: Final = (7, 2)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be so.

    Attributes:
        name: of the check, stable; metrics and probes show it.
        passed: whether it is so.
        remedy: what to do if it is not.
    """

    name: str
    passed: bool
    remedy: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What a Redis says of itself.

    Attributes:
        version: major and minor.
        appendonly: whether it keeps an append-only file.
        fsync: `always`, `everysec`, `no`, or "" where it will not tell.
        eviction: its policy when memory is full.
        cluster: whether it is one.
        master: whether it takes writes, rather than repeating another's.
        full: whether its memory is used up.
        writes_fail: whether the last write to its append-only file failed.
    """

    version: tuple[int, int]
    appendonly: bool
    fsync: str
    eviction: str
    cluster: bool
    master: bool = True
    full: bool = False
    writes_fail: bool = False

    @property
    def fsyncs_each_write(self) -> bool:
        """Whether a reply means that the write has reached the disk."""
        return self.appendonly and self.fsync == "always"

    @property
    def can_wait(self) -> bool:
        """Whether `WAITAOF` can tell when it has."""
        return self.appendonly and self.version >= WAITAOF


async def ask(redis: Redis) -> Facts:
    """Ask Redis for the facts.

    Raises:
        RedisError: it does not answer.
    """
    info = await redis.info()
    try:
        fsync = (await redis.config_get("appendfsync")).get("appendfsync") or ""
    except ResponseError:  # Managed services forbid CONFIG.
        fsync = ""
    return read(info, fsync)


def read(info: Mapping[str, Any], fsync: str) -> Facts:
    """Read the facts from the answer to INFO."""
    major, minor, *_ = (*str(info.get("redis_version", "0.0")).split("."), "0")
    return Facts(
        version=(int(major), int(minor)),
        appendonly=bool(int(info.get("aof_enabled", 0))),
        fsync=fsync,
        eviction=str(info.get("maxmemory_policy", "")),
        cluster=bool(int(info.get("cluster_enabled", 0))),
        master=info.get("role", "master") == "master",
        full=0 < int(info.get("maxmemory", 0)) <= int(info.get("used_memory", 0)),
        writes_fail=info.get("aof_last_write_status", "ok") != "ok",
    )


def checks(facts: Facts, *, strict: bool) -> tuple[Check, ...]:
    """What must be so, with `strict` for `CREDHOOK_DURABILITY=strict`."""
    version = ".".join(map(str, facts.version))
    found = [
        Check("version", facts.version >= OLDEST, f"Redis is {version}; 6.2 or newer is needed"),
        Check("no_cluster", not facts.cluster, "Redis is a cluster; one with replicas and Sentinel is needed"),
        Check(
            "noeviction",
            facts.eviction == "noeviction",
            f"maxmemory-policy is {facts.eviction}: a full Redis would drop events; set noeviction",
        ),
        Check(
            "master",
            facts.master,
            "Redis is a replica and refuses writes; REDIS_URL should name the master, or Sentinel",
        ),
        Check("memory", not facts.full, "Redis is full and refuses writes; raise maxmemory"),
        Check("disk", not facts.writes_fail, "Redis cannot write its append-only file; see its log"),
        Check("append_only_file", facts.appendonly, "a restart of Redis would lose events; set appendonly yes"),
    ]
    if strict:
        found.append(
            Check(
                "fsync",
                facts.fsyncs_each_write or facts.can_wait,
                "a power failure would lose acknowledged events; set appendfsync always, or use Redis 7.2, "
                "or accept it with CREDHOOK_DURABILITY=standard",
            )
        )
    return tuple(found)


async def examine(redis: Redis, *, strict: bool) -> tuple[Check, ...]:
    """All checks, the first of which is whether Redis answers at all."""
    try:
        facts = await ask(redis)
    except (RedisError, OSError) as error:
        return (Check("redis", False, f"Redis does not answer ({type(error).__name__}); check REDIS_URL"),)
    return (Check("redis", True, ""), *checks(facts, strict=strict))
