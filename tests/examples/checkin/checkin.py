"""Hand the outcome of a presentation over to the web application: one word, for ten minutes."""

import os
from typing import Final

from redis.asyncio import Redis

from credhook import AsyncContext, FetchedEvent, Handlers, Presentation, Retry

#: How long a page may wait, and how long an outcome is kept, in seconds.
SECONDS: Final = 600
#: A presentation's id follows. The key is a stream: one command reads what is there, or waits for it.
OUTCOME: Final = "checkin:outcome:"

handlers = Handlers[Redis]("checkin")


@handlers.startup
async def connect() -> Redis:
    """Return a client of the web application's Redis."""
    return Redis.from_url(os.environ["CHECKIN_REDIS_URL"], decode_responses=True)


@handlers.shutdown
async def disconnect(redis: Redis) -> None:
    """Close the connections."""
    await redis.aclose()


@handlers.on(
    *("openid4vc.verification.verified", "openid4vc.verification.data"),  # A platform may send either or both.
    *("openid4vc.verification.failed", "openid4vc.verification.expired"),
)
async def tell(event: FetchedEvent[Presentation], context: AsyncContext[Redis]) -> None:
    """Tell how the presentation ended. The details decide: the name of an event proves nothing."""
    if event.details.is_("requested", "pending"):  # The details lag behind the event.
        raise Retry(after=2)
    outcome = "accepted" if event.details.trusted else "expired" if event.details.is_("expired") else "refused"
    async with context.state.pipeline() as transaction:  # The outcome is never there without its expiry.
        transaction.xadd(OUTCOME + event.resource_id, {"outcome": outcome}, maxlen=1, approximate=False)
        transaction.expire(OUTCOME + event.resource_id, SECONDS)
        await transaction.execute()
