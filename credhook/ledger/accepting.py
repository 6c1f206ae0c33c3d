"""What the script that accepts events is given (accept.lua): the same by the receiver and by a reconciliation."""

from collections.abc import Iterable
from datetime import datetime

from credhook.events import Event
from credhook.ledger import Index
from credhook.ledger.job import job_data, job_fields, job_id


def keys(index: Index) -> list[str]:
    """KEYS of the script."""
    return [
        index.open,
        index.quarantined,
        index.jobs,
        index.template,
        index.urgent,
        index.opened,
        index.reconciled,
        index.arrivals,
    ]


def arguments(
    events: Iterable[tuple[str, Event]], *, queue: str, retention: int, now: datetime
) -> list[str | int | bytes]:
    """ARGV of the script.

    Args:
        events: each with the id that it is to have.
        queue: that they are for.
        retention: seconds that a settled or quarantined one is remembered.
        now: when their jobs are enqueued.
    """
    fields = job_fields(queue, now)
    found: list[str | int | bytes] = [retention, len(fields)]
    for name, value in fields.items():
        found += name, value
    for id_, event in events:
        job = (job_id(id_), job_data(id_)) if event.known else ("", b"")
        found += id_, event.type, event.resource_id, *job
    return found
