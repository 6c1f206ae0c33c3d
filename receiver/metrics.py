"""What the receiver counts. Labels hold outcomes, rules and statuses, never ids."""

from typing import Final

from credhook.metrics.counting import Count, Distribution, Level

DELIVERIES: Final = Count(
    "credhook_deliveries",
    "Authentic deliveries, by outcome; all but `unreadable` were acknowledged.",
    ["outcome"],
    initial=[("accepted",), ("duplicate",), ("conflict",), ("quarantined",), ("erased",), ("unreadable",)],
)

ACKNOWLEDGED: Final = Distribution(
    "credhook_delivery_duration_seconds",
    "Seconds from the headers of a delivery to its 202.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)

WAITING: Final = Level("credhook_deliveries_in_flight", "Authentic deliveries that wait for Redis.")

REFUSALS: Final = Count(
    "credhook_refusals",
    "Deliveries that were refused, by the rule that they broke, and status.",
    ["rule", "status"],
    initial=[("signature", "401"), ("clock", "401"), ("storage", "503")],
)

TURNED_AWAY: Final = Count(
    "credhook_turned_away", "Senders that were refused or cut off before the application saw them.", ["reason"]
)

GROUP_SIZE: Final = Distribution(
    "credhook_group_size", "Events that one script wrote.", buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500)
)

STORE_SECONDS: Final = Distribution(
    "credhook_store_duration_seconds",
    "Seconds until Redis confirmed a group.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
)
