"""Load: as much as a server takes (wrk), or a steady rate (our own generator, since wrk keeps none)."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import cores, generator
from bench.deliveries import Deliveries

#: wrk has a thread for each core that it may use, but never needs more: one alone outruns every server here.
_MAX_THREADS: Final = 4

_SCRIPT: Final = Path(__file__).with_name("requests.lua")


class Spoilt(Exception):
    """The load did not go as it should have, so that its figures say nothing; the message says what happened."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What came of as much load as the server takes.

    Attributes:
        accepted: requests that were answered with 202.
        seconds: that it took.
    """

    accepted: int
    seconds: float


def has_wrk() -> bool:
    """Whether wrk is installed; without it our own generator, which is slower than some servers, stands in."""
    return shutil.which("wrk") is not None


def press(port: int, deliveries: Deliveries, *, seconds: int, connections: int) -> Answers:
    """Send as many of the deliveries as the server takes.

    Raises:
        Spoilt: see there.
    """
    return (_wrk if has_wrk() else _own)(port, deliveries, seconds, connections)


def _wrk(port: int, deliveries: Deliveries, seconds: int, connections: int) -> Answers:
    threads = min(_MAX_THREADS, connections, max(1, len(cores.LOAD)))
    command = [
        *("wrk", f"-t{threads}", f"-c{connections}", f"-d{seconds}s", "--timeout", f"{generator.SILENCE:g}s"),
        *("-s", str(_SCRIPT), f"http://127.0.0.1:{port}/"),
        *("--", str(deliveries.path)),
        *map(str, (deliveries.size, deliveries.first, deliveries.count, threads)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Spoilt(f"wrk failed: {done.stderr.strip()[-500:]}")
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    if said["exhausted"]:
        raise _ran_out(deliveries)
    if said["refused"] or said["broken"]:
        raise Spoilt(f"{said['refused']} requests were refused and {said['broken']} connections broke")
    return Answers(said["answers"], said["microseconds"] / 1e6)


def _own(port: int, deliveries: Deliveries, seconds: int, connections: int) -> Answers:
    sent = generator.drive(port, deliveries, rate=None, seconds=seconds, connections=connections)
    if sent.refused:
        raise Spoilt(f"{sent.refused} requests were refused")
    if len(sent.latencies) == deliveries.count:
        raise _ran_out(deliveries)
    return Answers(len(sent.latencies), sent.seconds)


def _ran_out(deliveries: Deliveries) -> Spoilt:
    return Spoilt(f"all {deliveries.count} deliveries were sent before the time was up: raise --requests")
