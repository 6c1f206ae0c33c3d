"""What each process may do in Redis: its access control rule, and a trial of every command in that rule."""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, get_args

from redis import Redis
from redis.exceptions import ResponseError

from credhook.store import Keys, lua
from credhook.store.errors import CLUSTER_ERRORS, NO_CLUSTER, Forbidden, hint, is_unwell
from credhook.store.health import WAITAOF
from credhook.store.job import job_id
from credhook.store.store import Script, SyncStore


class Part(StrEnum):
    """A process that has a user of its own in Redis. The operator types commands and runs the console."""

    RECEIVER = "receiver"
    WORKER = "worker"
    OPERATOR = "operator"


#: What redis-py sends to connect, what each process asks, and what a scrape of its metrics reads. redis-py also sends
#: `CLIENT`, and does without if it is refused.
_ALL: Final = (
    "hello select ping time info config|get script|load evalsha multi exec get hgetall "
    "smembers zcard zcount zrange zrevrange llen"
)
#: What else the parts send themselves; of a worker, the second line is sent by RQ alone.
_SENT: Final = {
    Part.RECEIVER: "set sadd hdel wait waitaof",
    Part.WORKER: "set hdel zrem zrangebyscore zremrangebyscore lrange zmscore zscan blmove del exists hincrby hmget "
    "lmove subscribe unsubscribe hexists watch unwatch hincrbyfloat xadd lpos zadd srem scard",
    Part.OPERATOR: "set exists hget hmget hkeys hscan zscan scan hdel zrem zscore lrange del expire sismember "
    "srandmember srem zadd copy renamenx watch subscribe unsubscribe",
}
#: The scripts that the receiver runs. The other parts may run any.
_RECEIVERS_SCRIPTS: Final[tuple[Script, ...]] = ("accept", "announce", "lease")
#: Scripts name a command in quotes, also where a function of theirs calls it: write_expiring(…, 'HSETNX', …).
_CALL: Final = re.compile(r"'([A-Z]+)'")

#: Every command that processes, scripts and RQ send, in a form that does little or nothing. `ACL DRYRUN` would need
#: Redis 7 and an administrator. `:s`, `:h`, … stand for keys of the trial, one for each type. A refusal of one in the
#: last line may leave a transaction open, in which the trials go on all the same.
TRIALS: Final = re.split(
    r",\s+",
    """PING, TIME, INFO server, CONFIG GET appendfsync, SELECT :db, HELLO, SCAN 0 COUNT 1, WAIT 0 1, WAITAOF 0 0 1,
    SET :s 1 PX 5000, GET :s, MGET :s, EXISTS :s, TYPE :s, TTL :s, PTTL :s, PERSIST :o, EXPIRE :s 5, PEXPIRE :s 5000,
    PEXPIREAT :s 1, COPY :s :o REPLACE, RENAME :o :s, RENAMENX :s :o,
    HSET :h f 1, HSETNX :h f 1, HINCRBY :h f 1, HINCRBYFLOAT :h f 1, HGET :h f, HMGET :h f, HGETALL :h, HEXISTS :h f,
    HLEN :h, HKEYS :h, HSCAN :h 0, HDEL :h f,
    RPUSH :l 1, LPUSH :l 1, LLEN :l, LRANGE :l 0 0, LPOS :l 1, LREM :l 1 1, LTRIM :l 0 -1,
    BLMOVE :l :l LEFT LEFT 1, LMOVE :l :l LEFT LEFT, LPOP :l,
    SADD :m 1, SCARD :m, SISMEMBER :m 1, SMEMBERS :m, SRANDMEMBER :m, SREM :m 1,
    ZADD :z 1 m, ZCARD :z, ZCOUNT :z 0 1, ZSCORE :z m, ZMSCORE :z m, ZRANGE :z 0 0, ZREVRANGE :z 0 0,
    ZRANGEBYSCORE :z 0 1, ZREMRANGEBYSCORE :z 2 3, ZSCAN :z 0, ZREM :z m, ZPOPMIN :z, XADD :x * f 1,
    SCRIPT LOAD return, EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0, PUBLISH :channel 1,
    PUBSUB NUMSUB :channel, UNLINK :o, DEL :s :h :l :m :z :x :o,
    WATCH :s, UNWATCH, MULTI, EXEC, DISCARD, SUBSCRIBE :channel, UNSUBSCRIBE :channel""",
)
#: Commands that older versions of Redis lack.
_SINCE: Final = {"waitaof": WAITAOF}
#: What Redis may refuse → the problem.
_PROBLEMS: Final = {
    "absent": "Redis has no command {}",
    "+": "REDIS_URL's user may not run {}",
    "~": "REDIS_URL's user has no access to our keys",
    "&": "REDIS_URL's user has no access to our channels",
    "cluster": "Redis is a cluster",
    "unwell": "Redis refuses writes",
}


def command_of(trial: str) -> str:
    """Return the trial's command as a rule names it, such as `config|get`."""
    first, *rest = trial.lower().split()
    return f"{first}|{rest[0]}" if first in {"config", "pubsub", "script"} else first


