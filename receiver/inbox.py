"""Accepting events: dedupe, ledger record and RQ job in one atomic step, for many requests in one round trip.

While one script is on its way to Redis, arriving requests wait for the next one: the group commit of databases. A group
is written whole or not at all, and a request whose client went away is still written with its group.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from receiver import ledger
from receiver.events import Event

#: The most events that one script writes: it blocks Redis for about 5 ms then, and its arguments stay below Lua's
#: limit.
MAX_GROUP: Final = 500

# The keys are built from the arguments: a cluster, which would need them declared, is refused at start-up (readiness).
# ARGV: now in ms, retention in s, queue, number of job fields, the fields and values, then five for each event.
ACCEPT: Final = f"""
local now, retention, queue, fields = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local first = 5 + 2 * fields
local outcomes, jobs = {{}}, {{}}
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
        redis.call('ZADD', '{ledger.QUARANTINED}', now, id)
        outcomes[#outcomes + 1] = 'quarantined'
    else
        redis.call('HSET', key, 'state', '{ledger.State.ACCEPTED}', unpack(record))
        redis.call('ZADD', '{ledger.OPEN}', now, id)
        redis.call('HSET', 'rq:job:' .. job, 'data', data, unpack(ARGV, 5, first - 1))
        jobs[#jobs + 1] = job
        outcomes[#outcomes + 1] = 'accepted'
    end
end
if #jobs > 0 then
    redis.call('SADD', 'rq:queues', 'rq:queue:' .. queue)
    redis.call('RPUSH', 'rq:queue:' .. queue, unpack(jobs))
end
return outcomes
"""


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


@dataclass(frozen=True, slots=True)
class _Waiting:
    delivery_id: str
    event: Event
    outcome: "asyncio.Future[Outcome]"


class Inbox:
    """Where authenticated events are written down before they are acknowledged."""

    def __init__(self, redis: Redis, *, queue: str, retention: int) -> None:
        """Write to `redis`; remember settled and quarantined events for `retention` seconds."""
        self._redis = redis
        self._script = redis.register_script(ACCEPT)
        self._queue = queue
        self._retention = retention
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

    async def ping(self) -> None:
        """Ask Redis for a sign of life.

        Raises:
            Unavailable: there was none.
        """
        try:
            await self._redis.ping()
        except (RedisError, OSError) as error:
            raise Unavailable(type(error).__name__) from error

    async def aclose(self) -> None:
        """Finish what is waiting, then let go of the connections."""
        if self._writer is not None:
            await self._writer
        await self._redis.aclose()

    async def _write_groups(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
            try:
                outcomes = await self._write(group)
            except (RedisError, OSError) as error:
                # One answer for all who wait: each further group would only meet the same silence, seconds later.
                group, self._waiting = group + self._waiting, []
                _refuse(group, error)
            else:
                for waiting, outcome in zip(group, outcomes, strict=True):
                    if not waiting.outcome.cancelled():  # The client went away; the event stays.
                        waiting.outcome.set_result(outcome)

    async def _write(self, group: Sequence[_Waiting]) -> list[Outcome]:
        arguments: list[str | int | bytes] = [int(time.time() * 1000), self._retention, self._queue]
        fields = ledger.job_fields(self._queue, datetime.now(UTC))
        arguments.append(len(fields))
        for name, value in fields.items():
            arguments += name, value
        for waiting in group:
            event_id, event = waiting.delivery_id, waiting.event
            job = (ledger.job_id(event_id), ledger.job_data(event_id)) if event.known else ("", b"")
            arguments += event_id, event.type, event.resource_id, *job
        return [Outcome(reply.decode()) for reply in await self._script(args=arguments)]


def _refuse(group: Sequence[_Waiting], error: Exception) -> None:
    for waiting in group:
        if not waiting.outcome.cancelled():
            refusal = Unavailable(type(error).__name__)
            refusal.__cause__ = error
            waiting.outcome.set_exception(refusal)
