"""The platform's client, once for each event that is under way: one connection per slot.

httpx's pool slows down with the square of its connections: a pool of 100 did 96 requests a second where 100 clients of
one connection did 1,410, measured. Credentials and the context for TLS are shared by all.
"""

from typing import Final

from worker.api.auth import ClientCredentials
from worker.api.client import AsyncApi, SyncApi, shared_ssl_context
from worker.api.line import Line
from worker.platform import Condition
from worker.settings import WorkerSettings

#: Connections that a slot opens at most: one, but for a handler that calls beside its own calls.
_CONNECTIONS: Final = 10


class Slot:
    """The clients of one event at a time; each is made when it is first needed."""

    def __init__(self, settings: WorkerSettings, auth: ClientCredentials, condition: Condition) -> None:
        self._settings = settings
        self._auth = auth
        self._condition = condition
        self._fetching: AsyncApi | None = None
        self._calling: AsyncApi | None = None
        self._in_thread: SyncApi | None = None

    @property
    def fetching(self) -> AsyncApi:
        """For details, whose calls have been admitted when the event was taken."""
        if self._fetching is None:
            self._fetching = AsyncApi.from_settings(
                self._settings, auth=self._auth, gate=self._condition.fetches, transport=Line(shared_ssl_context())
            )
        return self._fetching

    @property
    def calling(self) -> AsyncApi:
        """For coroutine handlers, and for details of which nobody knew when the event was taken."""
        if self._calling is None:
            self._calling = AsyncApi.from_settings(
                self._settings, auth=self._auth, gate=self._condition.calls, max_connections=_CONNECTIONS
            )
        return self._calling

    @property
    def in_thread(self) -> SyncApi:
        """For plain handlers."""
        if self._in_thread is None:
            self._in_thread = SyncApi.from_settings(
                self._settings, auth=self._auth, gate=self._condition.calls, max_connections=_CONNECTIONS
            )
        return self._in_thread

    async def aclose(self) -> None:
        """Close the connections."""
        for client in (self._fetching, self._calling):
            if client is not None:
                await client.aclose()
        if self._in_thread is not None:
            self._in_thread.close()
