"""The RQ job of an event: its id, and its fields as RQ itself writes them."""

import json
import re
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha1
from typing import Final

from credhook.events import Event

#: The only function that our jobs name. The receiver knows no more of the worker than this string.
JOB_FUNCTION: Final = "credhook.worker.process.rq_job.process"
#: Seconds before RQ itself ends a job. The worker's own time-outs are far shorter; this one is for a stuck process.
JOB_TIMEOUT: Final = 3_600
#: Seconds that RQ keeps a failed job. Ours fail only when a process dies, and the store knows more than RQ does.
FAILURE_TTL: Final = 86_400
#: Seconds without a heartbeat after which RQ's tools take a job for abandoned. The sweeper acts sooner.
RQ_STARTED_SECONDS: Final = 120

#: RQ allows these in a job's id.
_JOB_ID_CHARACTERS: Final = re.compile(r"[A-Za-z0-9_-]+")
#: Characters of a queue's digest in the ids of its jobs: RQ's key of a job does not name the queue.
_DIGEST: Final = 8


@cache
def _digest(queue: str) -> str:
    return sha1(queue.encode(), usedforsecurity=False).hexdigest()[:_DIGEST]


def job_id(queue: str, event_id: str) -> str:
    """Return the RQ job's id for an event: `e<queue>-<id>`, or `x<queue>-<id in hexadecimal>` where RQ forbids the id.

    `<queue>` is a digest, so that two queues of one Redis never share a job. keys.lua has the same.
    """
    if _JOB_ID_CHARACTERS.fullmatch(event_id):
        return f"e{_digest(queue)}-{event_id}"
    # An id that is no Unicode can stand in Redis; readers hand its bytes on as surrogates.
    return f"x{_digest(queue)}-{event_id.encode(errors='surrogateescape').hex()}"


def event_of(queue: str, job: str) -> str | None:
    """Return the event of a job, or None if the job is not one of this queue's."""
    kind, event_id = job[:1], job[_DIGEST + 2 :]
    if kind == "x":
        try:
            event_id = bytes.fromhex(event_id).decode(errors="surrogateescape")
        except ValueError:
            return None
    return event_id if job_id(queue, event_id) == job else None


#: Function, instance and arguments of every job, as RQ's JSONSerializer reads them. The job's id names the event:
#: a hash whose values have 64 bytes at most takes Redis 408 bytes, and 7,912 if its data names the event.
_DATA: Final = zlib.compress(json.dumps([JOB_FUNCTION, None, [], {}], separators=(",", ":")).encode(), level=0)


def job_fields(queue: str, now: datetime) -> dict[str, str | int | bytes]:
    """Return the fields of a job's hash, the same for every event that is enqueued at that time.

    They equal what `Queue.enqueue` writes without its empty fields: RQ reads the same, and Redis writes half as many.
    tests/integration/worker/queue/test_rq_contract.py compares.
    """
    timestamp = now.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return {
        "data": _DATA,
        "status": "queued",
        "created_at": timestamp,
        "origin": queue,
        "description": "credhook event",
        "enqueued_at": timestamp,
        "timeout": JOB_TIMEOUT,
        "result_ttl": 0,
        "failure_ttl": FAILURE_TTL,
    }


def accept_arguments(
    events: Sequence[tuple[str, Event, str | None]],
    *,
    queue: str,
    retention: int,
    now: datetime,
    since: str = "",
) -> list[str | int | bytes]:
    """Return the ARGV of accept.lua.

    `events`: webhook-id, event and trace of each; the trace is None for all of them if nothing is traced.
    `since`: from a backfill, the entry of `by_time` after which it has not looked for the events of these resources.
    """
    fields = job_fields(queue, now)
    each = 4 if not events or events[0][2] is None else 5
    arguments: list[str | int | bytes] = [since, retention, each, len(fields)]
    for name, value in fields.items():
        arguments += name, value
    for id_, event, trace in events:
        arguments += id_, event.type, event.resource_id, job_id(queue, id_) if event.fetchable else ""
        if trace is not None:
            arguments.append(trace)
    return arguments
