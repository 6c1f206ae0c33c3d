"""Fixtures for pytest. Nothing of credhook is imported before a test uses one: other tests must not become slower."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import pytest

if TYPE_CHECKING:
    from credhook.testing.fake_platform import FakeApi
    from credhook.testing.running import Function, Result, RunOptions
    from credhook.worker.handlers.registry import Handler
    from credhook.worker.handlers.types import Context, FetchedEvent


class Run(Protocol):
    """The type of `credhook_run`."""

    def __call__(
        self, handler: "Handler | Function", event: "FetchedEvent", **options: "Unpack[RunOptions]"
    ) -> "Result":
        """Run the handler as `credhook.testing.run` does."""


class MakeContext(Protocol):
    """The type of `credhook_context`."""

    def __call__(
        self, handler: "Handler | Function", event: "FetchedEvent", *, stale: bool = False, state: object = None
    ) -> "Context[Any, Any]":
        """Return the context that a worker would give this handler for this event."""


@pytest.fixture
def credhook_event() -> "Callable[..., FetchedEvent]":
    """Make events: `credhook.testing.event`."""
    from credhook.testing.events import event

    return event


@pytest.fixture
def credhook_api() -> "FakeApi":
    """Return the test's own platform, shared with `credhook_run` and `credhook_context`."""
    from credhook.testing.fake_platform import FakeApi

    return FakeApi()


@pytest.fixture
def credhook_run(credhook_api: "FakeApi") -> Run:
    """Run a handler as a worker would: `credhook.testing.run`. In an `async` test await `credhook.testing.arun`."""
    from credhook.testing.running import run

    def run_here(handler: Any, event: Any, **options: Any) -> Any:
        return run(handler, event, **{"api": credhook_api, **options})

    return run_here


@pytest.fixture
def credhook_context(credhook_api: "FakeApi") -> MakeContext:
    """Make the context of a handler that the test calls itself."""
    from structlog.testing import LogCapture

    from credhook.testing.running import handler_of, make_context

    def make(handler: Any, event: Any, *, stale: bool = False, state: object = None) -> Any:
        subject = handler_of(handler)
        credhook_api.know(event)
        api = credhook_api if subject.is_async else credhook_api.sync
        return make_context(subject, event, api, capture=LogCapture(), stale=stale, state=state)

    return make
