"""The receiver's routes, and which outcome is which status. The only file that knows Starlette.

A refusal says little to the sender and all to the log: the body is the platform's own `errors` envelope (specification,
section Errors), the log line holds the rule that was broken, and neither holds the path, since it may be the secret.
"""

import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final
from uuid import uuid4

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from receiver import metrics
from receiver.events import Event, Malformed
from receiver.inbox import Inbox, Outcome, Unavailable
from receiver.settings import ReceiverSettings
from receiver.signature import BadHeaders, Unauthenticated, authenticate, read_headers

log = structlog.get_logger("credhook.receiver")

#: Seconds after which a sender may come again: about what a restart of Redis takes.
RETRY_AFTER: Final = 5


#: Bytes of all header names and values. uvicorn sets no limit of its own where httptools parses.
MAX_HEADERS: Final = 16_384


class TooLarge(Exception):
    """The body is longer than `CREDHOOK_MAX_BODY`, or the headers are longer than any sender's."""


class NotFound(Exception):
    """The path is not ours; a wrong path secret looks the same as any other path."""


#: What a sender is told: status, and the code and title of the platform's own error objects.
_ANSWERS: Final[dict[type[Exception], tuple[int, str, str]]] = {
    BadHeaders: (400, "VALIDATION_ERROR", "Validation Failed"),
    Malformed: (400, "VALIDATION_ERROR", "Validation Failed"),
    Unauthenticated: (401, "UNAUTHORIZED", "Unauthorized"),
    NotFound: (404, "NOT_FOUND", "Not Found"),
    TooLarge: (413, "PAYLOAD_TOO_LARGE", "Payload Too Large"),
    Unavailable: (503, "SERVICE_UNAVAILABLE", "Service Unavailable"),
}

#: The words for it: only what the sender already knows or can mend.
_DETAILS: Final[dict[type[Exception], str]] = {
    Unauthenticated: "The delivery could not be authenticated.",
    NotFound: "There is nothing here.",
    TooLarge: "The delivery is too large.",
    Unavailable: "The delivery could not be stored; please send it again.",
}


def create_app(settings: ReceiverSettings, inbox: Inbox, *, parse: Callable[[bytes], Event] = Event.parse) -> Starlette:
    """The public application: deliveries, and two questions about the process's health.

    Args:
        settings: the receiver's.
        inbox: where deliveries are stored.
        parse: reads a body, once its sender is known.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await inbox.aclose()

    webhooks = Webhooks(settings, inbox, parse)
    path = settings.webhook_path + ("/{secret}" if settings.path_secret else "")
    app = Starlette(
        routes=[
            Route(path, webhooks, methods=["POST"]),
            Route("/healthz", _healthz, methods=["GET"]),
            Route("/readyz", Readiness(inbox), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _unexpected},
        lifespan=lifespan,
    )
    # A sender switches an endpoint off that redirects it; and the target would be whatever host the request names.
    app.router.redirect_slashes = False
    return app


class Webhooks:
    """The hot route, an ASGI application of its own: Starlette's request object would cost a third of the budget."""

    def __init__(self, settings: ReceiverSettings, inbox: Inbox, parse: Callable[[bytes], Event]) -> None:
        self._inbox = inbox
        self._parse = parse
        self._keys = settings.keys
        self._tolerance = settings.tolerance
        self._max_body = settings.max_body
        self._path_secret = settings.path_secret.get_secret_value().encode() if settings.path_secret else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one delivery."""
        try:
            outcome, delivery_id = await self._accept(scope, receive)
        except ClientDisconnect:
            return  # Nobody is left to answer, and nothing was written.
        except tuple(_ANSWERS) as refusal:
            await _refuse(refusal)(scope, receive, send)
        else:
            await _respond(202, {"data": {"id": delivery_id, "status": outcome.value}})(scope, receive, send)

    async def _accept(self, scope: Scope, receive: Receive) -> tuple[Outcome, str]:
        """Route, headers, bounded body, signature, JSON, ledger: each only after the one before."""
        self._check_path_secret(scope)
        headers = scope["headers"]
        if sum(len(name) + len(value) for name, value in headers) > MAX_HEADERS:
            raise TooLarge("the headers are over 16 KiB")
        claim = read_headers(headers, signed=bool(self._keys))
        body = await _read(scope, receive, self._max_body)
        if self._keys:
            authenticate(claim, body, self._keys, now=time.time(), tolerance=self._tolerance)
        event = self._parse(body)
        outcome = await self._inbox.accept(claim.delivery_id, event)
        return outcome, claim.delivery_id

    def _check_path_secret(self, scope: Scope) -> None:
        if self._path_secret is None:
            return
        given = str(scope["path_params"].get("secret", "")).encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._path_secret):
            raise NotFound("path_secret is wrong")


async def _read(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The body, but never more of it than `limit` bytes in memory."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > limit:
            raise TooLarge("content-length is over CREDHOOK_MAX_BODY")
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > limit:
            raise TooLarge("the body is over CREDHOOK_MAX_BODY")
        if not message.get("more_body", False):
            return body


class Readiness:
    """`GET /readyz`: whether a delivery would be stored just now."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 200 or 503, without a reason: the port is public."""
        ready = all(check.passed for check in await self._inbox.examine())
        response = PlainTextResponse("ready\n") if ready else PlainTextResponse("not ready\n", 503)
        await response(scope, receive, send)


async def _healthz(_: Request) -> Response:
    return PlainTextResponse("alive\n")


async def _http_error(_: Request, error: Exception) -> Response:
    """What Starlette itself refuses: an unknown path, another method."""
    if not isinstance(error, HTTPException):
        raise error
    code, title = error.detail.upper().replace(" ", "_"), error.detail
    return _envelope(error.status_code, code, title, title + ".", headers=error.headers)


async def _unexpected(_: Request, error: Exception) -> Response:
    """A mistake of ours. The sender keeps the delivery and comes again."""
    log.error("receiver_failed", error=type(error).__name__)
    return _envelope(500, "INTERNAL_SERVER_ERROR", "Internal Server Error", "The delivery was not stored.")


def _refuse(refusal: Exception) -> Response:
    status, code, title = _ANSWERS[type(refusal)]
    headers = {}
    if isinstance(refusal, Unavailable):
        headers["retry-after"] = str(RETRY_AFTER)
    if isinstance(refusal, TooLarge):  # What is left of the body is not read, so the connection is of no more use.
        headers["connection"] = "close"
    metrics.REFUSALS.labels(status).inc()
    log.warning("delivery_refused", status=status, reason=str(refusal))
    return _envelope(status, code, title, _DETAILS.get(type(refusal), str(refusal)), headers=headers)


def _envelope(status: int, code: str, title: str, detail: str, *, headers: Mapping[str, str] | None = None) -> Response:
    error = {"id": str(uuid4()), "status": status, "code": code, "title": title, "detail": detail}
    return _respond(status, {"errors": [error]}, headers)


def _respond(status: int, content: object, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, media_type="application/json")
