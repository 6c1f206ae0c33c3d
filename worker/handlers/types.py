"""The types of a handler's two arguments: the event with its details, and the context.

Both are generic, so that type checkers and editors know what they hold:

    async def activate(event: FetchedEvent[Issuance], context: AsyncContext) -> None: ...

`AsyncContext[Database]` is the context of a plugin whose start-up function returns a `Database`.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeAlias

import structlog
from typing_extensions import TypeVar

from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.models import Issuance, Presentation

Details: TypeAlias = Issuance | Presentation

D_co = TypeVar("D_co", bound=Details, covariant=True, default=Details)
A_co = TypeVar("A_co", bound=AsyncApi | SyncApi, covariant=True, default=AsyncApi)
S_co = TypeVar("S_co", covariant=True, default=None)


@dataclass(frozen=True, slots=True)
class FetchedEvent(Generic[D_co]):
    """An event with the details of its resource: the first argument of a handler.

    Attributes:
        type: one of the ten event types.
        resource_id: the id of the issuance or presentation.
        webhook_id: the id of the delivery; repetitions of the delivery have the same id.
        received_at: when the receiver stored the event, in UTC.
        attempt: number of this attempt, counted from 1.
        details: the resource as the platform describes it now. Its state may be later than the event's.
            The details of a `verification.data` event always hold data: without data no handler runs.
    """

    type: str
    resource_id: str
    webhook_id: str
    received_at: datetime
    attempt: int
    details: D_co


@dataclass(frozen=True, slots=True)
class Context(Generic[A_co, S_co]):
    """The second argument of a handler.

    Attributes:
        api: the platform's client: asynchronous for `async def` handlers, synchronous for plain functions.
        log: a logger bound to the event.
        idempotency_key: the same for every run of this handler for this event.
        stale: True if handlers have already seen a later state of the same issuance or presentation. Do not
            overwrite what they wrote for it.
        state: the value that the plugin's start-up function returned, or None.
    """

    api: A_co
    log: structlog.stdlib.BoundLogger
    idempotency_key: str
    stale: bool
    state: S_co


#: The context of an `async def` handler.
AsyncContext: TypeAlias = Context[AsyncApi, S_co]
#: The context of a plain function.
SyncContext: TypeAlias = Context[SyncApi, S_co]
