"""What the receiver counts. Labels hold outcomes and statuses, never ids."""

from typing import Final

from prometheus_client import Counter, Histogram

DELIVERIES: Final = Counter(
    "credhook_deliveries", "Authentic deliveries, by outcome; all but `unreadable` were acknowledged.", ["outcome"]
)

REFUSALS: Final = Counter("credhook_refusals", "Deliveries that were refused, by status.", ["status"])

TURNED_AWAY: Final = Counter(
    "credhook_turned_away", "Senders that were refused or cut off before the application saw them.", ["reason"]
)

GROUP_SIZE: Final = Histogram(
    "credhook_group_size",
    "Events that one script wrote.",
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500),
)

STORE_SECONDS: Final = Histogram(
    "credhook_store_seconds",
    "Seconds until Redis confirmed a group.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
)