def commands(part: Part) -> list[str]:
    """Return what the part sends, and what its scripts call, as a rule names it."""
    scripts: Iterable[Script] = _RECEIVERS_SCRIPTS if part is Part.RECEIVER else get_args(Script)
    called = {name.lower() for script in scripts for name in _CALL.findall(lua.load(script))}
    if part is not Part.RECEIVER:
        called |= {"lpush", "rpush"}  # put_back.lua takes the name as an argument.
    wanted = called.union(_ALL.split(), _SENT[part].split())
    return [name for name in map(command_of, TRIALS) if name in wanted or name.partition("|")[0] in called]


def patterns(part: Part, keys: Keys) -> tuple[list[str], list[str]]:
    """Return the patterns of the keys and of the channels that the part uses."""
    if part is Part.OPERATOR:  # It sees the events of every queue, and moves them.
        return ["credhook:*", "rq:*"], ["credhook:*", "rq:pubsub:*"]
    own = f"{keys.prefix}*"
    if part is Part.RECEIVER:
        job = job_id(keys.queue, "-")[1:-1]
        return [own, "rq:queues", keys.jobs, keys.scheduled, f"rq:job:e{job}*", f"rq:job:x{job}*"], [own]
    # Any job: a job that is not ours is moved out of RQ's reach.
    shared = ["rq:queues", "rq:suspended", "rq:worker*", "rq:job:*", "rq:execution*", "rq:results:*", "rq:groups"]
    shared += [f"rq:{name}:{keys.queue}" for name in ("clean_registries", "finished", "deferred", "canceled")]
    queue = [keys.jobs, f"{keys.intermediate}*", keys.started, keys.scheduled, keys.failed]
    return [own, *queue, *shared], [own, "rq:pubsub:*"]


def rule(part: Part, keys: Keys, version: tuple[int, int]) -> str:
    """Return the command that makes a user of Redis with the part's permissions and no more."""
    allowed = [name for name in commands(part) if version >= _SINCE.get(name, (0, 0))]
    own, channels = patterns(part, keys)
    rights = [*(f"~{one}" for one in own), *(f"&{one}" for one in channels), *(f"+{one}" for one in allowed)]
    if part is not Part.OPERATOR and version >= (7, 0):  # For the metric of events in queues without workers.
        rights += ["%R~credhook:*:open", "%R~credhook:*:workers"]
    return f"ACL SETUSER credhook-{part} reset resetchannels on >PASSWORD {' '.join(rights)}"


def refused(store: SyncStore, *parts: Part, optional: str = "") -> str:
    """Try what these parts need: each command, key and channel. Return `problem; remedy`, or "" if all is allowed.

    The command `optional` may be refused. Errors of the trials themselves do not count.

    Raises:
        RedisError, OSError: Redis failed.
    """
    wanted = {name for part in parts for name in commands(part)} - {optional}
    rights = [patterns(part, store.keys) for part in parts]
    trials = [f"EXISTS {pattern.rstrip('*')}" for keys, _ in rights for pattern in keys]
    trials += [trial.replace(" :", f" {store.keys.prefix}doctor:") for trial in TRIALS if command_of(trial) in wanted]
    if Part.WORKER in parts:
        trials.append("SUBSCRIBE rq:pubsub:doctor")
    found: dict[str, dict[str, None]] = {kind: {} for kind in _PROBLEMS}
    for trial, reply in zip(trials, _replies(store.redis, trials), strict=True):
        command, said = command_of(trial), str(reply) if isinstance(reply, ResponseError) else ""
        if isinstance(reply, Forbidden) or "NOPERM" in said:  # EXEC's refusal has a class of its own.
            found["+" if "to run" in said else "&" if "channel" in said else "~"][command] = None
        elif "unknown command" in said and command not in _SINCE:
            found["absent"][command] = None
        elif isinstance(reply, CLUSTER_ERRORS):
            found["cluster"][NO_CLUSTER] = None
        elif isinstance(reply, ResponseError) and is_unwell(reply):
            found["unwell"][hint(reply)] = None
    named = {kind: ", ".join(names).upper().replace("|", " ") for kind, names in found.items() if names}
    problems = [_PROBLEMS[kind].format(names) for kind, names in named.items()]
    allowed = [f"+{command}" for command in found["+"]]
    for place, kind in enumerate("~&"):
        allowed += dict.fromkeys(f"{kind}{one}" for each in rights for one in each[place] if found[kind])
    remedies = ["remove its rename-command from Redis's configuration"] if found["absent"] else []
    remedies += [f"ACL SETUSER <user> {' '.join(allowed)}"] if allowed else []
    remedies += [*found["cluster"], *found["unwell"]]
    return f"{' and '.join(problems)}; {'; '.join(remedies)}" if problems else ""


def _replies(client: Redis, trials: Sequence[str]) -> list[Any]:
    """Send the commands on one connection, which is closed afterwards. A refusal is returned as a reply."""
    connection: Any = client.connection_pool.get_connection()
    replies: list[Any] = []
    try:
        connection.send_packed_command(connection.pack_commands([trial.split() for trial in trials]))
        for _ in trials:
            try:
                replies.append(connection.read_response(disconnect_on_error=False, push_request=True))
            except ResponseError as error:
                replies.append(error)
    finally:
        connection.disconnect()
        client.connection_pool.release(connection)
    return replies
