"""What the script that accepts events is given (accept.lua): the same by the receiver and by a backfill."""

from collections.abc import Sequence
from datetime import datetime

from credhook.events import Event
from credhook.store.job import job_fields, job_id


def arguments(
    events: Sequence[tuple[str, Event, str | None]], *, queue: str, retention: int, now: datetime
) -> list[str | int | bytes]:
    """ARGV of the script.

    Args:
        events: each with the id that it is to have before it, and behind it the trace that it is of, as traces.py
            writes it; None for all of them where nobody traces.
        queue: that they are for.
        retention: seconds that a settled or quarantined one is remembered.
        now: when their jobs are enqueued.
    """
    fields = job_fields(queue, now)
    each = 4 if not events or events[0][2] is None else 5
    found: list[str | int | bytes] = [retention, each, len(fields)]
    for name, value in fields.items():
        found += name, value
    for id_, event, trace in events:
        found += id_, event.type, event.resource_id, job_id(queue, id_) if event.known else ""
        if trace is not None:
            found.append(trace)
    return found
