"""`credhook demo`, the first thing a newcomer runs."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout as far as the demo looks at it: the Procfile."""
    (tmp_path / "Procfile").write_text((ROOT / "Procfile").read_text())
    return tmp_path


def start(folder: Path, *options: str) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CREDHOOK_", "REDIS_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "credhook", "demo", *options],
        cwd=folder, env=environment | {"PYTHONPATH": str(ROOT), "HTTP_PROXY": "http://127.0.0.1:9"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def left_running(folder: Path) -> list[str]:
    """Processes that have the folder in their command line, or work in it: Redis writes a command line of its own."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if str(folder) in line or (process / "cwd").readlink().is_relative_to(folder):
                found.append(line)
        except OSError:
            continue
    return found


def test_all_ten_are_handled_once_and_nothing_is_left(folder: Path) -> None:
    demo = start(folder)
    output, _ = demo.communicate(timeout=100)
    assert demo.returncode == 0, output
    assert "10 events, each delivered twice and handled exactly once" in output
    assert output.count("log.event") == 10
    assert left_running(folder) == []
    assert [path.name for path in folder.iterdir()] == ["Procfile"]


@pytest.mark.parametrize("instant", range(3))
def test_ctrl_c_at_any_moment_leaves_nothing(folder: Path, instant: int) -> None:
    demo = start(folder)
    seconds = random.uniform(instant, instant + 1.0)
    try:
        demo.wait(seconds)
    except subprocess.TimeoutExpired:
        demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=60)
    deadline = time.monotonic() + 5
    while left_running(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_running(folder) == [], (seconds, output)
    assert [path.name for path in folder.iterdir()] == ["Procfile"], (seconds, output)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_stays_up_ends_with_the_signal_or_with_its_terminal(folder: Path, number: signal.Signals) -> None:
    demo = start(folder, "--stay")
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if "worker_started" in line:
            break
    text = "".join(lines)
    assert "credhook trigger issuance.offered --url" in text
    assert len(list(folder.glob(".credhook/play-*/env"))) == 1
    demo.send_signal(number)
    demo.communicate(timeout=60)
    deadline = time.monotonic() + 10
    while left_running(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_running(folder) == []
    assert [path.name for path in folder.iterdir()] == ["Procfile"]
