"""The worker's two ways to the platform: on the event loop, and from threads, which have the loop call for them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from threaded_client import sync_api

from credhook.worker.api.client import AsyncApi
from credhook.worker.api.token import ClientCredentials

WAYS = ["loop", "thread"]

#: Calls a method of the platform's nouns, by name.
Caller = Callable[..., Coroutine[Any, Any, Any]]


@asynccontextmanager
async def calling(way: str, api_url: str, auth: ClientCredentials, **options: Any) -> AsyncIterator[Caller]:
    """A client of that way. The options are those of `AsyncApi`; a transport among them is closed as well."""
    if way == "thread":
        with sync_api(api_url, auth, **options) as in_thread:

            async def call_from_thread(noun: str, verb: str, *names: str) -> Any:
                return await asyncio.to_thread(getattr(getattr(in_thread, noun), verb), *names)

            yield call_from_thread
        return
    async with AsyncApi(api_url, auth, **options) as api:

        async def call(noun: str, verb: str, *names: str) -> Any:
            return await getattr(getattr(api, noun), verb)(*names)

        try:
            yield call
        finally:
            await auth.aclose()
            if "transport" in options:
                await options["transport"].aclose()
