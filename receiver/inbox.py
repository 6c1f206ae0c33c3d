"""Accepting events: dedupe, ledger record and RQ job in one atomic step, for many requests in one round trip.

While one script is on its way to Redis, arriving requests wait for the next one: the group commit of databases. A group
is written whole or not at all, and a request whose client went away is still written with its group.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from hashlib import sha1
from typing import Any, Final, NamedTuple

import hiredis
import structlog
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError, NoScriptError, RedisError, ResponseError  # noqa: A004  Redis's own.

from receiver import ledger, metrics
from receiver.events import Event
from receiver.ledger import lua
from receiver.ledger.connection import REDIS_TIMEOUT
from receiver.ledger.health import Check, Facts, ask, examine

log = structlog.get_logger("credhook.receiver")

#: The most events that one script writes: it blocks Redis for about 5 ms then, and its arguments stay below Lua's
#: limit.
MAX_GROUP: Final = 500

# The events' own keys are built from the arguments: a cluster, which would want them declared, is refused (health.py).
# The fields that all jobs of a group share are written once and copied: it halves what goes into the append-only file.
# KEYS: open, quarantined, RQ's queue, the jobs' template, urgent. ARGV: retention in s, number of job fields, fields
# and values, five per event.
ACCEPT: Final = f"""{lua.NOW}{lua.URGENT}
local retention, fields = ARGV[1], tonumber(ARGV[2])
local first = 3 + 2 * fields
local outcomes, jobs, urgent = {{}}, {{}}, {{}}
for i = first, #ARGV, 5 do
    local id, type, resource, job, data = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
    local key = '{ledger.EVENT}' .. id
    local record = {{'type', type, 'resource', resource, 'received', now}}
    local seen = redis.call('HMGET', key, 'type', 'resource')
    if seen[1] then
        if seen[1] == type and seen[2] == resource then
            outcomes[#outcomes + 1] = 'duplicate'
        else
            local aside = '{ledger.CONFLICT}' .. id
            redis.call('HSETNX', aside, type .. ' ' .. resource, now)
            redis.call('EXPIRE', aside, retention)
            outcomes[#outcomes + 1] = 'conflict'
        end
    elseif job == '' then
        redis.call('HSET', key, 'state', '{ledger.State.QUARANTINED}', unpack(record))
        redis.call('EXPIRE', key, retention)
        redis.call('ZADD', KEYS[2], now, id)
        outcomes[#outcomes + 1] = 'quarantined'
    else
        redis.call('HSET', key, 'state', '{ledger.State.ACCEPTED}', unpack(record))
        redis.call('ZADD', KEYS[1], now, id)
        if #jobs == 0 then redis.call('HSET', KEYS[4], unpack(ARGV, 3, first - 1)) end
        redis.call('COPY', KEYS[4], 'rq:job:' .. job, 'REPLACE')
        redis.call('HSET', 'rq:job:' .. job, 'data', data)
        jobs[#jobs + 1] = job
        if is_urgent(type) then urgent[#urgent + 1] = job end
        outcomes[#outcomes + 1] = 'accepted'
    end
end
if #jobs > 0 then
    redis.call('DEL', KEYS[4])
    redis.call('SADD', 'rq:queues', KEYS[3])
    redis.call('RPUSH', KEYS[3], unpack(jobs))
end
if #urgent > 0 then hint(KEYS[5], unpack(urgent)) end
return outcomes
"""
_ACCEPT_SHA: Final = sha1(ACCEPT.encode(), usedforsecurity=False).hexdigest()

#: Seconds after which Redis is asked again whether it fsyncs: somebody may have changed that while it ran.
_FACTS_LAST: Final = 10.0
#: Seconds that an answer about readiness lasts: the question is public, and each answer costs Redis a little.
_CHECKS_LAST: Final = 1.0


class Unavailable(Exception):
    """Redis did not confirm that the event is written; the sender is asked to come again."""


class Outcome(Enum):
    """What became of a delivery; each is acknowledged."""

    ACCEPTED = "accepted"
    #: Seen before: nothing was created.
    DUPLICATE = "duplicate"
    #: Seen before, but as another type or for another resource: kept aside.
    CONFLICT = "conflict"
    #: Of a type that we do not know yet: kept for replay.
    QUARANTINED = "quarantined"


#: As the script names them.
_OUTCOMES: Final = {outcome.value.encode(): outcome for outcome in Outcome}


class _Waiting(NamedTuple):
    delivery_id: str
    event: Event
    outcome: "asyncio.Future[Outcome]"


class Inbox:
    """Where authenticated events are written down before they are acknowledged."""

    def __init__(self, redis: Redis, *, queue: str, retention: int, strict: bool = False) -> None:
        """Write to `redis`; remember settled and quarantined events for `retention` seconds.

        With `strict`, an event counts as written only once it has been fsynced.
        """
        self._redis = redis
        self._queue = queue
        index = ledger.Index(queue)
        self._keys = (index.open, index.quarantined, index.jobs, index.template, index.urgent)
        self._retention = retention
        self._strict = strict
        self._facts: Facts | None = None
        self._facts_until = 0.0
        self._checks: tuple[Check, ...] = ()
        self._checked_until = 0.0
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None

    async def accept(self, delivery_id: str, event: Event) -> Outcome:
        """Write the event down, once for all deliveries with that id.

        Raises:
            Unavailable: it may or may not have been written; the same delivery may be accepted again safely.
        """
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(delivery_id, event, outcome))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_groups())
        return await outcome

    async def examine(self) -> tuple[Check, ...]:
        """Whether events would be kept just now, one check at a time; asked anew once a second at most."""
        if time.monotonic() > self._checked_until:
            self._checks = await examine(self._redis, strict=self._strict)
            self._checked_until = time.monotonic() + _CHECKS_LAST
        return self._checks

    async def aclose(self) -> None:
        """Finish what is waiting, then let go of the connections."""
        if self._writer is not None:
            await self._writer
        await self._redis.aclose()

    async def _write_groups(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
            metrics.GROUP_SIZE.observe(len(group))
            try:
                with metrics.STORE_SECONDS.time():
                    outcomes = await self._write(group)
                for waiting, outcome in zip(group, outcomes, strict=True):
                    if not waiting.outcome.done():  # Its request may have been cancelled; the event stays.
                        waiting.outcome.set_result(outcome)
                _report(group, outcomes)
            except Exception as error:
                if not isinstance(error, (RedisError, OSError, Unavailable)):
                    log.error("inbox_failed", exc_info=error)  # noqa: TRY400  Our processor keeps the message out.
                # One answer for all: each further group would only meet the same silence, seconds later.
                group, self._waiting = group + self._waiting, []
                _refuse(group, error)
                await self._forget_server()

    async def _write(self, group: Sequence[_Waiting]) -> list[Outcome]:
        """Run the script for a group, and in `strict` see that it has reached the disk.

        A connection that breaks is tried once more: the reply may have been lost after the script had run, and to run
        it again does no harm, since it then finds its own records and says `duplicate`.
        """
        arguments = self._arguments(group)
        try:
            replies = await self._run_script(arguments)
        except ConnectionError:
            await self._forget_server()
            replies = await self._run_script(arguments)
        return [_OUTCOMES[reply] for reply in replies]

    async def _run_script(self, arguments: Sequence[str | int | bytes]) -> list[bytes]:
        must_wait = self._strict and await self._replies_too_early()
        try:
            return await self._send(arguments, must_wait=must_wait)
        except NoScriptError:  # The server is a new one, and has done nothing yet.
            await self._redis.script_load(ACCEPT)
            return await self._send(arguments, must_wait=must_wait)

    async def _forget_server(self) -> None:
        """Whatever answers next may be another one, after a restart or a failover."""
        self._facts = None
        await self._redis.connection_pool.disconnect()

    async def _send(self, arguments: Sequence[str | int | bytes], *, must_wait: bool) -> list[bytes]:
        """One round trip on one connection: the script, and where it must be waited for, its fsync.

        The commands are packed by hiredis, in C: a pipeline of redis-py's takes 5 microseconds more for each event,
        measured, a tenth of what a delivery costs.
        """
        packed = _pack("EVALSHA", _ACCEPT_SHA, len(self._keys), *self._keys, *arguments)
        if must_wait:
            packed += _pack("WAITAOF", 1, 0, int(REDIS_TIMEOUT * 900))
        pool: Any = self._redis.connection_pool  # Its methods have no types.
        connection = await pool.get_connection()
        try:
            await connection.send_packed_command(packed)
            replies = [await _reply(connection) for _ in range(1 + must_wait)]
        except BaseException:
            await connection.disconnect(
                nowait=True
            )  # A reply may still be on its way, and would be taken for the next.
            raise
        finally:
            await pool.release(connection)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        if must_wait and replies[1][0] < 1:
            raise Unavailable("Redis has not fsynced in time")
        outcomes: list[bytes] = replies[0]
        return outcomes

    async def _replies_too_early(self) -> bool:
        """Whether this Redis replies before it has fsynced, so that `WAITAOF` must follow.

        Raises:
            Unavailable: it does, and could not tell.
        """
        if self._facts is None or time.monotonic() > self._facts_until:
            self._facts = await ask(self._redis)
            self._facts_until = time.monotonic() + _FACTS_LAST
        if self._facts.fsyncs_each_write:
            return False
        if not self._facts.can_wait:
            raise Unavailable("Redis does not fsync each write, as CREDHOOK_DURABILITY=strict demands")
        return True

    def _arguments(self, group: Sequence[_Waiting]) -> list[str | int | bytes]:
        fields = ledger.job_fields(self._queue, datetime.now(UTC))
        arguments: list[str | int | bytes] = [self._retention, len(fields)]
        for name, value in fields.items():
            arguments += name, value
        for waiting in group:
            event_id, event = waiting.delivery_id, waiting.event
            job = (ledger.job_id(event_id), ledger.job_data(event_id)) if event.known else ("", b"")
            arguments += event_id, event.type, event.resource_id, *job
        return arguments


def _pack(*command: str | int | bytes) -> bytes:
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]  # Its stub means a tuple of one.
    return packed


async def _reply(connection: AbstractConnection) -> Any:
    """The next reply, an error as a value: another reply may follow it."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _refuse(group: Sequence[_Waiting], error: Exception) -> None:
    for waiting in group:
        if not waiting.outcome.done():
            refusal = error if isinstance(error, Unavailable) else Unavailable(type(error).__name__)
            waiting.outcome.set_exception(refusal)


def _report(group: Sequence[_Waiting], outcomes: Sequence[Outcome]) -> None:
    """Log a group: one line for all that went as expected, since a line each would cost more than the events do."""
    expected: dict[Outcome, list[dict[str, str]]] = {}
    for waiting, outcome in zip(group, outcomes, strict=True):
        event = waiting.event
        ids = {"webhook_id": waiting.delivery_id, "event_type": event.type, "resource_id": event.resource_id}
        if outcome is Outcome.ACCEPTED or outcome is Outcome.DUPLICATE:
            expected.setdefault(outcome, []).append(ids)
        else:
            log.warning("event_" + outcome.value, **ids)
            metrics.DELIVERIES.labels(outcome.value).inc()
    for outcome, events in expected.items():
        log.info("events_" + outcome.value, events=events)
        metrics.DELIVERIES.labels(outcome.value).inc(len(events))
