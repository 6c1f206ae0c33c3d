"""Limits on the senders of a listener, and the reasons to reject them."""

import json
import resource
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from uuid import uuid4

#: File descriptors that are reserved: Redis, the admin listener, logs, the event loop.
_RESERVED_DESCRIPTORS: Final = 96
_FEWEST_CONNECTIONS: Final = 8

#: Seconds after which a sender may try again if the listener is full.
_RETRY_AFTER: Final = 5

#: 400: the platform's title. 413: Python's versions have different phrases.
_TITLES: Final = {400: "Validation Failed", 413: "Payload Too Large"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for all connections of one listener.

    Attributes:
        connections: number of open connections.
        buffered_bytes: bytes of unfinished requests, all connections together.
        body_bytes: bytes of one request's body.
        request_timeout: seconds for a TLS handshake, and for a whole request from its first byte.
        idle_timeout: seconds without a request.
    """

    connections: int
    buffered_bytes: int
    body_bytes: int
    request_timeout: float
    idle_timeout: float


#: The admin listener, for operators and Prometheus.
ADMIN_LIMITS: Final = Limits(64, buffered_bytes=1_048_576, body_bytes=16_384, request_timeout=10.0, idle_timeout=5.0)


def affordable(connections: int, *, descriptors: int | None = None) -> int:
    """Return the number of connections, lowered if the limit on open files is too small for it."""
    if descriptors is None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return connections
    return max(_FEWEST_CONNECTIONS, min(connections, descriptors - _RESERVED_DESCRIPTORS))


def errors_body(status: int, detail: str, error_id: str) -> str:
    """Return the body of an error response: the platform's own `errors` envelope."""
    title = _TITLES.get(status, HTTPStatus(status).phrase)
    code = "VALIDATION_ERROR" if status == HTTPStatus.BAD_REQUEST else title.upper().replace(" ", "_")
    error = {"id": error_id, "status": status, "code": code, "title": title, "detail": detail}
    return json.dumps({"errors": [error]})


@dataclass(frozen=True, slots=True)
class Rejection:
    """A reason to reject a sender before the application sees the request.

    Attributes:
        reason: its stable name in the log and in metrics.
        event: the name of the log line.
        hint: for the operator.
        status: of the answer; 0 closes the connection without one.
        detail: for the sender.
    """

    reason: str
    event: str
    hint: str
    status: int = 0
    detail: str = ""

    def answer(self) -> bytes:
        """Return the whole response; its body is an `errors` envelope."""
        body = errors_body(self.status, self.detail, str(uuid4()))
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *([f"retry-after: {_RETRY_AFTER}"] if self.status == HTTPStatus.SERVICE_UNAVAILABLE else []),
            "connection: close",
        ]
        return "\r\n".join([*lines, "", body]).encode()


_REFUSED, _CUT_OFF, _BAD = "connections_refused", "senders_cut_off", "requests_refused"
_MORE: Final = "raise CREDHOOK_MAX_CONNECTIONS and `ulimit -n`, run more processes, or put a proxy in front"
_TOO_LARGE: Final = "CREDHOOK_MAX_BODY limits the body; no delivery of the platform has so many headers"
_NOT_HTTP: Final = "the sender does not speak HTTP/1.1"
_TIME: Final = "CREDHOOK_REQUEST_TIMEOUT sets the time limit"
_BUSY: Final = "The server is busy; please send the request again."

HEAD_TOO_LARGE: Final = Rejection("head_too_large", _BAD, _TOO_LARGE, 413, "The headers are too large.")
TOO_MANY_HEADERS: Final = Rejection("too_many_headers", _BAD, _TOO_LARGE, 413, "There are too many headers.")
BODY_TOO_LARGE: Final = Rejection("body_too_large", _BAD, _TOO_LARGE, 413, "The body is too large.")
INVALID: Final = Rejection("invalid_http", _BAD, _NOT_HTTP, 400, "This is not a valid HTTP request.")
UPGRADE: Final = Rejection("upgrade", _BAD, _NOT_HTTP, 400, "The protocol cannot be changed.")
PIPELINED: Final = Rejection("pipelined", _BAD, "the sender did not wait for the answer", 400, "Wait for the answer.")
SLOW_REQUEST: Final = Rejection("slow_request", _CUT_OFF, _TIME, 408, "The request did not come in time.")
SLOW_HANDSHAKE: Final = Rejection("slow_handshake", _CUT_OFF, _TIME)
UNREAD: Final = Rejection("answer_unread", _CUT_OFF, "the sender does not read its answers")
MADE_ROOM: Final = Rejection("made_room", _CUT_OFF, f"slow senders were cut off in favour of new ones; {_MORE}")
FULL: Final = Rejection("full", _REFUSED, _MORE, 503, _BUSY)
NO_ROOM: Final = Rejection("no_room", _REFUSED, "too many large requests are unfinished", 503, _BUSY)
