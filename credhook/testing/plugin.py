"""Fixtures for pytest, wherever credhook is installed.

Nothing of ours is imported before a test asks for it: a project's other tests do not pay for us.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import pytest

if TYPE_CHECKING:
    from credhook.testing.platform.api import FakeApi
    from credhook.testing.running import Function, RunOptions
    from credhook.testing.trial import Result
    from credhook.worker.handlers.handler import Handler
    from credhook.worker.handlers.types import Context, FetchedEvent


class Run(Protocol):
    """What `credhook_run` is."""

    def __call__(
        self, handler: "Handler | Function", event: "FetchedEvent", **options: "Unpack[RunOptions]"
    ) -> "Result":
        """As `credhook.testing.run`."""


class MakeContext(Protocol):
    """What `credhook_context` is."""

    def __call__(
        self, handler: "Handler | Function", event: "FetchedEvent", *, stale: bool = False, state: object = None
    ) -> "Context[Any, Any]":
        """What a worker would give this handler for this event."""


@pytest.fixture
def credhook_event() -> "Callable[..., FetchedEvent]":
    """Makes events: `credhook.testing.event`."""
    from credhook.testing.events import event

    return event


@pytest.fixture
def credhook_api() -> "FakeApi":
    """A platform of the test's own: the one of `credhook_run` and `credhook_context`."""
    from credhook.testing.platform.api import FakeApi

    return FakeApi()


@pytest.fixture
def credhook_run(credhook_api: "FakeApi") -> Run:
    """Runs a handler as a worker would, `credhook.testing.run`; in an `async` test await `credhook.testing.arun`."""
    from credhook.testing.running import run

    def run_here(handler: Any, event: Any, **options: Any) -> Any:
        return run(handler, event, **{"api": credhook_api, **options})

    return run_here


@pytest.fixture
def credhook_context(credhook_api: "FakeApi") -> MakeContext:
    """Makes the context of a handler that the test calls itself."""
    from structlog.testing import LogCapture

    from credhook.testing.running import handler_of
    from credhook.testing.trial import context, logger

    def make(handler: Any, event: Any, *, stale: bool = False, state: object = None) -> Any:
        subject = handler_of(handler)
        credhook_api.know(event)
        api = credhook_api if subject.is_async else credhook_api.sync
        return context(subject, event, api, log=logger(LogCapture()), stale=stale, state=state)

    return make
