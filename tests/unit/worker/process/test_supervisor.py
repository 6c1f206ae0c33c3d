"""The worker's supervisor: which ends it believes, whose fault a death was, what it says of a blocked loop."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from credhook.store import Death
from credhook.supervisor import PLACE, STALLED_SECONDS
from credhook.worker.process.heartbeat import BEAT_SECONDS, silence_seconds
from credhook.worker.process.main import _every, blocked_seconds
from credhook.worker.process.supervisor import (
    CANDIDATES,
    LOADED,
    STOPPED,
    SupervisedWorker,
    WorkerSupervisor,
    process_names,
    read_stacks,
)
from support.process.fake_children import Child, Clock, own_signals
from support.waiting import until

#: What faulthandler writes when its timer runs out, the youngest thread first.
BLOCKED = b"""Timeout (0:00:04)!
Thread 0x00007f0000000003 (most recent call first):
  File "/lib/heartbeat.py", line 9 in beat
Thread 0x00007f0000000001 (most recent call first):
  File "/app/handlers.py", line 3 in slow
  File "/app/handlers.py", line 7 in handle
  File "/credhook/worker/attempt/running.py", line 189 in call
  File "/credhook/worker/process/concurrent.py", line 112 in work
"""


class Worker(Child):
    """A worker that reports that it has loaded its handlers, and that it has stopped if it was told to."""

    def __init__(self, clock: Clock, name: str, reported: bytes) -> None:
        super().__init__(clock)
        self.name, self.reported = name, reported
        self.is_closed = False

    def send_signal(self, number: signal.Signals) -> None:
        self.reported += STOPPED
        super().send_signal(number)

    @property
    def signs(self) -> set[bytes]:
        return {line + b"\n" for line in self.reported.split(b"\n")}

    def read_report(self) -> None:
        """Everything is in `reported` from the beginning."""

    def close(self) -> None:
        self.is_closed = True


class Fleet:
    """Starts workers that are no processes, and remembers what it was told to reclaim."""

    def __init__(self, clock: Clock, number: int) -> None:
        self.clock = clock
        self.places: list[str] = []
        self.workers: list[Worker] = []
        self.reclaimed: list[tuple[str, str]] = []
        #: What Redis answers to each reclaim; then it notes all deaths.
        self.answers: list[bool] = []
        self.exits: list[int] = []
        #: What each worker reports; the others that they have loaded their handlers.
        self.reports: list[bytes] = []
        self.supervisor = WorkerSupervisor(
            number,
            ["--processes", str(number)],
            {},
            grace=1.0,
            reclaim=self._reclaim,
            on_exit=self.exits.append,
            launch=self._launch,
            clock=clock,
            sleep=clock.sleep,
        )

    def _reclaim(self, name: str, how: Death) -> bool:
        self.reclaimed.append((name.rpartition(".")[2], how))
        return self.answers.pop(0) if self.answers else True

    def _launch(
        self, command: Sequence[str], environment: Mapping[str, str], lifeline: int, name: str
    ) -> SupervisedWorker:
        number = len(self.workers)
        self.places.append(environment[PLACE])
        self.workers.append(Worker(self.clock, name, self.reports[number] if number < len(self.reports) else LOADED))
        return cast("SupervisedWorker", self.workers[-1])

    def dies(self, number: int, code: int, *, at: float) -> None:
        """Plan the end of the worker with that number."""
        self.clock.after(at, lambda: self.workers[number].ends(code))

    def run(self, seconds: float) -> int:
        self.clock.after(seconds, lambda: signal.raise_signal(signal.SIGTERM))
        return self.supervisor.run()


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    made = Fleet(Clock(), getattr(request, "param", 1))
    with own_signals():
        yield made
    os.close(made.supervisor.lifeline)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


@pytest.mark.parametrize("code", [0, 1, 2, 75, -signal.SIGSEGV])
def test_unexplained_exit_code_is_the_workers_own_fault(fleet: Fleet, code: int) -> None:
    """A handler can end its process with any code."""
    fleet.dies(0, code, at=2)
    assert fleet.run(60) == 0
    assert fleet.reclaimed == [("1", "own")]
    assert len(fleet.workers) == 2
    assert fleet.workers[0].is_closed


def test_kill_from_outside_is_nobodys_fault(fleet: Fleet) -> None:
    """An operator or a lack of memory may send it."""
    fleet.dies(0, -signal.SIGKILL, at=2)
    assert fleet.run(60) == 0
    assert (fleet.reclaimed, fleet.exits) == ([("1", "ended")], [0])


def test_worker_that_reports_its_stop_is_not_replaced(fleet: Fleet, logs: list[Any]) -> None:
    """RQ's shutdown command or a signal to it alone has stopped it, or the queue was empty."""
    fleet.reports = [LOADED + STOPPED]
    fleet.dies(0, 0, at=2)
    assert fleet.supervisor.run() == 0
    assert (len(fleet.workers), fleet.reclaimed, logs) == (1, [], [])


