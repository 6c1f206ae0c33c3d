"""Send deliveries to their endpoints: sign as Standard Webhooks defines, retry, forge, and log every attempt.

The code shares nothing with the receiver's.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from credhook.sandbox.deliveries import (
    LOG_LENGTH,
    DeliveryAttempt,
    DeliveryFields,
    Outcome,
    PendingDelivery,
    Registration,
    listening,
)
from credhook.sandbox.events import delivery_body
from credhook.sandbox.tenant import FaultSwitch, StateFile

#: Published: it signs only the deliveries of sandboxes. Because it is fixed, `credhook sandbox --env` prints the
#: secret of a sandbox that already runs.
SANDBOX_SECRET = "whsec_c2FuZGJveC1vbmx5LXB1Ymxpc2hlZC1ieS1jcmVkaG9vaw=="  # noqa: S105  Published, see above.

#: Length of an HMAC key in bytes (Standard Webhooks, "Symmetric": 24 to 64).
HMAC_KEY_BYTES = range(24, 65)
#: An ed25519 private key is its seed, or the seed followed by the public key.
SEED_BYTES = 32


class BadKeyError(ValueError):
    """The text is no signing key."""


@dataclass(frozen=True)
class SigningKey:
    """A key that signs deliveries.

    Attributes:
        version: `v1` for HMAC-SHA256, `v1a` for ed25519.
        verifier: The key that a receiver needs: the same secret, or the public key.
        sign: Returns the signature of some bytes.
    """

    version: str
    verifier: str = field(repr=False)
    sign: Callable[[bytes], bytes] = field(repr=False)


def parse_key(text: str) -> SigningKey:
    """Read a signing key, or raise a `BadKeyError` that does not repeat the text."""
    form, _, encoded = text.partition("_")
    try:
        raw = base64.b64decode(encoded, validate=True)
    except ValueError:
        raw = b""
    if form == "whsec" and len(raw) in HMAC_KEY_BYTES:
        return SigningKey("v1", text, lambda signed: hmac.digest(raw, signed, hashlib.sha256))
    if form == "whsk" and len(raw) in {SEED_BYTES, 2 * SEED_BYTES}:
        private = Ed25519PrivateKey.from_private_bytes(raw[:SEED_BYTES])
        public = base64.b64encode(private.public_key().public_bytes_raw()).decode()
        return SigningKey("v1a", f"whpk_{public}", private.sign)
    raise BadKeyError("a signing key should be whsec_ with 24 to 64 bytes, or whsk_ with 32 or 64 bytes, in base64")


def headers(keys: Sequence[SigningKey], webhook_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of one attempt, made at `timestamp` in seconds since 1970.

    The id stays the same across retries (specification, "Delivery rules", 3). Without keys only the id is sent, as one
    client of the platform observed.
    """
    if not keys:
        return {"webhook-id": webhook_id}
    signed = b".".join((webhook_id.encode(), str(timestamp).encode(), body))
    signatures = (f"{key.version},{base64.b64encode(key.sign(signed)).decode()}" for key in keys)
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }


logger = logging.getLogger(__name__)

#: Seconds from a failed attempt to the next, as a common sender has them; multiplied by the time scale.
RETRY_SECONDS = (5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 10 * 3600)

#: An endpoint that fails for so long without one success is switched off; multiplied by the time scale.
FAILURE_LIMIT = timedelta(days=5)

MAX_CONCURRENT_ATTEMPTS = 16

#: Seconds that an endpoint has to answer, as common senders give it. Not scaled: it is the receiver's time.
ANSWER_TIMEOUT_SECONDS = 15

#: Seconds after which deliveries that are held back for reordering are sent, even if there are fewer than wanted.
REORDER_SECONDS = 1.0

#: Seconds by which a replayed delivery is too old for any tolerance.
STALE_SECONDS = 3600

#: The receiver wants no more deliveries (Standard Webhooks, "410 Gone").
GONE = 410

FORGERIES = ("wrongKey", "changedBody", "stale", "unsigned", "secondId")


@dataclass(frozen=True)
class Reply:
    """The result of an attempt: a status and the receiver's `credhook-outcome`, or an error."""

    status: int | None = None
    error: str | None = None
    said: str | None = None

    @property
    def acknowledges(self) -> bool:
        """Return True for 2xx (specification, "Delivery rules", 4)."""
        return self.status is not None and 200 <= self.status < 300  # noqa: PLR2004  2xx.


@dataclass(frozen=True)
class Forgery:
    """A delivery that a receiver should refuse."""

    kind: str
    delivery: PendingDelivery
    headers: Sequence[tuple[str, str]] = field(repr=False)


#: Sends one attempt: to a URL, with headers and a body.
Post = Callable[[httpx.AsyncClient, str, Sequence[tuple[str, str]], bytes], Awaitable[Reply]]


