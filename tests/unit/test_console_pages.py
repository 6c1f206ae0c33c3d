"""The parts of the console's pages: filters, plots, history, escaping."""

import threading
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from waiting import until

from credhook.console.events import address, in_words, selection
from credhook.console.jobs import ConsoleJob, Jobs, Stage, Task, TooMany
from credhook.console.overview import HEIGHT, HISTORY_SECONDS, WIDTH, History, Sample, plot, tiles
from credhook.console.rendering import day_and_time, fragment, machine_time, number, with_code
from credhook.ops.fleet import Fleet, ReceiverProcess, RedisServer
from credhook.store import State
from credhook.store.counts import EventCounts
from credhook.store.health import Check
from credhook.worker.commands.history import Cause
from credhook.worker.commands.search import Cursor, EventSummary

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SERVER = RedisServer(
    address="redis://h:6379/0", version="7", used_memory=1, maxmemory=0, appendonly=True, fsync="always",
    checks=(Check("x", True, ""),),
)  # fmt: skip


def test_an_address_says_what_the_options_of_the_command_say() -> None:
    query = [
        ("state", "dead"),
        ("state", "data_gone"),
        ("type", "verification.data"),
        ("resource", "iss_1"),
        ("cause", "0123abcd"),
        ("handler", "a.b"),
        ("since", "2h"),
        ("until", ""),
        ("q", "ignored"),
    ]
    chosen = selection(query, NOW)
    assert chosen.states == {State.DEAD, State.DATA_GONE}
    assert chosen.types == {"openid4vc.verification.data"}
    assert (chosen.resource, chosen.cause, chosen.handler) == ("iss_1", "0123abcd", "a.b")
    assert chosen.since == datetime(2026, 11, 22, 10, tzinfo=UTC)
    assert selection(address(chosen), NOW) == chosen
    assert in_words(chosen) == (
        "state data_gone, state dead, type verification.data, resource iss_1, cause 0123abcd, handler a.b, "
        "since 2026-11-22 10:00:00 UTC"
    )


