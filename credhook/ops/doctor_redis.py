"""The doctor's checks of Redis: reached, safe, permitted, on time; and of the fleet that uses it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from redis import Redis
from redis.exceptions import NoPermissionError, RedisError

from credhook.ops.attention import of_fleet, of_server
from credhook.ops.doctor_settings import Setup
from credhook.ops.findings import Finding, fail, ok, skipped, split_remedy, warn
from credhook.ops.fleet import open_briefly, read_fleet
from credhook.store.address import RedisAddress
from credhook.store.health import unanswered

#: Seconds by which clocks may differ without a warning.
_CLOCK_SECONDS: Final = 5.0
#: The ACL rules that grant access. Redis refuses a command that repeats a rule.
_GRANTS: Final = {"keys": "~credhook:* ~rq:*", "channels": "&credhook:* &rq:*"}

NAMES: Final = (
    *("redis.reached", "redis.version", "redis.no_cluster", "redis.noeviction", "redis.master"),
    *("redis.append_only_file", "redis.fsync", "redis.memory", "redis.disk", "redis.maxmemory"),
    *("redis.permissions", "redis.clock"),
    *("fleet.receivers", "fleet.workers", "fleet.queues"),
    *("fleet.versions", "fleet.handlers", "fleet.settings", "fleet.refusals"),
)

_KEY: Final = "credhook:doctor"
_STRING, _HASH, _LIST, _SET, _SORTED, _OTHER = (f"{_KEY}:{kind}" for kind in "shlmzo")


def _on(key: str, *commands: str) -> Iterator[tuple[str, ...]]:
    """Yield each command with that key as its first argument."""
    for command in commands:
        name, *rest = command.split()
        yield name, key, *rest


#: Each command that our scripts, clients and RQ send, in a form that does little or nothing. `ACL DRYRUN` would need
#: Redis 7 and an administrator.
TRIALS: Final[tuple[tuple[str | int, ...], ...]] = (
    *(("PING",), ("TIME",), ("INFO",)),
    *_on(_STRING, "SET 1 PX 5000", "GET", "MGET", "EXISTS", "TYPE", "TTL", "PTTL"),
    *_on(_STRING, "EXPIRE 5", "PEXPIRE 5000"),
    *_on(_OTHER, "PERSIST"),
    *(("COPY", _STRING, _OTHER, "REPLACE"), ("RENAME", _OTHER, _STRING)),
    *_on(_HASH, "HSET f 1", "HSETNX f 1", "HINCRBY f 1", "HGET f", "HMGET f", "HGETALL", "HEXISTS f"),
    *_on(_HASH, "HLEN", "HKEYS", "HSCAN 0", "HDEL f"),
    *_on(_LIST, "RPUSH 1", "LPUSH 1", "LLEN", "LRANGE 0 0", "LREM 1 1", "LTRIM 0 -1"),
    *_on(_LIST, f"BLMOVE {_LIST} LEFT LEFT 1", "LPOP"),
    *_on(_SET, "SADD 1", "SISMEMBER 1", "SMEMBERS", "SRANDMEMBER", "SREM 1"),
    *_on(_SORTED, "ZADD 1 m", "ZCARD", "ZCOUNT 0 1", "ZSCORE m", "ZMSCORE m", "ZRANGE 0 0", "ZRANGEBYSCORE 0 1"),
    *_on(_SORTED, "ZREMRANGEBYSCORE 2 3", "ZSCAN 0", "ZREM m", "ZPOPMIN"),
    ("SCAN", 0, "COUNT", 1),
    ("EVAL", "return 1", 0),
    ("SCRIPT", "LOAD", "return 1"),
    ("EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", 0),
    ("PUBLISH", _KEY, 1),
    ("PUBSUB", "NUMSUB", _KEY),
    ("EXISTS", "rq:doctor"),
    ("UNLINK", _OTHER),
    ("DEL", _STRING, _HASH, _LIST, _SET, _SORTED, _OTHER),
)


def check_redis(setup: Setup) -> Iterator[Finding]:
    """Run all checks of this module. If Redis is not reached, the others are skipped."""
    if setup.store is None:
        yield from (skipped(name, "the settings do not say which Redis") for name in NAMES)
        return
    settings = setup.store
    address = RedisAddress.parse(settings.redis_url.get_secret_value())
    with open_briefly(address) as redis:
        try:
            with suppress(NoPermissionError):  # The next check names it, with all other refused commands.
                redis.ping()
            yield of_permissions(redis)
            yield of_clock("redis.clock", "Redis", _redis_ahead(redis, setup.now), setup.tolerance)
            fleet = read_fleet(redis, str(address), settings.queue)
            yield ok("redis.reached", f"{address} answers")
            yield from of_server(fleet.server)
            yield from of_fleet(fleet)
        except (RedisError, OSError) as error:
            yield fail("redis.reached", *split_remedy(unanswered(error)))
            yield from (skipped(name, "Redis is not reached") for name in NAMES[1:])


def of_permissions(redis: Redis) -> Finding:
    """Try every command, and name the ones that an access control list forbids.

    Raises:
        RedisError: Redis failed.
    """
    pipeline = redis.pipeline(transaction=False)
    for trial in TRIALS:
        pipeline.execute_command(*trial)  # type: ignore[no-untyped-call]  # redis-py's gap
    commands, closed = refused(TRIALS, pipeline.execute(raise_on_error=False))
    if not commands and not closed:
        return ok("redis.permissions", "every command that we need is allowed")
    problems = [f"REDIS_URL's user may not run {', '.join(commands)}"] if commands else []
    problems += [f"REDIS_URL's user has no access to our {kind}" for kind in closed]
    rules = [*(f"+{command.lower()}" for command in commands), *(_GRANTS[kind] for kind in closed)]
    return fail("redis.permissions", "; ".join(problems), f"ACL SETUSER <user> {' '.join(rules)}")


def refused(trials: Sequence[tuple[str | int, ...]], replies: Sequence[Any]) -> tuple[list[str], list[str]]:
    """Return the forbidden commands, and which of `keys` and `channels` are closed. Other errors do not count. Pure."""
    commands, closed = dict[str, None](), dict[str, None]()
    for (command, *_), reply in zip(trials, replies, strict=True):
        if isinstance(reply, NoPermissionError):
            if "to run the" in str(reply):
                commands[str(command)] = None
            else:
                closed["channels" if "channel" in str(reply) else "keys"] = None
    return list(commands), list(closed)


def of_clock(name: str, owner: str, ahead: float, tolerance: int) -> Finding:
    """Check that another clock agrees with ours; `ahead` is in seconds."""
    what = f"{owner}'s clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    remedy = "let both follow an NTP server; signatures and retries depend on it"
    if abs(ahead) > tolerance:
        return fail(name, f"{what}: deliveries are refused beyond {tolerance} s", remedy)
    if abs(ahead) > _CLOCK_SECONDS:
        return warn(name, what, remedy)
    return ok(name, f"{owner}'s clock agrees with this host's within {_CLOCK_SECONDS:.0f} s")


def _redis_ahead(redis: Redis, now: Callable[[], float]) -> float:
    """Return how many seconds Redis's clock is ahead of this host's, give or take half a round trip."""
    before = now()
    seconds, microseconds = redis.time()
    return float(seconds + microseconds / 1_000_000 - (before + now()) / 2)
