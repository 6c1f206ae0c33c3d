"""What a handler is given: the event with its details, and a context to work with.

Both are generic, so that an editor knows what stands in them:

    async def activate(event: FetchedEvent[Issuance], context: AsyncContext) -> None: ...

A plugin's start-up may return what its handlers share; `AsyncContext[Database]` then says what `context.state` is.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Literal, TypeAlias

import structlog
from typing_extensions import TypeVar

from credhook.worker.api.client import AsyncApi
from credhook.worker.api.models import Issuance, Presentation
from credhook.worker.api.threads import SyncApi

IssuanceType = Literal[
    "openid4vc.issuance.offered",
    "openid4vc.issuance.partiallyIssued",
    "openid4vc.issuance.completed",
    "openid4vc.issuance.failed",
    "openid4vc.issuance.expired",
]
PresentationType = Literal[
    "openid4vc.verification.requested",
    "openid4vc.verification.verified",
    "openid4vc.verification.data",
    "openid4vc.verification.failed",
    "openid4vc.verification.expired",
]
Details: TypeAlias = Issuance | Presentation

D_co = TypeVar("D_co", bound=Details, covariant=True, default=Details)
A_co = TypeVar("A_co", bound=AsyncApi | SyncApi, covariant=True, default=AsyncApi)
S_co = TypeVar("S_co", covariant=True, default=None)


@dataclass(frozen=True, slots=True)
class FetchedEvent(Generic[D_co]):
    """An event with what it refers to: the first argument of a handler.

    Attributes:
        type: one of the ten event types.
        resource_id: the issuance's or presentation's id.
        webhook_id: the id of the delivery that brought it; the same for all its repetitions.
        received_at: when the receiver stored it, in UTC.
        attempt: which attempt this is, counted from 1.
        details: the resource as the platform describes it now, which may be later than the event. That of a
            `verification.data` has data: without it, no handler is run.
    """

    type: str
    resource_id: str
    webhook_id: str
    received_at: datetime
    attempt: int
    details: D_co


@dataclass(frozen=True, slots=True)
class Context(Generic[A_co, S_co]):
    """What a handler works with: the second argument.

    Attributes:
        api: the platform's client; asynchronous for `async def` handlers, synchronous for plain ones.
        log: a logger bound to the event.
        idempotency_key: the same for every run of this handler for this event, and for no other.
        stale: whether a later state of the same issuance or presentation has been handled before: events arrive in
            any order. What the handler writes should then not overwrite what it wrote for the later one.
        state: what the plugin's start-up returned; None without one.
    """

    api: A_co
    log: structlog.stdlib.BoundLogger
    idempotency_key: str
    stale: bool
    state: S_co


#: Of an `async def` handler, and of a plain one.
AsyncContext: TypeAlias = Context[AsyncApi, S_co]
SyncContext: TypeAlias = Context[SyncApi, S_co]
