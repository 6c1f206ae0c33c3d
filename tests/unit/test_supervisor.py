"""Each supervisor, in virtual time: when it replaces a child, when it gives up, how it drains."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from credhook.supervisor import CHECK_SECONDS, LONG_LIFE_SECONDS, End, Supervisor, stop_with_supervisor, stops
from support.process.fake_children import Child, Clock, own_signals
from support.waiting import until

#: Lives of children, one after the other: how many seconds, and the code that they end with.
Lives = Sequence[tuple[float, int]]
YOUNG, OLD, GRACE = 1.0, LONG_LIFE_SECONDS + 1.0, 10.0


class Family(Supervisor[Any]):
    """Children whose lives are planned; those beyond the plan live until they are told to end."""

    def __init__(self, clock: Clock, number: int, lives: Lives = (), **policy: Any) -> None:
        super().__init__("child", number, self.birth, grace=GRACE, clock=clock, sleep=clock.sleep, **policy)
        self.children: list[Child] = []
        self.done: list[str] = []
        #: True if a child that ends with 0 has finished its work.
        self.finishes = False
        #: Seconds that the children take to end once they are told to.
        self.draining = 0.0
        #: How often the system has no room for another.
        self.refusals = 0
        #: Called at each look with each child that is alive.
        self.seen: Callable[[Child], None] = lambda _: None
        self._time = clock
        self._lives = iter(lives)

    def close(self) -> None:
        os.close(self.lifeline)
        os.close(self._write_end)

    def birth(self, place: int, lifeline: int) -> Child:
        if self.refusals:
            self.refusals -= 1
            raise BlockingIOError
        child = Child(self._time, drains_for=self.draining)
        self.children.append(child)
        if life := next(self._lives, None):
            seconds, code = life
            self._time.after(seconds, lambda: child.ends(code))
        return child

    def check(self, child: Child) -> None:
        self.seen(child)

    def ended(self, child: Child, code: int) -> End:
        self.done.append(f"{child.pid} ended with {code}")
        return End.IN_ORDER if self.finishes and code == 0 else super().ended(child, code)


Make = Callable[..., Family]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with own_signals(), capture_logs() as captured:
        yield captured


@pytest.fixture
def family(clock: Clock) -> Iterator[Make]:
    """Makes families, and closes what they hold."""
    made: list[Family] = []

    def make(number: int = 1, lives: Lives = (), **policy: Any) -> Family:
        made.append(Family(clock, number, lives, **policy))
        return made[-1]

    yield make
    for one in made:
        one.close()


def told(clock: Clock, seconds: float, number: signal.Signals = signal.SIGTERM) -> None:
    """Plan that the supervisor gets a signal."""
    clock.after(seconds, lambda: signal.raise_signal(number))


def waits(logs: list[Any]) -> list[float]:
    """Seconds before each child that died was replaced, as the log has them."""
    return [entry["restart_in"] for entry in logs if entry["event"] == "child_died"]


@pytest.mark.parametrize(
    ("lives", "expected"),
    [
        ([(YOUNG, -signal.SIGKILL)] * 8, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0]),
        ([(YOUNG, 1), (OLD - 2, 1), (OLD, 1), (YOUNG, 1)], [0.1, 0.2, 0.1, 0.2]),
    ],
)
def test_a_child_that_dies_young_again_is_replaced_later(
    clock: Clock, family: Make, logs: list[Any], lives: Lives, expected: list[float]
) -> None:
    one = family(1, lives)
    told(clock, 90)
    assert one.run() == 0
    assert waits(logs) == expected
    assert len(one.done) == len(lives) + 1  # The last child was told to stop.
    births = [child.born for child in one.children]
    for (before, after), (life, _), wait in zip(pairwise(births), lives, waits(logs), strict=True):
        assert life + wait <= after - before + 1e-6 <= life + wait + 3 * CHECK_SECONDS


def test_a_system_without_room_is_asked_again(clock: Clock, family: Make, logs: list[Any]) -> None:
    one = family(1)
    one.refusals = 2
    told(clock, 60)
    began = clock.now
    assert one.run() == 0
    assert [(entry["event"], entry["retry_in"]) for entry in logs] == [("child_not_started", 4.0)] * 2
    assert one.children[0].born >= began + 8.0


def test_once_all_have_finished_so_has_their_supervisor(family: Make, logs: list[Any]) -> None:
    exits: list[int] = []
    one = family(3, [(YOUNG, 0), (OLD, 0), (YOUNG, 7), (OLD, 0)], on_exit=exits.append)
    one.finishes = True
    assert one.run() == 0
    assert len(one.children) == len(one.done) == 4
    assert exits == [0, 2, 1, 2]
    assert [entry["code"] for entry in logs] == [7]


def test_a_child_that_was_not_told_to_stop_is_replaced_after_code_0(
    clock: Clock, family: Make, logs: list[Any]
) -> None:
    one = family(1, [(YOUNG, 0)])
    told(clock, 60)
    assert one.run() == 0
    assert len(one.children) == 2
    assert [(entry["event"], entry["code"]) for entry in logs] == [("child_died", 0)]


def test_supervisor_ends_on_errors_that_a_new_child_would_repeat(family: Make, logs: list[Any]) -> None:
    signals: list[int] = []
    one: Family = family(
        2, [(OLD * 2, 1), (YOUNG, 2)], before_drain=lambda: signals.extend(len(child.signals) for child in one.children)
    )
    assert one.run() == 2
    assert signals == [0, 0]  # Before the drain, nobody was told to end.
    assert [child.signals for child in one.children] == [[signal.SIGTERM], []]
    assert logs == []


def test_supervisor_kills_children_that_do_not_end(clock: Clock, family: Make, logs: list[Any]) -> None:
    one = family(2)
    one.draining = 11.0
    told(clock, 60)
    began = clock.now
    assert one.run() == 1
    assert clock.now >= began + 60 + GRACE
    assert [entry["event"] for entry in logs] == ["child_killed"] * 2
    assert [child.poll() for child in one.children] == [-signal.SIGKILL] * 2


@pytest.mark.parametrize(
    ("code", "force_signal", "end"),
    [
        (-signal.SIGTERM, None, 0),
        (-signal.SIGHUP, None, 0),
        (-signal.SIGUSR2, signal.SIGUSR2, 0),
        (-signal.SIGUSR2, None, 1),
        (-signal.SIGKILL, None, 1),
        (1, None, 1),
    ],
)
def test_child_stopped_before_it_listens_has_ended_in_order(
    clock: Clock, family: Make, code: int, force_signal: signal.Signals | None, end: int
) -> None:
    one = family(1, [(60.01, code)], force_signal=force_signal)
    one.draining = 5.0
    told(clock, 60)
    assert one.run() == end


def test_nobody_is_started_once_it_is_to_end(clock: Clock, family: Make, logs: list[Any]) -> None:
    one = family(1, [(YOUNG, 1)] * 20)
    told(clock, 17)  # A child has died, and the next is due in some seconds.
    assert one.run() == 0
    assert clock.now < sum([one.children[-1].born, YOUNG, waits(logs)[-1]])


def test_a_death_that_is_seen_with_the_signal_is_the_signals(clock: Clock, family: Make, logs: list[Any]) -> None:
    """Ctrl-C goes to all at once; a child that could not listen yet dies of it."""
    one = family(2)

    def interrupted(_: Child) -> None:
        if clock.now > 1_060:
            one.children[1].ends(-signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    one.seen = interrupted
    assert one.run() == 0
    assert logs == []


@pytest.mark.parametrize(
    ("asked", "force_signal", "sent"),
    [
        ((signal.SIGTERM, signal.SIGTERM), signal.SIGUSR2, [signal.SIGTERM, signal.SIGUSR2]),
        ((signal.SIGHUP, signal.SIGINT), signal.SIGUSR2, [signal.SIGTERM, signal.SIGUSR2]),
        ((signal.SIGHUP, signal.SIGHUP), signal.SIGUSR2, [signal.SIGTERM]),
        ((signal.SIGTERM, signal.SIGTERM), None, [signal.SIGTERM]),
    ],
)
def test_asked_again_it_insists(
    clock: Clock, family: Make, asked: Sequence[signal.Signals], force_signal: Any, sent: list[signal.Signals]
) -> None:
    one = family(2, force_signal=force_signal)
    one.draining = 5.0
    for seconds, number in zip((60, 62), asked, strict=True):
        told(clock, seconds, number)
    assert one.run() == 0
    assert [child.signals for child in one.children] == [sent] * 2


def test_process_stops_with_its_supervisor(logs: list[Any]) -> None:
    lifeline, held_by_supervisor = os.pipe()
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    stop_with_supervisor(lifeline)
    assert stopped == []
    os.close(held_by_supervisor)
    until(lambda: stopped)
    os.close(lifeline)
    assert [entry["event"] for entry in logs] == ["supervisor_gone"]


def test_under_nohup_the_end_of_the_terminal_ends_nothing() -> None:
    assert stops() == (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert stops() == (signal.SIGTERM, signal.SIGINT)
