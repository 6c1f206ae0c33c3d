"""Claim events, renew the claims, record progress, and settle.

A claim is a lease with a fence. Only its holder can settle the event. A process that stalls for longer than its lease
loses the claim, and its settlement is refused. The end of a handler stays true, so it is still recorded, unless the
event was erased or replayed since.

An event and its RQ job move in one script: a job is always in a list. Jobs keep RQ's format, so that `rq info`
shows the queue; tests/integration/worker/queue/test_rq_contract.py compares.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import structlog

from credhook.group_commit import GroupCommit
from credhook.store import BLAMED, FETCH, HANDLER, ONLY, PENDING, PROGRESS, Schedule, State, ending, schedule_of
from credhook.store.errors import STORE_ERRORS, is_unwell
from credhook.store.job import job_id
from credhook.store.store import AsyncStore
from credhook.worker.platform.limits import Allowance
from credhook.worker.queue.failure import Failure

log = structlog.get_logger("credhook.worker")

#: Seconds that settlements wait for each other, so that one round trip serves them all.
SETTLE_WINDOW_SECONDS: Final = 0.005
#: Redis truncates time-outs: 0.001 s becomes 0, and 0 waits for ever.
_SHORTEST_WAIT_SECONDS: Final = 0.01
#: Share of the urgent events in what a worker claims, while there are any: three of four.
URGENT_SHARE: Final = 3, 4
#: Most refused jobs that one log line names.
_MOST_NAMED: Final = 10
#: Milliseconds until a semaphore's key expires: longer than any run.
_SEMAPHORE_LASTS_MS: Final = 86_400_000
#: Microseconds that an event waits for its turn with a handler that has a rate. It holds a place of its process.
_LONGEST_TURN_MICROSECONDS: Final = 1_000_000
#: Operations in one script at most.
MAX_GROUP: Final = 200
#: For write.lua: the operation's name, the number of its arguments, and these.
Operation = tuple[str | int | bytes, ...]

#: Ranks of states are lower. A resource's latest state is `<updatedAt> * 100 + <rank>`: Redis stores an integer in
#: fewer bytes than a text.
_RANKS: Final = 100
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
#: The schedule of a handler that was not tried yet.
_NEW: Final = Schedule()

# Claims and settlements are tuples. Frozen dataclasses take three times as long to make, and each event has both.


class Claim(NamedTuple):
    """An event that belongs to this worker until the lease ends.

    Attributes:
        event_id: its webhook-id.
        resource_id: the issuance or presentation.
        received_at: when the receiver stored it.
        now: Redis's clock when it was claimed, ms since the epoch.
        lapses: number of earlier claims that ended without a settlement.
        fence: token of this claim; a later claim has a higher one.
        first: True if the event was never held before.
        latest: rank and `updatedAt`, in ms, of the latest state of the resource that handlers have seen.
        job: id of its RQ job.
        due: when the event was due, ms since the epoch; 0 if it did not have to wait.
        ended: handler's name → how it ended, for handlers that will not run again.
        schedules: handler's name, or `FETCH` → its attempts and due time, if an earlier attempt has left it unfinished.
        seen: True if an earlier attempt has had the presented data.
        killed: number of workers that have died with nothing else under way.
        poison_candidate: True if a worker has died at it.
        only: if not empty, only these handlers run.
        causes: its open errors: who has failed → id of the cause.
        trace: its trace context, see credhook/tracing/__init__.py; None if the receiver does not trace.
        progress: handler's name → what it has saved, sealed if there is a key.
    """

    event_id: str
    type: str
    resource_id: str
    received_at: datetime
    now: int
    lapses: int
    fence: int
    first: bool
    latest: tuple[int, int]
    job: str
    due: int = 0
    ended: Mapping[str, str] = _NONE
    schedules: Mapping[str, Schedule] = _NONE
    seen: bool = False
    killed: int = 0
    poison_candidate: bool = False
    only: frozenset[str] = frozenset()
    causes: Mapping[str, str] = _NONE
    trace: str | None = None
    progress: Mapping[str, str] = _NONE

    @property
    def age(self) -> float:
        """Seconds since the event was stored, by Redis's clock, which may have gone back since."""
        return max(0.0, self.now / 1000 - self.received_at.timestamp())

    @property
    def pending(self) -> set[str]:
        """Return the handlers that an earlier attempt has left unfinished, in this worker or in another one."""
        return self.schedules.keys() - self.ended.keys() - {FETCH}

    def attempt(self, name: str) -> int:
        """Return the number of the next attempt of this handler, or of the fetch, from 1."""
        return self.schedules.get(name, _NEW).attempts + 1

    def is_due(self, name: str) -> bool:
        """Return True if this handler, or the fetch, may be tried now. RQ's scheduler may be two seconds early."""
        schedule = self.schedules.get(name)
        return schedule is None or schedule.due <= max(self.now, self.due)


