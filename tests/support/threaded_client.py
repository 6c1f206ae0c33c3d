"""The platform's client as plain handlers have it: calls from threads, made on an event loop beside them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager

from anyio.from_thread import start_blocking_portal

from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.http.transport import PyreqwestTransport
from credhook.worker.api.token import ClientCredentials


@contextmanager
def sync_api(api_url: str, auth: ClientCredentials, *, transport: PyreqwestTransport) -> Iterator[SyncApi]:
    """Yield a client for this thread and others, with an event loop of the workers' kind. Close the transport, too."""

    @asynccontextmanager
    async def client() -> AsyncIterator[SyncApi]:
        async with aclosing(transport), aclosing(auth), AsyncApi(api_url, auth, transport=transport) as api:
            yield SyncApi(api)

    options = {"use_uvloop": True}
    with start_blocking_portal(backend_options=options) as portal, portal.wrap_async_context_manager(client()) as api:
        yield api
