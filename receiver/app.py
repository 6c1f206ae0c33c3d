"""The receiver's routes, and which outcome is which status. Nothing else in the receiver knows Starlette.

A refusal says little to the sender and all to the log: the body is the platform's own `errors` envelope (specification,
section Errors), the log line holds the rule that was broken, and neither holds the path, since it may be the secret.
"""

import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Optional

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from credhook.events import Event, Malformed
from credhook.receiver.inbox import metrics
from credhook.receiver.inbox.inbox import Inbox, StoreUnavailable
from credhook.receiver.inbox.script import Outcome
from credhook.receiver.mark import MARK
from credhook.receiver.refusal_log import RefusalLog
from credhook.receiver.settings import ReceiverSettings
from credhook.receiver.signature import (
    BadHeaders,
    Encoded,
    OutsideTolerance,
    Unauthenticated,
    authenticate,
    read_headers,
)

if TYPE_CHECKING:
    from credhook.receiver.tracing import DeliveryTracer

log = structlog.get_logger("credhook.receiver")

#: What is refused by this process.
REFUSALS: Final = RefusalLog()

#: Seconds after which a sender may come again: about what a restart of Redis takes.
RETRY_AFTER: Final = 5


class TooLarge(Exception):
    """The body is longer than `CREDHOOK_MAX_BODY`."""


class RouteNotFound(Exception):
    """The path is not ours; a wrong path secret looks the same as any other path."""


_NOT_AUTHENTICATED: Final = "The delivery could not be authenticated."
_NOT_STORED: Final = "The delivery could not be stored; please send it again."

#: Which rule was broken, for the counters; and what the sender is told: status, code and title of the platform's own
#: error objects, and words, of which only those that it knows already or can mend. None: those of the error.
_ANSWERS: Final[dict[type[Exception], tuple[str, int, str, str, str | None]]] = {
    BadHeaders: ("headers", 400, "VALIDATION_ERROR", "Validation Failed", None),
    Malformed: ("body", 400, "VALIDATION_ERROR", "Validation Failed", None),
    Unauthenticated: ("signature", 401, "UNAUTHORIZED", "Unauthorized", _NOT_AUTHENTICATED),
    OutsideTolerance: ("clock", 401, "UNAUTHORIZED", "Unauthorized", _NOT_AUTHENTICATED),
    RouteNotFound: ("path", 404, "NOT_FOUND", "Not Found", "There is nothing here."),
    TooLarge: ("size", 413, "PAYLOAD_TOO_LARGE", "Payload Too Large", "The delivery is too large."),
    Encoded: ("encoding", 415, "UNSUPPORTED_MEDIA_TYPE", "Unsupported Media Type", None),
    StoreUnavailable: ("storage", 503, "SERVICE_UNAVAILABLE", "Service StoreUnavailable", _NOT_STORED),
}


def create_app(
    settings: ReceiverSettings,
    inbox: Inbox,
    *,
    parse: Callable[[bytes], Event] = Event.parse,
    tracer: Optional["DeliveryTracer"] = None,
) -> ASGIApp:
    """The public application: deliveries, and two questions about the process's health."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await inbox.aclose()

    async def readyz(_: Request) -> Response:
        """Whether a delivery would be stored just now; 503 comes without a reason, since the port is public."""
        ready = not any(check.failed for check in await inbox.examine())
        return PlainTextResponse("ready\n") if ready else PlainTextResponse("not ready\n", 503)

    webhooks = Webhooks(settings, inbox, parse, tracer)
    rest = Starlette(
        routes=[
            # Never reached by POST, which goes the short way; here it is so that another method is a 405.
            Route(settings.webhook_path + ("/{secret}" if settings.path_secret else ""), webhooks, methods=["POST"]),
            Route("/healthz", _healthz, methods=["GET"]),
            Route("/readyz", readyz, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _unexpected},
        lifespan=lifespan,
    )
    # A sender switches an endpoint off that redirects it; and the target would be whatever host the request names.
    rest.router.redirect_slashes = False
    return FastPath(settings.webhook_path, webhooks, rest)


class FastPath:
    """Takes deliveries past Starlette's router and two exception wrappers: a quarter of a delivery's time, measured.

    A delivery is a POST to the webhook path or below it. Anything else is Starlette's.
    """

    def __init__(self, path: str, webhooks: "Webhooks", rest: ASGIApp) -> None:
        self._path = path
        self._below = path + "/"
        self._webhooks = webhooks
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a delivery, or pass the request on."""
        if scope["type"] == "http" and scope["method"] == "POST":
            path: str = scope["path"]
            if path == self._path or path.startswith(self._below):
                await self._webhooks(scope, receive, send)
                return
        await self._rest(scope, receive, send)