class Settlement(NamedTuple):
    """The result of an attempt, to be written to the store.

    Attributes:
        state: where the event stands now; `accepted` hands it back.
        error: the cause, if it is not done.
        wait: seconds until the next attempt, if it is `waiting`.
        until: the due time of a handler that was not due, in ms, if it ends the wait of a `waiting` event.
        chosen: True if a handler has chosen the end of the wait, by `Retry(after=…)`.
        records: handler → how it ended, for handlers that are not recorded yet.
        schedules: handler, or `FETCH` → its attempts; the seconds until it is due, None if it has no due time; True if
            the handler has chosen that time.
        fetched: True if the details are here, so that the fetch has no schedule any more.
        sealed: True if presented data may have been kept for another attempt.
        latest: rank and `updatedAt`, in ms, of the state that handlers have seen now.
        failures: failures whose causes have not been described yet.
        causes: open errors from now on: who has failed → id of the cause.
        history: entry for the event's history, or None.
    """

    state: State
    error: str = ""
    wait: float = 0.0
    until: int | None = None
    chosen: bool = False
    records: Mapping[str, str] = _NONE
    schedules: Mapping[str, tuple[int, float | None, bool]] = _NONE
    fetched: bool = False
    sealed: bool = False
    latest: tuple[int, int] | None = None
    failures: tuple[Failure, ...] = ()
    causes: Mapping[str, str] = _NONE
    history: Mapping[str, Any] | None = None

    def more(self, worker: str) -> dict[str, Any]:
        """Return the fields that most settlements lack; the history names `worker`."""
        fields: dict[str, Any] = {}
        if self.error:
            fields["error"] = self.error
        if self.schedules:
            fields["schedules"] = {
                name: (attempts, -1 if wait is None else int(wait * 1000), chosen)
                for name, (attempts, wait, chosen) in self.schedules.items()
            }
        if self.fetched:
            fields["fetched"] = True
        if self.failures:
            fields["failures"] = [failure.described() for failure in self.failures]
        if self.causes:
            fields["causes"] = self.causes
        if self.history:
            fields["history"] = json.dumps({"worker": worker, **self.history}, separators=(",", ":"))
        if self.state is State.WAITING:
            fields |= {"until": self.until} if self.until else {"wait": max(1, int(self.wait * 1000))}
            fields |= {"chosen": True} if self.chosen else {}
        return fields


class Candidates(Enum):
    """Which poison candidates a process takes: events at whose attempt a worker has died."""

    #: Another process of the same supervisor takes them.
    NONE = "none"
    #: One at a time, and no other event.
    ONLY = "only"
    #: As other events, in the one process of `credhook dev --debug`.
    ALL = "all"


class Taken(NamedTuple):
    """The result of one take.

    Attributes:
        claims: the claimed events.
        due: seconds until the next retry, or None.
        poison_candidates: True if poison candidates wait.
        allowance: what Redis says about calls to the platform.
    """

    claims: tuple[Claim, ...]
    due: float | None
    poison_candidates: bool = False
    allowance: Allowance = Allowance()

    @property
    def is_empty(self) -> bool:
        """Return True if there are no claims although the platform allows some: no event could be taken now."""
        return not self.claims and not self.allowance.seconds