@pytest.mark.parametrize("fleet", [2], indirect=True)
def test_wrong_handlers_stop_all_workers(fleet: Fleet, logs: list[Any]) -> None:
    fleet.reports = [b"", b""]
    fleet.dies(1, 2, at=2)
    assert fleet.supervisor.run() == 2
    assert fleet.workers[0].signals == [signal.SIGTERM]
    assert (fleet.reclaimed, logs) == ([], [])


def test_handlers_that_were_loaded_before_are_tried_again(fleet: Fleet) -> None:
    """Half of a deploy breaks them for a moment."""
    fleet.reports = [LOADED, b""]
    fleet.dies(0, 1, at=2)
    fleet.dies(1, 2, at=4)
    assert fleet.run(60) == 0
    assert len(fleet.workers) == 3


def test_worker_that_dies_before_it_has_loaded_holds_no_events(fleet: Fleet) -> None:
    fleet.reports = [b""]
    fleet.dies(0, 1, at=2)
    assert fleet.run(60) == 0
    assert (len(fleet.workers), fleet.reclaimed) == (2, [])


def test_reclaiming_goes_on_until_redis_notes_the_death(fleet: Fleet) -> None:
    fleet.answers = [False, False]
    fleet.dies(0, 1, at=2)
    assert fleet.run(60) == 0
    assert fleet.reclaimed == [("1", "own")] * 3


def test_events_of_a_worker_that_does_not_drain_are_put_back(fleet: Fleet) -> None:
    fleet.clock.after(1.0, lambda: setattr(fleet.workers[0], "_drains_for", 60.0))
    assert fleet.run(5.0) == 1
    assert fleet.reclaimed == [("1", "ended")]


def test_draining_worker_has_ten_seconds_beyond_its_grace(fleet: Fleet) -> None:
    fleet.clock.after(1.0, lambda: setattr(fleet.workers[0], "_drains_for", 10.5))
    assert fleet.run(5.0) == 0
    assert fleet.reclaimed == []


@pytest.mark.parametrize("fleet", [2], indirect=True)
def test_names_has_a_blank_for_each_place_without_a_worker(fleet: Fleet) -> None:
    numbers: list[list[str]] = []
    for tenths in range(5, 30):
        look = lambda: numbers.append([name.rpartition(".")[2] for name in fleet.supervisor.names()])  # noqa: E731
        fleet.clock.after(tenths / 10 + 0.05, look)
    fleet.dies(0, 1, at=2)
    assert fleet.run(3) == 0
    assert [seen for seen, _ in groupby(numbers)] == [["1", "2"], ["", "2"], ["3", "2"]]
    assert fleet.places == ["0", "1", "0"]


def test_two_supervisors_of_one_host_never_share_a_name() -> None:
    first, second = process_names(), process_names()
    assert len({next(names) for names in (first, first, second, second)}) == 4


def test_blocked_loop_is_logged_with_the_handlers_calls(fleet: Fleet, logs: list[Any]) -> None:
    fleet.reports = [LOADED + BLOCKED]
    fleet.dies(0, 1, at=20)
    assert fleet.run(60) == 0
    assert [entry["event"] for entry in logs] == ["loop_blocked", "worker_died"]
    assert (logs[0]["after"], logs[0]["stack"]) == (
        "0:00:04",
        ['File "/app/handlers.py", line 3 in slow', 'File "/app/handlers.py", line 7 in handle'],
    )
    assert "plain def" in logs[0]["hint"]
    assert fleet.reclaimed == [("1", "own")]


@pytest.mark.parametrize(("seconds", "how"), [(600.0, "ended"), (2.5, "ended"), (1.5, "own")])
def test_blocked_loop_is_nobodys_fault_after_a_standstill(fleet: Fleet, seconds: float, how: str) -> None:
    """Timers run on while processes are stopped, and run out when they go on."""
    fleet.reports = [LOADED + BLOCKED]
    fleet.clock.after(20, lambda: setattr(fleet.clock, "now", fleet.clock.now + seconds))
    fleet.dies(0, 1, at=20.15 + seconds)
    assert fleet.run(700) == 0
    assert fleet.reclaimed == [("1", how)]


def test_each_report_of_poison_candidates_starts_one_isolated_worker(fleet: Fleet) -> None:
    places: list[list[str]] = []

    def report_candidates() -> None:
        fleet.workers[0].reported += CANDIDATES

    def end_isolated_worker() -> None:
        fleet.workers[1].reported += STOPPED
        fleet.workers[1].ends(0)

    fleet.clock.after(1, report_candidates)
    fleet.clock.after(2, end_isolated_worker)
    fleet.clock.after(9, lambda: places.append([*fleet.places]))
    fleet.clock.after(10, report_candidates)
    assert fleet.run(20) == 0
    assert [*places, fleet.places] == [["0", "1"], ["0", "1", "1"]]


