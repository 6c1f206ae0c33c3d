"""What a worker does to the ledger: claim an event, keep the claim, record progress, settle.

A claim is a lease with a fencing token. Only its holder can settle the event; whoever lost it (a process that stalled
for longer than the lease) is told so, and leaves the event to the next holder. That a handler has run is recorded
under any token, since it is true whoever holds the claim.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, cast

from redis.asyncio import Redis

from receiver.ledger import EVENT, HANDLER, Index, State

#: Milliseconds by which RQ's scheduler, which counts whole seconds, may be early.
EARLY: Final = 2_000

_NOW: Final = "local time = redis.call('TIME') local now = time[1] * 1000 + math.floor(time[2] / 1000)"

#: KEYS: event, open, leases. ARGV: webhook-id, lease in ms.
_CLAIM: Final = f"""
{_NOW}
local state, due = unpack(redis.call('HMGET', KEYS[1], 'state', 'due'))
if not state then return 'missing' end
if state ~= '{State.ACCEPTED}' and state ~= '{State.WAITING}' then return 'settled' end
local lease = redis.call('ZSCORE', KEYS[3], ARGV[1])
if lease and tonumber(lease) > now then return 'held' end
if state == '{State.WAITING}' and due and tonumber(due) > now + {EARLY} then return 'early' end
redis.call('ZADD', KEYS[3], now + ARGV[2], ARGV[1])
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('HINCRBY', KEYS[1], 'fence', 1)
redis.call('HINCRBY', KEYS[1], 'attempts', 1)
redis.call('HSET', KEYS[1], 'state', '{State.ACCEPTED}')
redis.call('HDEL', KEYS[1], 'due')
return {{now, redis.call('HGETALL', KEYS[1])}}
"""

#: KEYS: event, leases. ARGV: webhook-id, fence, lease in ms. Returns whether the claim still stands.
_RENEW: Final = f"""
{_NOW}
if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[2] then return 0 end
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
return 1
"""

#: KEYS: event. ARGV: handler, how it ended. An event that was erased meanwhile stays erased.
_RECORD: Final = f"""
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], '{HANDLER}' .. ARGV[1], ARGV[2]) end
"""

#: KEYS: event, open, leases, dead. ARGV: webhook-id, fence, state, error or '', retention in s, ms until the next
#: attempt.
_SETTLE: Final = f"""
{_NOW}
local id, fence, state, error, retention, wait = unpack(ARGV)
if redis.call('HGET', KEYS[1], 'fence') ~= fence then return 0 end
redis.call('HSET', KEYS[1], 'state', state)
if error ~= '' then redis.call('HSET', KEYS[1], 'error', error) else redis.call('HDEL', KEYS[1], 'error') end
redis.call('ZREM', KEYS[3], id)
if state == '{State.WAITING}' then
    redis.call('HSET', KEYS[1], 'due', now + wait)
    redis.call('ZADD', KEYS[2], now, id)
else
    redis.call('HSET', KEYS[1], 'settled', now)
    redis.call('HDEL', KEYS[1], 'fence')
    if redis.call('HGET', KEYS[1], 'attempts') == '1' then redis.call('HDEL', KEYS[1], 'attempts') end
    redis.call('ZREM', KEYS[2], id)
    redis.call('EXPIRE', KEYS[1], retention)
    if state == '{State.DEAD}' then redis.call('ZADD', KEYS[4], now, id) end
