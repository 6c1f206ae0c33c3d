"""Webhook endpoints, and the deliveries to them: signed as Standard Webhooks defines, retried, forged, and logged."""

import asyncio
import base64
import logging
import re
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import AfterValidator, Field
from standardwebhooks import Webhook
from starlette.exceptions import HTTPException

from credhook.sandbox.events import EVENT_TYPES, EventType, delivery_body
from credhook.sandbox.operations import Listing, operation
from credhook.sandbox.tenant import FaultSwitch, StateFile, Tenant, utc_now
from credhook.sandbox.wire import ABSENT, StampedModel, WireModel

logger = logging.getLogger(__name__)

ENDPOINTS = "/me-creds/api/endpoints"

#: Published, since it signs for sandboxes alone. It is fixed, so that `credhook sandbox --env` prints the key of a
#: running sandbox.
SANDBOX_SECRET = "whsec_c2FuZGJveC1vbmx5LXB1Ymxpc2hlZC1ieS1jcmVkaG9vaw=="  # noqa: S105  Published, see above.

#: Length of an HMAC key in bytes (Standard Webhooks, "Symmetric": 24 to 64).
HMAC_KEY_BYTES = range(24, 65)
#: An ed25519 private key is its seed, or the seed followed by the public key.
SEED_BYTES = 32

#: Seconds from a failed attempt to the next, as common senders wait; multiplied by the time scale.
RETRY_SECONDS = (5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 10 * 3600)

#: Seconds that an endpoint has to answer, as at common senders. Not scaled, since a receiver needs real time.
ANSWER_TIMEOUT_SECONDS = 15

#: Seconds after which deliveries that are held back for reordering are sent, even if there are fewer than wanted.
REORDER_SECONDS = 1.0

#: Seconds by which a replayed delivery is too old for any tolerance.
STALE_SECONDS = 3600

FORGERIES = ("wrongKey", "changedBody", "stale", "unsigned", "secondId")

Outcome = Literal["acknowledged", "retrying", "givenUp", "forged"]


#: A host in a URL: a DNS name of ASCII, or an IPv6 address.
HOST = re.compile(r"(?!.*\.\.)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")


def https_url(value: str) -> str:
    """Accept an absolute URL of a host that can exist. Its scheme may be in any case."""
    try:
        parts = urlsplit(value)
        fits = parts.scheme == "https" and parts.port != 0 and HOST.fullmatch(parts.hostname or "")
    except ValueError:  # The port or the brackets are wrong.
        fits = None
    if not fits or not value.isascii() or not value.isprintable() or " " in value or "@" in parts.netloc:
        raise ValueError("should be an https URL")
    return value


class NewEndpoint(WireModel):
    """The body of `POST /endpoints`."""

    url: Annotated[str, AfterValidator(https_url)]
    id: str = Field(ABSENT, min_length=1)
    filter_types: list[EventType] = Field(ABSENT, min_length=1)


class SandboxEndpoint(StampedModel):
    """A webhook endpoint (specification, "Webhook endpoint")."""

    url: str
    filter_types: list[EventType]


class DeliveryFields(WireModel):
    """The fields that a pending delivery and its attempts share."""

    webhook_id: str
    event_type: EventType
    resource_id: str
    endpoint_id: str
    url: str


class PendingDelivery(DeliveryFields):
    """A delivery that is neither acknowledged nor given up."""

    body: str
    copies: int
    acknowledged: int = 0
    attempts: int = 0
    failures: int = 0


class Reply(WireModel):
    """The result of an attempt.

    Attributes:
        status: Status of the receiver's answer, or None if there was none.
        error: Why there was no answer.
        answer: The receiver's `credhook-outcome` header, if it sends one.
    """

    status: int | None = None
    error: str | None = None
    answer: str | None = None


class DeliveryAttempt(DeliveryFields, Reply):
    """One attempt, as the log shows it.

    Attributes:
        attempt: Counts from 1 over all attempts of the delivery.
        outcome: What follows from the reply.
        forged: The kind of forgery, or None.
    """

    attempt: int
    started_at: datetime
    milliseconds: float
    outcome: Outcome
    forged: str | None


