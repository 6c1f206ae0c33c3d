"""The queue `credhook`, which most tests use: its keys in Redis, and its store on a test's own client."""

from datetime import UTC, datetime
from typing import Any, Final

import redis

from credhook.events import Event
from credhook.store import Keys, job
from credhook.store.store import Client, Store

INDEX: Final = Keys("credhook")
EVENT: Final = INDEX.event
HISTORY: Final = INDEX.history
SNAPSHOT: Final = INDEX.snapshot


def job_id(event_id: str) -> str:
    """Return the id of the event's RQ job."""
    return job.job_id(INDEX.queue, event_id)


def store_on(redis: Client, queue: str = "credhook", *, retention: int = 3_600) -> Store[Client]:
    return Store(redis, queue, retention=retention)


def run_accept(store: Store[Any], *events: tuple[str, str, str], since: str = "") -> Any:
    """Accept events (webhook-id, type, resource) in one group, as the receiver does, or `since` an entry a backfill."""
    group = [(one, Event(kind, resource), None) for one, kind, resource in events]
    settings: dict[str, Any] = {"queue": store.queue, "retention": store.retention, "now": datetime.now(UTC)}
    return store.run("accept", job.accept_arguments(group, since=since, **settings))


def last_entry(store: Store[redis.Redis]) -> str:
    """Return the last entry of the index, as a backfill reads it before it compares."""
    last: bytes = store.run("arrived", [])[0]
    return last.decode()
