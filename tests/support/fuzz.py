"""A fuzzer for the receiver's front: mutated headers and bodies against the application, in process."""

import base64
import hashlib
import hmac
import logging
import random
import time
from collections import Counter
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import structlog
from signing import SECRET, body, sign

from credhook.events import EVENT_TYPES, Event
from credhook.receiver.app import RefusalLog, create_app
from credhook.receiver.inbox import Outcome
from credhook.receiver.settings import ReceiverSettings

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


class Fuzzer:
    """One application, and what became of the requests that it was sent.

    Attributes:
        statuses: how often each status was answered.
        parsed: how often the parser was reached.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.statuses: Counter[int] = Counter()
        self.parsed = 0
        settings: Any = ReceiverSettings
        inbox: Any = NullInbox()
        self._app = create_app(settings(CREDHOOK_WEBHOOK_SECRETS=SECRET), inbox, RefusalLog())

    async def once(self) -> None:
        """Send one mutated delivery, and judge what came of it."""
        headers, content = self._delivery()
        with patch.object(Event, "parse", wraps=Event.parse) as parse:
            status = await self._send(headers, content)
        genuine = authentic(headers, content)
        self.statuses[status] += 1
        self.parsed += parse.called
        assert not (parse.called and not genuine), ("the parser was reached by a forgery", headers, content)
        assert status in {202, 400, 401, 413}, (status, headers, content)
        assert status != 202 or genuine, ("a forgery was accepted", headers, content)

    def _delivery(self) -> tuple[Headers, bytes]:
        """A good delivery, mutated before it is signed, after, or both."""
        content = body(self.random.choice(EVENT_TYPES), f"iss_{self.random.randrange(100)}")
        webhook_id = f"msg_{self.random.randrange(1_000)}"
        timestamp = str(int(time.time()) - self.random.choice((0, 0, 0, 299, 400)))
        for _ in range(self.random.choice((0, 1, 1, 2, 4))):
            content = self._mutated(content)
        headers = [
            (b"host", b"inbox"),
            (b"webhook-id", webhook_id.encode()),
            (b"webhook-timestamp", timestamp.encode()),
            (b"webhook-signature", sign(webhook_id, timestamp, content).encode()),
        ]
        for _ in range(self.random.choice((0, 0, 1, 2, 3))):
            self._spoil(headers)
        if self.random.random() < 0.2:
            content = self._mutated(content)
        return headers, content

    def _spoil(self, headers: Headers) -> None:
        index = self.random.randrange(len(headers))
        name, value = headers[index]
        junk, anywhere = self.random.choice(JUNK), self.random.randrange(len(headers) + 1)
        match self.random.randrange(7):
            case 0 if len(headers) > 1:
                headers.pop(index)
            case 1:
                headers.insert(anywhere, (name, value))
            case 2:
                headers.insert(anywhere, (name, self._mutated(value)))
            case 3:
                headers[index] = name, self._mutated(value)
            case 4:
                headers[index] = name, value + b" " + junk
            case 5:
                headers[index] = name, junk + b" " + value
            case _:
                self.random.shuffle(headers)

    def _mutated(self, value: bytes) -> bytes:
        place = self.random.randrange(len(value) + 1)
        match self.random.randrange(5):
            case 0:
                return value[:place] + self.random.choice(JUNK) + value[place:]
            case 1:
                return value[:place] + bytes([self.random.randrange(256)]) + value[place + 1 :]
            case 2:
                return value[:place] + value[self.random.randrange(len(value) + 1) :]
            case 3:
                return self.random.choice(JUNK)
            case _:
                return value[:place] + value[: self.random.randrange(len(value) + 1)] + value[place:]

    async def _send(self, headers: Headers, content: bytes) -> int:
        sent: list[Any] = []
        cut = self.random.randrange(len(content) + 1)
        parts = [content[:cut], content[cut:]]

        async def receive() -> dict[str, Any]:
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/webhooks",
            "headers": headers,
            "query_string": b"",
            "root_path": "",
        }
        await self._app(scope, receive, send)
        return int(sent[0]["status"])


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


async def fuzz(count: int, seed: int) -> Fuzzer:
    """Send so many deliveries.

    Raises:
        AssertionError: one was judged wrongly.
    """
    # A line for each of a million refusals would be most of the work.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    fuzzer = Fuzzer(seed)
    try:
        for _ in range(count):
            await fuzzer.once()
    finally:
        structlog.reset_defaults()
    return fuzzer
