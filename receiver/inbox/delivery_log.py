"""What the log says of the deliveries that were acknowledged: a line for many of them."""

import asyncio
from typing import Final

import structlog

from credhook.ledger import EVENT
from credhook.ledger.traces import Traced
from credhook.receiver.inbox.script import Delivery, Outcome

log = structlog.get_logger("credhook.receiver")

#: Seconds, and deliveries, after which a line is written. A line each would cost more than the delivery does.
_LATEST: Final = 0.1
_MOST: Final = 50


class DeliveryLog:
    """Collects what went as expected, and tells at once what did not."""

    def __init__(self) -> None:
        """Begin with nothing to tell."""
        self._untold: list[tuple[Delivery, Outcome]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, delivery: Delivery, outcome: Outcome) -> None:
        """Tell of it within a tenth of a second."""
        if outcome is Outcome.CONFLICT or outcome is Outcome.QUARANTINED:
            log.warning("event_" + outcome.value, **_ids(delivery))
            return
        if outcome is Outcome.UNREADABLE:
            hint = f"somebody else has written to {EVENT}{delivery.id}: repair or delete it"
            log.error("event_unreadable", **_ids(delivery), hint=hint)
            return
        self._untold.append((delivery, outcome))
        if len(self._untold) == _MOST:
            self.tell()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LATEST, self.tell)

    def tell(self) -> None:
        """Write what is left."""
        untold, self._untold = self._untold, []
        if self._timer:
            self._timer.cancel()
            self._timer = None
        for outcome in (Outcome.ACCEPTED, Outcome.DUPLICATE):
            events = [_ids(delivery) for delivery, became in untold if became is outcome]
            if events:
                log.info("events_" + outcome.value, events=events)


def _ids(delivery: Delivery) -> dict[str, str]:
    event = delivery.event
    ids = {"webhook_id": delivery.id, "event_type": event.type, "resource_id": event.resource_id}
    if delivery.trace is not None and (traced := Traced.read(delivery.trace)):
        ids["trace_id"] = traced.trace
    return ids
