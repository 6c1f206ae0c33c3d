"""Every way in which the receiver refuses, as one table for all levels of tests: what is sent, status, logged reason.

A row is bytes on a socket, so that nothing between the test and the receiver can tidy it up.
"""
# ruff: noqa: E501  A row of the table is one line.

import gzip
import socket
import time
from http.client import HTTPResponse
from typing import Final, NamedTuple

from support.receiver.signing import OTHER_SECRET, body, sign

BODY: Final = body()


def request(*lines: str, content: bytes = BODY, first: str = "POST /webhooks HTTP/1.1", length: bool = True) -> bytes:
    """A request: its first line, `host`, the given header lines, a true `content-length` unless told otherwise, a body."""
    headers = [first, "host: inbox", *lines]
    if length:
        headers.append(f"content-length: {len(content)}")
    return "\r\n".join([*headers, "", ""]).encode("latin-1") + content


def signed(
    webhook_id: str = "refused_1", at: int | None = None, *, content: bytes = BODY, signature: str = ""
) -> list[str]:
    """The three headers, signed with the first of the receiver's keys."""
    timestamp = str(int(time.time()) if at is None else at)
    return [
        f"webhook-id: {webhook_id}",
        f"webhook-timestamp: {timestamp}",
        f"webhook-signature: {signature or sign(webhook_id, timestamp, content)}",
    ]


def next_response(raw: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next one, which is read whole, in however many pieces it comes."""
    response = HTTPResponse(raw)
    response.begin()
    content = response.read()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, content


class Refusal(NamedTuple):
    """One row. `reason` is what the log says; None where the server refuses before our code sees it."""

    name: str
    sent: bytes
    status: int
    reason: str | None


def refusals() -> list[Refusal]:
    """The table, made when a test runs, since signatures age. The receiver accepts one key, `signing.SECRET`."""
    now = int(time.time())
    one, two, three = signed()
    text = f"{now}"
    big = b" " * 65_537
    zipped = gzip.compress(BODY)
    encoded = "content-encoding should be identity, since the signature covers the body as it arrives"
    shifted = signed("refused_1", content=b"x." + BODY)

    def malformed(content: bytes) -> bytes:
        return request(*signed(content=content), content=content)

    def chunked(*chunks: bytes, headers: list[str]) -> bytes:
        content = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
        return request(*headers, "transfer-encoding: chunked", content=content, length=False)

    return [
        # Route and method.
        Refusal("another path", request(*signed(), first="POST /webhook HTTP/1.1"), 404, "the path is wrong"),
        Refusal("a path below", request(*signed(), first="POST /webhooks/x HTTP/1.1"), 404, "the path is wrong"),
        Refusal("a path that climbs", request(*signed(), first="POST /x/../webhooks HTTP/1.1"), 404, "the path is wrong"),
        Refusal("a slash too many", request(*signed(), first="POST /webhooks/ HTTP/1.1"), 404, "the path is wrong"),
        Refusal("GET", request(*signed(), first="GET /webhooks HTTP/1.1"), 405, None),
        Refusal("PUT", request(*signed(), first="PUT /webhooks HTTP/1.1"), 405, None),
        Refusal("PUT of a probe", request(first="PUT /readyz HTTP/1.1"), 405, None),
        Refusal("a slash behind a probe", request(first="GET /healthz/ HTTP/1.1"), 404, None),
        Refusal("metrics", request(first="GET /metrics HTTP/1.1"), 404, None),
        # Header rules.
        Refusal("no headers of ours", request(), 400, "webhook-id should be there exactly once"),
        Refusal("no id", request(two, three), 400, "webhook-id should be there exactly once"),
        Refusal("a fresh id before", request("webhook-id: refused_2", one, two, three), 400, "webhook-id should be there exactly once"),
        Refusal("a fresh id after", request(one, two, three, "Webhook-Id: refused_2"), 400, "webhook-id should be there exactly once"),
        Refusal("an id that shifts the boundaries", request(*signed("refused.1.{")), 400, "webhook-id is malformed"),
        Refusal("a timestamp with a fraction", request(one, f"webhook-timestamp: {text}.7", three), 400, "webhook-timestamp is malformed"),
        # Encodings: the signature of a sender that compresses is over one or the other.
        Refusal("gzip, signed before", request(*signed(), "content-encoding: gzip", content=zipped), 415, encoded),
        Refusal("gzip, signed after", request(*signed(content=zipped), "content-encoding: gzip", content=zipped), 415, encoded),
        Refusal("an encoding in capitals", request(*signed(), "Content-Encoding: BR"), 415, encoded),
        Refusal("two encodings", request(*signed(), "content-encoding: identity, gzip"), 415, encoded),
        Refusal("gzip from a stranger", request("content-encoding: gzip", content=zipped), 415, encoded),
        # Body.
        Refusal("a body over the limit", request(*signed(content=big), content=big), 413, "the body is over CREDHOOK_MAX_BODY"),
        Refusal("a body over the limit that goes on", request(*signed(content=big), "content-length: 130000", content=big, length=False), 413, "the body is over CREDHOOK_MAX_BODY"),
        Refusal("a length that would overflow", request(one, two, three, "content-length: 18446744073709551616", content=b"", length=False), 400, None),
        Refusal("chunks over the limit", chunked(*[b" " * 9_000] * 8, headers=signed(content=big)), 413, "the body is over CREDHOOK_MAX_BODY"),
        Refusal("a length and chunks", chunked(BODY, headers=[*signed(), f"content-length: {len(BODY)}"]), 400, None),
        Refusal("two lengths that differ", request(*signed(), "content-length: 1"), 400, None),
        Refusal("a negative length", request(*signed(), "content-length: -1", content=b"", length=False), 400, None),
        Refusal("a bare line feed", request(*signed()).replace(b"\r\nhost", b"\nhost", 1), 400, None),
        Refusal("a header of 70 KB", request(*signed(), "x-pad: " + "a" * 70_000), 413, None),
        Refusal("headers of 17 KB together", request(*signed(), *[f"x-pad-{number}: " + "a" * 1_000 for number in range(17)]), 413, None),
        Refusal("101 headers", request(*signed(), *["x:"] * 96), 413, None),
        # Signature.
        Refusal("another key", request(*signed(signature=sign("refused_1", text, BODY, OTHER_SECRET))), 401, "no signature matches"),
        Refusal("another id", request("webhook-id: refused_2", two, three), 401, "no signature matches"),
        Refusal("a shifted boundary", request(*shifted, content=BODY), 401, "no signature matches"),
        Refusal("an old delivery replayed", request(*signed(at=now - 301)), 401, "webhook-timestamp is outside the tolerance"),
        Refusal("a delivery from the future", request(*signed(at=now + 330)), 401, "webhook-timestamp is outside the tolerance"),
        Refusal("junk for a signature", request(*signed(signature="v1,%%% ,, v1")), 401, "no signature matches"),
        # JSON, only once the sender is known.
        Refusal("a body that is no text", malformed(b"\xff\xfe"), 400, "the body should be JSON in UTF-8"),
        Refusal("a name twice", malformed(b'{"eventType": "a", "eventType": "b"}'), 400, "eventType should be one word of visible ASCII, of 128 characters at most"),
        Refusal("thousands deep", malformed(b"[" * 60_000), 400, "the body should be JSON in UTF-8"),
        Refusal("no id in it", malformed(b'{"eventType": "openid4vc.issuance.offered", "payload": {}}'), 400, "payload should hold openId4VcIssuanceId"),
    ]  # fmt: skip
