"""`context.api` without a network: the worker's own client, answered by a sandbox in this process."""

import asyncio
import functools
import threading
from typing import Any

from credhook.sandbox.access import CLIENT_ID, CLIENT_SECRET
from credhook.sandbox.app import assemble
from credhook.testing.platform.sandbox import TOKEN_PATH, URL, effects, new_tenant
from credhook.testing.platform.transport import ApiCall, Failure, RecordingTransport
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.guard import Guard
from credhook.worker.api.threads import SyncApi
from credhook.worker.api.token import ClientCredentials
from credhook.worker.handlers.types import FetchedEvent


class FakeApi(AsyncApi):
    """The platform's API, played by a sandbox of its own: what is created is there, what is not is 404.

    Its nouns are awaited, `await api.users.list()`; those of `api.sync` are not. What it is asked by the handlers that
    `run` runs, and by the test itself, is in `calls`.
    """

    def __init__(self) -> None:
        self._tenant = new_tenant()
        self._recording = RecordingTransport(assemble(self._tenant))
        self._credentials = ClientCredentials(URL + TOKEN_PATH, CLIENT_ID, CLIENT_SECRET)
        super().__init__(URL, self._credentials, transport=self._recording)

    @property
    def calls(self) -> tuple[ApiCall, ...]:
        """Every call so far, the oldest first."""
        return tuple(self._recording.calls)

    def fail(self, status: int = 503, *, retry_after: int | None = None, times: int = 1) -> None:
        """Have the next calls refused.

        Args:
            status: what they are answered with.
            retry_after: seconds to wait that the answer asks for, as a platform's 429 does.
            times: how many.
        """
        self._recording.failures.extend([Failure(status, retry_after)] * times)

    def time_out(self, *, times: int = 1) -> None:
        """Have the next calls end without an answer, as if their time were over. Nobody waits for that here."""
        self._recording.failures.extend([Failure(None)] * times)

    def know(self, event: FetchedEvent) -> None:
        """Answer with the event's details when they are asked for. `run` sees to that itself."""
        path = self.paths["issuance_path" if event.type.startswith("openid4vc.issuance.") else "presentation_path"]
        written = event.details.model_dump_json(by_alias=True, exclude_unset=True)
        self._recording.known[path.replace("{id}", event.resource_id)] = b'{"data": %s}' % written.encode()

    def effects(self) -> dict[str, list[Any]]:
        """What all calls have come to: the platform's users, presets and so on, by noun.

        Without ids that the platform makes up, and times, so that two runs that come to the same compare as equal.
        """
        return effects(self._tenant)

    def guarded(self, guard: Guard) -> AsyncApi:
        """The same platform behind a guard, as handlers meet it."""
        return AsyncApi(URL, self._credentials, transport=self._recording, guard=guard)

    @functools.cached_property
    def sync(self) -> SyncApi:
        """The same for plain functions and plain tests: its calls are made on an event loop in another thread."""
        return asyncio.run_coroutine_threadsafe(_in_threads(self), _loop()).result()


async def _in_threads(api: AsyncApi) -> SyncApi:
    return SyncApi(api)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all, for as long as the process lives."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="credhook.testing").start()
    return loop
