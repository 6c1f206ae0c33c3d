"""Who is let in, who has to go, and what is told of it, by a clock that the test moves."""

import json
from io import StringIO
from weakref import ref

import pytest

from credhook.listener.connections import Connections
from credhook.listener.limits import ADMIN, Limits, affordable
from credhook.listener.refusals import FULL, IDLE, MADE_ROOM, SLOW_HEAD, Refusal
from credhook.logs import configure_logs

LIMITS = Limits(connections=3, buffered=1_000, body=100, header_timeout=5.0, body_timeout=10.0, idle_timeout=5.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """A connection that has waited since a moment, and would be overdue after five seconds."""

    def __init__(self, connections: Connections, since: float, *, served: bool = False, busy: bool = False) -> None:
        self.held = 0
        self.served = served
        self.since = since
        self.busy = busy
        self.ended: list[Refusal] = []
        self.connections = connections
        connections.add(self)

    def waiting(self, now: float) -> float:
        return 0.0 if self.busy else now - self.since

    def overdue(self, now: float) -> Refusal | None:
        return SLOW_HEAD if self.waiting(now) > 5 else None

    def end(self, refusal: Refusal) -> None:
        self.ended.append(refusal)
        self.connections.remove(self)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counted() -> list[str]:
    return []


@pytest.fixture
def connections(clock: Clock, counted: list[str]) -> Connections:
    return Connections(LIMITS, "public", count=counted.append, clock=clock)


def test_a_newcomer_takes_the_place_of_whoever_has_kept_us_waiting_longest(connections: Connections) -> None:
    slow, slowest, quick = Fake(connections, 98), Fake(connections, 97), Fake(connections, 99.9)
    assert connections.admit()
    assert (slow.ended, slowest.ended, quick.ended) == ([], [MADE_ROOM], [])


def test_strangers_go_before_those_who_have_delivered_something(connections: Connections) -> None:
    known = Fake(connections, 90, served=True)
    stranger, _ = Fake(connections, 98), Fake(connections, 99.9)
    assert connections.admit()
    assert (known.ended, stranger.ended) == ([], [MADE_ROOM])


def test_nobody_goes_who_waits_for_us_or_has_just_come(connections: Connections) -> None:
    all_three = Fake(connections, 50, busy=True), Fake(connections, 99.9), Fake(connections, 99.6)
    assert not connections.admit()
    assert not any(one.ended for one in all_three)


def test_who_was_slow_when_looked_for_and_is_not_now_stays(connections: Connections, clock: Clock) -> None:
    first, second = Fake(connections, 90), Fake(connections, 91)
    Fake(connections, 100)
    assert connections.admit()
    Fake(connections, 100)
    second.busy = True
    assert not connections.admit()
    assert (first.ended, second.ended) == ([MADE_ROOM], [])


def test_nobody_is_kept_in_memory_who_was_slow_when_looked_for_and_has_gone(connections: Connections) -> None:
    Fake(connections, 90)
    slow = Fake(connections, 91)
    Fake(connections, 100)
    assert connections.admit()
    connections.remove(slow)
    gone = ref(slow)
    del slow
    assert gone() is None


def test_bytes_beyond_the_bound_are_made_room_for_by_those_who_hold_some(connections: Connections) -> None:
    idle, slow, mine = Fake(connections, 90), Fake(connections, 95), Fake(connections, 100)
    assert connections.hold(slow, 900)
    assert connections.hold(mine, 200)
    assert (idle.ended, slow.ended, mine.ended) == ([], [MADE_ROOM], [])


def test_bytes_beyond_the_bound_are_refused_where_nobody_is_slow(connections: Connections) -> None:
    other, mine = Fake(connections, 99.9), Fake(connections, 100)
    assert connections.hold(other, 900)
    assert not connections.hold(mine, 200)
    connections.release(mine)
    assert connections.hold(mine, 100)


def test_those_who_are_overdue_are_ended_by_the_sweep(connections: Connections, clock: Clock) -> None:
    late, early = Fake(connections, 94), Fake(connections, 96)
    connections.sweep()
    assert (late.ended, early.ended) == ([SLOW_HEAD], [])
    clock.now += 2
    connections.sweep()
    assert early.ended == [SLOW_HEAD]
    assert len(connections) == 0


def test_the_log_has_one_line_a_minute_for_each_reason_and_every_one_is_counted(
    connections: Connections, clock: Clock, counted: list[str]
) -> None:
    stream = StringIO()
    configure_logs(stream)
    for _ in range(1_200):  # Ten minutes of half seconds.
        for refusal in (FULL, SLOW_HEAD, IDLE):
            connections.count(refusal)
        connections.sweep()
        clock.now += 0.5
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    full = [line for line in lines if line["reason"] == "full"]
    assert [line["event"] for line in full] == ["connections_refused"] * 10
    assert [line["count"] for line in full] == [1] + [120] * 9
    assert {line["event"] for line in lines} == {"connections_refused", "senders_cut_off"}
    assert len(lines) == 20
    assert (counted.count("full"), counted.count("idle")) == (1_200, 1_200)


@pytest.mark.parametrize(
    ("wanted", "descriptors", "allowed"), [(1_024, 20_000, 1_024), (1_024, 1_024, 928), (10, 1_024, 10), (50, 64, 8)]
)
def test_no_more_connections_are_kept_than_files_may_be_open(wanted: int, descriptors: int, allowed: int) -> None:
    assert affordable(wanted, descriptors=descriptors) == allowed


def test_the_admin_listener_takes_less_than_files_are_reserved() -> None:
    assert affordable(1_024, descriptors=1_024) + ADMIN.connections < 1_024
