"""`FakeApi`: the worker's own API client, answered by a sandbox in this process, without a network."""

import asyncio
import functools
import json
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import httpx

from credhook.events import resource_of
from credhook.sandbox.app import assemble, load_fixtures
from credhook.sandbox.certificates import ImportedCertificate, RegisteredEntity
from credhook.sandbox.deliveries import SandboxEndpoint
from credhook.sandbox.resources import IssuanceRecord, PresentationRecord
from credhook.sandbox.templates import PresetRecord
from credhook.sandbox.tenant import CLIENT_ID, CLIENT_SECRET, Faults, FaultSwitch, StateFile, Tenant, TokenIssuer
from credhook.sandbox.users import UserRecord
from credhook.sandbox.wire import WireModel
from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.token import ClientCredentials
from credhook.worker.handlers.types import FetchedEvent
from credhook.worker.platform.circuit import Circuit, Phase, PlatformPaused, outcome_of

_URL: Final = "http://127.0.0.1:8700"
_TOKEN_PATH: Final = "/realms/sandbox/protocol/openid-connect/token"  # noqa: S105  A path.
#: Segments of a path that name an operation. Later segments may name a person.
_SAFE_SEGMENTS: Final = 4
_NOT_FOUND: Final = 404

#: Fields that differ between two runs with the same effects: generated ids, and times.
_VOLATILE: Final = frozenset({"id", "certificateId", "createdAt", "updatedAt", "archivedAt", "expiresAt", "iat"})
_RECORDS: Final[Mapping[str, type[WireModel]]] = {
    "users": UserRecord,
    "presets": PresetRecord,
    "trusted_entities": RegisteredEntity,
    "certificates": ImportedCertificate,
    "endpoints": SandboxEndpoint,
    "issuances": IssuanceRecord,
    "presentations": PresentationRecord,
}


class ApiCall(NamedTuple):
    """One call to the platform. The repr omits personal data.

    Attributes:
        method: the HTTP method.
        path: decoded, below the API's root.
        body: the JSON that was sent, or None.
        status: the status of the response, or None if there was no response.
    """

    method: str
    path: str
    body: Any
    status: int | None

    def __repr__(self) -> str:
        noun = "/".join(self.path.split("/")[:_SAFE_SEGMENTS])
        return f"ApiCall({self.method} {noun}{'/…' if noun != self.path else ''} → {self.status or 'no answer'})"


class _Failure(NamedTuple):
    status: int | None
    retry_after: int | None = None


class _Transport(httpx.AsyncBaseTransport):
    """Passes requests to the sandbox, records them, and fails the next ones if told to."""

    def __init__(self, tenant: Tenant) -> None:
        self._inner = httpx.ASGITransport(assemble(tenant), raise_app_exceptions=False)
        self.calls: list[ApiCall] = []
        self.failures: deque[_Failure] = deque()
        #: Path → response to a GET that the sandbox answers with 404.
        self.known: dict[str, bytes] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == _TOKEN_PATH:
            return await self._inner.handle_async_request(request)
        content, status = await request.aread(), None
        # A real network suspends the caller as well. `crash_after` and `assert_idempotent` need that.
        await asyncio.sleep(0)
        try:
            response = self._fail(self.failures.popleft()) if self.failures else await self._answer(request)
            status = response.status_code
            return response
        finally:
            body = json.loads(content) if content else None
            self.calls.append(ApiCall(request.method, request.url.path, body, status))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        known = self.known.get(request.url.path) if request.method == "GET" else None
        if response.status_code == _NOT_FOUND and known is not None:
            await response.aclose()
            return httpx.Response(200, content=known, headers={"Content-Type": "application/json"})
        return response

    @staticmethod
    def _fail(failure: _Failure) -> httpx.Response:
        if failure.status is None:
            raise httpx.ReadTimeout("The test asked for a time-out.")
        headers = {} if failure.retry_after is None else {"Retry-After": str(failure.retry_after)}
        error = {"status": failure.status, "code": "TOLD_TO_FAIL", "detail": "The test asked for this failure."}
        return httpx.Response(failure.status, json={"errors": [error]}, headers=headers)


