"""Claims and how they end: the data that the scripts and the rest of the worker exchange. Pure."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from credhook.store import BLAMED, HANDLER, ONLY, PENDING, State, ending
from credhook.worker.queue.failure import Failure


class NotClaimed(Enum):
    """Why an event cannot be claimed now. None of the reasons is an error."""

    #: There is no such event: it was erased, or has expired.
    MISSING = "missing"
    #: It is done, dead, unhandled or quarantined.
    SETTLED = "settled"
    #: Another worker holds it.
    HELD = "held"
    #: Its next attempt is not due yet.
    EARLY = "early"
    #: Another event of the same resource is under way; this one follows.
    BLOCKED = "blocked"
    #: Its record is damaged; the sweeper sets it aside.
    UNREADABLE = "unreadable"
    #: Workers have died with it under way: only a worker with nothing else under way may claim it.
    POISON_CANDIDATE = "poison_candidate"


#: Entries of a claim in a script's reply (see claim_event.lua). The last one says how many fields of the record follow.
_PARTS: Final = 13
#: Claims and settlements are tuples: frozen dataclasses take three times as long to make, and each event has both.
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Claim(NamedTuple):
    """An event that belongs to this worker until the lease ends.

    Attributes:
        event_id: its webhook-id.
        type: its event type.
        resource_id: the issuance or presentation.
        received_at: when the receiver stored it.
        now: Redis's clock when it was claimed, ms since the epoch.
        attempt: number of this attempt, from 1.
        fence: token of this claim; a later claim has a higher one.
        first: True if the event was never held before.
        ended: handler's name → how it ended, for handlers that will not run again.
        seen: True if an earlier attempt has had the presented data.
        latest: rank and `updatedAt`, in ms, of the latest state of the resource that handlers have seen.
        job: id of its RQ job.
        killed: number of workers that have died with nothing else under way.
        poison_candidate: True if it must be the only event under way.
        only: if not empty, only these handlers run.
        pending: the handlers that it has been waiting for since an earlier attempt.
        causes: its open errors: who has failed → id of the cause.
        trace: its trace, as credhook/store/traces.py writes it; None if the receiver does not trace.
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
    poison_candidate: bool = False
    only: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    causes: Mapping[str, str] = _NONE
    trace: str | None = None

    @property
    def age(self) -> float:
        """Seconds since the event was stored, by Redis's clock, which may have gone back since."""
        return max(0.0, self.now / 1000 - self.received_at.timestamp())


class Settlement(NamedTuple):
    """The result of an attempt, as it is written down.

    Attributes:
        state: where the event stands now; `accepted` hands it back untried.
        error: the cause, if it is not done.
        wait: seconds until the next attempt, if it is `waiting`.
        spend: True if the attempt counts.
        records: handler → how it ended, for handlers that are not recorded yet.
        only: the handlers that an `unhandled` event waits for, if others of its type are here.
        pending: the handlers that have not ended; written down as long as the event is open.
        sealed: True if presented data may have been kept for another attempt.
        latest: rank and `updatedAt`, in ms, of the state that handlers have seen now.
        failures: failures that have not been counted yet.
        causes: open errors from now on: who has failed → id of the cause.
        resolved: errors that are open no longer, in the same form.
        history: entry for the event's history, or None.
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
    resolved: Mapping[str, str] = _NONE
    history: Mapping[str, Any] | None = None

    def more(self, worker: str) -> dict[str, Any]:
        """Return the fields that most settlements lack; the history names `worker`."""
        fields = {
            "error": self.error,
            "wait": int(self.wait * 1000),
            "unspent": not self.spend,
            "only": " ".join(self.only),
            "pending": " ".join(self.pending),
            "failures": [failure.counted() for failure in self.failures],
            "causes": self.causes,
            "resolved": self.resolved,
        }
        more = {name: value for name, value in fields.items() if value}
        if self.history is not None:
            more["history"] = json.dumps({"worker": worker, **self.history}, separators=(",", ":"))
        return more


class Claimant(NamedTuple):
    """The worker that claims: its name in RQ's records, and the token of its process in locks and records."""

    name: str
    token: str


class Taken(NamedTuple):
    """The result of one take: claims, seconds until the next retry (or None), and if poison candidates wait."""

    claims: tuple[Claim, ...]
    due: float | None
    poison_candidates: bool = False


def claims_from(raw: Sequence[Any]) -> list[Claim]:
    """Return the claims in a script's reply."""
    claims, start = [], 0
    while start < len(raw):
        end = start + _PARTS + raw[start + _PARTS - 1]
        claims.append(_claim(raw[start : start + _PARTS], raw[start + _PARTS : end]))
        start = end
    return claims


def _claim(parts: Sequence[Any], before: Sequence[bytes]) -> Claim:
    event_id, job, now, kind, resource, received, fence, attempts, latest, killed, candidate, trace, _ = parts
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
        poison_candidate=bool(candidate),
        trace=None if trace is None else trace.decode(),
    )
    if not before:
        return claim
    text = [part.decode(errors="replace") for part in before]
    fields = dict(zip(text[::2], text[1::2], strict=True))
    return claim._replace(
        ended={name.removeprefix(HANDLER): ending(how)[0] for name, how in fields.items() if name.startswith(HANDLER)},
        seen="seen" in fields,
        only=frozenset(fields.get(ONLY, "").split()),
        pending=frozenset(fields.get(PENDING, "").split()),
        causes={name.removeprefix(BLAMED): one for name, one in fields.items() if name.startswith(BLAMED)},
    )
