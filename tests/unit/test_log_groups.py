"""Lines that wait for each other: none is lost, none overtakes another, and what is urgent waits for nothing."""

import io
import json
import logging
import os
import threading

import pytest
import structlog

from credhook.logs import configure_logs, flush_lines, gather_lines
from credhook.logs.timestamps import timestamping


@pytest.fixture
def output() -> io.StringIO:
    output = io.StringIO()
    configure_logs(output)
    gather_lines()
    return output


def events(output: io.StringIO) -> list[str]:
    return [json.loads(line)["event"] for line in output.getvalue().splitlines()]


def test_what_went_as_expected_waits_to_be_written(output: io.StringIO) -> None:
    log = structlog.get_logger("a")
    log.info("first")
    log.info("second")
    assert events(output) == []
    flush_lines()
    assert events(output) == ["first", "second"]


def test_a_warning_takes_along_what_waits_before_it(output: io.StringIO) -> None:
    log = structlog.get_logger("a")
    log.info("first")
    log.warning("second")
    assert events(output) == ["first", "second"]
    log.info("third")
    logging.getLogger("a.library").error("fourth")
    assert events(output) == ["first", "second", "third", "fourth"]


def test_who_says_too_much_writes_it(output: io.StringIO) -> None:
    log = structlog.get_logger("a")
    for _ in range(6_000):
        log.info("said")
    assert len(events(output)) > 5_000


def test_no_line_is_lost_to_whoever_writes_them_meanwhile(output: io.StringIO) -> None:
    log, over = structlog.get_logger("a"), threading.Event()

    def flush() -> None:
        while not over.is_set():
            flush_lines()

    flushing = threading.Thread(target=flush)
    flushing.start()
    for number in range(20_000):
        log.info(str(number))
    over.set()
    flushing.join()
    flush_lines()
    assert events(output) == [str(number) for number in range(20_000)]


def test_a_fork_does_not_write_what_its_parent_will(output: io.StringIO) -> None:
    structlog.get_logger("a").info("the parent's")
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        flush_lines()
        structlog.get_logger("a").info("the child's")  # And waits for nothing.
        os.write(writing, ",".join(events(output)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        assert told.read() == b"the child's"
    os.waitpid(child, 0)
    flush_lines()
    assert events(output) == ["the parent's"]


def test_a_line_is_stamped_with_its_own_moment_whatever_second_the_last_was_of() -> None:
    moments = [1_790_000_000.25, 1_790_000_000.999999, 1_790_000_001.0, 1_789_999_999.5]
    stamp = timestamping(iter(moments).__next__)
    stamps = [stamp(None, "info", {})["timestamp"] for _ in moments]
    assert stamps == [
        "2026-09-21T14:13:20.250000Z",
        "2026-09-21T14:13:20.999999Z",
        "2026-09-21T14:13:21.000000Z",
        "2026-09-21T14:13:19.500000Z",
    ]
