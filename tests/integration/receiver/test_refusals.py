"""The table of refusals, over a raw socket."""

import json
import socket
from http import HTTPStatus

import pytest
from redis import Redis

from support.process.serving import Receiver
from support.receiver.refusals import Refusal, next_response, refusals, request, signed
from support.waiting import until

NAMES = [refusal.name for refusal in refusals()]
#: What senders are told where the log says more.
DETAILS = {401: "could not be authenticated.", 404: "There is nothing here.", 413: "The delivery is too large."}
#: Of the platform's errors, where HTTP has others.
TITLES = {400: "Validation Failed", 413: "Payload Too Large"}


def refusal(name: str) -> Refusal:
    """The row, freshly signed."""
    return next(row for row in refusals() if row.name == name)


def answer(port: int, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the first answer; the connection is closed after it."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
        raw.sendall(sent)
        return next_response(raw)


@pytest.mark.parametrize("name", NAMES)
def test_a_refusal_over_a_raw_socket(server: Receiver, redis_client: Redis, name: str) -> None:
    row = refusal(name)
    before = len(server.text)
    status, headers, content = answer(server.port, row.sent)
    assert (status, "allow" in headers) == (row.status, row.status == 405)
    assert status != 413 or headers["connection"] == "close"  # The rest is not read.
    if headers.get("content-type") == "application/json":
        (error,) = json.loads(content)["errors"]
        title = TITLES.get(status, HTTPStatus(status).phrase)
        code = "VALIDATION_ERROR" if status == 400 else title.upper().replace(" ", "_")
        assert (error["status"], error["code"], error["title"]) == (status, code, title)
        assert DETAILS.get(status if row.reason else 0, row.reason or "") in error["detail"]
        assert error["id"]
    else:
        assert row.reason is None
    if row.reason is not None:
        until(lambda: json.dumps(row.reason) in server.text[before:], what=row.reason)
    assert "Traceback" not in server.text
    assert not redis_client.exists("credhook:credhook:event:refused_1", "credhook:credhook:event:refused_2")


def test_a_hundred_headers_of_almost_16_kib_are_read(server: Receiver) -> None:
    assert answer(server.port, request(*signed("msg_heads"), *["x:"] * 94, "x-pad: " + "a" * 15_650))[0] == 202


def test_compressed_delivery_is_refused_with_advice(server: Receiver) -> None:
    status, headers, content = answer(server.port, refusal("gzip, signed before").sent)
    (error,) = json.loads(content)["errors"]
    assert (status, error["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert "identity" in error["detail"]
    assert headers["accept-encoding"] == "identity"
    for number, value in enumerate(("identity", "Identity", "")):
        sent = request(*signed(f"msg_identity_{number}"), f"content-encoding: {value}")
        assert answer(server.port, sent)[0] == 202


async def test_a_client_that_goes_away_mid_body_leaves_nothing(server: Receiver, redis_client: Redis) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(request(*signed("msg_gone"))[:-5])
    assert answer(server.port, request(*signed("msg_after")))[0] == 202
    assert not redis_client.exists("credhook:credhook:event:msg_gone")
    assert "receiver_failed" not in server.text