def report(*stacks: str) -> str:
    """What faulthandler writes of these stacks, each a list of calls separated by commas."""
    threads = (f"Thread 0x{place:016x} (most recent call first):\n" + stack for place, stack in enumerate(stacks))
    return "Timeout (0:00:04)!\n" + "".join(threads).replace("|", "\n")


IN_THREAD = (
    '  File "re.py", line 1 in match|  File "h.py", line 2 in plain|  File "worker/attempt/running.py", line 3 in work|'
)
IDLE = '  File "worker/process/concurrent.py", line 4 in work|'
STARTING_A_THREAD = (
    '  File "threading.py", line 5 in start|  File "worker/attempt/running.py", line 6 in _call_in_thread|' + IDLE
)
STARTUP = '  File "s.py", line 7 in connect|  File "worker/wiring.py", line 8 in _call|' + IDLE


@pytest.mark.parametrize(
    ("stacks", "first", "by_threads"),
    [
        ((IN_THREAD, IDLE), 'File "re.py", line 1 in match', True),
        ((IN_THREAD, STARTING_A_THREAD), 'File "re.py", line 1 in match', True),
        ((IN_THREAD, STARTUP), 'File "s.py", line 7 in connect', False),
        ((IDLE,), IDLE.strip().rstrip("|"), False),
    ],
    ids=["idle loop", "thread that starts", "start-up function", "no handler"],
)
def test_read_stacks_finds_the_code_that_blocks(stacks: tuple[str, ...], first: str, by_threads: bool) -> None:
    blocked = read_stacks(report(*stacks))
    assert blocked is not None
    assert (blocked.stack[0], blocked.by_threads) == (first, by_threads)


def test_read_stacks_returns_none_for_a_report_without_stacks() -> None:
    assert read_stacks((LOADED + STOPPED).decode()) is None


def test_supervisor_that_checks_no_worker_is_not_alive(fleet: Fleet) -> None:
    """A log that nobody reads blocks the process that writes to it."""
    alive: list[bool] = []

    def stand_still() -> None:
        alive.append(fleet.supervisor.is_alive())
        fleet.clock.now += STALLED_SECONDS
        alive.append(fleet.supervisor.is_alive())

    fleet.clock.after(0.5, stand_still)
    assert fleet.run(1) == 0
    assert alive == [True, False]
    fleet.clock.now += STALLED_SECONDS
    assert fleet.supervisor.is_alive()  # No worker is checked while all drain.


def descriptors() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


def group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_closing_a_worker_ends_the_processes_that_it_started() -> None:
    before = descriptors()
    child = SupervisedWorker(["sh", "-c", "sleep 600 &"], os.environ, 1, "w")
    assert child.wait() == 0
    os.killpg(child.pid, 0)  # The sleep.
    child.close()
    assert descriptors() == before
    until(lambda: not group_exists(child.pid), what="the end of the sleep")


def test_worker_that_cannot_start_leaves_no_descriptor() -> None:
    before = descriptors()
    with pytest.raises(FileNotFoundError):
        SupervisedWorker(["/nowhere/credhook"], os.environ, 1, "w")
    assert descriptors() == before


def test_worker_reports_through_its_pipe() -> None:
    program = "import os, sys; os.write(int(sys.argv[2]), b'loaded\\n' + b'x' * 600_000)"
    child = SupervisedWorker([sys.executable, "-c", program], os.environ, 1, "w")
    while child.poll() is None:
        child.read_report()
    child.close()
    assert child.signs == {LOADED}
    assert child.reported == b"x" * 262_144  # A handler may write into the pipe without end.


@pytest.mark.parametrize("lease", [6.0, 15.0, 60.0, 300.0])
def test_blocked_process_ends_before_others_can_miss_it(lease: float) -> None:
    """A handler that keeps the interpreter to itself stops the heartbeat as well. Its last beat may be a beat ago."""
    assert blocked_seconds(lease) + BEAT_SECONDS + 0.5 < silence_seconds(lease)


def test_regular_work_goes_on_after_an_error() -> None:
    rounds, enough = [], threading.Event()

    def work() -> None:
        rounds.append(1)
        if len(rounds) < 3:
            raise ValueError
        enough.set()
        threading.Event().wait()  # Until the process ends.

    with capture_logs() as lines:
        _every(0.001, work, "sweeper")
        assert enough.wait(60)
    assert [(line["event"], line["task"]) for line in lines] == [("background_task_failed", "sweeper")] * 2
