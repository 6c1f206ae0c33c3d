"""The inbox for a credential platform's webhooks, as handler authors meet it.

    from credhook import Handlers

    handlers = Handlers("accounts")

    @handlers.on("openid4vc.issuance.completed")
    async def activate(event, context): ...

Each name is imported when it is first used, so that a receiver loads no code of the worker.
"""
# ruff: noqa: F403, F405  Type checkers take from models and errors what `__all__` names.

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from credhook.backoff import Backoff
    from credhook.events import EVENT_TYPES, Status
    from credhook.worker.api.client import Api, AsyncApi
    from credhook.worker.api.errors import *
    from credhook.worker.api.models import *
    from credhook.worker.api.operations import Elements, Page
    from credhook.worker.attempt.retry import GiveUp, Retry, WorkerDied
    from credhook.worker.handlers.arguments import AsyncContext, Context, FailedRun, FetchedEvent, SyncContext
    from credhook.worker.handlers.registry import Handlers, Options
    from credhook.worker.platform.circuit import PlatformPaused

__all__ = [
    "EVENT_TYPES", "Api", "ApiError", "AsyncApi", "AsyncContext", "Backoff", "CertificateRecord", "CertificateRequest",
    "CertificateSigner", "Context", "DidSigner", "Elements", "Endpoint", "EndpointRequest", "ErrorObject",
    "ExternalIdentifier", "FailedRun", "FetchedEvent", "Future", "GiveUp", "Handlers", "IdentityLink",
    "IdentityLinkRequest", "InvalidRequest", "InvalidResponse", "Issuance", "IssuedCredential", "ListedResource",
    "MdocAttribute", "MdocNamespace", "MdocPresetRequest", "MdocValidUntil", "NotFound", "OfferRequest",
    "OnboardingResult", "Options", "Page", "PlatformPaused", "Presentation", "PresentationError", "PresentedCredential",
    "Preset", "Retry", "SdJwtAttribute", "SdJwtPresetRequest", "SdJwtValidUntil", "Status", "SyncContext",
    "Template", "TrustedDidRequest", "TrustedEntity", "TrustedEntityRequest", "Unauthorized", "Unavailable", "User",
    "UserRequest", "WalletCredential", "WorkerDied",
]  # fmt: skip

#: The modules that define these names, the cheapest imports first.
_HOMES = (
    "credhook.backoff",
    "credhook.events",
    "credhook.worker.api.client",
    "credhook.worker.api.errors",
    "credhook.worker.api.models",
    "credhook.worker.api.operations",
    "credhook.worker.attempt.retry",
    "credhook.worker.handlers.arguments",
    "credhook.worker.handlers.registry",
    "credhook.worker.platform.circuit",
)


def __getattr__(name: str) -> object:
    for home in _HOMES if name in __all__ else ():
        if (value := getattr(import_module(home), name, None)) is not None:
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
