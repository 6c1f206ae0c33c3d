"""What carries a handler's calls to the sandbox in this process: it remembers each, and loses some if told to."""

import json
from collections import deque
from typing import Any, Final, NamedTuple

import httpx
from starlette.types import ASGIApp

from credhook.testing.platform.sandbox import TOKEN_PATH

#: Segments of a path that name an operation; those behind them can name a person.
_NOUN: Final = 4

_NOT_FOUND: Final = 404


class ApiCall(NamedTuple):
    """One call to the platform. The repr leaves out what can be personal data.

    Attributes:
        method: of HTTP.
        path: decoded, below the API's root.
        body: the JSON that was sent, or None.
        status: what the platform answered; None where it did not.
    """

    method: str
    path: str
    body: Any
    status: int | None

    def __repr__(self) -> str:
        noun = "/".join(self.path.split("/")[:_NOUN])
        return f"ApiCall({self.method} {noun}{'/…' if noun != self.path else ''} → {self.status or 'no answer'})"


class Failure(NamedTuple):
    """How a call is to fail: the status, None for no answer in time, and the seconds that it asks to wait."""

    status: int | None
    retry_after: int | None = None


class RecordingTransport(httpx.AsyncBaseTransport):
    """One of httpx's transports; the network is the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._inner = httpx.ASGITransport(app, raise_app_exceptions=False)
        #: Every call, the oldest first. Requests for tokens are none.
        self.calls: list[ApiCall] = []
        #: The next calls fail so, one after the other.
        self.failures: deque[Failure] = deque()
        #: Path → what is answered to a GET where the sandbox has nothing there.
        self.known: dict[str, bytes] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Carry a request over, and its answer back."""
        if request.url.path == TOKEN_PATH:
            return await self._inner.handle_async_request(request)
        content = await request.aread()
        status: int | None = None
        try:
            response = self._failed(self.failures.popleft()) if self.failures else await self._answer(request)
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

    def _failed(self, failure: Failure) -> httpx.Response:
        if failure.status is None:
            raise httpx.ReadTimeout("told to")
        headers = {} if failure.retry_after is None else {"Retry-After": str(failure.retry_after)}
        error = {"status": failure.status, "code": "TOLD_TO_FAIL", "detail": "The test wanted this call to fail."}
        return httpx.Response(failure.status, json={"errors": [error]}, headers=headers)
