"""Why a listener turns a sender away before any application has seen the request, and what the sender is told."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

#: Names of the lines in the log.
_REFUSED, _CUT_OFF, _BAD = "connections_refused", "senders_cut_off", "requests_refused"

#: Seconds after which a sender may come again that found no room.
_RETRY_AFTER: Final = 5


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason.

    Attributes:
        reason: its stable name, in the log and in the counters.
        event: the log line that counts it; empty for what happens every day.
        hint: for the operator.
        status: the answer's; 0 where nobody waits for one.
        title: and code, as the platform's own error objects have them.
        detail: for the sender.
    """

    reason: str
    event: str = _CUT_OFF
    hint: str = ""
    status: int = 0
    title: str = ""
    detail: str = ""

    def answer(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
        """The whole response, after which the connection is closed; its body is the platform's `errors` envelope."""
        code = self.title.upper().replace(" ", "_")
        error = {"id": str(uuid4()), "status": self.status, "code": code, "title": self.title, "detail": self.detail}
        body = json.dumps({"errors": [error]}).encode()
        lines = [*headers, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if self.status == 503:  # noqa: PLR2004  The only one after which it is of use.
            lines.append((b"retry-after", b"%d" % _RETRY_AFTER))
        lines.append((b"connection", b"close"))
        return STATUS_LINE[self.status] + b"".join(b"%b: %b\r\n" % line for line in lines) + b"\r\n" + body


def _too_large(reason: str, detail: str) -> Refusal:
    hint = "no platform's delivery is like that; CREDHOOK_MAX_BODY bounds the body"
    return Refusal(reason, _BAD, hint, 413, "Payload Too Large", detail)


def _invalid(reason: str, detail: str) -> Refusal:
    return Refusal(reason, _BAD, "whoever sends this speaks no HTTP that we accept", 400, "Bad Request", detail)


def _slow(reason: str, setting: str, detail: str) -> Refusal:
    return Refusal(reason, _CUT_OFF, f"{setting} says how long to wait", 408, "Request Timeout", detail)


def _full(reason: str, hint: str, what: str) -> Refusal:
    detail = f"There are too many {what}; please send it again."
    return Refusal(reason, _REFUSED, hint, 503, "Service Unavailable", detail)


HEAD_TOO_LARGE: Final = _too_large("head_too_large", "The headers are too large.")
TOO_MANY_HEADERS: Final = _too_large("too_many_headers", "There are too many headers or trailers.")
BODY_TOO_LARGE: Final = _too_large("body_too_large", "The body with its chunks and trailers is too large.")

INVALID: Final = _invalid("invalid_http", "This is not a valid HTTP request.")
UPGRADE: Final = _invalid("upgrade", "No other protocol is spoken here.")
PIPELINED: Final = _invalid("pipelined", "Too many requests were sent ahead of their answers.")

SLOW_HEAD: Final = _slow("slow_head", "CREDHOOK_HEADER_TIMEOUT", "The headers did not come in time.")
SLOW_BODY: Final = _slow("slow_body", "CREDHOOK_BODY_TIMEOUT", "The body did not come in time.")
SLOW_HANDSHAKE: Final = Refusal("slow_handshake", _CUT_OFF, "CREDHOOK_HEADER_TIMEOUT says how long to wait")
UNREAD: Final = Refusal("answer_unread", _CUT_OFF, "the sender does not read what it is answered")
IDLE: Final = Refusal("idle", "")

_MORE: Final = "raise CREDHOOK_MAX_CONNECTIONS and `ulimit -n`, run more processes, or put a proxy in front"
MADE_ROOM: Final = Refusal("made_room", _CUT_OFF, f"the slowest gave way to newcomers; {_MORE}")
FULL: Final = _full("full", _MORE, "connections")
NO_ROOM: Final = _full("no_room", "unfinished requests fill CREDHOOK_MAX_BUFFERED", "large requests")
