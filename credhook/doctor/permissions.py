"""Which commands an access control list of Redis's keeps from us: each is tried, on keys of its own that it removes.

`ACL DRYRUN` would tell without trying, from Redis 7 on, and to administrators alone.
"""

from collections.abc import Sequence
from typing import Any, Final

from redis import Redis
from redis.exceptions import NoPermissionError

_KEY: Final = "credhook:doctor"
_STRING, _HASH, _LIST, _SET, _SORTED, _STREAM, _OTHER = (f"{_KEY}:{kind}" for kind in "shlmzxo")
_KEYS: Final = (_STRING, _HASH, _LIST, _SET, _SORTED, _STREAM, _OTHER)

#: Each command that our scripts, clients and RQ send, in a form that does nothing or next to it.
TRIALS: Final[tuple[tuple[str | int, ...], ...]] = (
    ("PING",),
    ("TIME",),
    ("INFO",),
    ("SET", _STRING, 1, "PX", 5_000),
    ("GET", _STRING),
    ("MGET", _STRING),
    ("GETRANGE", _STRING, 0, 0),
    ("EXISTS", _STRING),
    ("TYPE", _STRING),
    ("TTL", _STRING),
    ("PTTL", _STRING),
    ("EXPIRE", _STRING, 5),
    ("PEXPIRE", _STRING, 5_000),
    ("PEXPIREAT", _OTHER, 1),
    ("PERSIST", _OTHER),
    ("COPY", _STRING, _OTHER, "REPLACE"),
    ("RENAME", _OTHER, _STRING),
    ("HSET", _HASH, "f", 1),
    ("HSETNX", _HASH, "f", 1),
    ("HINCRBY", _HASH, "f", 1),
    ("HGET", _HASH, "f"),
    ("HMGET", _HASH, "f"),
    ("HGETALL", _HASH),
    ("HEXISTS", _HASH, "f"),
    ("HLEN", _HASH),
    ("HKEYS", _HASH),
    ("HDEL", _HASH, "f"),
    ("RPUSH", _LIST, 1),
    ("LPUSH", _LIST, 1),
    ("LLEN", _LIST),
    ("LRANGE", _LIST, 0, 0),
    ("LREM", _LIST, 1, 1),
    ("LTRIM", _LIST, 0, -1),
    ("BLMOVE", _LIST, _LIST, "LEFT", "LEFT", 1),
    ("LPOP", _LIST),
    ("SADD", _SET, 1),
    ("SISMEMBER", _SET, 1),
    ("SMEMBERS", _SET),
    ("SRANDMEMBER", _SET),
    ("SREM", _SET, 1),
    ("ZADD", _SORTED, 1, "m"),
    ("ZCARD", _SORTED),
    ("ZCOUNT", _SORTED, 0, 1),
    ("ZSCORE", _SORTED, "m"),
    ("ZMSCORE", _SORTED, "m"),
    ("ZRANGE", _SORTED, 0, 0),
    ("ZRANGEBYSCORE", _SORTED, 0, 1),
    ("ZREMRANGEBYSCORE", _SORTED, 2, 3),
    ("ZSCAN", _SORTED, 0),
    ("ZREM", _SORTED, "m"),
    ("ZPOPMIN", _SORTED),
    ("XADD", _STREAM, "*", "i", "m"),
    ("XLEN", _STREAM),
    ("XRANGE", _STREAM, "-", "+"),
    ("XDEL", _STREAM, "0-1"),
    ("SCAN", 0, "COUNT", 1),
    ("EVAL", "return 1", 0),
    ("SCRIPT", "LOAD", "return 1"),
    ("EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", 0),
    ("PUBLISH", _KEY, 1),
    ("PUBSUB", "NUMSUB", _KEY),
    ("EXISTS", "rq:doctor"),
    ("UNLINK", _OTHER),
    ("DEL", *_KEYS),
)


def refused(redis: Redis) -> tuple[list[str], list[str]]:
    """The commands that this user may not run, and which are closed to it of `keys` and `channels`.

    Raises:
        RedisError: Redis failed.
    """
    pipeline = redis.pipeline(transaction=False)
    for trial in TRIALS:
        pipeline.execute_command(*trial)  # type: ignore[no-untyped-call]  # redis-py's gap
    return judged(TRIALS, pipeline.execute(raise_on_error=False))


def judged(trials: Sequence[tuple[str | int, ...]], replies: Sequence[Any]) -> tuple[list[str], list[str]]:
    """The same, of the replies. Pure. Any other error, such as a memory that is full, is another check's matter."""
    commands, closed = [], []
    for (command, *_), reply in zip(trials, replies, strict=True):
        if isinstance(reply, NoPermissionError):
            if "to run the" in str(reply):
                commands.append(str(command))
            else:
                closed.append("channels" if "channel" in str(reply) else "keys")
    return list(dict.fromkeys(commands)), list(dict.fromkeys(closed))
