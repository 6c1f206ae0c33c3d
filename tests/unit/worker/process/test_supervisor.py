"""The worker's supervisor: deaths by a worker's own fault, silent workers, and descriptors."""

import io
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from unittest.mock import create_autospec

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from credhook.supervisor import PLACE, STALLED_SECONDS
from credhook.worker.commands.worker import worker
from credhook.worker.process.main import _every
from credhook.worker.process.supervisor import SupervisedWorker, WorkerSupervisor
from support.platform.platform_settings import leading_to
from support.process.fake_children import Child, Clock, own_signals

#: Seconds of silence after which a worker with this lease is asked for its stack, and ended.
LEASE, SILENT, TOO_SILENT = 15.0, 5.0, 10.0


class Worker(Child):
    """A worker that beats in these spans of its life, from one second to another."""

    def __init__(self, clock: Clock, number: int, beats: tuple[tuple[float, float], ...]) -> None:
        super().__init__(clock)
        self.token = f"token{number}"
        self.checked, self.heard = 0.0, float("inf")
        self.asked = self.replaced = False
        self.report = io.BytesIO()
        self._beats = beats
        self.asked_at: list[float] = []
        self._unread: list[str] = []
        self.ended_at = 0.0

    def send_signal(self, number: signal.Signals) -> None:
        super().send_signal(number)
        if number == signal.SIGUSR1:
            self.asked_at.append(self._clock.now - self.born)
            self._unread = ["handlers.py, line 3"]

    def read_report(self) -> tuple[bool, list[str]]:
        stack, self._unread = self._unread, []
        age = self._clock.now - self.born
        return any(first <= age <= last for first, last in self._beats), stack

    def kill(self) -> None:
        self.ended_at = self._clock.now - self.born
        self._clock.after(0.5, super().kill)  # A process that waits for a disk does so after its end.


def test_the_command_passes_on_what_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run = create_autospec(WorkerSupervisor.run, return_value=0)
    monkeypatch.setattr(WorkerSupervisor, "run", run)
    times = {"CREDHOOK_LEASE": "30", "CREDHOOK_GRACE": "50"}
    told = ["--processes", "3", "--isolation", "fork", "--burst"]
    assert CliRunner().invoke(worker, told, env=leading_to("http://127.0.0.1:1") | times).exit_code == 0
    (one,) = run.call_args.args
    assert (one._silent, one._too_silent, one._grace, len(one._places)) == (10, 20, 60, 3)
    assert one._command[-3:] == told[2:]


class Fleet:
    """Starts workers that are no processes, and remembers how."""

    def __init__(self, clock: Clock, number: int) -> None:
        self.clock = clock
        self.places: list[str] = []
        self.commands: list[list[str]] = []
        self.workers: list[Worker] = []
        self.exits: list[int] = []
        #: The spans in which each of them beats; the others always do.
        self.beats: list[tuple[tuple[float, float], ...]] = []
        self.refusals = 0
        self.supervisor = WorkerSupervisor(
            number,
            ["--isolation", "loop"],
            {},
            lease=LEASE,
            grace=1.0,
            on_exit=self.exits.append,
            launch=self._launch,
            clock=clock,
            sleep=clock.sleep,
        )

    def _launch(self, command: Sequence[str], environment: Mapping[str, str], lifeline: int) -> SupervisedWorker:
        if self.refusals:
            self.refusals -= 1
            raise BlockingIOError
        number = len(self.workers)
        beats = self.beats[number] if number < len(self.beats) else ((0.0, float("inf")),)
        self.commands.append([*command])
        self.places.append(environment[PLACE])
        self.workers.append(Worker(self.clock, number, beats))
        return cast("SupervisedWorker", self.workers[-1])

    def dies(self, number: int, code: int, *, at: float) -> None:
        """Plan the end of the worker with that number."""
        self.clock.after(at, lambda: self.workers[number].ends(code))

    def run(self, seconds: float) -> int:
        self.clock.after(seconds, lambda: signal.raise_signal(signal.SIGTERM))
        return self.supervisor.run()

    def told(self, number: int) -> list[str]:
        """Return the deaths in the worker's command line."""
        command = self.commands[number]
        return [after for option, after in pairwise(command) if option == "--died"]


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    made = Fleet(Clock(), getattr(request, "param", 1))
    with own_signals():
        yield made
    os.close(made.supervisor.lifeline)
    os.close(made.supervisor._held)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


@pytest.mark.parametrize(("code", "fault"), [(1, 1), (75, 1), (-signal.SIGSEGV, 1), (-signal.SIGKILL, 0)])
def test_the_next_worker_is_told_whose_fault_a_death_was(fleet: Fleet, code: int, fault: int) -> None:
    """A kill from outside says nothing about its reason: an operator or a lack of memory."""
    fleet.dies(0, code, at=2)
    fleet.dies(1, -signal.SIGKILL, at=60)
    assert fleet.run(80) == 0
    assert [fleet.told(number) for number in range(3)] == [[], [f"token0:{fault}"], ["token1:0"]]
    assert fleet.exits == [0, 0]


