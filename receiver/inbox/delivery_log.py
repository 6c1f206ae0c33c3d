"""What the log says of the deliveries that were acknowledged: a line for many of them."""

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from credhook.receiver.inbox.script import Delivery, Outcome
from credhook.store import EVENT
from credhook.store.traces import Traced

log = structlog.get_logger("credhook.receiver")

#: Seconds, and deliveries, after which a line is written. A line each would cost more than the delivery does.
_LATEST: Final = 0.1
_MOST: Final = 50


class DeliveryLog:
    """Collects what went as expected, and tells at once what did not."""

    def __init__(self) -> None:
        """Begin with nothing to tell."""
        self._accepted: list[Delivery] = []
        self._duplicate: list[Delivery] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, group: Iterable[tuple[Delivery, Outcome]]) -> None:
        """Tell of each, within a tenth of a second."""
        for delivery, outcome in group:
            if outcome is Outcome.ACCEPTED:
                self._accepted.append(delivery)
            elif outcome is Outcome.DUPLICATE:
                self._duplicate.append(delivery)
            else:
                _warn(delivery, outcome)
        untold = len(self._accepted) + len(self._duplicate)
        if untold >= _MOST:
            self.tell()
        elif untold and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LATEST, self.tell)

    def tell(self) -> None:
        """Write what is left."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        for outcome, deliveries in (("accepted", self._accepted), ("duplicate", self._duplicate)):
            for first in range(0, len(deliveries), _MOST):
                log.info("events_" + outcome, events=[_ids(one) for one in deliveries[first : first + _MOST]])
            deliveries.clear()


def _warn(delivery: Delivery, outcome: Outcome) -> None:
    if outcome is Outcome.UNREADABLE:
        hint = f"somebody else has written to {EVENT}{delivery.id}: repair or delete it"
        log.error("event_unreadable", **_ids(delivery), hint=hint)
    else:
        log.warning("event_" + outcome.value, **_ids(delivery))


def _ids(delivery: Delivery) -> dict[str, str]:
    event = delivery.event
    ids = {"webhook_id": delivery.id, "event_type": event.type, "resource_id": event.resource_id}
    if delivery.trace is not None and (traced := Traced.read(delivery.trace)):
        ids["trace_id"] = traced.trace
    return ids
