"""The queue `credhook`, which most tests use: its keys in Redis, and its store on a test's own client."""

from datetime import UTC, datetime
from typing import Any, Final

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


def run_accept(store: Store[Any], *events: tuple[str, str, str], is_backfill: bool = False) -> Any:
    """Accept events (webhook-id, type, resource) in one group, as the receiver or a backfill does."""
    group = [(one, Event(kind, resource), None) for one, kind, resource in events]
    settings: dict[str, Any] = {"queue": store.queue, "retention": store.retention, "now": datetime.now(UTC)}
    return store.run("accept", job.accept_arguments(group, is_backfill=is_backfill, **settings))
