"""What an event refers to: fetched from the platform, or from where it was kept when it could be fetched only once.

Presented data may be readable once, or for minutes. An event that announces it is never handled without it as if
nothing had been there: it ends as `data_gone`, an outcome of its own.
"""

from dataclasses import dataclass

from receiver.events import URGENT, concerns_issuance
from worker.api.client import AsyncApi
from worker.api.errors import NotThere
from worker.api.models import Issuance, Presentation
from worker.claims import Claim
from worker.retry import DataGone
from worker.snapshots import Snapshots, from_bytes, to_bytes


@dataclass(frozen=True, slots=True)
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
    """The details of the claimed event's resource.

    Args:
        claim: the event.
        api: asked for them.
        snapshots: where presented data is kept between attempts.
        known: the same resource, fetched for the event before; used again if it was fetched after this one came.

    Raises:
        ApiError: the platform did not say.
        DataGone: it has them no longer.
    """
    if known is not None and known.since / 1000 >= claim.received_at.timestamp():
        return known
    if concerns_issuance(claim.type):
        return Fetched(await api.issuances.get(claim.resource_id), claim.now)
    return await _presentation(claim, api, snapshots)


async def _presentation(claim: Claim, api: AsyncApi, snapshots: Snapshots) -> Fetched:
    if claim.type not in URGENT:
        return Fetched(await api.presentations.get(claim.resource_id), claim.now)
    kept = await snapshots.find(claim.event_id) if claim.seen else None
    if kept is not None:
        return Fetched(from_bytes(kept, claim.type), claim.now, has_data=True)
    try:
        details = await api.presentations.get(claim.resource_id)
    except NotThere:
        if claim.seen:
            raise DataGone(was_there=True) from None
        raise
    if not details.has_data:
        if claim.seen or claim.type == "openid4vc.verification.data":
            raise DataGone(was_there=claim.seen)
        return Fetched(details, claim.now)
    await snapshots.keep(claim.event_id, to_bytes(details))
    return Fetched(details, claim.now, has_data=True)
