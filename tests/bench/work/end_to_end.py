"""From delivery to handler: the real receiver and the real worker, deliveries at a steady rate."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench import generator
from bench.competitors import STRICT
from bench.deliveries import sign
from bench.generator import Broken
from bench.load import Spoilt
from bench.run import NO_REWRITES, RunFailed, percentile
from bench.server import NotServing, serving
from bench.work.api import NotAnswering, answering
from bench.work.competitors import OURS
from bench.work.results import EndToEnd
from bench.work.run import told_to, working

from credhook.sandbox.local.local_redis import local_redis

#: Seconds until the first deliveries must have been handled.
_START_TIMEOUT: Final = 60.0

#: Seconds that are waited for handlers after the last delivery was acknowledged.
_PATIENCE: Final = 10.0

_CONNECTIONS: Final = 64


@dataclass(frozen=True, slots=True)
class Pace:
    """How it is measured.

    Attributes:
        latency: seconds after which the API answers.
        rate: deliveries per second.
        seconds: for so long.
        warm_up: deliveries that are sent and handled before, so that everything has started.
    """

    latency: float
    rate: float
    seconds: float
    warm_up: int


def end_to_end(pace: Pace, folder: Path) -> EndToEnd:
    """Deliver signed events, and see when each one's handler is called.

    Raises:
        RunFailed: the figures would mean nothing.
    """
    notes = folder / "notes"
    notes.touch()
    competitor = replace(
        OURS,
        settings={"CREDHOOK_HANDLERS": "bench.programs.credhook_events:noting", "NOTES": str(notes)},
    )
    count = round(pace.rate * pace.seconds)
    try:
        with (
            local_redis(folder, options=NO_REWRITES) as url,
            answering(pace.latency, folder) as api,
            serving(STRICT, url, folder) as receiver,
            working(competitor, told_to(competitor, url, api.url), folder),
        ):
            warm_up, deliveries = sign(folder / "deliveries", pace.warm_up + count).split(pace.warm_up)
            generator.drive(receiver.port, warm_up, rate=None, seconds=_PATIENCE, connections=_CONNECTIONS)
            _await_start(notes, pace.warm_up)
            sent = generator.drive(
                receiver.port, deliveries, rate=pace.rate, seconds=pace.seconds, connections=_CONNECTIONS
            )
            handled = _await(notes, pace.warm_up + count, _PATIENCE)
    except (Spoilt, Broken, NotServing, NotAnswering) as error:
        raise RunFailed(f"{OURS.title}, from delivery to handler: {error}") from error
    if sent.refused:
        raise RunFailed(f"{sent.refused} deliveries were refused")
    due = {f"msg_{deliveries.first + number:024x}": sent.begun + number / pace.rate for number in range(count)}
    beyond = [handled.get(event_id, math.inf) - at - pace.latency for event_id, at in due.items()]
    return EndToEnd(
        pace.rate,
        p50=percentile(beyond, 0.5),
        p99=percentile(beyond, 0.99),
        late=percentile(sent.lateness, 0.99),
        deliveries=count,
        handled=len(handled.keys() & due.keys()),
    )


def _await_start(notes: Path, count: int) -> None:
    if len(_await(notes, count, _START_TIMEOUT)) < count:
        raise Spoilt(f"the first {count} deliveries were not handled within {_START_TIMEOUT:g} s")


def _await(notes: Path, count: int, seconds: float) -> Mapping[str, float]:
    """When each event was handled first, once that many have been, or the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        handled: dict[str, float] = {}
        text = notes.read_text()
        for line in text[: text.rfind("\n") + 1].splitlines():  # The last may be half written.
            event_id, at = line.split()
            handled.setdefault(event_id, float(at))
        if len(handled) >= count or time.monotonic() > deadline:
            return handled
        time.sleep(0.1)
