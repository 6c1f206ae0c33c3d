"""A receiver that is flooded stays small, and takes deliveries again: short in the suite, long in the soak."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from credhook.sandbox.local.environment import free_port
from support.process.serving import Receiver, receiver
from support.receiver.floods import FAST, SLOW, attack, deliver, forget_peak, peak, resident
from support.waiting import until

#: MiB that a flooded receiver may take beside what it takes at rest: while fast floods are cut off, and while slow ones
#: hold all connections with as many bytes as they may.
MOST, MOST_WHEN_FULL = 20.0, 100.0


@contextmanager
def exposed(folder: Path, redis_url: str, most: float) -> Iterator[tuple[Receiver, int]]:
    """A receiver that has taken a delivery, and the port of its admin listener. The block costs at most so many MiB."""
    admin = free_port()
    with receiver(folder, redis_url, CREDHOOK_ADMIN=f"127.0.0.1:{admin}") as process:
        until(lambda: deliver(process.port, "warm") == 202, what="the first delivery")
        pid = process.process.pid
        forget_peak(pid)
        rest = resident(pid)
        yield process, admin
        more = peak(pid) - rest
        print(f"\n{more:.0f} MiB more than at rest")  # noqa: T201  For the record.
        assert more < most
        assert process.stop() == 0
    assert "Traceback" not in process.text


@pytest.mark.parametrize("listener", ["public", "admin"])
def test_floods_are_cut_off_and_cost_little_memory(tmp_path: Path, redis_url: str, listener: str) -> None:
    began = time.monotonic()
    with (
        exposed(tmp_path, redis_url, MOST) as (process, admin),
        attack(process.port if listener == "public" else admin, FAST * 4) as cut,
    ):
        until(lambda: all(cut[flood.name] >= 8 for flood in FAST), what="the end of each, twice")
        assert deliver(process.port, "honest") == 202
    lines = [json.loads(line) for line in process.text.splitlines()]
    rejected = Counter(line["reason"] for line in lines if line["event"] == "sender_rejected")
    assert rejected.keys() >= {"head_too_large", "body_too_large", "pipelined"}
    seconds = time.monotonic() - began
    assert max(rejected.values()) <= 1 + seconds / 60


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_all_floods_at_once_cost_limited_memory(tmp_path: Path, redis_url: str) -> None:
    with exposed(tmp_path, redis_url, MOST_WHEN_FULL) as (process, admin):
        with attack(process.port, [*FAST, *SLOW] * 70), attack(admin, [*FAST, *SLOW] * 5):
            time.sleep(60)
        until(lambda: deliver(process.port, "after") == 202, what="a delivery after the floods")
