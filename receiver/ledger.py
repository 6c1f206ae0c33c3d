"""What Redis remembers of an event: every key name, every field, every state, and the shape of its RQ job.

One hash per event is its record and its mark of having been seen, so that neither can exist without the other:

    credhook:event:<webhook-id>   type, resource, state, received; while open also attempts, fence, due, error;
                                  handler:<name> as each handler ends

    accepted ──▶ done             every matching handler has run
        │  ▲──── waiting          an attempt failed; due says when the next one is
        └──────▶ dead             given up, kept for replay
    quarantined                   of a type that this version does not know, kept for replay after an upgrade

An open record (accepted, waiting) has no expiry; a settled one lives for the retention time and then expires, and with
it the memory of its webhook-id.
"""

import json
import re
import zlib
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

PREFIX: Final = "credhook:"
#: Hash per event; the webhook-id follows.
EVENT: Final = PREFIX + "event:"
#: Hash per webhook-id that came again with another type or resource: "<type> <resource>" → when, in ms.
CONFLICT: Final = PREFIX + "conflict:"
#: Sorted set of the webhook-ids of open events, by when they last moved, in ms: what the reconciler looks through.
OPEN: Final = PREFIX + "open"
#: Sorted set of the webhook-ids that a worker holds, by when its lease ends, in ms.
LEASES: Final = PREFIX + "leases"
#: Sorted sets of the webhook-ids of dead and of quarantined events, by when they became so, in ms.
DEAD: Final = PREFIX + "dead"
QUARANTINED: Final = PREFIX + "quarantined"
#: The process that runs the reconciler.
LEADER: Final = PREFIX + "reconciler"
#: Field of an event's hash that says how a handler ended; the handler's name follows.
HANDLER: Final = "handler:"


class State(StrEnum):
    """Where an event stands."""

    ACCEPTED = "accepted"
    WAITING = "waiting"
    DONE = "done"
    DEAD = "dead"
    QUARANTINED = "quarantined"


#: The only function that a job of ours names. The receiver knows no more of the worker than this string.
JOB_FUNCTION: Final = "worker.jobs.process"
#: Seconds before RQ itself ends a job. The worker's own time-outs are far shorter; this one is for a stuck process.
JOB_TIMEOUT: Final = 3_600
#: Seconds that RQ keeps a failed job. Ours fail only when a process dies, and the ledger knows more than RQ does.
FAILURE_TTL: Final = 86_400

_JOB_ID_CHARACTERS: Final = re.compile(r"[A-Za-z0-9_-]+")


def job_id(event_id: str) -> str:
    """The RQ job's id for an event: the same for all time, legible where RQ's alphabet allows, else a digest.

    The prefixes keep a digest from ever equalling another event's own id.
    """
    if _JOB_ID_CHARACTERS.fullmatch(event_id):
        return f"e-{event_id}"
    return f"d-{sha256(event_id.encode()).hexdigest()[:40]}"


def job_data(event_id: str) -> bytes:
    """The `data` field of the job: function, instance, arguments; JSON and zlib as RQ's JSONSerializer reads it."""
    return zlib.compress(json.dumps([JOB_FUNCTION, None, [event_id], {}]).encode(), level=1)


def job_fields(queue: str, now: datetime) -> dict[str, str | int]:
    """All other fields of the job's hash, the same for every event that is enqueued at that time.

    They equal what `Queue.enqueue` writes; tests/integration/test_rq_contract.py compares them with RQ's own.
    """
    timestamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    empty = (
        "success_callback_name failure_callback_name stopped_callback_name "
        "started_at ended_at last_heartbeat worker_name group_id"
    )
    return {
        "status": "queued",
        "created_at": timestamp,
        **dict.fromkeys(empty.split(), ""),
        "origin": queue,
        "description": "credhook event",
        "enqueued_at": timestamp,
        "timeout": JOB_TIMEOUT,
        "result_ttl": 0,
        "failure_ttl": FAILURE_TTL,
    }


#: Seconds until a silent Redis counts as gone: a sender waits for us no longer than this.
REDIS_TIMEOUT: Final = 5.0


def open_redis(url: str, **options: Any) -> redis.asyncio.Redis:
    """An asynchronous client for `REDIS_URL`; opens no connection yet.

    A failed command is not sent again by itself: what may be repeated is decided where the command is known.
    """
    timeouts = {"socket_timeout": REDIS_TIMEOUT, "socket_connect_timeout": REDIS_TIMEOUT}
    options = {**timeouts, "retry": Retry(NoBackoff(), 0), **options}
    if not url.startswith("redis+sentinel"):
        return redis.asyncio.Redis.from_url(url, **options)
    hosts, service, options = _sentinel(url, options)
    sentinel = redis.asyncio.sentinel.Sentinel(hosts, **options)  # type: ignore[no-untyped-call]  # redis-py's gap
    return cast(redis.asyncio.Redis, sentinel.master_for(service, **options))


def open_redis_sync(url: str, **options: Any) -> redis.Redis:
    """The same for RQ and for the command line, which are synchronous."""
    if not url.startswith("redis+sentinel"):
        return redis.Redis.from_url(url, **options)
    hosts, service, options = _sentinel(url, options)
    sentinel = redis.sentinel.Sentinel(hosts, **options)  # type: ignore[no-untyped-call]  # redis-py's gap
    return cast(redis.Redis, sentinel.master_for(service, **options))  # type: ignore[no-untyped-call]  # as above


def _sentinel(url: str, options: dict[str, Any]) -> tuple[list[tuple[str, int]], str, dict[str, Any]]:
    """Take apart `redis+sentinel://[user:password@]host:port,host:port/service[/db]`; `rediss+…` asks for TLS."""
    parts = urlsplit(url)
    credentials, _, addresses = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("REDIS_URL: a Sentinel URL names its service, redis+sentinel://host:port/service")
    hosts = []
    for address in addresses.split(","):
        host, _, port = address.rpartition(":")
        hosts.append((host, int(port)) if host else (port, 26_379))
    return (
        hosts,
        service,
        options
        | {
            "db": int(db or 0),
            "username": unquote(user) or None,
            "password": unquote(password) or None,
            "ssl": parts.scheme.startswith("rediss"),
        },
    )