@operation("POST", ENDPOINTS, status=201)
def register(tenant: Tenant, body: NewEndpoint) -> SandboxEndpoint:
    """Register an endpoint, or answer 409 for a taken id. A DELETE must free it before another URL gets the events."""
    id_, now = body.id or str(uuid4()), tenant.now()
    if tenant.state.get(SandboxEndpoint, id_):
        raise HTTPException(409, f"There is an endpoint {id_} already; delete it first to replace it.")
    endpoint = SandboxEndpoint(
        id=id_, url=body.url, filter_types=body.filter_types or list(EVENT_TYPES), created_at=now, updated_at=now
    )
    tenant.state.put(id_, endpoint)
    return endpoint


@operation("GET", ENDPOINTS, enveloped=False)
def list_endpoints(tenant: Tenant) -> list[SandboxEndpoint]:
    """Return all endpoints of the organisation."""
    return tenant.state.all(SandboxEndpoint)


@operation("DELETE", f"{ENDPOINTS}/{{id}}", status=204)
def remove_endpoint(tenant: Tenant, id_: str) -> None:
    """Remove an endpoint and abandon the deliveries on their way to it."""
    if not tenant.state.remove(SandboxEndpoint, id_):
        raise HTTPException(404, f"There is no endpoint {id_}.")
    for delivery in tenant.state.all(PendingDelivery):
        if delivery.endpoint_id == id_:
            tenant.state.remove(PendingDelivery, delivery.webhook_id)


@operation("GET", "/sandbox/deliveries")
def list_attempts(tenant: Tenant) -> Listing[list[DeliveryAttempt]]:
    """Return the attempts, the oldest first, and the number of deliveries under way."""
    return Listing(tenant.state.all(DeliveryAttempt), {"underWay": tenant.state.count(PendingDelivery)})


@dataclass(frozen=True)
class SigningKey:
    """A key that signs deliveries.

    Attributes:
        verifier: The key that a receiver needs: the same secret, or the public key.
        sign: Returns the signature of a delivery's id, time and body, after its version: `v1` or `v1a`.
    """

    verifier: str = field(repr=False)
    sign: Callable[[str, datetime, str], str] = field(repr=False)


def parse_key(text: str) -> SigningKey:
    """Read a signing key, or raise a `ValueError` that does not repeat the text."""
    form, _, encoded = text.partition("_")
    try:
        raw = base64.b64decode(encoded, validate=True)
    except ValueError:
        raw = b""
    if form == "whsec" and len(raw) in HMAC_KEY_BYTES:
        return SigningKey(text, Webhook(raw).sign)
    if form == "whsk" and len(raw) in {SEED_BYTES, 2 * SEED_BYTES}:
        private = Ed25519PrivateKey.from_private_bytes(raw[:SEED_BYTES])
        public = base64.b64encode(private.public_key().public_bytes_raw()).decode()

        def sign_v1a(webhook_id: str, moment: datetime, body: str) -> str:
            signature = private.sign(f"{webhook_id}.{int(moment.timestamp())}.{body}".encode())
            return f"v1a,{base64.b64encode(signature).decode()}"

        return SigningKey(f"whpk_{public}", sign_v1a)
    raise ValueError("a signing key should be whsec_ with 24 to 64 bytes, or whsk_ with 32 or 64 bytes, in base64")


def headers(keys: Sequence[SigningKey], webhook_id: str, timestamp: float, body: str) -> dict[str, str]:
    """Return the headers of one attempt, made at `timestamp` in seconds since 1970.

    The id stays the same across retries (specification, "Delivery rules", 3). Without keys only the id is sent, as one
    client of the platform observed.
    """
    if not keys:
        return {"webhook-id": webhook_id}
    moment = datetime.fromtimestamp(int(timestamp), UTC)
    signatures = " ".join(key.sign(webhook_id, moment, body) for key in keys)
    return {"webhook-id": webhook_id, "webhook-timestamp": str(int(timestamp)), "webhook-signature": signatures}


