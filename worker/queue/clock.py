"""Watch Redis's clock, which dates leases, heartbeats and retries.

The clock may step: an administrator sets it, or a replica with another clock becomes the master. A process notices a
step because its own monotonic clock goes on. That clock dates nothing. It only shows that Redis's clock has jumped.
"""

import time
from collections.abc import Callable
from itertools import chain
from typing import Final, cast

import structlog

from credhook.store import CLOCK_SLACK_MS, CLOCK_STEP_MS
from credhook.store.job import job_id
from credhook.store.store import SyncStore

log = structlog.get_logger("credhook.worker")

#: Time for which status shows a step.
SHOWN_MS: Final = 900_000
#: Events that one script brings forward: each has up to a hundred fields.
PAGE: Final = 100
#: Scripts of one round.
_PAGES: Final = 200


def running_seconds() -> float:
    """Return the seconds since this host was started, with the time that it slept if the system counts it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class ClockWatch:
    """Notices steps of Redis's clock for one thread of a process."""

    def __init__(self, store: SyncStore, *, lease: float, clock: Callable[[], float] = running_seconds) -> None:
        """`lease`: its length in seconds; `clock`: seconds that never step."""
        self._store, self._lease_ms, self._clock = store, int(lease * 1_000), clock
        #: Bounds of the difference between the two clocks at the last look, in ms.
        self._bounds: tuple[float, float] | None = None

    def look(self) -> tuple[int, float]:
        """Return Redis's time in ms, and the ms by which its clock has stepped since the last look; 0.0 if it has not.

        Raises:
            RedisError, OSError: Redis failed.
        """
        before = self._clock()
        now = self._store.clock()
        low, high = now - self._clock() * 1_000, now - before * 1_000
        last_low, last_high = self._bounds or (low, high)
        self._bounds = low, high
        if last_high + CLOCK_STEP_MS >= low and high >= last_low - CLOCK_STEP_MS:
            return now, 0.0
        step = (low + high - last_low - last_high) / 2
        self._note(step)
        return now, step

    def _note(self, step: float) -> None:
        """Note the step, and log it if this process is the first. Prolong the leases that a step forward has ended."""
        arguments = [round(step), self._lease_ms, SHOWN_MS]
        is_first, prolonged = self._store.run("clock_step", arguments)
        if is_first:
            hint = "Let the host of Redis correct its clock slowly, and keep the clocks of its replicas alike"
            log.warning("redis_clock_stepped", seconds=round(step / 1_000, 1), hint=hint)
        while prolonged:
            _, prolonged = self._store.run("clock_step", arguments)


def bring_forward(store: SyncStore, now: int, *, lease: float) -> int:
    """Bring forward what lies too far ahead of Redis's clock, and return the number of events.

    `now`: Redis's time in ms; `lease`: the length of a lease in seconds.
    """
    number = 0
    for _ in range(_PAGES):
        limit, pipeline = now + CLOCK_SLACK_MS, store.redis.pipeline(transaction=False)
        for lowest, highest in ((f"({limit}", "+inf"), ("-inf", f"(-{limit}")):  # Below 0: postponed events.
            pipeline.zrangebyscore(store.keys.open, lowest, highest, start=0, num=PAGE)
        ahead: list[bytes] = list(chain.from_iterable(pipeline.execute()))
        arguments: list[bytes | str | int] = [int(lease * 1_000)]
        for name in ahead:
            arguments += name, job_id(store.queue, name.decode(errors="surrogateescape"))
        number += cast(int, store.run("bring_forward", arguments))
        if len(ahead) < PAGE:
            break
    return number
