"""Counts that come together in memory before they are written, by one process or by several."""

import os
import threading
from pathlib import Path

import pytest
from prometheus_client import Histogram
from prometheus_client.values import MultiProcessValue

from credhook.metrics.counting import Count, Distribution, Level, exposition, flush, gathered, identity

BOUNDS = (0.1, 1, 10)


def lines(metric: Histogram) -> list[tuple[str, tuple[tuple[str, str], ...], float]]:
    (family,) = metric.collect()
    return [(sample.name.rpartition("_")[2], tuple(sample.labels.items()), sample.value) for sample in family.samples]


def test_what_comes_together_is_what_prometheus_would_have_observed() -> None:
    values = [0.05, 0.1, 0.2, 1, 1, 7, 10, 11, 1e9]
    plain = Histogram("test_plain_seconds", "As it is.", buckets=BOUNDS)
    ours = Distribution("test_ours_seconds", "As we do it.", buckets=BOUNDS)
    for value in values:
        plain.observe(value)
        ours.observe(value)
    assert lines(ours.metric) != lines(plain)
    flush()
    assert lines(ours.metric) == lines(plain)
    flush()
    assert lines(ours.metric) == lines(plain)


def test_no_count_of_a_thread_is_lost_while_it_is_written_down() -> None:
    count = Count("test_threads", "Counted by many.", ["who"])

    def work() -> None:
        for _ in range(5_000):
            count.add("a")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        flush()
    flush()
    assert count.metric.labels("a")._value.get() == 20_000


def test_known_series_are_there_before_anything_was_counted() -> None:
    count = Count("test_known", "Known.", ["a", "b"], known=[("1", "2")])
    (family,) = count.metric.collect()
    assert [(sample.labels, sample.value) for sample in family.samples] == [({"a": "1", "b": "2"}, 0.0)]


def test_a_level_is_what_was_set_last_and_what_came_and_went() -> None:
    level = Level("test_level", "So many.")
    level.add(3)
    level.add(-1)
    flush()
    assert level.metric._value.get() == 2
    level.set(0)
    flush()
    assert level.metric._value.get() == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Of Python 3.12, about the threads of pytest.
def test_a_fork_counts_what_is_its_own() -> None:
    count = Count("test_fork", "Counted before and after.")
    count.add(by=5)
    child = os.fork()
    if child == 0:
        count.add()
        flush()
        os._exit(int(count.metric._value.get()))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    flush()
    assert count.metric._value.get() == 5


def count_in(folder: Path, name: str, place: str, monkeypatch: pytest.MonkeyPatch, pid: int = 1) -> None:
    """One more, counted as a process in that place does: it is `1`, and anybody else its fork."""
    with monkeypatch.context() as patched:
        patched.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
        now = 1
        value = MultiProcessValue(identity(place, lambda: now))  # type: ignore[no-untyped-call]
        now = pid
        value("counter", name, f"{name}_total", (), (), "Counted.").inc(1)


def test_who_comes_after_a_dead_process_counts_on_where_it_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("0", "1", "0", "0"):
        count_in(tmp_path, "test_places", place, monkeypatch)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counter_0.db", "counter_1.db"]
    assert b"\ntest_places_total 4.0\n" in exposition(gathered(str(tmp_path)), ())


def test_the_forks_of_a_process_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in (1, 2, 3, 4):
        count_in(tmp_path, "test_forks", "0", monkeypatch, pid)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counter_0-fork.db", "counter_0.db"]
    assert b"\ntest_forks_total 4.0\n" in exposition(gathered(str(tmp_path)), ())
