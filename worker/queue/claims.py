"""What a worker does to the ledger: take events, keep them, record progress, settle.

A claim is a lease with a fencing token. Only its holder can settle the event; whoever lost it (a process that stalled
for longer than the lease) is told so, and leaves the event to the next holder. That a handler has run is recorded
under any token, since it is true whoever holds the claim.

What a process writes goes out in groups (worker/queue/group_commit.py).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final

import structlog
from redis.asyncio import Redis

from credhook.store import NEW_FIELDS, Keys, ending
from credhook.store.job import FAILURE_TTL, job_id
from credhook.worker.queue import scripts
from credhook.worker.queue.claim import Claim, NotClaimed, Settlement, Taken, Worker, claims_from, read_job
from credhook.worker.queue.failure import Failure
from credhook.worker.queue.group_commit import GroupCommit, Operation, is_unwell, operation

log = structlog.get_logger("credhook.worker")

#: Seconds that settlements wait for each other, and for the take that fills their slots, so that one round trip serves
#: them all: longer than slots wait for each other. Nobody waits for a settlement.
GATHER: Final = 0.005
#: Seconds. Redis cuts a time-out down to whole milliseconds, 0.001 to none at all, and with none it waits for ever.
_SHORTEST_WAIT: Final = 0.01
#: Jobs that one line of the log names.
_MOST_NAMED: Final = 10


class Claims:
    """The ledger, seen by a worker process."""

    def __init__(
        self,
        redis: Redis,
        *,
        queue: str,
        lease: float,
        retention: int,
        worker: Worker | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare.

        Args:
            redis: the ledger.
            queue: whose events.
            lease: seconds that a claim lasts unless renewed.
            retention: seconds that a settled event is kept.
            worker: who takes events; None where RQ itself takes and keeps the jobs.
            before: called before each group is written.
        """
        self.lease = lease
        self._lease_ms = int(lease * 1000)
        self._retention = retention
        self._worker = worker
        self._before = before
        self._redis = redis
        self._index = Keys(queue)
        self._keys = [self._index.prefix]
        self._claim = redis.register_script(scripts.CLAIM)
        self._take_read = redis.register_script(scripts.TAKE_READ)
        self._refuse = redis.register_script(scripts.REFUSE)
        self._write_script = redis.register_script(scripts.WRITE)
        self._commit = GroupCommit(self._run, gather=GATHER)

    async def claim(self, event_id: str) -> Claim | NotClaimed:
        """Take an event whose job RQ has popped, unless somebody else has it or it wants nothing."""
        reply = await self._claim(keys=self._keys, args=[event_id, job_id(self._index.queue, event_id), self._lease_ms])
        return NotClaimed(reply.decode()) if isinstance(reply, bytes) else claims_from(reply)[0]

    async def take(self, wanted: int, *, urgent: int, idle: bool = False) -> Taken:
        """Take up to so many events from the queue, of which so many urgent ones before all others.

        Args:
            wanted: how many.
            urgent: how many of them urgent.
            idle: whether the process has nothing under way. It then gets a suspect, if there is one, and nothing else.
        """
        if self._worker is None:
            raise TypeError("only a worker of ours takes events")
        asked = operation("take", wanted, urgent, idle)
        due, suspects, odd, *rest = await self._commit.write(asked, patient=False, large=True)
        claims = claims_from(rest[odd:])
        if odd:
            claims += await self._take_odd(rest[:odd])
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
        latest, more = settlement.latest, settlement.more(self._worker.name if self._worker else "")
        ours, *following = await self._commit.write(
            operation(
                *("settle", claim.event_id, claim.resource_id, NEW_FIELDS + bool(claim.trace) if claim.first else ""),
                *(claim.fence, claim.job, self._since(claim), settlement.state),
                *(f"{latest[0]}:{latest[1]}" if latest else "", follow, settlement.sealed, more),
                *chain.from_iterable(settlement.records.items()),
            ),
            urgent=True,
        )
        return bool(ours), claims_from(following)[0] if following else None

    async def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """Prolong the leases, in one round trip; those that were lost.

        Raises:
            RedisError: it could not be told; the leases run on.
        """
        if not claims:
            return []
        now = _as_rq(time.time())
        operations = [
            operation("renew", one.event_id, one.fence, one.job, self._since(one), _as_rq(one.now / 1000), now)
            for one in claims
        ]
        standing = await self._run(operations)
        for stands in standing:
            if is_unwell(stands):
                raise stands
        # One whose renewal fails by itself has a record that somebody else has written to.
        return [claim for claim, stands in zip(claims, standing, strict=True) if stands != [1]]

    async def record(
        self, claim: Claim, handler: str, how: str, pending: Iterable[str] = (), failure: Failure | None = None
    ) -> None:
        """Remember that the handler has ended for this event, `done` or given up, and will not run again.

        Args:
            claim: the event's.
            handler: its name.
            how: it has ended, and how long that took, if it has run.
            pending: the handlers that the event still waits for.
            failure: what it has failed with, if that is to be counted.
        """
        counted = failure.counted() if failure else {}
        await self._commit.write(operation("record", claim.event_id, handler, how, " ".join(pending), counted))

    async def ended(self, claim: Claim, handler: str) -> str:
        """How the handler has ended, if somebody has recorded that since the event was claimed; or nothing."""
        (how,) = await self._commit.write(operation("ended", claim.event_id, handler))
        return ending((how or b"").decode())[0]

    async def wait_for_job(self, seconds: float) -> None:
        """Return once there is a job in the queue, or after so many seconds, a hundredth of one at least.

        The move of the first job to where it stands is Redis's own way to wait without taking it.
        """
        jobs = self._index.jobs
        seconds = max(_SHORTEST_WAIT, seconds)
        await self._redis.blmove(jobs, jobs, seconds, "LEFT", "LEFT")  # type: ignore[arg-type]  # Parts of a second are fine.

    async def _take_odd(self, odd: Sequence[bytes]) -> list[Claim]:
        """Jobs that are not as we write them: RQ packs ours anew when it moves them; all others are strangers'."""
        ours: list[str] = []
        foreign: list[bytes] = []
        for job, data in zip(odd[::2], odd[1::2], strict=True):
            event_id = read_job(self._index.queue, job.decode("ascii", "backslashreplace"), data)
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
        return claims_from(await self._take_read(keys=self._keys, args=[*self._who(), *ours]))

    async def refuse(self, jobs: Iterable[bytes]) -> None:
        """Take jobs that are none of ours out of RQ's reach, and keep them aside for a day."""
        await self._refuse(keys=self._keys, args=[FAILURE_TTL, *jobs])

    def _who(self) -> tuple[Any, ...]:
        """For whom a script claims: lease, worker's name or nothing, and its token."""
        worker = self._worker or Worker("", "")
        return self._lease_ms, worker.name, worker.token

    def _since(self, claim: Claim) -> int | str:
        """Since when there is this claim, in ms; nothing where RQ itself keeps the job's records."""
        return claim.now if self._worker else ""

    async def _run(self, operations: Sequence[Operation]) -> list[Any]:
        self._before()
        arguments = [self._retention, *self._who(), *chain.from_iterable(operations)]
        return list(_replies(await self._write_script(keys=self._keys, args=arguments)))


def _as_rq(seconds: float) -> str:
    """A time, in seconds since the epoch, as RQ writes it."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _replies(flat: Sequence[Any]) -> Iterator[Any]:
    """The reply to each operation, a list or an error, of what write.lua has sent."""
    place = 0
    while place < len(flat):
        count, place = flat[place], place + 1
        if isinstance(count, Exception):
            yield count
        else:
            yield flat[place : place + count]
            place += count
