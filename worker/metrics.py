"""The metrics of workers. Labels hold names of loaded handlers, types, states and statuses, but no ids."""

from typing import Final

from credhook.metrics.counting import Count, Distribution, Level
from credhook.worker.api.errors import ApiError, InvalidResponse

ATTEMPTS: Final = Count(
    "credhook_attempts",
    "Attempts, by the state of the event afterwards.",
    ["state"],
    initial=[("done",), ("waiting",), ("dead",), ("data_gone",), ("unhandled",), ("accepted",)],
)

DELIVERY_TO_DONE: Final = Distribution(
    "credhook_delivery_to_done_seconds",
    "Seconds from receiving an event until it was done.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200, 43_200),
)

IN_FLIGHT: Final = Level("credhook_events_in_flight", "Events in flight.")

HANDLER_RUNS: Final = Count(
    "credhook_handler_runs",
    "Handler runs, by outcome: done, skipped, failed (tried again), retried (by `Retry`), deferred (no attempt spent), "
    "gave_up.",
    ["handler", "type", "outcome"],
)

HANDLER_SECONDS: Final = Distribution(
    "credhook_handler_duration_seconds",
    "Seconds that handlers took.",
    ["handler"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
)

HANDLERS_HUNG: Final = Level("credhook_handlers_hung", "Handler runs that continue after their time-out.")

FETCH_SECONDS: Final = Distribution(
    "credhook_fetch_duration_seconds",
    "Seconds of fetching details, by status, or `none` (no answer), `token` (no token), `not_understood` (invalid).",
    ["status"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)

LEASES_LOST: Final = Count("credhook_leases_lost", "Events lost to another worker while in flight.")

RECLAIMED: Final = Count("credhook_events_reclaimed", "Events reclaimed from dead workers.")

REQUEUED: Final = Count("credhook_events_requeued", "Orphaned events that the sweeper requeued.")

BREAKER: Final = Level("credhook_platform_breaker", "Worker processes whose circuit breaker is open or half open.")

CALLS_REFUSED: Final = Count(
    "credhook_platform_refused", "Calls to the platform that the circuit breaker or the rate limit refused."
)

TOKEN_FETCHES: Final = Count(
    "credhook_token_fetches",
    "Requests for an access token, by outcome.",
    ["outcome"],
    initial=[("granted",), ("refused",), ("unanswered",)],
)


def status_label(error: ApiError) -> str:
    """Return a label such as `404` or `5xx`, or a word for an error without a status."""
    if error.operation == "token":
        return "token"
    if isinstance(error, InvalidResponse):
        return "not_understood"
    if error.status is None:
        return "none"
    return str(error.status) if error.status in {401, 403, 404, 429} else f"{error.status // 100}xx"