class Webhooks:
    """The hot route, an ASGI application of its own: Starlette's request object would cost a third of the budget."""

    def __init__(
        self,
        settings: ReceiverSettings,
        inbox: Inbox,
        parse: Callable[[bytes], Event],
        tracer: Optional["DeliveryTracer"] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: seconds, by which deliveries are timed."""
        self._clock = clock
        self._tracer = tracer
        self._inbox = inbox
        self._parse = parse
        self._keys = settings.keys
        self._tolerance = settings.tolerance
        self._max_body = settings.max_body
        secret = settings.path_secret
        #: The whole path. It is compared in constant time, since it may end in a secret.
        self._path = (settings.webhook_path + (f"/{secret.get_secret_value()}" if secret else "")).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one delivery."""
        began = self._clock()
        metrics.IN_FLIGHT.add(1)
        try:
            outcome = await self._accept(scope, receive, began)
        except ClientDisconnect:
            return  # Nobody is left to answer, and nothing was written.
        except tuple(_ANSWERS) as refusal:
            await _refuse(refusal)(scope, receive, send)
        except Exception as error:  # noqa: BLE001  A mistake of ours is a 500: the sender keeps the delivery.
            metrics.REFUSALS.add("defect", "500")
            await _failed(error)(scope, receive, send)
        else:
            await _accepted(outcome, send)
            metrics.ACKNOWLEDGED.observe(self._clock() - began)
        finally:
            metrics.IN_FLIGHT.add(-1)

    async def _accept(self, scope: Scope, receive: Receive, began: float) -> Outcome:
        """Route, headers, bounded body, signature, JSON, ledger: each only after the one before."""
        if not hmac.compare_digest(scope["path"].encode("utf-8", "surrogateescape"), self._path):
            raise RouteNotFound("the path secret is wrong")
        headers = scope["headers"]
        claim = read_headers(headers, signed=bool(self._keys))
        body = await _read(scope, receive, self._max_body)
        if self._keys:
            authenticate(claim, body, self._keys, now=time.time(), tolerance=self._tolerance)
        event = self._parse(body)
        if self._tracer is not None:
            return await self._tracer.accept(claim.delivery_id, event, headers, self._clock() - began)
        return await self._inbox.accept(claim.delivery_id, event)


async def _accepted(outcome: Outcome, send: Send) -> None:
    """202, with the outcome in a header and no body: uvicorn writes a body apart, a tenth of a delivery's time."""
    await send({"type": "http.response.start", "status": 202, "headers": _ACCEPTED[outcome]})
    await send({"type": "http.response.body"})


#: Made once. The header says what became of the delivery, for people and for tests; senders look at the status alone.
_ACCEPTED: Final = {
    outcome: [(b"content-length", b"0"), (b"credhook-outcome", outcome.value.encode())] for outcome in Outcome
}


async def _read(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The body, but never more of it than `limit` bytes in memory."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > limit:
            raise TooLarge("content-length is over CREDHOOK_MAX_BODY")
    whole = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        if len(whole) + len(part) > limit:
            raise TooLarge("the body is over CREDHOOK_MAX_BODY")
        more = message.get("more_body", False)
        if not more and not whole:  # As deliveries come: in one piece, which is not copied.
            return part
        whole += part  # In place: `bytes` would be copied whole for every few bytes that come.
        if not more:
            return bytes(whole)


async def _healthz(_: Request) -> Response:
    return PlainTextResponse("alive\n")


async def _http_error(_: Request, error: Exception) -> Response:
    """What Starlette itself refuses: an unknown path, another method."""
    if not isinstance(error, HTTPException):
        raise error
    code, title = error.detail.upper().replace(" ", "_"), error.detail
    return _envelope(error.status_code, code, title, title + ".", headers=error.headers)


async def _unexpected(_: Request, error: Exception) -> Response:
    return _failed(error)


def _failed(error: Exception) -> Response:
    """A mistake of ours. The sender keeps the delivery and comes again."""
    log.error("receiver_failed", exc_info=error)
    return _envelope(500, "INTERNAL_SERVER_ERROR", "Internal Server Error", "The delivery was not stored.")


def _refuse(refusal: Exception) -> Response:
    rule, status, code, title, detail = _ANSWERS[type(refusal)]
    headers = {}
    if isinstance(refusal, StoreUnavailable):
        headers["retry-after"] = str(RETRY_AFTER)
    if isinstance(refusal, TooLarge):  # What is left of the body is not read, so the connection is of no more use.
        headers["connection"] = "close"
    if isinstance(refusal, Encoded):  # RFC 9110: with a 415 it says which encodings would do.
        headers["accept-encoding"] = "identity"
    metrics.REFUSALS.add(rule, str(status))
    hint = refusal.hint if isinstance(refusal, Unauthenticated | StoreUnavailable) else ""
    outside = isinstance(refusal, OutsideTolerance)
    REFUSALS.add(status, str(refusal), outside_tolerance=outside, **({"hint": hint} if hint else {}))
    return _envelope(status, code, title, detail or str(refusal), headers=headers)


def _envelope(status: int, code: str, title: str, detail: str, *, headers: Mapping[str, str] | None = None) -> Response:
    error = {"id": MARK.new_id(), "status": status, "code": code, "title": title, "detail": detail}
    return Response(json.dumps({"errors": [error]}), status, headers, media_type="application/json")
