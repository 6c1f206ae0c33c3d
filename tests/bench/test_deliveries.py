"""Deliveries that are signed ahead of time."""

import time
from pathlib import Path

import pytest
from bench.deliveries import SECRET, sign
from standardwebhooks import Webhook


def requests(path: Path, count: int) -> list[bytes]:
    deliveries = sign(path, count)
    text = deliveries.read()
    return [text[start : start + deliveries.size] for start in range(0, len(text), deliveries.size)]


def test_each_is_accepted_by_the_reference_implementation(tmp_path: Path) -> None:
    for request in requests(tmp_path / "deliveries", 20):
        head, _, body = request.partition(b"\r\n\r\n")
        headers = dict(line.decode().split(": ", 1) for line in head.split(b"\r\n")[1:])
        assert headers["content-length"] == str(len(body))
        Webhook(SECRET).verify(body, headers)


def test_no_two_are_alike(tmp_path: Path) -> None:
    found = requests(tmp_path / "deliveries", 20_001)
    assert len({request.partition(b"webhook-id: ")[2] for request in found}) == 20_001


def test_they_differ_in_the_bytes_by_which_luajit_hashes_strings(tmp_path: Path) -> None:
    """Else wrk's time goes into telling equal hashes apart."""
    found = requests(tmp_path / "deliveries", 1_000)
    middle = len(found[0]) // 2 - 2
    assert len({request[middle : middle + 4] for request in found}) > 900


def test_they_stay_fresh_for_minutes_but_not_for_ever(tmp_path: Path) -> None:
    deliveries = sign(tmp_path / "deliveries", 1)
    assert time.time() < deliveries.timestamp < time.time() + 300
    assert deliveries.fresh_for(480)
    assert not deliveries.fresh_for(600)


@pytest.mark.parametrize(("wanted", "taken"), [(0, 0), (3, 3), (9, 5)])
def test_splitting_hands_each_out_once(tmp_path: Path, wanted: int, taken: int) -> None:
    deliveries = sign(tmp_path / "deliveries", 5)
    first, others = deliveries.split(wanted)
    assert first.count == taken
    assert first.read() + others.read() == deliveries.read()
