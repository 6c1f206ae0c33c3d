"""What a worker does to the ledger: take events, keep them, record progress, settle.

A claim is a lease with a fencing token. Only its holder can settle the event; whoever lost it (a process that stalled
for longer than the lease) is told so, and leaves the event to the next holder. That a handler has run is recorded
under any token, since it is true whoever holds the claim.

What a process writes goes out in groups (worker/queue/group_commit.py).
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

import structlog
from redis.asyncio import Redis

from credhook.ledger import FAILURE_TTL, HANDLER, JOB_FUNCTION, LONGEST_JOB, Index, State, job_id
from credhook.worker.queue import scripts
from credhook.worker.queue.group_commit import GroupCommit, is_unwell, operation

log = structlog.get_logger("credhook.worker")

#: Jobs that one line of the log names.
_MOST_NAMED: Final = 10


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
    #: Another event of the same resource is being worked on; this one follows.
    PARKED = "parked"
    #: Its record is not as we write it; the reconciler sets it aside.
    UNREADABLE = "unreadable"
    #: Workers have died with it under way: only one that has nothing else under way may take it.
    SUSPECT = "suspect"


@dataclass(frozen=True, slots=True)
class Claim:
    """An event that is ours until the lease ends.

    Attributes:
        event_id: its webhook-id.
        type: its event type.
        resource_id: the issuance or presentation.
        received_at: when the receiver stored it.
        now: Redis's clock when it was claimed, ms since the epoch.
        attempt: which attempt this is, counted from 1.
        fence: the token of this claim; a later claim has a higher one.
        first: whether nobody has held the event before.
        ended: handler's name → how it ended, for those that will not run again.
        seen: whether an earlier attempt has had the presented data in its hands.
        latest: rank and `updatedAt`, in ms, of the latest state of the resource that handlers have seen.
        job: its RQ job.
        execution: RQ's name for this attempt; empty where RQ itself keeps the job's records.
        killed: how many workers have died with it as the only one under way.
        suspect: whether it is to be the only one under way.
    """

    event_id: str
    type: str
    resource_id: str
    received_at: datetime
    now: int
    attempt: int
    fence: int
    first: bool
    ended: Mapping[str, str]
    seen: bool
    latest: tuple[int, int]
    job: str
    execution: str
    killed: int = 0
    suspect: bool = False

    @property
    def age(self) -> float:
        """Seconds since the event was stored, by Redis's clock."""
        return self.now / 1000 - self.received_at.timestamp()


@dataclass(frozen=True, slots=True)
class Settlement:
    """What an attempt came to, as it is written down.

    Attributes:
        state: where the event stands now; `accepted` hands it back untried.
        error: the cause, if it is not done.
        wait: seconds until the next attempt, if it is `waiting`.
        spend: whether the attempt counts.
        records: handler → how it ended, for those not recorded yet.
        sealed: whether presented data may have been kept for another attempt.
        latest: rank and `updatedAt`, in ms, of the state that handlers have seen now.
    """

    state: State
    error: str = ""
    wait: float = 0.0
    spend: bool = True
    records: Mapping[str, str] = field(default_factory=dict)
    sealed: bool = False
    latest: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """Who takes events, as RQ's records show it.

    Attributes:
        name: of the RQ worker.
        token: distinguishes its executions from those of all others.
    """

    name: str
    token: str


@dataclass(frozen=True, slots=True)
class Taken:
    """What one look into the queue brought.

    Attributes:
        claims: the events that are ours now.
        due: seconds until the next retry is due, or None.
        suspects: whether events wait for a process that has nothing under way.
    """

    claims: tuple[Claim, ...]
    due: float | None
    suspects: bool = False


