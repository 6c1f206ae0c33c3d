"""What an event refers to: fetched from the platform, or from where it was kept when it could be fetched only once.

Presented data may be readable once, or for minutes. An event that announces it is never handled without it as if
nothing had been there: it ends as `data_gone`, an outcome of its own.
"""

import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

import structlog
from redis.exceptions import RedisError

from credhook.events import URGENT, concerns_issuance
from credhook.worker import metrics
from credhook.worker.api.calls.errors import ApiError, NotFound
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.models import Issuance, Presentation
from credhook.worker.attempt.retry import DataGone
from credhook.worker.attempt.snapshots import Snapshots, from_bytes, to_bytes
from credhook.worker.platform.circuit import PlatformPaused
from credhook.worker.queue.claim import Claim

log = structlog.get_logger("credhook.worker")

T = TypeVar("T")


@dataclass(slots=True)
class Fetched:
    """A resource as it was at one moment.

    Attributes:
        details: what it is like.
        since: Redis's clock, in ms, at a moment before it was asked for: an event that had come by then is covered.
        has_data: whether presented data is among it.
    """

    details: Issuance | Presentation
    since: int
    has_data: bool = False


async def fetch(claim: Claim, api: AsyncApi, snapshots: Snapshots, known: Fetched | None) -> Fetched:
    """The details of the claimed event's resource; presented data is kept in `snapshots` between attempts.

    `known`: the same resource, fetched for the event before; used again if it was fetched after this one came.

    Raises:
        ApiError: the platform did not say.
        DataGone: it has them no longer.
    """
    # By Redis's clock they may be later than this claim: it has gone back then, and nobody knows what came first.
    covered = known is not None and claim.received_at.timestamp() <= known.since / 1000 <= claim.now / 1000
    if known is not None and covered and _suffices(known, claim):
        return await _looked_at(claim, known, snapshots)
    if concerns_issuance(claim.type):
        return Fetched(await _timed(api.issuances.get(claim.resource_id)), claim.now)
    kept = await _kept(claim, snapshots) if claim.type in URGENT and claim.seen else None
    if kept is not None:
        return Fetched(kept, since=0, has_data=True)
    try:
        details = await _timed(api.presentations.get(claim.resource_id))
    except NotFound:
        if claim.type in URGENT and claim.seen:
            raise DataGone(was_there=True) from None
        raise
    fetched = Fetched(details, claim.now, has_data=details.has_data)
    if not _suffices(fetched, claim):
        raise DataGone(was_there=claim.seen)
    return await _looked_at(claim, fetched, snapshots)


async def _timed(call: Awaitable[T]) -> T:
    """What the call returns; how long it took is counted, unless it was not made: the platform is left alone."""
    began = time.monotonic()
    try:
        answer = await call
    except PlatformPaused:
        raise
    except ApiError as error:
        metrics.FETCH_SECONDS.observe(time.monotonic() - began, metrics.status_label(error))
        raise
    metrics.FETCH_SECONDS.observe(time.monotonic() - began, "2xx")
    return answer


def _suffices(fetched: Fetched, claim: Claim) -> bool:
    """Whether the event can be handled with these details: not without the data that it announces, or has seen."""
    announced = claim.type == "openid4vc.verification.data" or (claim.type in URGENT and claim.seen)
    return fetched.has_data or not announced


async def _looked_at(claim: Claim, fetched: Fetched, snapshots: Snapshots) -> Fetched:
    """The details; that they were seen is noted, and they are kept, if they may not be there for another attempt."""
    if fetched.has_data and claim.type in URGENT:
        try:
            await snapshots.keep(claim.event_id, to_bytes(fetched.details))
        except (RedisError, OSError) as error:  # What could be read only once is in hand: the handlers should have it.
            log.warning("snapshot_not_kept", webhook_id=claim.event_id, error=type(error).__name__)
    return fetched


async def _kept(claim: Claim, snapshots: Snapshots) -> Issuance | Presentation | None:
    """What an earlier attempt has kept, if it can be read."""
    try:
        kept = await snapshots.find(claim.event_id)
        return None if kept is None else from_bytes(kept, claim.type)
    except (RedisError, OSError, ValueError) as error:
        log.warning("snapshot_unreadable", webhook_id=claim.event_id, error=type(error).__name__)
        return None
