"""Fetch the details of an event's resource, or read them from the sealed snapshot of an earlier attempt.

Presented data may be readable once, or for minutes. An event that announces data is never handled without it: it ends
as `data_gone`.
"""

import time
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import structlog
from redis.exceptions import RedisError

from credhook.events import URGENT, rank_of, resource_of
from credhook.worker import metrics
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError, NotFound
from credhook.worker.api.models import Issuance, Presentation
from credhook.worker.attempt.retry import DataGone
from credhook.worker.attempt.snapshots import Snapshots, from_bytes, to_bytes
from credhook.worker.platform.circuit import PlatformPaused
from credhook.worker.queue.claim import Claim

log = structlog.get_logger("credhook.worker")

T = TypeVar("T")


@dataclass(slots=True)
class Fetched:
    """The state of a resource at one moment.

    Attributes:
        details: the resource.
        since: Redis's clock, in ms, before the fetch. The details cover all events received by then.
        has_data: True if the details hold presented data.
    """

    details: Issuance | Presentation
    since: int
    has_data: bool = False


async def fetch(claim: Claim, api: AsyncApi, snapshots: Snapshots, known: Fetched | None) -> Fetched:
    """Return the details of the claimed event's resource. Presented data is sealed in `snapshots` between attempts.

    `known`: details fetched for the previous event of the resource. They are used again if they are recent enough.

    Raises:
        ApiError: the platform did not return them.
        DataGone: the platform no longer has the presented data.
    """
    # `known` may be later than this claim if Redis's clock went back. Then the order is unknown.
    covered = known is not None and claim.received_at.timestamp() <= known.since / 1000 <= claim.now / 1000
    if known is not None and covered and _suffices(known, claim):
        return await _keep(claim, known, snapshots)
    may_be_sealed = claim.type in URGENT and claim.seen
    if may_be_sealed and (sealed := await _snapshot(claim, snapshots)) is not None:
        return Fetched(sealed, since=0, has_data=True)
    try:
        client = getattr(api, resource_of(claim.type).namespace)
        details = await _timed(client.get(claim.resource_id))
    except NotFound:
        if may_be_sealed:
            raise DataGone(was_there=True) from None
        raise
    fetched = Fetched(details, claim.now, has_data=isinstance(details, Presentation) and details.has_data)
    if not _suffices(fetched, claim):
        raise DataGone(was_there=claim.seen)
    return await _keep(claim, fetched, snapshots)


async def _timed(call: Awaitable[T]) -> T:
    began = time.monotonic()
    try:
        answer = await call
    except PlatformPaused:  # Not sent.
        raise
    except ApiError as error:
        metrics.FETCH_SECONDS.observe(time.monotonic() - began, metrics.status_label(error))
        raise
    metrics.FETCH_SECONDS.observe(time.monotonic() - began, "2xx")
    return answer


def _suffices(fetched: Fetched, claim: Claim) -> bool:
    """Return False if the event announced presented data, or an earlier attempt saw it, and the details lack it."""
    announced = claim.type == "openid4vc.verification.data" or (claim.type in URGENT and claim.seen)
    return fetched.has_data or not announced


async def _keep(claim: Claim, fetched: Fetched, snapshots: Snapshots) -> Fetched:
    """Seal presented data for later attempts, and return the details."""
    if fetched.has_data and claim.type in URGENT:
        try:
            await snapshots.keep(claim.event_id, to_bytes(fetched.details))
        except (RedisError, OSError) as error:  # The data is here now and may not be again: run the handlers.
            log.warning("snapshot_not_kept", webhook_id=claim.event_id, error=type(error).__name__)
    return fetched


async def _snapshot(claim: Claim, snapshots: Snapshots) -> Issuance | Presentation | None:
    try:
        sealed = await snapshots.find(claim.event_id)
        return None if sealed is None else from_bytes(sealed, claim.type)
    except (RedisError, OSError, ValueError) as error:
        log.warning("snapshot_unreadable", webhook_id=claim.event_id, error=type(error).__name__)
        return None


def version(event_type: str, updated_at: datetime | str | None) -> tuple[int, int]:
    """Return the event type's rank, and the time of the resource's last update in ms. 0 stands for unknown."""
    try:
        updated = int(updated_at.timestamp() * 1000) if isinstance(updated_at, datetime) else 0
    except (ValueError, OverflowError):  # The platform sent a year out of range.
        updated = 0
    return rank_of(event_type), max(0, updated)


def is_stale(state: tuple[int, int], latest: tuple[int, int]) -> bool:
    """Return True if handlers have already seen a later version of the resource than this state."""
    rank, updated = state
    latest_rank, latest_update = latest
    return rank < latest_rank or (updated > 0 and updated < latest_update)
