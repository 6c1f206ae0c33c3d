"""What workers count. Labels hold names of handlers that are loaded, types, states and statuses; never ids."""

from typing import Final

from credhook.events import EVENT_TYPES
from credhook.metrics.counting import Count, Distribution, Level
from credhook.store import State
from credhook.worker.api.calls.errors import ApiError, InvalidResponse

#: What a platform can answer, as far as it matters; any other status stands for its hundred.
_STATUSES: Final = frozenset({401, 403, 404, 429})

_TYPES: Final = frozenset(EVENT_TYPES)

_HANDLER_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

ATTEMPTS: Final = Count(
    "credhook_attempts",
    "Attempts at events, by where the event stood after them: `waiting` are retries to come.",
    ["state"],
    known=[
        (one.value,)
        for one in (State.DONE, State.WAITING, State.DEAD, State.DATA_GONE, State.UNHANDLED, State.ACCEPTED)
    ],
)

DELIVERY_TO_DONE: Final = Distribution(
    "credhook_delivery_to_done_seconds",
    "Seconds from when an event was received until it was done.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200, 43_200),
)

IN_FLIGHT: Final = Level("credhook_events_in_flight", "Events that this worker has under way.")

HANDLER_RUNS: Final = Count(
    "credhook_handler_runs",
    "Handlers at an event: done, skipped by their condition, failed and to be retried, postponed, given up.",
    ["handler", "type", "outcome"],
)

HANDLER_SECONDS: Final = Distribution(
    "credhook_handler_duration_seconds", "Seconds that handlers took.", ["handler"], buckets=_HANDLER_BUCKETS
)

HANDLERS_HUNG: Final = Level("credhook_handlers_hung", "Runs of handlers that go on although they were given up.")

FETCH_SECONDS: Final = Distribution(
    "credhook_fetch_duration_seconds",
    "Seconds until the platform had said what an event is about, by status; or by why it had none to give: no answer "
    "(`none`), no token (`token`), an answer out of contract (`not_understood`).",
    ["status"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    known=[("2xx",)],
)

LEASES_LOST: Final = Count("credhook_leases_lost", "Events that were lost to another worker while under way.")

RECLAIMED: Final = Count(
    "credhook_events_reclaimed", "Events taken over from workers that had died, as soon as that was known."
)

REQUEUED: Final = Count(
    "credhook_events_requeued", "Orphaned open events that the sweeper has put back into the queue."
)

CALLS_REFUSED: Final = Count("credhook_platform_refused", "Calls to the platform that were refused without being sent.")

TOKEN_FETCHES: Final = Count(
    "credhook_token_fetches",
    "Access tokens that were asked for: granted, refused by the token endpoint, or without an answer.",
    ["outcome"],
    known=[("granted",), ("refused",), ("unanswered",)],
)


def type_label(event_type: str) -> str:
    """One of the ten types, or `unknown`."""
    return event_type if event_type in _TYPES else "unknown"


def status_label(error: ApiError) -> str:
    """A status that says something by itself, or its class: `404`, `5xx`; or what there was instead."""
    if error.operation == "token":
        return "token"
    if isinstance(error, InvalidResponse):
        return "not_understood"
    if error.status is None:
        return "none"
    return str(error.status) if error.status in _STATUSES else f"{error.status // 100}xx"
