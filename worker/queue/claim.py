"""What a claim is, whose it is, and how it ends. Pure."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from credhook.store import BLAMED, HANDLER, ONLY, PENDING, State, ending
from credhook.store.job import JOB_FUNCTION, LONGEST_JOB, event_of
from credhook.worker.queue.failure import Failure


class NotClaimed(Enum):
    """Why an event is not ours to work on just now. None of it is an error."""

    #: The ledger has no such event: it was erased, or has expired.
    MISSING = "missing"
    #: It is done, dead, unhandled or quarantined.
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


#: What the scripts tell of each claim; the last is how many fields follow, of an event that was held before.
_PARTS: Final = 13
#: Claims and settlements are tuples: frozen dataclasses take three times as long to make, and each event has both.
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_DONE: Final = State.DONE


class Claim(NamedTuple):
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
        killed: how many workers have died with it as the only one under way.
        suspect: whether it is to be the only one under way.
        only: the handlers that alone are to run; none stands for all that want it.
        pending: the handlers that it has been waiting for since an earlier attempt.
        causes: the causes that it stands with: who has failed → the id.
        trace: of which trace it is, as credhook/store/traces.py writes it; None if the receiver does not trace.
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
    killed: int = 0
    suspect: bool = False
    only: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    causes: Mapping[str, str] = _NONE
    trace: str | None = None

    @property
    def execution(self) -> str:
        """RQ's name for this attempt, where we keep the job's records: no other claim of the event has its fence."""
        return str(self.fence)

    @property
    def age(self) -> float:
        """Seconds since the event was stored, by Redis's clock, which may have gone back since."""
        return max(0.0, self.now / 1000 - self.received_at.timestamp())


class Settlement(NamedTuple):
    """What an attempt came to, as it is written down.

    Attributes:
        state: where the event stands now; `accepted` hands it back untried.
        error: the cause, if it is not done.
        wait: seconds until the next attempt, if it is `waiting`.
        spend: whether the attempt counts.
        records: handler → how it ended, for those not recorded yet.
        only: the handlers that it waits for, if it is `unhandled` and others of its type are here.
        pending: the handlers that have not ended; written down as long as the event is open.
        sealed: whether presented data may have been kept for another attempt.
        latest: rank and `updatedAt`, in ms, of the state that handlers have seen now.
        failures: what has failed in it and has not been counted yet.
        causes: who has failed → the cause that the event stands with from now on, until it is done.
        absolved: those that it no longer stands with; likewise.
        story: what of it is told besides, if it is to be told of at all.
    """

    state: State
    error: str = ""
    wait: float = 0.0
    spend: bool = True
    records: Mapping[str, str] = _NONE
    only: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    sealed: bool = False
    latest: tuple[int, int] | None = None
    failures: tuple[Failure, ...] = ()
    causes: Mapping[str, str] = _NONE
    absolved: Mapping[str, str] = _NONE
    story: Mapping[str, Any] | None = None

    def more(self, worker: str) -> dict[str, Any]:
        """What of it is not said of an event that is done at the first attempt; `worker` is named in the story."""
        if self.state is _DONE and self.story is None and not (self.failures or self.absolved):
            return {}  # As nearly always.
        fields = {
            "error": self.error,
            "wait": int(self.wait * 1000),
            "unspent": not self.spend,
            "only": " ".join(self.only),
            "pending": " ".join(self.pending),
            "failures": [failure.counted() for failure in self.failures],
            "causes": self.causes,
            "absolved": self.absolved,
        }
        more = {name: value for name, value in fields.items() if value}
        if self.story is not None:
            more["story"] = json.dumps({"worker": worker, **self.story}, separators=(",", ":"))
        return more


@dataclass(frozen=True, slots=True)
class Worker:
    """Who takes events, as RQ's records show it.

    Attributes:
        name: of the RQ worker.
        token: by which records name the process that has them.
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


def read_job(queue: str, job: str, data: bytes) -> str | None:
    """The event of a job as RQ itself writes it, by its id and its `data`; None for one that is none of ours. Pure."""
    try:
        # A stranger's may unpack to anything.
        name, instance, arguments, named = json.loads(zlib.decompressobj().decompress(data, LONGEST_JOB))
        return event_of(queue, job) if [name, instance, arguments, named] == [JOB_FUNCTION, None, [], {}] else None
    except (zlib.error, ValueError, TypeError, AttributeError, RecursionError):
        return None


def claims_from(raw: Sequence[Any]) -> list[Claim]:
    """The claims that one reply of the scripts holds. Pure."""
    claims, start = [], 0
    while start < len(raw):
        end = start + _PARTS + raw[start + _PARTS - 1]
        claims.append(_claim(raw[start : start + _PARTS], raw[start + _PARTS : end]))
        start = end
    return claims


def _claim(parts: Sequence[Any], before: Sequence[bytes]) -> Claim:
    event_id, job, now, kind, resource, received, fence, attempts, latest, killed, suspect, trace, _ = parts
    rank, _, updated = latest.partition(b":") if latest else (0, b"", 0)
    claim = Claim(
        event_id=event_id.decode(),
        type=kind.decode(),
        resource_id=resource.decode(),
        received_at=datetime.fromtimestamp(int(received) / 1000, UTC),
        now=now,
        attempt=attempts,
        fence=int(fence),
        first=not before,
        ended=_NONE,
        seen=False,
        latest=(int(rank), int(updated)),
        job=job.decode(),
        killed=killed,
        suspect=bool(suspect),
        trace=None if trace is None else trace.decode(errors="replace"),
    )
    return _with_history(claim, before) if before else claim


def _with_history(claim: Claim, before: Sequence[bytes]) -> Claim:
    """The claim of an event that somebody has held before, with the fields that have come of that."""
    text = [part.decode(errors="replace") for part in before]  # All else the script has found to be readable.
    fields = dict(zip(text[::2], text[1::2], strict=True))
    return claim._replace(
        ended={name.removeprefix(HANDLER): ending(how)[0] for name, how in fields.items() if name.startswith(HANDLER)},
        seen="seen" in fields,
        only=frozenset(fields.get(ONLY, "").split()),
        pending=frozenset(fields.get(PENDING, "").split()),
        causes={name.removeprefix(BLAMED): one for name, one in fields.items() if name.startswith(BLAMED)},
    )