async def post_attempt(client: httpx.AsyncClient, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Reply:
    """Post a body. Every failure becomes a reply with an error."""
    sent = [("content-type", "application/json"), ("user-agent", "credhook-sandbox"), *headers]
    try:
        async with (
            asyncio.timeout(ANSWER_TIMEOUT_SECONDS),
            client.stream("POST", url, content=body, headers=sent) as answer,
        ):
            return Reply(status=answer.status_code, said=answer.headers.get("credhook-outcome"))
    except TimeoutError:
        return Reply(error=f"no answer within {ANSWER_TIMEOUT_SECONDS} s")
    except Exception as problem:  # noqa: BLE001  A URL that cannot be reached, in any way, is a failed attempt.
        return Reply(error=f"{type(problem).__name__}: {problem}")


def forge(kind: str, genuine: PendingDelivery, keys: Sequence[SigningKey], now: int) -> Forgery:
    """Return a forgery of a delivery, made without its key."""
    made_up = f"forged_{secrets.token_hex(8)}"
    webhook_id, text = f"msg_{made_up}", delivery_body(genuine.event_type, made_up)
    forged = genuine.model_copy(update={"webhook_id": webhook_id, "resource_id": made_up, "body": text, "attempts": 1})
    body = text.encode()
    match kind:
        case "wrongKey":
            other = parse_key(f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}")
            sent = headers([other], webhook_id, now, body)
        case "changedBody":
            sent = headers(keys, webhook_id, now, genuine.body.encode())
        case "stale":
            sent = headers(keys, webhook_id, now - STALE_SECONDS, body)
        case "secondId":
            captured = headers(keys, genuine.webhook_id, now, body)
            return Forgery(kind, forged, [("webhook-id", webhook_id), *captured.items()])
        case _:
            sent = headers([], webhook_id, now, body)
    return Forgery(kind, forged, list(sent.items()))


class Sender:
    """Sends announced events while its context is entered."""

    def __init__(
        self,
        state: StateFile,
        faults: FaultSwitch,
        keys: Sequence[SigningKey],
        *,
        trust: ssl.SSLContext,
        time_scale: float,
        now: Callable[[], datetime],
        post: Post = post_attempt,
    ) -> None:
        """Prepare. Without keys, deliveries are unsigned.

        `now` is the wall clock, while waits are on the event loop's. `post` sends one attempt.
        """
        self._registrations = state.of(Registration)
        self._pending = state.of(PendingDelivery)
        self._attempts = state.of(DeliveryAttempt)
        self._state = state
        self._faults = faults
        self._keys = keys
        self._trust = trust
        self._time_scale = time_scale
        self._now = now
        self._post = post
        self._due: asyncio.Queue[str | Forgery] = asyncio.Queue()
        self._held: list[str] = []
        self._release_timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._logged = 0

    async def __aenter__(self) -> Self:
        """Start, with the deliveries that an earlier run left under way."""
        for delivery in self._pending.all():
            for _ in range(delivery.copies - delivery.acknowledged if delivery.acknowledged else 1):
                self._due.put_nowait(delivery.webhook_id)
        self._tasks = [asyncio.create_task(self._work()) for _ in range(MAX_CONCURRENT_ATTEMPTS)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop at once. Pending deliveries stay in the state."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def announce(self, event_type: str, resource_id: str) -> list[str]:
        """Deliver an event to every endpoint that wants it, and return the `webhook-id` of each delivery."""
        faults, webhook_ids = self._faults.on, []
        for endpoint in listening(self._state, event_type):
            delivery = PendingDelivery(
                webhook_id=f"msg_{secrets.token_hex(12)}",
                event_type=event_type,
                resource_id=resource_id,
                endpoint_id=endpoint.id,
                url=endpoint.url,
                body=delivery_body(event_type, resource_id),
                copies=faults.duplicate,
            )
            self._pending.put(delivery.webhook_id, delivery)
            webhook_ids.append(delivery.webhook_id)
            if not faults.reorder:
                self._send_after(faults.delay_ms / 1000, delivery.webhook_id)
            else:
                self._held.append(delivery.webhook_id)
                if len(self._held) >= faults.reorder:
                    self._release()
                elif self._release_timer is None:
                    self._release_timer = asyncio.get_running_loop().call_later(REORDER_SECONDS, self._release)
            for number in range(faults.forge):
                kind = FORGERIES[number % len(FORGERIES)] if self._keys else "unsigned"
                self._due.put_nowait(forge(kind, delivery, self._keys, int(self._now().timestamp())))
        return webhook_ids

    def _release(self) -> None:
        if self._release_timer:
            self._release_timer.cancel()
            self._release_timer = None
        held, self._held = self._held, []
        for webhook_id in reversed(held):
            self._send_after(self._faults.on.delay_ms / 1000, webhook_id)

    def _send_after(self, seconds: float, webhook_id: str) -> None:
        if seconds:
            asyncio.get_running_loop().call_later(seconds, self._due.put_nowait, webhook_id)
        else:
            self._due.put_nowait(webhook_id)

    async def _work(self) -> None:
        # Each task has a client of its own, because httpx's pool grows slow when shared.
        async with httpx.AsyncClient(verify=self._trust, trust_env=False, timeout=ANSWER_TIMEOUT_SECONDS) as client:
            while True:
                due = await self._due.get()
                try:
                    if isinstance(due, str):
                        await self._send(client, due)
                        continue
                    started, began = self._now(), time.monotonic()
                    reply = await self._post(client, due.delivery.url, due.headers, due.delivery.body.encode())
                    self._log(due.delivery, started, began, reply, outcome="forged", forged=due.kind)
                except Exception:  # A defect should cost one delivery, not all that come after it.
                    logger.exception("sandbox.delivery_failed")

    async def _send(self, client: httpx.AsyncClient, webhook_id: str) -> None:
        delivery = self._pending.get(webhook_id)
        if delivery is None:
            return
        if not self._still_wanted(delivery):
            self._pending.remove(webhook_id)
            return
        delivery = delivery.model_copy(update={"attempts": delivery.attempts + 1})
        self._pending.put(webhook_id, delivery)
        faults, started, began = self._faults.on, self._now(), time.monotonic()
        if delivery.attempts <= faults.drop:
            reply = Reply(error="dropped on the way by the fault `drop`")
        else:
            body = delivery.body.encode()
            signed = headers(self._keys, webhook_id, int(started.timestamp()), body)
            reply = await self._post(client, delivery.url, list(signed.items()), body)
            if reply.status is not None and delivery.attempts <= faults.drop + faults.lose_answers:
                reply = Reply(error="answer lost by the fault `loseAnswers`", said=reply.said)
        self._log(delivery, started, began, reply, outcome=self._settle(webhook_id, reply))

    def _still_wanted(self, delivery: PendingDelivery) -> bool:
        registration = self._registrations.get(delivery.endpoint_id)
        return registration is not None and registration.switched_off_at is None

    def _settle(self, webhook_id: str, reply: Reply) -> Outcome:
        """Count a reply, schedule the next attempt, and return the outcome."""
        delivery = self._pending.get(webhook_id)
        if delivery is None:
            return "acknowledged" if reply.acknowledges else "givenUp"
        self._note_health(delivery.endpoint_id, reply)
        if reply.acknowledges:
            acknowledged = delivery.acknowledged + 1
            if acknowledged >= delivery.copies:
                self._pending.remove(webhook_id)
            else:
                self._pending.put(webhook_id, delivery.model_copy(update={"acknowledged": acknowledged}))
                for _ in range(delivery.copies - 1 if acknowledged == 1 else 0):  # The other copies follow together.
                    self._due.put_nowait(webhook_id)
            return "acknowledged"
        if delivery.failures == len(RETRY_SECONDS) or not self._still_wanted(delivery):
            self._pending.remove(webhook_id)
            return "givenUp"
        self._pending.put(webhook_id, delivery.model_copy(update={"failures": delivery.failures + 1}))
        self._send_after(RETRY_SECONDS[delivery.failures] * self._time_scale, webhook_id)
        return "retrying"

    def _note_health(self, endpoint_id: str, reply: Reply) -> None:
        """Record since when an endpoint fails, and switch it off after `FAILURE_LIMIT`."""
        registration = self._registrations.get(endpoint_id)
        if registration is None or registration.switched_off_at is not None:
            return
        now = self._now()
        since = None if reply.acknowledges else registration.failing_since or now
        lasting = since is not None and now - since >= FAILURE_LIMIT * self._time_scale
        off = now if lasting or reply.status == GONE else None
        if (since, off) != (registration.failing_since, None):
            changes = {"failing_since": since, "switched_off_at": off}
            self._registrations.put(endpoint_id, registration.model_copy(update=changes))

    def _log(
        self,
        delivery: PendingDelivery,
        started: datetime,
        began: float,
        reply: Reply,
        *,
        outcome: Outcome,
        forged: str | None = None,
    ) -> None:
        attempt = DeliveryAttempt(
            **delivery.model_dump(include=set(DeliveryFields.model_fields)),
            attempt=delivery.attempts,
            started_at=started,
            milliseconds=round((time.monotonic() - began) * 1000, 1),
            status=reply.status,
            error=reply.error,
            answer=reply.said,
            outcome=outcome,
            forged=forged,
        )
        self._attempts.put(secrets.token_hex(12), attempt)
        self._logged += 1
        if self._logged % 1000 == 0:
            self._attempts.trim(LOG_LENGTH)
