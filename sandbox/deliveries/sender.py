"""Carries deliveries to their endpoints: sends, retries, and logs every attempt."""

import asyncio
import logging
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

import httpx

from credhook.sandbox.deliveries import deliveries, endpoints
from credhook.sandbox.deliveries.deliveries import PATIENCE, Attempt, Delivery, Outcome, wait_after
from credhook.sandbox.deliveries.forgeries import Forgery, forgeries
from credhook.sandbox.deliveries.posting import TIMEOUT, Answer, send
from credhook.sandbox.deliveries.signing import Key, headers
from credhook.sandbox.tenant.events import EventType, notice
from credhook.sandbox.tenant.faults import FaultSwitch
from credhook.sandbox.tenant.state import State

logger = logging.getLogger(__name__)

#: How one attempt is sent: by which client, to which URL, with which headers and body.
Post = Callable[[httpx.AsyncClient, str, Sequence[tuple[str, str]], bytes], Awaitable[Answer]]

#: Attempts in flight at a time. Each has a client of its own, because httpx's pool grows slow when shared.
SLOTS = 16

#: Seconds after which deliveries that are held back for reordering go out, however few they are.
REORDER_PATIENCE = 1.0

#: The receiver asks for no more (Standard Webhooks, "410 Gone").
GONE = 410


