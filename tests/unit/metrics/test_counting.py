"""Counts of threads, of forks, and of several processes."""

import fcntl
import os
import signal
import threading
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.values import MultiProcessValue

from credhook.metrics.counting import (
    Count,
    Distribution,
    Level,
    drop_gauges,
    exposition,
    gathered,
    identity,
    temporary_folder,
    unread,
)
from support.process.commands import run


def samples(one: Count | Distribution | Level) -> list[float]:
    (family,) = one.metric.collect()
    return [sample.value for sample in family.samples]


def test_counter_keeps_its_count() -> None:
    count = Count("test_count", "Counted.", ["who"], initial=[("a",)])
    times = Distribution("test_seconds", "Observed.", buckets=(0.1, 1))
    level = Level("test_level", "Set last.")
    assert (samples(count), samples(times), samples(level)) == ([0], [0] * 5, [0])
    count.add("a", by=2)
    count.add("b")
    for value in (0.1, 0.5, 7):
        times.observe(value)
    level.set(9)
    level.set(8)
    assert (samples(count), samples(times), samples(level)) == ([2, 1], [1, 2, 3, 3, 7.6], [8])


def test_a_process_without_listener_counts_nothing() -> None:
    count, times = Count("test_unread", "Counted."), Distribution("test_unread_seconds", "Observed.", buckets=(1,))
    level = Level("test_unread_level", "Set.")
    unread.set()
    try:
        count.add()
        times.observe(1)
        level.set(1)
    finally:
        unread.clear()
    assert (samples(count), samples(times), samples(level)) == ([0], [0] * 4, [0])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Of Python 3.12, about the threads of pytest.
def test_a_fork_counts_though_threads_of_its_parent_were_counting() -> None:
    """A lock that a thread holds at the fork would stay locked in the child for ever."""
    count, over = Count("test_fork", "Counted by many.", ["who"]), threading.Event()

    def work() -> None:
        while not over.is_set():
            count.add("a")

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                count.add("a")
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("processes", "files"),
    [
        ([("0", 1), ("1", 1), ("0", 1), ("0", 1)], ["counter_0.db", "counter_1.db"]),  # Each dies before the next.
        ([("0", 1), ("0", 2), ("0", 3), ("0", 4)], ["counter_0-fork.db", "counter_0.db"]),
    ],
)
def test_process_continues_the_count_of_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: list[tuple[str, int]], files: list[str]
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    for place, pid in processes:  # A process is `1`, and anybody else its fork.
        pids = [1]
        value = MultiProcessValue(identity(place, partial(pids.__getitem__, -1)))  # type: ignore[no-untyped-call]
        pids.append(pid)
        value("counter", "test_places", "test_places_total", (), (), "Counted.").inc(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert b'\ntest_places_total{queue="q"} 4.0\n' in exposition(gathered(str(tmp_path)), (), queue="q")


def test_a_level_is_the_sum_over_the_processes_that_live(tmp_path: Path) -> None:
    program = "import os; from credhook.metrics.counting import Level; level = Level('test_sum', 'Set.'); level.set(2)"
    program += "; os.fork() and os.wait() or level.set(3)"
    for place in "01":
        environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PROMETHEUS_MULTIPROC_PLACE": place}
        assert run("-c", program, env=environment).returncode == 0
    assert b'\ntest_sum{queue="q"} 10.0\n' in exposition(gathered(str(tmp_path)), (), queue="q")
    drop_gauges(str(tmp_path), 0)
    assert b'\ntest_sum{queue="q"} 5.0\n' in exposition(gathered(str(tmp_path)), (), queue="q")


#: Counts once, and says whether anybody can read it.
COUNTS = """
import resource, sys
from pathlib import Path
if sys.argv[1:] == ["full"]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
from credhook.metrics.counting import Count, unread
Count("test_room", "Counted.").add()
print(unread.is_set())
"""


def test_files_have_their_blocks_before_the_first_count(tmp_path: Path) -> None:
    """A write to a file without blocks ends the process when the disk is full. The folder was removed meanwhile."""
    folder = tmp_path / "removed"
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(folder), "PROMETHEUS_MULTIPROC_PLACE": "0"}
    assert run("-c", COUNTS, env=environment).stdout == "False\n"
    sizes = [(file.stat().st_size, file.stat().st_blocks * 512) for file in folder.iterdir()]
    assert len(sizes) == 6
    assert all(size <= allocated for size, allocated in sizes)
    assert b'\ntest_room_total{queue="q"} 1.0\n' in exposition(gathered(str(folder)), (), queue="q")


def test_process_without_room_works_and_counts_nothing(tmp_path: Path) -> None:
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PROMETHEUS_MULTIPROC_PLACE": "0"}
    done = run("-c", COUNTS, "full", env=environment)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "True"
    assert "metrics_not_counted" in done.stdout + done.stderr


def test_folder_of_counts_is_locked_against_cleaners() -> None:
    with temporary_folder() as folder:
        cleaner = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(cleaner)
    assert not Path(folder).exists()