class FakeApi(AsyncApi):
    """The platform's API, backed by a sandbox of its own.

    Await its methods: `await api.users.list()`. In plain functions use `api.sync`. `calls` records the calls of
    handlers under test and of the test itself.
    """

    def __init__(self) -> None:
        self._tenant = new_tenant()
        self._recording = _Transport(self._tenant)
        self._credentials = ClientCredentials(_URL + _TOKEN_PATH, CLIENT_ID, CLIENT_SECRET)
        super().__init__(_URL, self._credentials, transport=self._recording)

    @property
    def calls(self) -> tuple[ApiCall, ...]:
        """Return all calls so far, oldest first, without requests for tokens."""
        return tuple(self._recording.calls)

    def fail(self, status: int = 503, *, retry_after: int | None = None, times: int = 1) -> None:
        """Fail the next calls.

        Args:
            status: of the response.
            retry_after: seconds in the Retry-After header, if any.
            times: number of calls.
        """
        self._recording.failures.extend([_Failure(status, retry_after)] * times)

    def time_out(self, *, times: int = 1) -> None:
        """End the next calls without a response, as after a time-out, but at once."""
        self._recording.failures.extend([_Failure(None)] * times)

    def know(self, event: FetchedEvent) -> None:
        """Answer fetches of the event's resource with its details. `run` calls this itself."""
        resource = resource_of(event.type)
        path = self.paths.get(resource.name, resource.path).replace("{id}", event.resource_id)
        written = event.details.model_dump_json(by_alias=True, exclude_unset=True)
        self._recording.known[path] = b'{"data": %s}' % written.encode()

    def effects(self) -> dict[str, list[Any]]:
        """Return what is on the platform, by noun, in an order independent of time.

        Generated ids and times are left out, so that two runs with the same effects compare as equal.
        """
        return {
            noun: sorted((_stable(record.plain()) for record in self._tenant.state.of(model).all()), key=json.dumps)
            for noun, model in _RECORDS.items()
        }

    def guarded(self, breaker: "FakeBreaker") -> AsyncApi:
        """Return a client of the same platform behind a circuit breaker."""
        return AsyncApi(_URL, self._credentials, transport=self._recording, guard=breaker)

    @functools.cached_property
    def sync(self) -> SyncApi:
        """Return the client for plain functions. Its calls run on an event loop in another thread."""

        async def make() -> SyncApi:
            return SyncApi(self)

        return asyncio.run_coroutine_threadsafe(make(), _loop()).result()


class FakeBreaker:
    """The circuit breaker of a fleet of one, on a clock that the test moves. It is both `Guard` and `Permit`."""

    def __init__(self, now: Callable[[], float], chance: Callable[[], float]) -> None:
        """`now`: seconds. `chance`: a number from 0 to 1 for each call."""
        self._now = now
        self._chance = chance
        self._circuit = Circuit()

    async def acquire(self, operation: str) -> "FakeBreaker":
        """Let the call pass unless the circuit is open."""
        if self._circuit.phase(self._now()) is Phase.OPEN:
            message = f"{operation}: not sent: the circuit breaker is open"
            raise PlatformPaused(message, operation=operation, retry_after=self.pause())
        return self

    def pause(self) -> float:
        """Return the seconds for which the circuit stays open; 0 if it is closed."""
        return self._circuit.pause(self._now())

    def answered(self, status: int | None, retry_after: float | None) -> None:
        """Count a response, or the lack of one."""
        outcome = replace(outcome_of(status, retry_after, at=self._now(), probe=True), chance=self._chance())
        self._circuit = self._circuit.after(outcome)

    def unanswered(self, cause: str) -> None:  # noqa: ARG002  Part of the protocol.
        """Count a call without a response."""
        self.answered(None, None)

    def cancelled(self) -> None:
        """Do nothing: a cancelled call says nothing about the platform."""


def new_tenant() -> Tenant:
    """Return the state of a new sandbox, in memory. It delivers nothing."""
    tenant = Tenant(
        _URL,
        StateFile(),
        TokenIssuer(time.time),
        FaultSwitch(Faults()),
        lambda event_type, resource_id: [],  # noqa: ARG005  Deliveries.
    )
    load_fixtures(tenant)
    weakref.finalize(tenant, tenant.state.close)
    return tenant


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _stable(field) for name, field in value.items() if name not in _VOLATILE}
    return [_stable(entry) for entry in value] if isinstance(value, list) else value


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all synchronous clients, which runs until the process ends."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="credhook.testing").start()
    return loop
