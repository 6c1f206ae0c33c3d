"""A circuit as it is written and read, by us and by somebody else."""

from dataclasses import replace

import pytest

from credhook.worker.platform.breaker import LONGEST_ASKED, MARGIN, THRESHOLD, Circuit
from credhook.worker.platform.circuit_snapshot import (
    LONGEST,
    SLACK,
    CircuitSnapshot,
    NotACircuit,
    read,
    read_message,
    written,
)

#: This process's clock, and how far Redis's is ahead of it, in seconds.
NOW, AHEAD = 5_000.0, 1_700_000_000.0
STAMP = b" 1700000005000000"


def text_of(circuit: Circuit) -> bytes:
    return written(circuit, ahead=AHEAD) + STAMP


def read_now(text: bytes) -> Circuit:
    return read(text, now=NOW, ahead=AHEAD)


@pytest.mark.parametrize(
    "circuit",
    [
        Circuit(score=1),
        Circuit(score=THRESHOLD - 1),
        Circuit(is_open=True, trips=1, until=NOW + 1),
        Circuit(is_open=True, trips=1_000_000, until=NOW - 600),
        Circuit(is_open=True, until=NOW + LONGEST_ASKED + MARGIN),
    ],
)
def test_what_one_writes_the_others_read(circuit: Circuit) -> None:
    text = text_of(circuit)
    assert len(text) <= LONGEST
    found = read_now(text)
    assert found.until == pytest.approx(circuit.until, abs=0.002)
    assert replace(found, until=circuit.until) == circuit


def test_nothing_is_a_circuit_of_which_there_is_nothing_to_say() -> None:
    assert read_now(b"") == Circuit()


@pytest.mark.parametrize(
    "text",
    [
        b"garbage",
        b"\xff\xfe\x00",
        b"1 0 1",
        b"1 0 1 1700005001.000" + 2 * STAMP,
        b"2 0 1 1700005001.000" + STAMP,
        b"1 0 1 nan" + STAMP,
        b"1 0 1 inf" + STAMP,
        b"1 0 1 -inf" + STAMP,
        b"1 0 1 1e400" + STAMP,
        b"1 0 -9 1700005001.000" + STAMP,
        b"1 0 " + b"9" * 5_000 + b" 1700005001.000" + STAMP,
        b"0 -9 0 0.000" + STAMP,
        b"0 %d 0 0.000" % THRESHOLD + STAMP,
        b"0 x 0 0.000" + STAMP,
        b'{"open": true}',
    ],
)
def test_what_somebody_else_wrote_is_no_notice(text: bytes) -> None:
    with pytest.raises(NotACircuit):
        read_now(text)


@pytest.mark.parametrize(("wait", "believed"), [(LONGEST_ASKED + SLACK - 1, True), (LONGEST_ASKED + SLACK + 1, False)])
def test_a_pause_that_is_longer_than_any_is_not_believed(wait: float, believed: bool) -> None:
    text = text_of(Circuit(is_open=True, until=NOW + wait))
    if believed:
        assert read_now(text).is_open
    else:
        with pytest.raises(NotACircuit, match="3661 s"):
            read_now(text)


@pytest.mark.parametrize("data", [b"", b"x", b"17", b"x 1 0 1", b"-5 1", b"9" * 40 + b" x"])
def test_a_message_of_somebody_elses_is_no_change(data: bytes) -> None:
    with pytest.raises(NotACircuit):
        read_message(data)


def test_a_change_says_when_and_what() -> None:
    text = text_of(Circuit(score=3))
    assert read_message(b"17 " + text) == (17, text)
    assert read_message(b"17 ") == (17, b"")


SECOND = 1_000_000


@pytest.mark.parametrize(
    ("at", "known", "older"),
    [(10, 20, True), (20, 20, False), (30, 20, False), (9 * SECOND, 10 * SECOND, True), (1, 10 * SECOND, False)],
)
def test_an_older_look_is_not_believed_unless_the_clock_was_set_back(at: int, known: int, older: bool) -> None:
    assert CircuitSnapshot(at).precedes(CircuitSnapshot(known)) is older
