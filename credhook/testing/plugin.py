"""Fixtures for pytest. A fixture imports credhook only when a test uses it, so that other tests stay fast."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import pytest

if TYPE_CHECKING:
    from credhook.testing.fake_platform import FakeApi
    from credhook.testing.running import Function, Result, RunOptions
    from credhook.worker.handlers.arguments import Context, FetchedEvent


class Run(Protocol):
    """The type of `credhook_run`."""

    def __call__(self, handler: "Function", event: "FetchedEvent", **options: "Unpack[RunOptions]") -> "Result":
        """Run the handler as `credhook.testing.run` does."""


@pytest.fixture
def credhook_api() -> "FakeApi":
    """Return the test's own platform, shared with `credhook_run` and `credhook_context`."""
    from credhook.testing.fake_platform import FakeApi

    return FakeApi()


@pytest.fixture
def credhook_run(credhook_api: "FakeApi") -> Run:
    """Run a handler as a worker would: `credhook.testing.run`. In an `async` test await `credhook.testing.arun`."""
    from credhook.testing.running import run

    return partial(run, api=credhook_api)


@pytest.fixture
def credhook_context(credhook_api: "FakeApi") -> "Callable[..., Context[Any, Any]]":
    """Make the context of a handler that the test calls itself, from `handler, event, stale=…, state=…`."""
    from credhook.testing.running import handler_of, make_context

    def make(handler: Any, event: Any, **options: Any) -> Any:
        subject = handler_of(handler)
        credhook_api.know(event)
        return make_context(subject, event, credhook_api.plain if subject.is_async else credhook_api.sync, **options)

    return make
