"""The RQ job of an event: its id, and its fields as RQ itself writes them. Pure."""

import re
import struct
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from json.encoder import encode_basestring_ascii
from typing import Final

#: The only function that a job of ours names. The receiver knows no more of the worker than this string.
JOB_FUNCTION: Final = "credhook.worker.process.jobs.process"
#: Seconds before RQ itself ends a job. The worker's own time-outs are far shorter; this one is for a stuck process.
JOB_TIMEOUT: Final = 3_600
#: Seconds that RQ keeps a failed job. Ours fail only when a process dies, and the ledger knows more than RQ does.
FAILURE_TTL: Final = 86_400
#: Seconds without a heartbeat after which RQ's tools take a job for abandoned. The reconciler, which knows more, acts
#: sooner.
RQ_PATIENCE: Final = 120
#: Bytes of a job's data beyond which it is none of ours; ours have 400 at most.
LONGEST_JOB: Final = 8_192

_JOB_ID_CHARACTERS: Final = re.compile(r"[A-Za-z0-9_-]+")


def job_id(event_id: str) -> str:
    """The RQ job's id for an event: the same for all time, legible where RQ's alphabet allows, else a digest.

    The prefixes keep a digest from ever equalling another event's own id.
    """
    if _JOB_ID_CHARACTERS.fullmatch(event_id):
        return f"e-{event_id}"
    # An id that somebody else has written into Redis may be no Unicode; readers hand its bytes on as surrogates.
    return f"d-{sha256(event_id.encode(errors='surrogateescape')).hexdigest()[:40]}"


def _packed(*arguments: str) -> bytes:
    """Function, instance, arguments, as RQ's JSONSerializer and zlib read them: one stored block, put together by hand.

    `zlib.compress` would set up a compressor of 256 KiB to save eight bytes: 50 microseconds, measured, as much as all
    else that a delivery costs.
    """
    written = ",".join(encode_basestring_ascii(argument) for argument in arguments)
    data = f'["{JOB_FUNCTION}",null,[{written}],{{}}]'.encode()
    size = len(data)
    return b"x\x01\x01" + struct.pack("<HH", size, size ^ 0xFFFF) + data + struct.pack(">I", zlib.adler32(data))


#: The data of every job whose id says which event it is for.
_OF_ITS_ID: Final = _packed()


def job_data(event_id: str) -> bytes:
    """The job's own `data`, or nothing if its id says which event it is for, as nearly always.

    It then has the `data` of `job_fields`. A hash whose values have 64 bytes at most is kept by Redis in one piece, and
    with the event's id in its data no job would be: it took Redis 7 912 bytes for each, where it now takes 408.
    """
    return b"" if _JOB_ID_CHARACTERS.fullmatch(event_id) else _packed(event_id)


def event_of(job: str, arguments: Sequence[object]) -> str | None:
    """The event of a job of that id, with these arguments; None if it is none of ours."""
    event_id = arguments[0] if len(arguments) == 1 else job.removeprefix("e-") if not arguments else None
    return event_id if isinstance(event_id, str) and job_id(event_id) == job else None


def job_fields(queue: str, now: datetime) -> dict[str, str | int | bytes]:
    """The fields of the job's hash, the same for every event that is enqueued at that time.

    They equal what `Queue.enqueue` writes, save that its empty fields are left out: RQ reads the same, and Redis writes
    and deletes half as many. tests/integration/test_rq_contract.py compares what RQ reads.
    """
    timestamp = now.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return {
        "data": _OF_ITS_ID,
        "status": "queued",
        "created_at": timestamp,
        "origin": queue,
        "description": "credhook event",
        "enqueued_at": timestamp,
        "timeout": JOB_TIMEOUT,
        "result_ttl": 0,
        "failure_ttl": FAILURE_TTL,
    }
