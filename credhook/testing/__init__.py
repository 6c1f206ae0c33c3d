"""The test kit for handler authors: events, the platform in this process, and a worker's decisions.

    from credhook.testing import event, run

    result = run(activate, event("openid4vc.issuance.completed"))
    assert result.outcome == "done"

Each name is imported when it is first used, so that a project's other tests do not wait for imports.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from credhook.testing.events import event, load_event, variants
    from credhook.testing.fake_platform import ApiCall, FakeApi
    from credhook.testing.idempotency import aassert_idempotent, assert_idempotent
    from credhook.testing.running import Result, arun, run
    from credhook.testing.whole_event import EventResult, arun_event, run_event

__all__ = [
    "ApiCall", "EventResult", "FakeApi", "Result", "aassert_idempotent", "arun", "arun_event", "assert_idempotent",
    "event", "load_event", "run", "run_event", "variants",
]  # fmt: skip


def __getattr__(name: str) -> object:
    for home in ("events", "fake_platform", "running", "idempotency", "whole_event") if name in __all__ else ():
        module = import_module(f"credhook.testing.{home}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
