"""The receiver's routes and the way of a delivery: headers, bounded body, signature, JSON, inbox, 202 or a refusal.

A refused sender gets the platform's own `errors` envelope (specification, section Errors). The log line has the rule
that was broken. Neither holds the path, which may be the secret.
"""

import hmac
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Optional

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from credhook.events import Event, Malformed
from credhook.listener.admin import Examine
from credhook.listener.server import RETRY_AFTER, errors_body
from credhook.logs import FloodGuard
from credhook.receiver import DOCTOR_AGENT, metrics
from credhook.receiver.inbox import Inbox, Outcome, StoreUnavailable
from credhook.receiver.signature import (
    ALIASES,
    ID,
    BadHeaders,
    Encoded,
    OutsideTolerance,
    Unauthenticated,
    authenticate,
    read_headers,
)
from credhook.settings import ReceiverSettings

if TYPE_CHECKING:
    from credhook.receiver.tracing import DeliveryTracer

log = structlog.get_logger("credhook.receiver")

#: Seconds without a refusal after which a new spell of refusals begins.
SPELL_SECONDS: Final = 900.0
#: Log lines a minute for each reason. Senders without a key could fill the disk; `credhook_refusals` counts all.
MAX_LOGGED: Final = 20
#: The id that a proxy gives a request. A stranger may write this header, so only a form without words is logged.
_REQUEST_ID: Final = re.compile(rb"[0-9a-fA-F-]{32,36}")
#: The response headers of a 202, made once. Senders look at the status; people and tests at the outcome.
_ACCEPTED: Final = {
    outcome: [(b"content-length", b"0"), (b"credhook-outcome", outcome.value.encode())] for outcome in Outcome
}
#: The names of the header that makes a POST a delivery.
_IDS: Final = {ID, *(alias for alias, name in ALIASES.items() if name == ID)}


class TooLarge(Exception):
    """The body is longer than `CREDHOOK_MAX_BODY`."""


class RouteNotFound(Exception):
    """The path is not ours. A wrong path secret looks the same as any other path."""

    hint = (
        "let the endpoint's URL end as CREDHOOK_WEBHOOK_PATH and CREDHOOK_PATH_SECRET do; a proxy may have added a "
        "slash or dropped a part"
    )


_NOT_AUTHENTICATED: Final = "The delivery could not be authenticated."
_NOTHING_HERE: Final = "There is nothing here."
#: For each error: the rule for the counters, the status, the text for the sender, and more response headers. An empty
#: text stands for the error's own message.
_REFUSALS: Final[dict[type[Exception], tuple[str, int, str, dict[str, str]]]] = {
    BadHeaders: ("headers", 400, "", {}),
    Malformed: ("body", 400, "", {}),
    Unauthenticated: ("signature", 401, _NOT_AUTHENTICATED, {}),
    OutsideTolerance: ("clock", 401, _NOT_AUTHENTICATED, {}),
    RouteNotFound: ("path", 404, _NOTHING_HERE, {}),
    # The rest of the body is not read, so the connection cannot be used again.
    TooLarge: ("size", 413, "The delivery is too large.", {"connection": "close"}),
    # RFC 9110: a 415 says which encodings would do.
    Encoded: ("encoding", 415, "", {"accept-encoding": "identity"}),
    StoreUnavailable: (
        "storage",
        503,
        "It was not stored; please send it again.",
        {"retry-after": str(RETRY_AFTER)},
    ),
}
_REFUSABLE: Final = tuple(_REFUSALS)


class Spell(NamedTuple):
    """Refusals for one rule, less than a quarter of an hour apart; times are in monotonic seconds."""

    number: int
    first: float
    last: float


class RefusalLog:
    """Logs refusals, limited for each reason, and counts the refusals that a wrong setting or sender causes.

    Attributes:
        refused: deliveries refused since the start, except by an outage of Redis.
        spells: the last of them by rule, such as `signature`; see `Spell`.
        turned_away: senders that the listener turned away before the application saw a delivery, by reason.
        last_turned_away: when the last of these came, in monotonic seconds.
    """

    def __init__(self) -> None:
        self._guard = FloodGuard(MAX_LOGGED, time.monotonic)
        self.refused = 0
        self.spells = dict[str, Spell]()
        self.turned_away = Counter[str]()
        self.last_turned_away = 0.0

    def turn_away(self, reason: str) -> None:
        """Count a sender that the listener turned away."""
        metrics.TURNED_AWAY.add(reason)
        self.turned_away[reason] += 1
        self.last_turned_away = time.monotonic()

    def refuse(self, refusal: Exception, sent: Sequence[tuple[bytes, bytes]] = ()) -> Response:
        """Count a refusal, and log it unless that reason floods the log. Return the response. `sent`: the headers."""
        rule, status, detail, headers = _REFUSALS[type(refusal)]
        if isinstance(refusal, BadHeaders | RouteNotFound) and (b"user-agent", DOCTOR_AGENT.encode()) in sent:
            return _envelope(status, detail or str(refusal), headers)  # A check of the public URL.
        metrics.REFUSALS.add(rule, str(status))
        if not isinstance(refusal, StoreUnavailable):
            now = time.monotonic()
            spell = self.spells.get(rule)
            if spell is None or now - spell.last > SPELL_SECONDS:
                spell = Spell(0, now, now)
            self.spells[rule] = Spell(spell.number + 1, spell.first, now)
            self.refused += 1
        reason = str(refusal)
        if (more := self._guard.admit(reason)) is not None:
            ids = {}
            if sent and isinstance(refusal, (Malformed, StoreUnavailable)):  # The delivery was authentic.
                ids["webhook_id"] = read_headers(sent, signatures=False).delivery_id
            for name, value in sent:
                if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
                    ids["request_id"] = value.decode()
            hint = getattr(refusal, "hint", "")
            log.warning("delivery_refused", status=status, reason=reason, hint=hint, **ids, **more)
        return _envelope(status, detail or reason, headers)


