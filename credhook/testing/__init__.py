"""The test kit for those who write handlers: events, the platform in this process, and a worker's decisions.

    from credhook.testing import event, run

    result = run(activate, event("openid4vc.issuance.completed"))
    assert result.outcome == "done"

Each name is imported when it is first used, so that a project's other tests do not wait for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from credhook.testing.api import FakeApi
    from credhook.testing.awkward import variants
    from credhook.testing.carrying import ApiCall
    from credhook.testing.events import event

__all__ = ["ApiCall", "FakeApi", "event", "variants"]

_HOMES = {
    "ApiCall": "credhook.testing.carrying",
    "FakeApi": "credhook.testing.api",
    "event": "credhook.testing.events",
    "variants": "credhook.testing.awkward",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
