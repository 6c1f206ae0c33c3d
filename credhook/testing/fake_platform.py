"""`FakeApi`: the worker's own API client, answered by a sandbox in this process, without a network."""

import functools
import json
import time
import weakref
from typing import Any, Final, NamedTuple

import httpx
from pydantic_core import to_json

from credhook.events import resource_of
from credhook.sandbox import certificates, deliveries, resources, templates, tenant, users
from credhook.sandbox.app import assemble, load_fixtures
from credhook.worker.api.client import Api, AsyncApi, Sender
from credhook.worker.api.http.httpx_transport import HttpxTransport
from credhook.worker.api.operations import Namespace
from credhook.worker.api.token import ClientCredentials
from credhook.worker.handlers.arguments import FetchedEvent

#: pytest shows the author's lines and not ours.
__tracebackhide__ = True

_URL: Final = "http://127.0.0.1:8700"

#: Fields that differ between two runs with the same effects: generated ids and keys, addresses with ids, and times.
_VOLATILE: Final = frozenset(
    {"id", "certificateId", "createdAt", "updatedAt", "archivedAt", "expiresAt"}
    | {"certificateSigningRequest", "subjectKeyIdentifier"}
    | {"offerUri", "offerQrUri", "authorizationRequestUri", "authorizationRequestQrUri"}
)
#: Noun → the sandbox's model of its records.
_RECORDS: Final[dict[str, Any]] = {
    "users": users.UserRecord,
    "presets": templates.SandboxTemplate,
    "trusted_entities": certificates.RegisteredEntity,
    "certificates": certificates.ImportedCertificate,
    "endpoints": deliveries.SandboxEndpoint,
    "issuances": resources.IssuanceRecord,
    "presentations": resources.PresentationRecord,
}


class ApiCall(NamedTuple):
    """One call to the platform."""

    method: str
    """The HTTP method."""
    path: str
    """Decoded, below the API's root."""
    body: Any
    """The JSON that was sent, or None."""
    status: int | None
    """The status of the response, or None if there was no response."""


class FakeApi(AsyncApi):
    """The platform's API, backed by a sandbox of its own.

    Await its methods: `await api.users.list()`. In plain functions use `api.sync`. `calls` records the calls of
    handlers under test and of the test itself.
    """

    def __init__(self) -> None:
        self._tenant = new_tenant()
        self._sandbox = httpx.ASGITransport(assemble(self._tenant), raise_app_exceptions=False)
        self._calls: list[ApiCall] = []
        self._failures: list[httpx.Response | httpx.ReadTimeout] = []
        #: Path → the answer in place of the sandbox's.
        self._answers: dict[str, bytes] = {}
        client = httpx.AsyncClient(transport=httpx.MockTransport(self._handle), trust_env=False)
        credentials = ClientCredentials(_URL + tenant.TOKEN_PATH, tenant.CLIENT_ID, tenant.CLIENT_SECRET)
        super().__init__(Sender(_URL, credentials, HttpxTransport(client, 10.0)))
        #: The client for `async def` handlers. It has no method of this class, as in a worker.
        self.plain = AsyncApi(self._sender)
        for noun, operations in vars(self).items():  # Tests may patch these.
            if isinstance(operations, Namespace):
                setattr(self.plain, noun, operations)

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        """Pass a request to the sandbox and record it, or fail it if the test asked for that."""
        path, content = request.url.path, request.content
        if path == tenant.TOKEN_PATH:
            return await self._sandbox.handle_async_request(request)
        if self._failures:
            answer = self._failures.pop(0)
        elif path in self._answers:
            answer = httpx.Response(200, content=self._answers[path], headers={"Content-Type": "application/json"})
        else:
            answer = await self._sandbox.handle_async_request(request)
        status = answer.status_code if isinstance(answer, httpx.Response) else None
        self._calls.append(ApiCall(request.method, path, json.loads(content) if content else None, status))
        if isinstance(answer, httpx.ReadTimeout):
            raise answer
        return answer

    @property
    def calls(self) -> tuple[ApiCall, ...]:
        """Return all calls so far, oldest first, without requests for tokens."""
        return tuple(self._calls)

    def fail(self, status: int = 503, *, retry_after: int | None = None, times: int = 1) -> None:
        """Fail the next calls.

        Args:
            status: of the response, from 300 to 599.
            retry_after: seconds in the Retry-After header, if any.
            times: number of calls.

        Raises:
            ValueError: The status is not one of a failure.
        """
        if status not in range(300, 600):
            raise ValueError("status= should be a number from 300 to 599")
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        error = {"status": status, "code": "TOLD_TO_FAIL", "detail": "The test asked for this failure."}
        for _ in range(times):
            self._failures.append(httpx.Response(status, json={"errors": [error]}, headers=headers))

    def time_out(self) -> None:
        """End the next call without a response, as after a time-out, but at once."""
        self._failures.append(httpx.ReadTimeout("The test asked for a time-out."))

    def answer(self, path: str, json: Any) -> None:
        """Answer requests to this path, with any query, with JSON. Use this for operations that the sandbox lacks.

        Raises:
            ValueError: The path does not begin with `/`.
        """
        if not path.startswith("/"):
            raise ValueError("the path should begin with /")
        self._answers[path] = to_json(json)

    def know(self, event: FetchedEvent) -> None:
        """Answer fetches of the event's resource with its details. `run` calls this itself."""
        resource = resource_of(event.type)
        path = self._sender.paths.get(resource.name, resource.path).replace("{id}", event.resource_id)
        written = event.details.model_dump_json(by_alias=True, exclude_unset=True)
        self._answers[path] = b'{"data": %s}' % written.encode()

    def effects(self) -> dict[str, list[Any]]:
        """Return the platform's records, by noun, in an order independent of time.

        Generated ids and times are left out, so that two runs with the same effects compare as equal.
        """
        return {
            noun: sorted((_stable(record.plain()) for record in self._tenant.state.all(model)), key=json.dumps)
            for noun, model in _RECORDS.items()
        }

    @functools.cached_property
    def sync(self) -> Api:
        """Return the client for plain functions."""
        return Api(self._sender)


def new_tenant() -> tenant.Tenant:
    """Return the state of a new sandbox, in memory. It delivers nothing."""
    state, tokens = tenant.StateFile(), tenant.TokenIssuer(time.time)
    organisation = tenant.Tenant(_URL, state, tokens, tenant.FaultSwitch(tenant.Faults()), announce=lambda *_: [])
    load_fixtures(organisation)
    weakref.finalize(organisation, state.close)
    return organisation


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _stable(field) for name, field in value.items() if name not in _VOLATILE}
    return [_stable(entry) for entry in value] if isinstance(value, list) else value
