"""Hostile input gets no further than a refusal: mutated headers and bodies, short in the suite and long in the soak."""
# ruff: noqa: T201  The seed repeats a failure, and the counts are what `make soak` is run for.

import base64
import hashlib
import hmac
import logging
import time
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import structlog
from starlette.types import ASGIApp

from credhook.events import EVENT_TYPES, Event
from credhook.receiver.app import RefusalLog, create_app
from credhook.receiver.inbox import Outcome
from credhook.settings import ReceiverSettings
from support.receiver.signing import SECRET, body, sign

Headers = list[tuple[bytes, bytes]]

JUNK = [
    b"", b" ", b"\x00", b"\xff\xfe", b".", b"..", b",", b"v1,", b"v1a,AAAA", b"v1,%%%", b"-1", b"+1", b"1e9", b"1_0",
    b"9" * 30, b"a" * 300, b"NaN", b"\\ud800", b"[" * 2_000, b"{" * 50, b'"a":1,"a":2', b"\xc2\xa0", b"\r", b"null",
    b"\xe2\x80\xae", b"[]", b"9" * 5_000, b'{"eventType":"x","payload":{}}', b"openId4VcIssuanceId", b"../../x",
    b"msg_1.1700000000",
]  # fmt: skip


class NullInbox:
    """Accepts everything and keeps nothing."""

    async def accept(self, delivery_id: str, event: Event) -> Outcome:
        return Outcome.ACCEPTED


def drawn(random: Random) -> tuple[Headers, bytes]:
    """Return a good delivery, mutated before it was signed, after, or both."""
    content = body(random.choice(EVENT_TYPES), f"iss_{random.randrange(100)}")
    webhook_id = f"msg_{random.randrange(1_000)}"
    timestamp = str(int(time.time()) - random.choice((0, 0, 0, 299, 400)))
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        content = mutated(random, content)
    headers = [
        (b"host", b"inbox"),
        (b"webhook-id", webhook_id.encode()),
        (b"webhook-timestamp", timestamp.encode()),
        (b"webhook-signature", sign(webhook_id, timestamp, content).encode()),
    ]
    for _ in range(random.choice((0, 0, 1, 2, 3))):
        headers = spoilt(random, headers)
    return headers, mutated(random, content) if random.random() < 0.2 else content


def spoilt(random: Random, headers: Headers) -> Headers:
    """Drop a header, double it, or change it, and perhaps mix all of them."""
    index = random.randrange(len(headers))
    name, value = headers[index]
    found = [(name, random.choice((value, mutated(random, value)))) for _ in range(random.choice((0, 1, 1, 2)))]
    spoilt = headers[:index] + found + headers[index + 1 :] or headers
    return random.sample(spoilt, len(spoilt)) if random.random() < 0.2 else spoilt


def mutated(random: Random, value: bytes) -> bytes:
    place, other, junk = random.randrange(len(value) + 1), random.randrange(len(value) + 1), random.choice(JUNK)
    return random.choice((
        junk,
        value + b" " + junk,
        value[:place] + junk + value[place:],
        value[:place] + random.randbytes(1) + value[place + 1 :],
        value[:place] + value[other:],
        value[:place] + value[:other] + value[place:],
    ))  # fmt: skip


async def sent(app: ASGIApp, headers: Headers, *parts: bytes) -> int:
    """Return the status of the answer."""
    messages: list[Any] = []
    left = list(parts)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "POST", "path": "/webhooks", "query_string": b"", "root_path": ""}
    await app(scope | {"headers": headers}, receive, send)
    return int(messages[0]["status"])


def spells(signature: bytes, digest: bytes) -> bool:
    version, _, encoded = signature.partition(b",")
    with suppress(ValueError):
        return version == b"v1" and base64.b64decode(encoded, validate=True) == digest
    return False


def authentic(headers: Headers, content: bytes) -> bool:
    """Whether our own sender could have signed it just now; written apart from the receiver."""
    found = {name: [value.strip(b" \t") for header, value in headers if header == name] for name, _ in headers}
    try:
        (webhook_id,), (timestamp,) = found[b"webhook-id"], found[b"webhook-timestamp"]
        (signatures,) = found[b"webhook-signature"]
    except (KeyError, ValueError):
        return False
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    digest = hmac.new(key, webhook_id + b"." + timestamp + b"." + content, hashlib.sha256).digest()
    # Base64 has four spellings of these bytes: whoever changes the last two bits has signed nothing else.
    signed = any(spells(one, digest) for one in signatures.split(b" "))
    return signed and timestamp.isdigit() and abs(time.time() - int(timestamp)) <= 301


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(4_000, id="short"),
        pytest.param(1_000_000, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3_600)]),
    ],
)
async def test_no_forgery_reaches_the_parser_and_nothing_breaks(count: int) -> None:
    # A line for each of a million refusals would be most of the work.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    settings, inbox = ReceiverSettings.model_validate({"CREDHOOK_WEBHOOK_SECRETS": SECRET}), NullInbox()
    app = create_app(settings, inbox, RefusalLog())  # type: ignore[arg-type]
    random = Random()
    seed = random.getrandbits(32)
    print(f"\nseed {seed}")
    random.seed(seed)
    statuses, parsed = Counter[int](), 0
    with patch.object(Event, "parse", wraps=Event.parse) as parse:
        for _ in range(count):
            headers, content = drawn(random)
            cut = random.randrange(len(content) + 1)
            parse.reset_mock()
            status = await sent(app, headers, content[:cut], content[cut:])
            genuine = authentic(headers, content)
            statuses[status] += 1
            parsed += parse.called
            assert not (parse.called and not genuine), ("the parser was reached by a forgery", headers, content)
            assert status in {202, 400, 401, 413}, (status, headers, content)
            assert status != 202 or genuine, ("a forgery was accepted", headers, content)
    # It would prove nothing if hardly anything got that far.
    assert parsed > count / 10
    assert {202, 400, 401} <= statuses.keys()
    print(f"{count} deliveries: {dict(statuses)}; parser reached {parsed} times, never by a forgery")