def _claim(parts: Sequence[Any]) -> Claim:
    """Return the claim in a script's reply; see claim_event.lua."""
    event_id, job, now, kind, resource, received, fence, lapses, latest, killed, candidate, trace, before = parts
    updated, rank = divmod(latest, _RANKS)
    claim = Claim(
        event_id=event_id.decode(),
        type=kind.decode(),
        resource_id=resource.decode(),
        received_at=datetime.fromtimestamp(int(received) / 1000, UTC),
        now=now,
        lapses=lapses,
        fence=int(fence),
        first=not before,
        latest=(rank, updated),
        job=job.decode(),
        killed=killed,
        poison_candidate=bool(candidate),
        trace=None if trace is None else trace.decode(),
    )
    if not before:
        return claim
    text = [part.decode(errors="replace") for part in before]
    fields = dict(zip(text[::2], text[1::2], strict=True))
    return claim._replace(
        due=int(fields.get("due", 0)),
        ended={name.removeprefix(HANDLER): ending(how)[0] for name, how in fields.items() if name.startswith(HANDLER)},
        schedules={
            name.removeprefix(PENDING): schedule_of(value) for name, value in fields.items() if name.startswith(PENDING)
        },
        seen="seen" in fields,
        only=frozenset(fields.get(ONLY, "").split()),
        causes={name.removeprefix(BLAMED): cause for name, cause in fields.items() if name.startswith(BLAMED)},
        progress={name.removeprefix(PROGRESS): text for name, text in fields.items() if name.startswith(PROGRESS)},
    )