@pytest.mark.parametrize("fleet", [2], indirect=True)
def test_each_worker_has_a_place_and_a_name(fleet: Fleet) -> None:
    tokens: list[str] = []
    fleet.clock.after(0.5, lambda: tokens.extend(fleet.supervisor.tokens()))
    assert fleet.run(1) == 0
    assert (fleet.places, tokens) == (["0", "1"], ["token0", "token1"])


def test_what_held_a_death_up_does_not_hide_it(fleet: Fleet) -> None:
    fleet.dies(0, 1, at=2)
    fleet.clock.after(2, lambda: setattr(fleet, "refusals", 2))
    assert fleet.run(60) == 0
    assert fleet.told(1) == ["token0:1"]


def test_a_silent_worker_is_asked_where_it_is_and_then_ended(fleet: Fleet, logs: list[Any]) -> None:
    fleet.beats = [((1.0, 20.0),)]
    assert fleet.run(60) == 0
    silent = fleet.workers[0]
    (asked_at,) = silent.asked_at
    assert asked_at == pytest.approx(20 + SILENT, abs=0.3)
    assert silent.ended_at == pytest.approx(20 + TOO_SILENT, abs=0.3)
    assert fleet.told(1) == ["token0:1"]  # Killed by us, which is its own fault.
    assert [entry["event"] for entry in logs] == ["loop_blocked", "worker_replaced", "worker_died"]
    assert logs[0]["stack"] == ["handlers.py, line 3"]
    assert (logs[0]["seconds"], logs[1]["silent"]) == pytest.approx((5.1, 10.1), abs=0.05)
    assert fleet.workers[1].asked_at == []
    short = WorkerSupervisor(1, [], {}, lease=1.0, grace=1.0)
    assert (short._silent, short._too_silent) == (3.0, 6.0)  # A busy machine is slow, however short the lease is.
    for descriptor in (short.lifeline, short._held):
        os.close(descriptor)


def test_at_a_stop_a_worker_has_ten_seconds_more_than_its_events_to_hand_them_back(fleet: Fleet) -> None:
    fleet.clock.after(1.0, lambda: setattr(fleet.workers[0], "_drains_for", 10.5))
    assert fleet.run(5.0) == 0
    assert fleet.workers[0].ended_at == 0.0  # Nobody has killed it.


def test_a_worker_that_falls_silent_again_is_asked_again(fleet: Fleet, logs: list[Any]) -> None:
    fleet.beats = [((1.0, 20.0), (27.0, 40.0), (47.0, 60.0), (67.0, float("inf")))]
    alive: dict[float, bool] = {}
    for at in (10, 24, 26, 30, 46, 50, 80):
        fleet.clock.after(at, lambda at=at: alive.update({at: fleet.supervisor.is_alive()}))  # type: ignore[misc]
    assert fleet.run(90) == 0
    assert [at for at, answer in alive.items() if not answer] == [26, 46]
    assert fleet.workers[0].asked_at == pytest.approx([20 + SILENT, 40 + SILENT, 60 + SILENT], abs=0.3)
    assert [entry["event"] for entry in logs] == ["loop_blocked"] * 3


def test_a_supervisor_that_checks_nobody_is_not_alive(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that nobody reads blocks whoever writes to it."""
    alive = []

    def blocks(_: SupervisedWorker) -> None:
        alive.append(fleet.supervisor.is_alive())
        fleet.clock.now += STALLED_SECONDS
        alive.append(fleet.supervisor.is_alive())

    monkeypatch.setattr(fleet.supervisor, "check", blocks)
    assert fleet.run(1) == 0
    assert alive[:2] == [True, False]
    fleet.clock.now += STALLED_SECONDS
    assert fleet.supervisor.is_alive()  # While they drain, nobody is checked.


@pytest.mark.parametrize(("beats", "stood_still", "seconds"), [((1e9, 1e9), 0, 300), ((1, 20), 600, 620 + SILENT)])
def test_a_worker_that_starts_or_that_we_have_slept_beside_is_not_silent(
    fleet: Fleet, logs: list[Any], beats: tuple[float, float], stood_still: float, seconds: float
) -> None:
    """Stop all processes, and let the supervisor wake first."""
    fleet.beats = [(beats,)]
    fleet.clock.after(21, lambda: setattr(fleet.clock, "now", fleet.clock.now + stood_still))
    assert fleet.run(seconds) == 0
    assert logs == []


def descriptors() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


def test_the_descriptors_of_a_worker_that_died_or_could_not_start_are_closed() -> None:
    before = descriptors()
    child = SupervisedWorker(["sh", "-c", 'test "$MIMALLOC_ALLOW_THP" = 0'], os.environ, 1)
    assert child.wait() == 0
    assert len(descriptors()) > len(before)
    assert child.read_report() == (False, [])
    child.report.close()
    assert descriptors() == before
    with pytest.raises(FileNotFoundError):
        SupervisedWorker(["/nowhere/credhook"], os.environ, 1)
    assert descriptors() == before


def test_what_is_done_regularly_goes_on_after_an_error() -> None:
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
