"""The arguments of a handler: the event, and the context with client, log, state and progress.

Both are generic, so that type checkers and editors know what they hold: `event: FetchedEvent[Issuance], context:
AsyncContext`. `AsyncContext[Database]` is the context of a plugin whose start-up function returns a `Database`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeAlias, overload

import structlog
from typing_extensions import TypeVar

from credhook.worker.api.client import Api, AsyncApi
from credhook.worker.api.models import Issuance, Presentation

Details: TypeAlias = Issuance | Presentation

D_co = TypeVar("D_co", bound=Details | None, covariant=True, default=Details)
A_co = TypeVar("A_co", bound=AsyncApi | Api, covariant=True, default=AsyncApi)
S_co = TypeVar("S_co", covariant=True, default=None)


@dataclass(frozen=True, slots=True)
class FetchedEvent(Generic[D_co]):
    """An event with the details of its resource: the first argument of a handler."""

    type: str
    """One of the ten event types."""
    resource_id: str
    """The id of the issuance or presentation."""
    webhook_id: str
    """The id of the delivery. Repetitions of the delivery have the same id."""
    received_at: datetime
    """When the receiver stored the event, in UTC."""
    attempt: int
    """Number of this handler's run for the event, counted from 1. Runs that a crash has cut short count."""
    details: D_co
    """The resource as the platform describes it now. Its state may be later than the event's.

    `details.raw` is the whole JSON. If data was announced, `details.has_data` says whether it can be read.
    """
    age: timedelta = timedelta(0)
    """Time since `received_at` when this attempt began, by the clock that set `received_at`.

    Decide by it, and not by the host's clock, what is due: the test kit moves it.
    """


#: Maximum bytes of JSON that a handler may save for one event.
MOST_PROGRESS_BYTES: Final = 8_192


class Progress(Generic[A_co]):
    """What a handler has reached in its work on an event: a small JSON value that its next attempt finds.

    It lasts until the event has ended. Save ids and positions, no personal data.
    """

    __slots__ = "_load", "_loop", "_saved", "_write"

    def __init__(
        self,
        load: Callable[[], bytes | None],
        write: Callable[[bytes], Awaitable[None]],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`load` returns what an earlier attempt has saved. `write` saves, on this loop; None: on any loop."""
        self._load, self._write, self._loop = load, write, loop
        self._saved: bytes | None = None

    @property
    def value(self) -> Any:
        """The value that was saved last, in this attempt or an earlier one, or None."""
        if self._saved is None:
            self._saved = self._load() or b"null"
        return json.loads(self._saved)

    @overload
    def save(self: "Progress[AsyncApi]", value: Any) -> Coroutine[Any, Any, None]: ...
    @overload
    def save(self: "Progress[Api]", value: Any) -> None: ...
    def save(self: "Progress[Any]", value: Any) -> Coroutine[Any, Any, None] | None:
        """Save a JSON value of up to 8,192 bytes in place of the last one. It is stored once this returns.

        Raises:
            TypeError, ValueError: the value is no JSON, or too large.
            RuntimeError: this worker no longer has the event. Another one may have begun the next attempt.
        """
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        if len(text) > MOST_PROGRESS_BYTES:
            raise ValueError(f"progress of {len(text):,} bytes of JSON: save {MOST_PROGRESS_BYTES:,} at most")
        saving: Any = self._save(text)
        saving.__qualname__ = "context.progress.save"  # Python warns under this name if the call lacks its await.
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not None and here is (self._loop or here):
            return saving  # type: ignore[no-any-return]
        if self._loop is None:
            asyncio.run(saving)
            return None
        try:
            running = asyncio.run_coroutine_threadsafe(saving, self._loop)
        except RuntimeError:  # The loop has ended.
            saving.close()
            raise
        running.result()
        return None

    async def _save(self, text: bytes) -> None:
        await self._write(text)
        self._saved = text


async def refuse_progress(_: bytes) -> None:
    """Raise an error in place of saving: functions of `on_error` and `on_give_up` have no progress."""
    raise RuntimeError("on_error and on_give_up have no progress to save: save it in the handler")


@dataclass(frozen=True, slots=True)
class Context(Generic[A_co, S_co]):
    """The second argument of a handler."""

    api: A_co
    """The platform's client: asynchronous for `async def` handlers, synchronous for plain functions."""
    log: structlog.stdlib.BoundLogger
    """A logger bound to the event."""
    idempotency_key: str
    """The same for every run of this handler for this event."""
    stale: bool
    """True if handlers have already seen a later state of the same issuance or presentation.

    Do not overwrite what they wrote for it.
    """
    state: S_co
    """The value that the plugin's start-up function returned, or None."""
    progress: Progress[A_co]
    """What this handler has saved for the event, in this attempt or an earlier one.

    Functions of `on_error` and `on_give_up` have none: `value` is None, and `save` fails.
    """
    queue: str
    """The worker's CREDHOOK_QUEUE. Each tenant's deployment has its own."""


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A failed run of a handler: the first argument of the functions that `on_error` and `on_give_up` register."""

    error: Exception = field(repr=False)
    """What the handler raised. Its message may hold claims, so do not log it.

    If the event was given up before the handler ran: the error of the fetch, or `WorkerDied`.
    """
    event: FetchedEvent[Details | None]
    """The event, as the handler got it. `details` is None if they could not be fetched."""
    handler: str
    """The handler's name, `plugin.function`."""
    will_retry: bool
    """True if the handler runs again for the event."""


#: The context of an `async def` handler.
AsyncContext: TypeAlias = Context[AsyncApi, S_co]
#: The context of a plain function.
SyncContext: TypeAlias = Context[Api, S_co]
