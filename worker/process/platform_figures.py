"""What the fleet shares about its platform, asked of Redis at each scrape: circuit breaker, pause, and token.

Each process goes by what it knows itself while Redis is away; what the fleet knows is what stands there. Nothing is
written.
"""

import time
from contextlib import suppress
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric
from redis.asyncio import Redis
from redis.exceptions import RedisError

from credhook.metrics.turn import Turn
from credhook.worker.platform.breaker import Circuit, Phase
from credhook.worker.platform.circuit_snapshot import LONGEST, NotACircuit, read
from credhook.worker.platform.circuit_store import key_name as circuit_key
from credhook.worker.platform.token_key import granted_name, name_from
from credhook.worker.settings import WorkerSettings


def turn_key(settings: WorkerSettings) -> str:
    """Where the turn to export these figures is: one for each platform, however many queues have it."""
    return f"{circuit_key(settings.api_url)}:exporter"


class PlatformFigures:
    """The figures of one platform."""

    def __init__(self, redis: Redis, settings: WorkerSettings, *, turn: Turn) -> None:
        """`turn` says whether it is ours to export them."""
        self._redis = redis
        self._turn = turn
        self._circuit_key = circuit_key(settings.api_url)
        self._token_key = name_from(settings)

    async def __call__(self) -> list[Metric]:
        """All figures; none where Redis does not answer, or where another exports them."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.get(self._turn.key)
        pipeline.getrange(self._circuit_key, 0, LONGEST - 1)
        pipeline.get(granted_name(self._token_key))
        pipeline.exists(self._token_key)
        pipeline.time()
        try:
            holder, snapshot, granted, stands, clock = await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError):
            return []
        if not self._turn.is_ours(holder) or not isinstance(clock, tuple):
            return []
        seconds, microseconds = clock
        now = seconds + microseconds / 1_000_000
        families = *_of_circuit(snapshot, time.monotonic(), now), _token_age(granted if stands == 1 else None, now)
        return [family for family in families if family.samples]


#: As label values have it.
_PHASES: Final = {phase: phase.value.replace(" ", "_") for phase in Phase}


def _of_circuit(snapshot: Any, monotonic: float, redis_time: float) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    """Breaker and pause; what cannot be read counts as nothing, as it does for the workers."""
    circuit = Circuit()
    if isinstance(snapshot, bytes):
        with suppress(NotACircuit):
            circuit = read(snapshot, now=monotonic, ahead=redis_time - monotonic)
    stands = circuit.phase(monotonic)
    breaker = GaugeMetricFamily(
        "credhook_platform_breaker", "1 for what the fleet's circuit breaker is, 0 for all else.", labels=["state"]
    )
    for phase, name in _PHASES.items():
        breaker.add_metric([name], phase is stands)
    pause = GaugeMetricFamily(
        "credhook_platform_pause_seconds", "Seconds until the platform may be called again; 0 if now."
    )
    pause.add_metric([], circuit.until - monotonic if stands is Phase.OPEN else 0)
    return breaker, pause


def _token_age(granted: Any, now: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "credhook_token_age_seconds", "Seconds since the access token that the fleet shares was granted."
    )
    if isinstance(granted, bytes) and granted.isdigit():
        family.add_metric([], max(0.0, now - int(granted) / 1_000))
    return family