def _time_decides(state: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return True if both times are known and differ: a resource can go back in rank. Otherwise the rank decides."""
    return 0 not in (state[1], other[1]) and state[1] != other[1]


def later(state: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Return the later of two states of a resource, each its rank and when it was last updated."""
    if _time_decides(state, other):
        return max(state, other, key=itemgetter(1))
    return max(state[0], other[0]), max(state[1], other[1])


def is_stale(state: tuple[int, int], latest: tuple[int, int]) -> bool:
    """Return True if handlers have already seen a later version of the resource than this state."""
    decisive = int(_time_decides(state, latest))
    return state[decisive] < latest[decisive]


class Claims:
    """The events of one queue, as a worker process sees them."""

    def __init__(self, store: AsyncStore, *, lease: float, worker: str = "") -> None:
        """Claim events for `lease` seconds, for `worker`, or for RQ's own worker, which pops the jobs."""
        self.lease = lease
        self._lease_ms = int(lease * 1000)
        self._worker = worker
        self._store = store
        self._taken = 0
        # While Redis is away, full or read-only, operations wait: the fence decides if a claim still stands.
        self._commit = GroupCommit[Operation, Any](
            self._run, limit=MAX_GROUP, window_seconds=SETTLE_WINDOW_SECONDS, is_temporary=is_unwell
        )

    async def claim(self, event_id: str) -> Claim | str:
        """Claim an event whose job RQ has popped, or return the reason in claim_event.lua why it cannot be claimed."""
        reply = await self._store.run("claim", [event_id, job_id(self._store.queue, event_id), self._lease_ms])
        return reply.decode() if isinstance(reply, bytes) else _claim(reply)

    async def take(
        self,
        wanted: int,
        *,
        urgent: int | None = None,
        candidates: Candidates = Candidates.NONE,
        platform: Sequence[str | float] = ("", 0, 0, 0),
    ) -> Taken:
        """Claim up to `wanted` events from the queue, `urgent` of them from the urgent list first; None: URGENT_SHARE.

        `candidates`: which poison candidates the process takes, if there are any.
        `platform`: see `FleetLimits.for_claims`. Without it, neither pause nor rate limits the claims.
        """
        if urgent is None:
            share, whole = URGENT_SHARE
            urgent = (self._taken + wanted) * share // whole - self._taken * share // whole
            self._taken += wanted
        arguments = [self._lease_ms, self._worker, wanted, urgent, candidates.value, *platform]
        due, waiting, refused, claims, *allowance = await self._store.run("take", arguments)
        if refused:
            jobs = [job.decode("ascii", "backslashreplace") for job in refused[:_MOST_NAMED]]
            hint = "another client of this Redis enqueues jobs in our queue; give it a queue of its own"
            log.error("jobs_refused", count=len(refused), jobs=jobs, hint=hint)
        return Taken(
            tuple(map(_claim, claims)), None if due < 0 else due / 1000, bool(waiting), Allowance.read(*allowance)
        )

    async def settle(self, claim: Claim, settlement: Settlement, *, follow: bool = False) -> tuple[bool, Claim | None]:
        """Write the result of an attempt. Return True if the claim still stood, and the claim of the next event.

        `follow`: claim the resource's next event, if one is blocked by this one.
        """
        latest = settlement.latest and later(settlement.latest, claim.latest)
        ours, *following = await self._commit.write(
            operation(
                *("settle", claim.event_id, claim.fence, claim.job, str(settlement.state)),
                *(latest[1] * _RANKS + latest[0] if latest else "", int(follow), int(settlement.sealed)),
                settlement.more(self._worker),
                *chain.from_iterable(settlement.records.items()),
            ),
            first=True,
        )
        return bool(ours), _claim(following[0]) if following else None

    async def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """Prolong the leases in one round trip. Return the claims that were lost. If Redis fails, the leases run on."""
        if not claims:
            return []
        renewed = await self._run([operation("renew", claim.event_id, claim.fence, claim.job) for claim in claims])
        if unwell := [reply for reply in renewed if is_unwell(reply)]:
            raise unwell[0]
        return [claim for claim, reply in zip(claims, renewed, strict=True) if reply != [1]]

    async def record(
        self, claim: Claim, handler: str, how: str, pending: Iterable[str] = (), failure: Failure | None = None
    ) -> None:
        """Record that the handler has ended for this event, done or given up, and must not run again.

        `how`: how it ended, and how long it took. `pending`: the handlers that the event still waits for.
        """
        described, attempt = failure.described() if failure else {}, claim.attempt(handler)
        await self._commit.write(
            operation("record", claim.event_id, claim.fence, handler, how, attempt, " ".join(pending), described)
        )

    async def save_progress(self, claim: Claim, handler: str, progress: str) -> bool:
        """Keep what a handler has saved, until the event has ended. Return False if the claim was lost."""
        (is_ours,) = await self._commit.write(operation("progress", claim.event_id, claim.fence, handler, progress))
        return bool(is_ours)

    async def ended(self, claim: Claim, handler: str) -> str:
        """Return how the handler has ended, or "". Another worker may have recorded it since the event was claimed."""
        (how,) = await self._commit.write(operation("ended", claim.event_id, handler))
        return ending((how or b"").decode())[0]

    async def acquire_place(
        self, claim: Claim, handler: str, limit: int | None, rate: float | None = None
    ) -> tuple[bool, float]:
        """Take one of the handler's places in the whole fleet, and a turn of its `rate`, which is in runs per second.

        A place is released, or ends with the event's lease.

        Returns:
            True if the run may begin, and the seconds until then. Or False, and the seconds until there is a turn: 0
            if all `limit` places are taken.
        """
        keys = self._store.keys
        arguments = [claim.event_id, _SEMAPHORE_LASTS_MS, limit or 0, rate or 0, _LONGEST_TURN_MICROSECONDS]
        places = [keys.leases, keys.running + handler, keys.rate + handler]
        has_place, wait = await self._store.run("semaphore", arguments, keys=places)
        return bool(has_place), wait / 1_000_000

    async def release_place(self, claim: Claim, handler: str) -> None:
        """Let another event have the place. If Redis fails, the place ends with the event's lease."""
        with suppress(*STORE_ERRORS):
            await self._store.redis.srem(self._store.keys.running + handler, claim.event_id)

    async def wait_for_job(self, seconds: float) -> None:
        """Return when there is a job in the queue, or after `seconds`.

        BLMOVE from the head of the list to the same head waits for a job without taking it.
        """
        jobs, timeout = self._store.keys.jobs, max(_SHORTEST_WAIT_SECONDS, seconds)
        await self._store.redis.blmove(jobs, jobs, timeout, "LEFT", "LEFT")  # type: ignore[arg-type]  # Parts of a second are fine.

    async def _run(self, operations: Sequence[Operation]) -> list[Any]:
        arguments = [self._store.retention, self._lease_ms, self._worker, *chain.from_iterable(operations)]
        return await self._store.run("write", arguments)  # type: ignore[no-any-return]


def operation(name: str, *arguments: str | int | Mapping[str, Any]) -> Operation:
    """Return the operation as write.lua reads it: its name, the number of its arguments, and these.

    Texts become UTF-8, although a handler's words may not be; mappings become JSON, or "" if they are empty.
    """
    return name, len(arguments), *map(_encoded, arguments)


def _encoded(argument: str | int | Mapping[str, Any]) -> str | int | bytes:
    if isinstance(argument, int):
        return argument
    if isinstance(argument, str):
        return argument if argument.isascii() else argument.encode(errors="replace")
    return json.dumps(argument, ensure_ascii=False).encode(errors="replace") if argument else b""