def test_the_cursor_is_no_part_of_the_selection() -> None:
    chosen = selection([("state", "dead"), ("after", str(Cursor(5)))], NOW)
    assert chosen.after == Cursor(5)
    assert address(chosen) == [("state", "dead")]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        *(([(name, "x")], "x") for name in ("state", "type", "cause", "since", "after")),
        ([("resource", "../x")], "../x"),
        ([("id", "a b")], "a b"),
        ([("handler", "a b")], "a b"),
        ([("since", "1h"), ("until", "2h")], "earlier"),
    ],
)
def test_an_invalid_value_is_named(query: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        selection(query, NOW)


def test_a_plot_starts_at_zero_and_has_gaps_where_values_are_unknown() -> None:
    drawn = plot("open", "", [(0, 0), (10, 5), (90, 10), (100, None)], 0, 100)
    assert (drawn.highest, drawn.last) == (10, 10)
    assert drawn.line.count("M") == 2
    assert drawn.line.startswith(f"M0.0 {HEIGHT - 1:.1f} L{WIDTH / 10:.1f} ")
    assert plot("open", "", [(0, None)], 0, 1) == plot("open", "", [], 0, 1)
    assert "nan" not in plot("open", "", [(0, 0), (1, 0)], 0, 1).line


def test_history_is_bounded_and_keeps_peaks() -> None:
    history, now = History(), 2 * HISTORY_SECONDS
    for second in range(0, int(now), 5):
        history.add(second, Sample(99 if second == now - 3_000 else 1, 2, 3, None))
    assert now - (history.since or 0) <= HISTORY_SECONDS + 10
    arriving, _, _, dead = history.plots(now)
    assert (arriving.highest, arriving.last) == (99, 1)
    assert dead.highest is None


def test_tiles_stand_out_where_something_is_wrong_and_are_left_out_where_nothing_can_be() -> None:
    well = tiles(Fleet(queue="credhook", server=SERVER))
    assert [tile.name for tile in well] == ["arriving", "queued", "in flight", "retrying", "oldest open", "given up"]
    assert {tile.tone for tile in well} == {""}
    receiver = ReceiverProcess(
        queue="credhook", host="h", version="1", age=1, strict=True, per_second=2.5, idle=3, config_fingerprint={}
    )
    counts = EventCounts(dead=7, dead_recently=3, unhandled={"x": 2}, quarantined=1)
    badly = {
        one.name: one for one in tiles(Fleet(queue="credhook", server=SERVER, counts=counts, receivers=(receiver,)))
    }
    assert badly["arriving"].value == "2.5/s"
    assert (badly["given up"].value, badly["given up"].tone) == ("3", "bad")
    assert badly["unhandled"].value == "2"
    assert badly["quarantined"].value == "1"


def test_values_from_redis_are_escaped() -> None:
    hostile = '<script>alert(1)</script>"><img src=x>'
    cause = Cause("0123abcd", hostile, hostile, hostile, 1, 1, 1, NOW, NOW, hostile, hostile)
    shown = fragment("causes_part.html", causes=[cause])
    assert "<script" not in shown
    assert "<img" not in shown
    assert "&lt;script&gt;" in shown
    assert with_code("type `<b>`, <i>") == "type <code>&lt;b&gt;</code>, &lt;i&gt;"


def test_times_are_in_utc_and_numbers_in_groups() -> None:
    assert day_and_time("2026-11-22T13:04:05.123+01:00") == "22 Nov 12:04:05"
    assert machine_time(NOW) == "2026-11-22T12:00:00.000Z"
    assert (number(None), number(7), number(1_234_567)) == ("?", "7", "1\u202f234\u202f567")


def test_a_job_that_ends_badly_says_why_and_lets_the_next_one_run() -> None:
    def fail(*_: object) -> list[EventSummary]:
        raise ZeroDivisionError

    task = Task("replay", "replayed", fail, lambda _: [], {"replayed": ""}, {"open": "open"})
    job = ConsoleJob("j", task, "ada", "state dead", NOW)
    job.run(None, None, lambda: NOW)  # type: ignore[arg-type]  # Nothing asks for either.
    assert (job.stage, job.error, job.ended) == (Stage.FAILED, "ZeroDivisionError", NOW)
    shown = fragment("job_part.html", job=job, form_token="t")
    assert "ZeroDivisionError" in shown
    assert "Stop" not in shown


def test_jobs_run_one_after_the_other_and_stop_between_two_batches() -> None:
    go, worked = threading.Event(), list[int]()

    def step(batch: Sequence[EventSummary]) -> list[bytes]:
        assert go.wait(60)
        worked.append(len(batch))
        return [b"replayed"] * len(batch)

    events = [EventSummary(str(number), "", "dead", 0) for number in range(500)]
    task = Task("replay", "replayed", lambda *_: events, step, {"replayed": ""}, {"open": "open"})
    jobs = Jobs(None, None)  # type: ignore[arg-type]  # Nothing asks for either.
    first, second, third = (jobs.add(task, who="ada", which="state dead") for _ in range(3))
    until(lambda: first.stage is Stage.RUNNING, what="the first job")
    assert (second.stage, third.stage) == (Stage.WAITING, Stage.WAITING)
    first.stop()
    second.stop()
    go.set()
    until(lambda: third.is_over, what="the third job")
    assert [job.stage for job in (first, second, third)] == [Stage.STOPPED, Stage.STOPPED, Stage.DONE]
    assert worked == [200, 200, 200, 100]
    assert (first.worked, first.finished, first.total) == (200, 200, 500)
    assert "stopped before the other 300" in fragment("job_part.html", job=first, form_token="t")
    assert jobs.all() == [third, second, first]
    jobs.stop()


def test_waiting_jobs_are_limited_and_old_ones_are_forgotten() -> None:
    go = threading.Event()

    def find(*_: object) -> list[EventSummary]:
        assert go.wait(60)
        return []

    task = Task("erase", "erased", find, lambda _: [], {}, {})
    jobs = Jobs(None, None)  # type: ignore[arg-type]  # Nothing asks for either.
    for _ in range(20):
        jobs.add(task, who="ada", which="x")
    with pytest.raises(TooMany):
        jobs.add(task, who="ada", which="x")
    go.set()
    for _ in range(5):
        until(lambda: all(job.is_over for job in jobs.all()), what="the jobs")
        for _ in range(20):
            jobs.add(task, who="ada", which="x")
    # At most 50 jobs that were over are kept.
    assert len(jobs.all()) <= 50 + 20
    jobs.stop()
