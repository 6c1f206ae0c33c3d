"""What workers count. Labels hold outcomes, never ids."""

from typing import Final

from prometheus_client import Counter, Gauge

ATTEMPTS: Final = Counter("credhook_attempts", "Attempts at events, by where the event stood after them.", ["state"])

UNDER_WAY: Final = Gauge("credhook_under_way", "Events that this worker has under way.", multiprocess_mode="livesum")
