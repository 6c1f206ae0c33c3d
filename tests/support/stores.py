"""The store of the queue `credhook`, on a test's own client."""

from datetime import UTC, datetime
from typing import Any

from credhook.events import Event
from credhook.store.job import accept_arguments
from credhook.store.store import Client, Store


def store_on(redis: Client, queue: str = "credhook", *, retention: int = 3_600) -> Store[Client]:
    return Store(redis, queue, retention=retention)


def run_accept(store: Store[Any], *events: tuple[str, str, str], is_backfill: bool = False) -> Any:
    """Accept events (webhook-id, type, resource) in one group, as the receiver or a backfill does."""
    group = [(one, Event(kind, resource), None) for one, kind, resource in events]
    settings: dict[str, Any] = {"queue": store.queue, "retention": store.retention, "now": datetime.now(UTC)}
    return store.run("accept", accept_arguments(group, is_backfill=is_backfill, **settings))
