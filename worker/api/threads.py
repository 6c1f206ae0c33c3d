"""The platform's API for threads: each call is made on the event loop, and the thread waits for it."""

import asyncio
import threading
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import Unavailable
from credhook.worker.api.namespaces import Platform, SyncSender
from credhook.worker.api.operations import Call

R = TypeVar("R")


class SyncApi(Platform[SyncSender]):
    """The platform's API for plain functions in threads: the same nouns, bounds and errors, results in place.

    To be made on the event loop that makes the calls.
    """

    def __init__(self, api: AsyncApi) -> None:
        super().__init__(self, **api.paths)
        self._api = api
        self._loop = asyncio.get_running_loop()
        self._loops_thread = threading.get_ident()

    def send(self, call: Call[R]) -> R:
        """Send a call and wait for its result.

        Raises:
            ApiError: It did not succeed.
            RuntimeError: It was made from the event loop, which would wait for itself.
        """
        if threading.get_ident() == self._loops_thread:
            raise RuntimeError(f"{call.operation.name}: called on the event loop: make the handler an `async def`")
        if not self._loop.is_running():  # It would never come to it.
            raise _stopping(call)
        sending = self._api.send(call)
        try:
            running = asyncio.run_coroutine_threadsafe(sending, self._loop)
        except RuntimeError:  # The loop has ended meanwhile.
            sending.close()
            raise _stopping(call) from None
        try:
            return running.result()
        except CancelledError:
            raise _stopping(call) from None


def _stopping(call: Call[Any]) -> Unavailable:
    return Unavailable(f"{call.operation.name}: not sent: the worker is stopping", operation=call.operation.name)
