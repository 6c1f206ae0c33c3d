"""`credhook demo`, the first thing a newcomer runs."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support.checkout import ROOT
from support.process.commands import start
from support.process.dev_process import left_running
from support.waiting import until
from support.worker.fleet_harness import SHORT, SIZES


def demo_in(tmp_path: Path) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CREDHOOK_", "REDIS_"))}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    added = {"HTTP_PROXY": "http://127.0.0.1:9", "CREDHOOK_RETENTION": "soon"}
    return start(
        ["-m", "credhook", "demo"],
        cwd=tmp_path, env=environment | added, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def test_ctrl_c_after_its_end_does_not_break_off_the_removal(tmp_path: Path) -> None:
    demo = demo_in(tmp_path)
    assert demo.stdout is not None
    shown = iter(demo.stdout.readline, "")
    assert any("handled exactly once" in line for line in shown)
    for _ in range(40):
        demo.send_signal(signal.SIGINT)
        time.sleep(0.05)
        if demo.poll() is not None:
            break
    demo.communicate(timeout=60)
    assert left_running(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", SIZES)
def test_ctrl_c_at_any_moment_leaves_nothing(tmp_path: Path, size: str) -> None:
    for seconds in [random.uniform(0.0, 3.0)] if size == SHORT else [tenth / 10 for tenth in range(60)]:
        demo = demo_in(tmp_path)
        try:
            demo.wait(seconds)
        except subprocess.TimeoutExpired:
            demo.send_signal(signal.SIGINT)
        output, _ = demo.communicate(timeout=60)
        until(lambda: not left_running(tmp_path), what=f"the end after {seconds} s and {output}")
        assert list(tmp_path.iterdir()) == [], (seconds, output)