@dataclass(frozen=True)
class Forgery:
    """A delivery that a receiver should refuse."""

    kind: str
    delivery: PendingDelivery
    headers: Sequence[tuple[str, str]] = field(repr=False)


def forge(kind: str, genuine: PendingDelivery, keys: Sequence[SigningKey], now: float) -> Forgery:
    """Return a forgery of a delivery, made without its key."""
    fake_id = f"forged_{secrets.token_hex(8)}"
    id_, body = f"msg_{fake_id}", delivery_body(genuine.event_type, fake_id)
    forged = genuine.model_copy(update={"webhook_id": id_, "resource_id": fake_id, "body": body, "attempts": 1})
    match kind:
        case "wrongKey":
            sent = headers([parse_key(f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}")], id_, now, body)
        case "changedBody":
            sent = headers(keys, id_, now, genuine.body)
        case "stale":
            sent = headers(keys, id_, now - STALE_SECONDS, body)
        case "secondId":
            sent = headers(keys, genuine.webhook_id, now, body)
            return Forgery(kind, forged, [("webhook-id", id_), *sent.items()])
        case _:
            sent = headers([], id_, now, body)
    return Forgery(kind, forged, [*sent.items()])


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
            return Reply(status=answer.status_code, answer=answer.headers.get("credhook-outcome"))
    except TimeoutError:
        return Reply(error=f"no answer within {ANSWER_TIMEOUT_SECONDS} s")
    except Exception as problem:  # noqa: BLE001  A URL that cannot be reached, in any way, is a failed attempt.
        return Reply(error=f"{type(problem).__name__}: {problem}")


@dataclass
class Sender:
    """Sends announced events. Without keys, deliveries are unsigned.

    `now` is the wall clock, while waits are on the event loop's. `post` sends one attempt.
    """

    state: StateFile
    faults: FaultSwitch
    keys: Sequence[SigningKey]
    trust: ssl.SSLContext
    time_scale: float
    now: Callable[[], datetime] = utc_now
    post: Post = post_attempt
    _due: asyncio.Queue[str | Forgery] = field(default_factory=asyncio.Queue)
    _held_back: list[str] = field(default_factory=list)
    #: Releases the deliveries that are held back, even if there are few.
    _timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send, beginning with the deliveries of an earlier run. Deliveries that are not settled stay in the state."""
        for delivery in self.state.all(PendingDelivery):
            for _ in range(delivery.copies - delivery.acknowledged if delivery.acknowledged else 1):
                self._due.put_nowait(delivery.webhook_id)
        tasks = [asyncio.create_task(self._work()) for _ in range(16)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def announce(self, event_type: str, resource_id: str) -> list[str]:
        """Deliver an event to every endpoint that wants it, and return the `webhook-id` of each delivery."""
        faults, webhook_ids = self.faults.on, []
        for endpoint in self.state.all(SandboxEndpoint):
            if event_type not in endpoint.filter_types:
                continue
            delivery = PendingDelivery(
                webhook_id=f"msg_{secrets.token_hex(12)}",
                event_type=event_type,
                resource_id=resource_id,
                endpoint_id=endpoint.id,
                url=endpoint.url,
                body=delivery_body(event_type, resource_id),
                copies=faults.duplicate,
            )
            self.state.put(delivery.webhook_id, delivery)
            webhook_ids.append(delivery.webhook_id)
            if faults.reorder:
                self._held_back.append(delivery.webhook_id)
                if len(self._held_back) >= faults.reorder:
                    self._release()
                elif len(self._held_back) == 1:
                    self._timer = asyncio.get_running_loop().call_later(REORDER_SECONDS, self._release)
            else:
                self._send_after(faults.delay_ms / 1000, delivery.webhook_id)
            for number in range(faults.forge):
                kind = FORGERIES[number % len(FORGERIES)] if self.keys else "unsigned"
                self._due.put_nowait(forge(kind, delivery, self.keys, self.now().timestamp()))
        return webhook_ids

    def _release(self) -> None:
        """Send the deliveries that are held back, the last first."""
        if self._timer:
            self._timer.cancel()
        held_back, self._held_back = self._held_back, []
        for webhook_id in reversed(held_back):
            self._send_after(self.faults.on.delay_ms / 1000, webhook_id)

    def _send_after(self, seconds: float, webhook_id: str) -> None:
        if seconds:
            asyncio.get_running_loop().call_later(seconds, self._due.put_nowait, webhook_id)
        else:  # Timers for the same moment would not keep the order.
            self._due.put_nowait(webhook_id)

    async def _work(self) -> None:
        # Each task has a client of its own, because httpx's pool grows slow when shared.
        async with httpx.AsyncClient(verify=self.trust, trust_env=False, timeout=ANSWER_TIMEOUT_SECONDS) as client:
            while True:
                due = await self._due.get()
                try:
                    await self._send(client, due)
                except Exception:  # A defect should cost one delivery, not all that come after it.
                    logger.exception("sandbox.delivery_failed")

    async def _send(self, client: httpx.AsyncClient, due: str | Forgery) -> None:
        faults, started, began = self.faults.on, self.now(), time.monotonic()
        if isinstance(due, Forgery):
            delivery = due.delivery
            reply = await self.post(client, delivery.url, due.headers, delivery.body.encode())
            outcome: Outcome = "forged"
        else:
            pending = self.state.get(PendingDelivery, due)
            if pending is None:  # Given up, or its endpoint has been removed.
                return
            delivery = pending.model_copy(update={"attempts": pending.attempts + 1})
            self.state.put(due, delivery)
            if delivery.attempts <= faults.drop:
                reply = Reply(error="dropped on the way by the fault `drop`")
            else:
                sent = headers(self.keys, due, started.timestamp(), delivery.body)
                reply = await self.post(client, delivery.url, [*sent.items()], delivery.body.encode())
                if reply.status is not None and delivery.attempts <= faults.drop + faults.lose_answers:
                    reply = Reply(error="answer lost by the fault `loseAnswers`", answer=reply.answer)
            outcome = self._settle(due, reply)
        attempt = DeliveryAttempt(
            **delivery.model_dump(include=set(DeliveryFields.model_fields)),
            **reply.model_dump(),
            attempt=delivery.attempts,
            started_at=started,
            milliseconds=round((time.monotonic() - began) * 1000, 1),
            outcome=outcome,
            forged=due.kind if isinstance(due, Forgery) else None,
        )
        self.state.put(secrets.token_hex(12), attempt)

    def _settle(self, webhook_id: str, reply: Reply) -> Outcome:
        """Count a reply, schedule the next attempt, and return the outcome. Any 2xx acknowledges."""
        state = self.state
        acknowledges = reply.status is not None and httpx.codes.is_success(reply.status)
        delivery = state.get(PendingDelivery, webhook_id)
        if delivery is None:
            return "acknowledged" if acknowledges else "givenUp"
        if acknowledges:
            acknowledged = delivery.acknowledged + 1
            state.put(webhook_id, delivery.model_copy(update={"acknowledged": acknowledged}))
            if acknowledged >= delivery.copies:
                state.remove(PendingDelivery, webhook_id)
            elif acknowledged == 1:  # The other copies follow together.
                for _ in range(delivery.copies - 1):
                    self._due.put_nowait(webhook_id)
            return "acknowledged"
        if delivery.failures == len(RETRY_SECONDS):
            state.remove(PendingDelivery, webhook_id)
            return "givenUp"
        state.put(webhook_id, delivery.model_copy(update={"failures": delivery.failures + 1}))
        self._send_after(RETRY_SECONDS[delivery.failures] * self.time_scale, webhook_id)
        return "retrying"
