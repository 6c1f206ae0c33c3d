"""The inbox for a credential platform's webhooks, as handler authors meet it.

    from credhook import Handlers

    handlers = Handlers("accounts")

    @handlers.on("openid4vc.issuance.completed")
    async def activate(event, context): ...

Each name is imported when it is first used: a receiver loads nothing of the worker's.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from credhook.backoff import Backoff
    from credhook.events import EVENT_TYPES
    from credhook.worker.api.errors import (
        ApiError,
        InvalidRequest,
        InvalidResponse,
        NotFound,
        Unauthorized,
        Unavailable,
    )
    from credhook.worker.api.models import (
        EndpointRequest,
        Issuance,
        IssuedCredential,
        Presentation,
        PresentedCredential,
        TrustedEntityRequest,
        User,
        UserRequest,
    )
    from credhook.worker.attempt.retry import GiveUp, Retry
    from credhook.worker.handlers.registry import AsyncContext, Context, FetchedEvent, Handlers, SyncContext
    from credhook.worker.platform.circuit import PlatformPaused

__all__ = [
    "EVENT_TYPES",
    "ApiError",
    "AsyncContext",
    "Backoff",
    "Context",
    "EndpointRequest",
    "FetchedEvent",
    "GiveUp",
    "Handlers",
    "InvalidRequest",
    "InvalidResponse",
    "Issuance",
    "IssuedCredential",
    "NotFound",
    "PlatformPaused",
    "Presentation",
    "PresentedCredential",
    "Retry",
    "SyncContext",
    "TrustedEntityRequest",
    "Unauthorized",
    "Unavailable",
    "User",
    "UserRequest",
]

#: Module → the names that it defines.
_HOMES = {
    "credhook.backoff": "Backoff",
    "credhook.events": "EVENT_TYPES",
    "credhook.worker.api.errors": "ApiError InvalidRequest InvalidResponse NotFound Unauthorized Unavailable",
    "credhook.worker.api.models": "EndpointRequest Issuance IssuedCredential Presentation PresentedCredential "
    "TrustedEntityRequest User UserRequest",
    "credhook.worker.attempt.retry": "GiveUp Retry",
    "credhook.worker.handlers.registry": "AsyncContext Context FetchedEvent Handlers SyncContext",
    "credhook.worker.platform.circuit": "PlatformPaused",
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