class Claims:
    """The ledger, seen by a worker process."""

    def __init__(self, redis: Redis, *, queue: str, lease: float, retention: int, worker: Worker | None = None) -> None:
        """Prepare.

        Args:
            redis: the ledger.
            queue: whose events.
            lease: seconds that a claim lasts unless renewed.
            retention: seconds that a settled event is kept.
            worker: who takes events; None where RQ itself takes and keeps the jobs.
        """
        self.lease = lease
        self._lease_ms = int(lease * 1000)
        self._retention = retention
        self._worker = worker
        self._redis = redis
        self._index = Index(queue)
        self._keys = scripts.keys(self._index)
        self._claim = redis.register_script(scripts.CLAIM)
        self._take = redis.register_script(scripts.TAKE)
        self._take_read = redis.register_script(scripts.TAKE_READ)
        self._refuse = redis.register_script(scripts.REFUSE)
        self._write_script = redis.register_script(scripts.WRITE)
        self._commit = GroupCommit(self._run)

    async def claim(self, event_id: str) -> Claim | NotClaimed:
        """Take an event whose job RQ has popped, unless somebody else has it or it wants nothing."""
        reply = await self._claim(keys=self._keys, args=[event_id, job_id(event_id), self._lease_ms])
        return NotClaimed(reply.decode()) if isinstance(reply, bytes) else _claim(reply)

    async def take(self, wanted: int, *, urgent: int, idle: bool = False) -> Taken:
        """Take up to so many events from the queue, of which so many urgent ones before all others.

        Args:
            wanted: how many.
            urgent: how many of them urgent.
            idle: whether the process has nothing under way. It then gets a suspect, if there is one, and nothing else.
        """
        who = self._who()
        reply = await self._take(keys=self._keys, args=[wanted, urgent, int(idle), *who])
        claimed, odd, due, suspects = reply
        claims = [_claim(raw) for raw in claimed]
        if odd:
            claims += await self._take_odd(odd, who)
        return Taken(tuple(claims), None if due < 0 else due / 1000, bool(suspects))

    async def settle(self, claim: Claim, settlement: Settlement, *, follow: bool = False) -> tuple[bool, Claim | None]:
        """Write down what the attempt came to.

        Args:
            claim: whose attempt.
            settlement: what it came to.
            follow: whether to claim the resource's next event, if one has waited for this one.

        Returns:
            Whether it was ours to settle, and the claim of the event that follows.
        """
        what = {
            "state": settlement.state.value,
            "error": settlement.error,
            "wait": int(settlement.wait * 1000),
            "spend": settlement.spend,
            "records": settlement.records,
            "sealed": settlement.sealed,
            "rank": settlement.latest[0] if settlement.latest else False,
            "updated": settlement.latest[1] if settlement.latest else False,
            "who": dict(zip(("lease", "name", "token", "time"), self._who(), strict=True)) if follow else False,
        }
        ours, following = await self._write(
            "settle", claim.event_id, str(claim.fence), claim.job, claim.execution, what
        )
        return bool(ours), _claim(following) if following else None

    async def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """Prolong the leases, in one round trip; those that were lost.

        Raises:
            RedisError: it could not be told; the leases run on.
        """
        if not claims:
            return []
        operations = [
            operation("renew", one.event_id, str(one.fence), one.job, one.execution, self._lease_ms) for one in claims
        ]
        standing = await self._run(operations)
        for stands in standing:
            if is_unwell(stands):
                raise stands
        # One whose renewal fails by itself has a record that somebody else has written to.
        return [claim for claim, stands in zip(claims, standing, strict=True) if stands != 1]

    async def record(self, claim: Claim, handler: str, how: str) -> None:
        """Remember that the handler has ended for this event, `done` or given up, and will not run again."""
        await self._write("record", claim.event_id, handler, how)

    async def ended(self, claim: Claim, handler: str) -> str:
        """How the handler has ended, if somebody has recorded that since the event was claimed; or nothing."""
        how: bytes | None = await self._write("ended", claim.event_id, handler)
        return (how or b"").decode()

    async def wait_for_job(self, seconds: float) -> None:
        """Return once there is a job in the queue, or after so many seconds.

        The move of the first job to where it stands is Redis's own way to wait without taking it.
        """
        jobs = self._index.jobs
        await self._redis.blmove(jobs, jobs, seconds, "LEFT", "LEFT")  # type: ignore[arg-type]  # Parts of a second are fine.

    async def _take_odd(self, odd: Sequence[bytes], who: Sequence[Any]) -> list[Claim]:
        """Jobs that are not as we write them: RQ packs ours anew when it moves them; all others are strangers'."""
        ours: list[str] = []
        foreign: list[bytes] = []
        for job, data in zip(odd[::2], odd[1::2], strict=True):
            event_id = read_job(job.decode("ascii", "backslashreplace"), data)
            if event_id is None:
                foreign.append(job)
            else:
                ours += job.decode(), event_id
        if foreign:
            names = [job.decode("ascii", "backslashreplace") for job in foreign[:_MOST_NAMED]]
            hint = "somebody who can write to Redis has planted them, or enqueues other jobs in our queue"
            log.error("jobs_refused", count=len(foreign), jobs=names, hint=hint)
            await self.refuse(foreign)
        if not ours:
            return []
        return [_claim(raw) for raw in await self._take_read(keys=self._keys, args=[*who, *ours])]

    async def refuse(self, jobs: Iterable[bytes]) -> None:
        """Take jobs that are none of ours out of RQ's reach, and keep them aside for a day."""
        await self._refuse(keys=self._keys, args=[FAILURE_TTL, *jobs])

    def _who(self) -> tuple[Any, ...]:
        """For whom a script claims: lease, worker's name, token, and the time as RQ writes it."""
        if self._worker is None:
            raise TypeError("only a worker of ours takes events")
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return self._lease_ms, self._worker.name, self._worker.token, time

    async def _write(self, name: str, *arguments: Any) -> Any:
        """Have an operation written with the next group; its reply."""
        return await self._commit.write(operation(name, *arguments), urgent=name == "settle")

    async def _run(self, operations: Sequence[bytes]) -> list[Any]:
        replies: list[Any] = await self._write_script(keys=self._keys, args=[self._retention, *operations])
        return replies


def read_job(job: str, data: bytes) -> str | None:
    """The event of a job as RQ itself writes it, by its id and its `data`; None for one that is none of ours. Pure."""
    try:
        # A stranger's may unpack to anything.
        name, instance, arguments, named = json.loads(zlib.decompressobj().decompress(data, LONGEST_JOB))
        if (name, instance, named) != (JOB_FUNCTION, None, {}) or not isinstance(arguments, list):
            return None
        (event_id,) = arguments
        return event_id if job_id(event_id) == job else None
    except (zlib.error, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _claim(raw: Sequence[Any]) -> Claim:
    """A claim, as the scripts return it."""
    event_id, job, execution, now, kind, resource, received, fence, attempts, before, latest, *deaths = raw
    text = [part.decode(errors="replace") for part in before]  # All else the script has found to be readable.
    fields = dict(zip(text[::2], text[1::2], strict=True))
    rank, _, updated = (latest or b"0:0").decode().partition(":")
    return Claim(
        event_id=event_id.decode(),
        type=kind.decode(),
        resource_id=resource.decode(),
        received_at=datetime.fromtimestamp(int(received) / 1000, UTC),
        now=now,
        attempt=attempts,
        fence=fence,
        first=not fields,
        ended={name.removeprefix(HANDLER): how for name, how in fields.items() if name.startswith(HANDLER)},
        seen="seen" in fields,
        latest=(int(rank), int(updated)),
        job=job.decode(),
        execution=execution.decode(),
        killed=deaths[0],
        suspect=bool(deaths[1]),
    )
