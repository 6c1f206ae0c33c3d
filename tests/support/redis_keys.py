"""The Redis keys of the queue `credhook`, which most tests use."""

from typing import Final

from credhook.store import Keys, job

INDEX: Final = Keys("credhook")
EVENT: Final = INDEX.event
CONFLICT: Final = INDEX.conflict
HISTORY: Final = INDEX.history
RESOURCE: Final = INDEX.resource
SNAPSHOT: Final = INDEX.snapshot
RECEIVERS: Final = INDEX.receivers


def job_id(event_id: str) -> str:
    """Return the id of the event's RQ job."""
    return job.job_id(INDEX.queue, event_id)
