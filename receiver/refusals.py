"""Refuse deliveries: the status for each error, the answer for the sender, the line for the log.

The sender gets the platform's own `errors` envelope (specification, section Errors). The log line has the rule that was
broken. Neither has the path, since it may be the secret.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final
from uuid import uuid4

import structlog
from starlette.responses import Response

from credhook.events import Malformed
from credhook.listener.limits import errors_body
from credhook.logs import FloodGuard
from credhook.receiver import metrics
from credhook.receiver.inbox import StoreUnavailable
from credhook.receiver.signature import BadHeaders, Encoded, OutsideTolerance, Unauthenticated

log = structlog.get_logger("credhook.receiver")

#: Seconds after which a sender may try again: about what a restart of Redis takes.
RETRY_AFTER: Final = 5
#: Log lines a minute for each reason. Senders without a key could fill the disk; `credhook_refusals` counts all.
MAX_LOGGED: Final = 20


class TooLarge(Exception):
    """The body is longer than `CREDHOOK_MAX_BODY`."""


class RouteNotFound(Exception):
    """The path is not ours. A wrong path secret looks the same as any other path."""


_NOT_AUTHENTICATED: Final = "The delivery could not be authenticated."

#: For each error: the rule for the counters, the status, and what the sender is told. None: the error's own message.
_ANSWERS: Final[dict[type[Exception], tuple[str, int, str | None]]] = {
    BadHeaders: ("headers", 400, None),
    Malformed: ("body", 400, None),
    Unauthenticated: ("signature", 401, _NOT_AUTHENTICATED),
    OutsideTolerance: ("clock", 401, _NOT_AUTHENTICATED),
    RouteNotFound: ("path", 404, "There is nothing here."),
    TooLarge: ("size", 413, "The delivery is too large."),
    Encoded: ("encoding", 415, None),
    StoreUnavailable: ("storage", 503, "The delivery could not be stored; please send it again."),
}
REFUSABLE: Final = tuple(_ANSWERS)


class RefusalLog:
    """Logs refusals, limited for each reason, and counts those without a valid signature.

    Attributes:
        unauthenticated: deliveries without a valid signature.
        outside_tolerance: those refused for their timestamp alone.
        last_unauthenticated: when the last came, in monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start at zero. `clock` returns monotonic seconds."""
        self._clock = clock
        self._guard = FloodGuard(MAX_LOGGED, clock)
        self.unauthenticated = 0
        self.outside_tolerance = 0
        self.last_unauthenticated: float | None = None

    def add(self, refusal: Exception) -> None:
        """Count a refusal, and log it unless that reason floods the log."""
        rule, status, _ = _ANSWERS[type(refusal)]
        metrics.REFUSALS.add(rule, str(status))
        if isinstance(refusal, Unauthenticated):
            self.unauthenticated += 1
            self.outside_tolerance += isinstance(refusal, OutsideTolerance)
            self.last_unauthenticated = self._clock()
        reason, hint = str(refusal), getattr(refusal, "hint", "")
        more = self._guard.admit(reason)
        if more is not None:
            log.warning("delivery_refused", status=status, reason=reason, hint=hint, **more)


def answer(refusal: Exception) -> Response:
    """Return the response to a refused delivery."""
    _, status, detail = _ANSWERS[type(refusal)]
    headers = {}
    if isinstance(refusal, StoreUnavailable):
        headers["retry-after"] = str(RETRY_AFTER)
    if isinstance(refusal, TooLarge):  # The rest of the body is not read, so the connection cannot be used again.
        headers["connection"] = "close"
    if isinstance(refusal, Encoded):  # RFC 9110: a 415 says which encodings would do.
        headers["accept-encoding"] = "identity"
    return envelope(status, detail or str(refusal), headers)


def envelope(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with one of the platform's error objects."""
    return Response(errors_body(status, detail, str(uuid4())), status, headers, media_type="application/json")
