"""Which commands an access control list of Redis's keeps from us: each is tried, on keys of its own that it removes.

`ACL DRYRUN` would tell without trying, from Redis 7 on, and to administrators alone.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from redis import Redis
from redis.exceptions import NoPermissionError

_KEY: Final = "credhook:doctor"
_STRING, _HASH, _LIST, _SET, _SORTED, _STREAM, _OTHER = (f"{_KEY}:{kind}" for kind in "shlmzxo")
_KEYS: Final = (_STRING, _HASH, _LIST, _SET, _SORTED, _STREAM, _OTHER)


def _on(key: str, *commands: str) -> Iterator[tuple[str, ...]]:
    """Each command with that key as its first argument."""
    for command in commands:
        name, *rest = command.split()
        yield name, key, *rest


#: Each command that our scripts, clients and RQ send, in a form that does nothing or next to it.
TRIALS: Final[tuple[tuple[str | int, ...], ...]] = (
    *(("PING",), ("TIME",), ("INFO",)),
    *_on(_STRING, "SET 1 PX 5000", "GET", "MGET", "GETRANGE 0 0", "EXISTS", "TYPE", "TTL", "PTTL"),
    *_on(_STRING, "EXPIRE 5", "PEXPIRE 5000"),
    *_on(_OTHER, "PEXPIREAT 1", "PERSIST"),
    *(("COPY", _STRING, _OTHER, "REPLACE"), ("RENAME", _OTHER, _STRING)),
    *_on(_HASH, "HSET f 1", "HSETNX f 1", "HINCRBY f 1", "HGET f", "HMGET f", "HGETALL", "HEXISTS f"),
    *_on(_HASH, "HLEN", "HKEYS", "HSCAN 0", "HDEL f"),
    *_on(_LIST, "RPUSH 1", "LPUSH 1", "LLEN", "LRANGE 0 0", "LREM 1 1", "LTRIM 0 -1"),
    *_on(_LIST, f"BLMOVE {_LIST} LEFT LEFT 1", "LPOP"),
    *_on(_SET, "SADD 1", "SISMEMBER 1", "SMEMBERS", "SRANDMEMBER", "SREM 1"),
    *_on(_SORTED, "ZADD 1 m", "ZCARD", "ZCOUNT 0 1", "ZSCORE m", "ZMSCORE m", "ZRANGE 0 0", "ZRANGEBYSCORE 0 1"),
    *_on(_SORTED, "ZREMRANGEBYSCORE 2 3", "ZSCAN 0", "ZREM m", "ZPOPMIN"),
    *_on(_STREAM, "XADD * i m", "XLEN", "XRANGE - +", "XDEL 0-1"),
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
