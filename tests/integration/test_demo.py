"""`credhook demo`, the first thing a newcomer runs."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dev_process import left_running
from waiting import until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout as far as the demo looks at it: the Procfile."""
    (tmp_path / "Procfile").write_text((ROOT / "Procfile").read_text())
    return tmp_path


def start(folder: Path) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CREDHOOK_", "REDIS_"))}
    added = {"PYTHONPATH": str(ROOT), "HTTP_PROXY": "http://127.0.0.1:9", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "credhook", "demo"],
        cwd=folder, env=environment | added, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def test_all_ten_are_handled_once_and_nothing_is_left(folder: Path) -> None:
    demo = start(folder)
    output, _ = demo.communicate(timeout=250)
    assert demo.returncode == 0, output
    assert "10 events, each delivered twice and handled exactly once" in output
    assert output.count("log.event") == 10
    assert left_running(folder) == []
    assert [path.name for path in folder.iterdir()] == ["Procfile"]


def test_ctrl_c_at_some_moment_leaves_nothing(folder: Path) -> None:
    interrupted(folder, random.uniform(0.0, 3.0))


def test_ctrl_c_after_its_end_does_not_break_off_the_removal(folder: Path) -> None:
    demo = start(folder)
    assert demo.stdout is not None
    shown = iter(demo.stdout.readline, "")
    assert any("handled exactly once" in line for line in shown)
    for _ in range(40):
        demo.send_signal(signal.SIGINT)
        time.sleep(0.05)
        if demo.poll() is not None:
            break
    demo.communicate(timeout=60)
    assert left_running(folder) == []
    assert [path.name for path in folder.iterdir()] == ["Procfile"]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ctrl_c_at_any_moment_leaves_nothing(folder: Path) -> None:
    for tenth in range(60):
        interrupted(folder, tenth / 10)


def interrupted(folder: Path, seconds: float) -> None:
    demo = start(folder)
    try:
        demo.wait(seconds)
    except subprocess.TimeoutExpired:
        demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=60)
    until(lambda: not left_running(folder), what=f"the end after {seconds} s and {output}")
    assert [path.name for path in folder.iterdir()] == ["Procfile"], (seconds, output)