end
return 1
"""


class NotClaimed(Enum):
    """Why an event is not ours to work on just now. None of it is an error."""

    #: The ledger has no such event: it was erased, or has expired.
    MISSING = "missing"
    #: It is done, dead or quarantined.
    SETTLED = "settled"
    #: Another worker has it.
    HELD = "held"
    #: Its next attempt is not due yet.
    EARLY = "early"


@dataclass(frozen=True, slots=True)
class Claim:
    """An event that is ours until the lease ends.

    Attributes:
        event_id: its webhook-id.
        type: its event type.
        resource_id: the issuance or presentation.
        received_at: when the receiver stored it.
        age: seconds since then, by Redis's clock.
        attempt: which attempt this is, counted from 1.
        fence: the token of this claim; a later claim has a higher one.
        ended: handler's name → how it ended, for those that will not run again.
    """

    event_id: str
    type: str
    resource_id: str
    received_at: datetime
    age: float
    attempt: int
    fence: int
    ended: Mapping[str, str]


class Claims:
    """The ledger, seen by a worker."""

    def __init__(self, redis: Redis, *, queue: str, lease: float, retention: int) -> None:
        """`lease`: seconds that a claim lasts unless renewed; `retention`: seconds that a settled event is kept."""
        self.lease = lease
        self._lease_ms = int(lease * 1000)
        self._retention = retention
        self._index = Index(queue)
        self._redis = redis
        self._claim = redis.register_script(_CLAIM)
        self._renew = redis.register_script(_RENEW)
        self._record = redis.register_script(_RECORD)
        self._settle = redis.register_script(_SETTLE)

    async def claim(self, event_id: str) -> Claim | NotClaimed:
        """Take the event, unless somebody else has it or it wants nothing."""
        keys = [EVENT + event_id, self._index.open, self._index.leases]
        reply = await self._claim(keys=keys, args=[event_id, self._lease_ms])
        if isinstance(reply, bytes):
            return NotClaimed(reply.decode())
        now, pairs = reply
        text = [part.decode() for part in pairs]
        fields = dict(zip(text[::2], text[1::2], strict=True))
        received = int(fields["received"])
        return Claim(
            event_id=event_id,
            type=fields["type"],
            resource_id=fields["resource"],
            received_at=datetime.fromtimestamp(received / 1000, UTC),
            age=max(0.0, (now - received) / 1000),
            attempt=int(fields["attempts"]),
            fence=int(fields["fence"]),
            ended={name.removeprefix(HANDLER): how for name, how in fields.items() if name.startswith(HANDLER)},
        )

    async def renew(self, claim: Claim) -> bool:
        """Begin the lease anew; false if the claim has been lost."""
        keys = [EVENT + claim.event_id, self._index.leases]
        return bool(await self._renew(keys=keys, args=[claim.event_id, claim.fence, self._lease_ms]))

    async def has_ended(self, claim: Claim, handler: str) -> bool:
        """Whether the handler has ended for this event since it was claimed: an earlier holder may have been late."""
        return bool(await cast(Awaitable[Any], self._redis.hexists(EVENT + claim.event_id, HANDLER + handler)))

    async def record(self, claim: Claim, handler: str, how: str) -> None:
        """Remember that the handler has ended for this event, `done` or given up, and will not run again."""
        await cast(Awaitable[Any], self._record(keys=[EVENT + claim.event_id], args=[handler, how]))

    async def done(self, claim: Claim) -> bool:
        """Settle the event: every handler has run. False if the claim has been lost."""
        return await self._settled(claim, State.DONE)

    async def dead(self, claim: Claim, error: str) -> bool:
        """Settle the event as given up, with the cause. False if the claim has been lost."""
        return await self._settled(claim, State.DEAD, error)

    async def wait(self, claim: Claim, error: str, seconds: float) -> bool:
        """Let the event go until its next attempt. False if the claim has been lost."""
        return await self._settled(claim, State.WAITING, error, wait=seconds)

    async def _settled(self, claim: Claim, state: State, error: str = "", *, wait: float = 0.0) -> bool:
        index = self._index
        keys = [EVENT + claim.event_id, index.open, index.leases, index.dead]
        arguments: list[str | int] = [
            claim.event_id,
            claim.fence,
            state.value,
            error,
            self._retention,
            int(wait * 1000),
        ]
        return bool(await self._settle(keys=keys, args=arguments))