class Sender:
    """Sends what has been announced, while its context is entered."""

    def __init__(
        self,
        state: State,
        faults: FaultSwitch,
        keys: Sequence[Key],
        *,
        trust: ssl.SSLContext,
        time_scale: float,
        now: Callable[[], datetime],
        post: Post = send,
    ) -> None:
        """Prepare; nothing is sent before the context is entered. Without keys, deliveries are unsigned.

        `now` is the wall clock, while waits are on the event loop's; `post` sends one attempt.
        """
        self._state = state
        self._under_way = deliveries.under_way(state)
        self._faults = faults
        self._keys = keys
        self._trust = trust
        self._time_scale = time_scale
        self._now = now
        self._post = post
        self._due: asyncio.Queue[str | Forgery] = asyncio.Queue()
        self._held: list[str] = []
        self._release_timer: asyncio.TimerHandle | None = None
        self._slots: list[asyncio.Task[None]] = []
        self._logged = 0

    async def __aenter__(self) -> Self:
        """Begin, with what an earlier run has left under way."""
        for delivery in self._under_way.all():
            for _ in range(delivery.copies - delivery.acknowledged if delivery.acknowledged else 1):
                self._due.put_nowait(delivery.webhook_id)
        self._slots = [asyncio.create_task(self._carry()) for _ in range(SLOTS)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop at once; what is under way stays in the state."""
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)

    def announce(self, event_type: EventType, resource_id: str) -> list[str]:
        """Put an event on its way to every endpoint that wants it; return the `webhook-id` of each delivery."""
        return [
            self._begin(event_type, resource_id, endpoint) for endpoint in endpoints.listening(self._state, event_type)
        ]

    def _begin(self, event_type: EventType, resource_id: str, endpoint: endpoints.Endpoint) -> str:
        delivery = Delivery(
            webhook_id=f"msg_{secrets.token_hex(12)}",
            event_type=event_type,
            resource_id=resource_id,
            endpoint_id=endpoint.id,
            url=endpoint.url,
            body=notice(event_type, resource_id),
            copies=self._faults.on.duplicate,
            acknowledged=0,
            attempts=0,
            failures=0,
        )
        self._under_way.put(delivery.webhook_id, delivery)
        self._schedule(delivery.webhook_id)
        for forgery in forgeries(self._faults.on.forge, delivery, self._keys, self._now()):
            self._due.put_nowait(forgery)
        return delivery.webhook_id

    def _schedule(self, webhook_id: str) -> None:
        """Send a delivery for the first time, after a wait and perhaps after those that come behind it."""
        if self._faults.on.reorder:
            self._hold(webhook_id)
        else:
            self._send_after(self._faults.on.delay_ms / 1000, webhook_id)

    def _hold(self, webhook_id: str) -> None:
        self._held.append(webhook_id)
        if len(self._held) >= self._faults.on.reorder:
            self._release()
        elif self._release_timer is None:
            self._release_timer = asyncio.get_running_loop().call_later(REORDER_PATIENCE, self._release)

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

    async def _carry(self) -> None:
        """Send what is due, one at a time, for as long as the sandbox runs."""
        async with httpx.AsyncClient(verify=self._trust, trust_env=False, timeout=TIMEOUT) as client:
            while True:
                due = await self._due.get()
                try:
                    if isinstance(due, Forgery):
                        await self._try_forgery(client, due)
                    else:
                        await self._try(client, due)
                except Exception:  # A defect should cost one delivery, not all that come after it.
                    logger.exception("sandbox.delivery_failed")

    async def _try(self, client: httpx.AsyncClient, webhook_id: str) -> None:
        delivery = self._under_way.get(webhook_id)
        if delivery is None:
            return
        if not self._still_wanted(delivery):
            self._under_way.remove(webhook_id)
            return
        delivery = delivery.model_copy(update={"attempts": delivery.attempts + 1})
        self._under_way.put(webhook_id, delivery)
        started, ticking = self._now(), time.monotonic()
        answer = await self._answer(client, delivery, started)
        outcome = self._settle(webhook_id, answer)
        self._log(delivery, started, time.monotonic() - ticking, answer, outcome=outcome)

    def _still_wanted(self, delivery: Delivery) -> bool:
        registration = endpoints.shelf(self._state).get(delivery.endpoint_id)
        return registration is not None and registration.switched_off_at is None

    async def _answer(self, client: httpx.AsyncClient, delivery: Delivery, now: datetime) -> Answer:
        """Send one attempt, or lose it where a fault says so."""
        faults = self._faults.on
        if delivery.attempts <= faults.drop:
            return Answer(error="dropped on the way by the fault `drop`")
        body = delivery.body.encode()
        signed = headers(self._keys, delivery.webhook_id, int(now.timestamp()), body)
        answer = await self._post(client, delivery.url, list(signed.items()), body)
        if answer.status is not None and delivery.attempts <= faults.drop + faults.lose_answers:
            return Answer(error="answer lost by the fault `loseAnswers`", said=answer.said)
        return answer

    def _settle(self, webhook_id: str, answer: Answer) -> Outcome:
        """Decide what follows from an answer, and see to it."""
        delivery = self._under_way.get(webhook_id)
        if delivery is None:
            return "acknowledged" if answer.acknowledges else "givenUp"
        self._note_health(delivery.endpoint_id, answer)
        if answer.acknowledges:
            self._acknowledge(delivery)
            return "acknowledged"
        failed = delivery.model_copy(update={"failures": delivery.failures + 1})
        wait = wait_after(failed.failures, self._time_scale)
        if wait is None or not self._still_wanted(failed):
            self._under_way.remove(webhook_id)
            return "givenUp"
        self._under_way.put(webhook_id, failed)
        self._send_after(wait, webhook_id)
        return "retrying"

    def _acknowledge(self, delivery: Delivery) -> None:
        """Count an acknowledged copy. The first one lets the others go, all at once."""
        acknowledged = delivery.acknowledged + 1
        if acknowledged >= delivery.copies:
            self._under_way.remove(delivery.webhook_id)
            return
        self._under_way.put(delivery.webhook_id, delivery.model_copy(update={"acknowledged": acknowledged}))
        if acknowledged == 1:
            for _ in range(delivery.copies - 1):
                self._due.put_nowait(delivery.webhook_id)

    def _note_health(self, endpoint_id: str, answer: Answer) -> None:
        """Remember since when an endpoint fails, and switch it off once that has lasted."""
        shelf = endpoints.shelf(self._state)
        registration = shelf.get(endpoint_id)
        if registration is None or registration.switched_off_at is not None:
            return
        now = self._now()
        since = None if answer.acknowledges else registration.failing_since or now
        lasting = since is not None and now - since >= PATIENCE * self._time_scale
        off = now if lasting or answer.status == GONE else None
        if (since, off) != (registration.failing_since, None):
            shelf.put(endpoint_id, registration.model_copy(update={"failing_since": since, "switched_off_at": off}))

    async def _try_forgery(self, client: httpx.AsyncClient, forgery: Forgery) -> None:
        started, ticking = self._now(), time.monotonic()
        answer = await self._post(client, forgery.delivery.url, forgery.headers, forgery.delivery.body.encode())
        self._log(forgery.delivery, started, time.monotonic() - ticking, answer, outcome="forged", forged=forgery.kind)

    def _log(
        self,
        delivery: Delivery,
        started: datetime,
        seconds: float,
        answer: Answer,
        *,
        outcome: Outcome,
        forged: str | None = None,
    ) -> None:
        attempt = Attempt(
            webhook_id=delivery.webhook_id,
            event_type=delivery.event_type,
            resource_id=delivery.resource_id,
            endpoint_id=delivery.endpoint_id,
            url=delivery.url,
            attempt=delivery.attempts,
            started_at=started,
            milliseconds=round(seconds * 1000, 1),
            status=answer.status,
            error=answer.error,
            answer=answer.said,
            outcome=outcome,
            forged=forged,
        )
        log = deliveries.log(self._state)
        log.put(secrets.token_hex(12), attempt)
        self._logged += 1
        if self._logged % 1000 == 0:
            log.trim(deliveries.LOG_LENGTH)
