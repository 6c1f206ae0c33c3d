"""Who is admitted, who is cut off, and what is logged, by a clock that the test moves."""

import json
from io import StringIO
from typing import cast

import pytest

from credhook.listener.limits import (
    ADMIN_LIMITS,
    FULL,
    MADE_ROOM,
    SLOW_REQUEST,
    Limits,
    Rejection,
    affordable,
    errors_body,
)
from credhook.listener.server import BoundedProtocol, Connections
from credhook.logs import configure_logs

LIMITS = Limits(3, buffered_bytes=1_000, body_bytes=100, request_timeout=5.0, idle_timeout=5.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """A connection that made progress at `since`."""

    def __init__(self, connections: Connections, since: float, *, busy: bool = False) -> None:
        self.held = 0
        self.since = since
        self.waits_for_sender = not busy
        self.ended: list[Rejection] = []
        connections.add(self.protocol)

    @property
    def protocol(self) -> BoundedProtocol:
        return cast(BoundedProtocol, self)

    def end(self, rejection: Rejection) -> None:
        self.ended.append(rejection)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counted() -> list[str]:
    return []


@pytest.fixture
def connections(clock: Clock, counted: list[str]) -> Connections:
    return Connections(LIMITS, "public", count=counted.append, clock=clock)


def test_a_newcomer_takes_the_place_of_the_slowest_sender(connections: Connections) -> None:
    slow, slowest, quick = Fake(connections, 98), Fake(connections, 97), Fake(connections, 99.9)
    assert connections.admit()
    assert (slow.ended, slowest.ended, quick.ended) == ([], [MADE_ROOM], [])


def test_a_connection_stays_that_is_being_answered_or_has_just_come(connections: Connections) -> None:
    fakes = Fake(connections, 50, busy=True), Fake(connections, 99.9), Fake(connections, 99.6)
    assert not connections.admit()
    assert not any(fake.ended for fake in fakes)


def test_a_full_listener_searches_for_slow_senders_at_most_ten_times_a_second(
    connections: Connections, clock: Clock
) -> None:
    for _ in range(3):
        Fake(connections, 99.55)
    assert not connections.admit()
    clock.now += 0.09  # By now they are slow.
    assert not connections.admit()
    clock.now += 0.02
    assert connections.admit()


def test_bytes_beyond_the_limit_are_refused_unless_a_slow_sender_can_be_cut_off(connections: Connections) -> None:
    slow, mine = Fake(connections, 95), Fake(connections, 100)
    assert connections.hold(slow.protocol, 900)
    assert connections.hold(mine.protocol, 200)
    assert slow.ended == [MADE_ROOM]
    assert not connections.hold(mine.protocol, 900)
    connections.release(mine.protocol)
    assert connections.hold(mine.protocol, 900)


def test_the_log_has_one_line_a_minute_for_each_reason_and_every_rejection_is_counted(
    connections: Connections, clock: Clock, counted: list[str]
) -> None:
    stream = StringIO()
    configure_logs(stream)
    for _ in range(1_200):  # Ten minutes of half seconds.
        for rejection in (FULL, SLOW_REQUEST):
            connections.reject(rejection)
        clock.now += 0.5
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    full = [line for line in lines if line["reason"] == "full"]
    assert [line["event"] for line in full] == ["connections_refused"] * 10
    assert [line.get("unlogged_before") for line in full] == [None] + [119] * 9
    assert {line["event"] for line in lines} == {"connections_refused", "senders_cut_off"}
    assert (len(lines), counted.count("full")) == (20, 1_200)


@pytest.mark.parametrize(
    ("wanted", "descriptors", "allowed"), [(1_024, 20_000, 1_024), (1_024, 1_024, 928), (10, 1_024, 10), (50, 64, 8)]
)
def test_no_more_connections_are_kept_than_files_may_be_open(wanted: int, descriptors: int, allowed: int) -> None:
    assert affordable(wanted, descriptors=descriptors) == allowed


def test_the_admin_listener_takes_less_than_files_are_reserved() -> None:
    assert affordable(1_024, descriptors=1_024) + ADMIN_LIMITS.connections < 1_024


@pytest.mark.parametrize(
    ("status", "code", "title"),
    [
        (400, "VALIDATION_ERROR", "Validation Failed"),
        (413, "PAYLOAD_TOO_LARGE", "Payload Too Large"),
        (503, "SERVICE_UNAVAILABLE", "Service Unavailable"),
    ],
)
def test_an_error_has_the_platforms_code_and_title(status: int, code: str, title: str) -> None:
    (error,) = json.loads(errors_body(status, "Detail.", "e1"))["errors"]
    assert error == {"id": "e1", "status": status, "code": code, "title": title, "detail": "Detail."}
