"""The platform's client as plain handlers have it: calls from threads, made on an event loop beside them."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.token import ClientCredentials


@contextmanager
def sync_api(api_url: str, auth: ClientCredentials, **options: Any) -> Iterator[SyncApi]:
    """A client for this thread and others, with an event loop of its own, of the workers' kind.

    The options are those of `AsyncApi`; a transport among them is closed as well.
    """
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="the client's loop")
    thread.start()

    async def made() -> tuple[AsyncApi, SyncApi]:
        api = AsyncApi(api_url, auth, **options)
        return api, SyncApi(api)

    async def closed(api: AsyncApi) -> None:
        await auth.aclose()
        await api.aclose()
        if "transport" in options:
            await options["transport"].aclose()

    api = None
    try:
        api, facade = asyncio.run_coroutine_threadsafe(made(), loop).result()
        yield facade
    finally:
        if api is not None:
            asyncio.run_coroutine_threadsafe(closed(api), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
