"""The test kit for those who write handlers: events, the platform in this process, and a worker's decisions.

    from credhook.testing import event, run

    result = run(activate, event("openid4vc.issuance.completed"))
    assert result.outcome == "done"

Each name is imported when it is first used, so that a project's other tests do not wait for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from credhook.testing.awkward import variants
    from credhook.testing.events import event
    from credhook.testing.idempotency import aassert_idempotent, assert_idempotent
    from credhook.testing.platform.api import FakeApi
    from credhook.testing.platform.transport import ApiCall
    from credhook.testing.running import arun, run
    from credhook.testing.trial import Result

__all__ = [
    "ApiCall", "FakeApi", "Result", "aassert_idempotent", "arun", "assert_idempotent", "event", "run", "variants",
]  # fmt: skip

_HOMES = {
    "ApiCall": "credhook.testing.platform.transport",
    "FakeApi": "credhook.testing.platform.api",
    "Result": "credhook.testing.trial",
    "aassert_idempotent": "credhook.testing.idempotency",
    "arun": "credhook.testing.running",
    "assert_idempotent": "credhook.testing.idempotency",
    "event": "credhook.testing.events",
    "run": "credhook.testing.running",
    "variants": "credhook.testing.awkward",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