def create_app(
    settings: ReceiverSettings,
    inbox: Inbox,
    refusals: RefusalLog,
    *,
    tracer: Optional["DeliveryTracer"] = None,
    examine: Examine | None = None,
) -> ASGIApp:
    """Return the public application: deliveries, and two health checks. `examine`: in place of the inbox's checks."""
    path = settings.webhook_path
    webhooks = _endpoint(settings, inbox, refusals, tracer)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(_: Request) -> Response:
        ready = not any(check.failed for check in await (examine or inbox.examine)())
        # The answer names no reason, since the port is public.
        return PlainTextResponse("ready\n") if ready else PlainTextResponse("not ready\n", 503)

    rest = Starlette(
        routes=[
            # `app` takes POST first. This route answers other methods with 405.
            Route(path + ("/{secret}" if settings.path_secret else ""), webhooks, methods=["POST"]),
            Route("/healthz", healthz, methods=["GET"]),
            Route("/readyz", readyz, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _failed},
    )
    # A sender switches off an endpoint that answers with a redirect.
    rest.router.redirect_slashes = False

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        """Take deliveries past Starlette's router and exception handlers, which cost a quarter of a delivery's time."""
        is_ours = scope["path"] == path or scope["path"].startswith(path + "/")
        # A POST with a webhook-id is a delivery at any path, so that a wrong path is counted and reported.
        if scope["method"] == "POST" and (is_ours or any(name in _IDS for name, _ in scope["headers"])):
            await webhooks(scope, receive, send)
        else:
            await rest(scope, receive, send)

    return app


def _endpoint(
    settings: ReceiverSettings, inbox: Inbox, refusals: RefusalLog, tracer: Optional["DeliveryTracer"]
) -> ASGIApp:
    """Return the ASGI function that answers deliveries. Starlette's request object would cost a third of the time."""
    keys, secret = settings.keys, settings.path_secret
    # The whole paths. They are compared in constant time, since they may end in secrets.
    ends = [f"/{segment}" for segment in secret.get_secret_value().split()] if secret else [""]
    paths = [(settings.webhook_path + end).encode() for end in ends]

    async def accept(scope: Scope, receive: Receive, began: float) -> Outcome:
        requested = scope["path"].encode("utf-8", "surrogateescape")
        if not sum(hmac.compare_digest(requested, path) for path in paths):
            raise RouteNotFound("the path or the path secret is wrong" if secret else "the path is wrong")
        headers = scope["headers"]
        signed = read_headers(headers, signatures=bool(keys))
        body = await _read(receive, settings.max_body)
        if keys:
            authenticate(signed, body, keys, now=time.time(), tolerance=settings.tolerance)
        event = Event.parse(body)
        if tracer is not None:
            return await tracer.accept(signed.delivery_id, event, headers, time.monotonic() - began)
        return await inbox.accept(signed.delivery_id, event)

    async def webhooks(scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        try:
            outcome = await accept(scope, receive, began)
        except ClientDisconnect:
            return  # Nothing was written.
        except _REFUSABLE as refusal:
            await refusals.refuse(refusal, scope["headers"])(scope, receive, send)
        except Exception as error:  # noqa: BLE001  After a 500, the sender keeps the delivery.
            metrics.REFUSALS.add("defect", "500")
            await (await _failed(None, error))(scope, receive, send)
        else:
            # No body: uvicorn would write it separately, which costs a tenth of a delivery's time.
            await send({"type": "http.response.start", "status": 202, "headers": _ACCEPTED[outcome]})
            await send({"type": "http.response.body"})
            metrics.ACKNOWLEDGED.observe(time.monotonic() - began)

    return webhooks


async def _read(receive: Receive, limit: int) -> bytes:
    """Return the body. Never hold more than `limit` bytes of it."""
    whole = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        whole += message.get("body", b"")
        if len(whole) > limit:
            raise TooLarge("the body is over CREDHOOK_MAX_BODY")
        more = message.get("more_body", False)
    return bytes(whole)


def _envelope(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(errors_body(status, detail), status, headers, media_type="application/json")


async def _http_error(_: Request, error: Any) -> Response:
    """Answer what Starlette refuses with an HTTPException: an unknown path, another method."""
    detail = _NOTHING_HERE if error.status_code == HTTPStatus.NOT_FOUND else error.detail + "."
    return _envelope(error.status_code, detail, error.headers)


async def _failed(_: Request | None, error: Exception) -> Response:
    log.error("receiver_failed", exc_info=error)
    return _envelope(500, "The delivery was not stored.")
