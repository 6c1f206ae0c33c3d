from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from credhook.store import LATEST_MS, Keys, State
from credhook.store.selection import Cursor, EventSummary, Selection, event_type, moment
from credhook.worker.commands.events import events

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
INDEX = Keys("q")


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        *(
            (event_type, text, r"did you mean verification\.data\?")
            for text in ("verification.dat", "openid4vc.verification.dta", "presentation.data")
        ),
        (event_type, "zzz", r"they are openid4vc\.issuance\.offered, .*verification\.data"),
        *(
            (lambda text: moment(text, NOW), text, "should be ISO 8601")
            for text in ("", "yesterday", "2", "-2h", "2 h", "2H", "1.5h", "2026-13-01", "999999999w", "٣d x")
        ),
        *((Cursor.read, text, "is no cursor") for text in ("", "next", "a" * 23, "a" * 25, "a" * 23 + "g")),
    ],
)
def test_invalid_text_is_refused_with_what_was_expected(read: Callable[[str], object], text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(text)


def test_a_type_has_a_short_form_too_and_a_moment_is_iso_8601_or_an_age() -> None:
    assert event_type("openid4vc.verification.data") == event_type("verification.data") == "openid4vc.verification.data"
    for text, meant in (
        ("90s", NOW - timedelta(seconds=90)),
        ("15m", NOW - timedelta(minutes=15)),
        ("2h", NOW - timedelta(hours=2)),
        ("7d", NOW - timedelta(days=7)),
        ("4w", NOW - timedelta(weeks=4)),
        ("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
        ("2026-11-20T09:30", datetime(2026, 11, 20, 9, 30, tzinfo=UTC)),
        ("2026-11-20T09:30:00Z", datetime(2026, 11, 20, 9, 30, tzinfo=UTC)),
        ("2026-11-20T09:30:00+02:00", datetime(2026, 11, 20, 7, 30, tzinfo=UTC)),
    ):
        assert moment(text, NOW) == meant, text


FOUND = EventSummary("m1", "openid4vc.verification.data", "dead", Cursor(int(NOW.timestamp() * 1000), 3))


@pytest.mark.parametrize(
    ("selection", "span"),
    [
        (Selection(), (0, LATEST_MS + 1)),
        (Selection(since=datetime(1969, 12, 31, tzinfo=UTC)), (0, LATEST_MS + 1)),
        (Selection(until=datetime(1969, 12, 31, tzinfo=UTC)), (0, 0)),
        (Selection(since=NOW), (1_795_262_400_000, LATEST_MS + 1)),
        (Selection(until=NOW), (0, 1_795_262_400_000)),
        (Selection(until=NOW + timedelta(microseconds=1)), (0, 1_795_262_400_001)),
    ],
)
def test_the_end_of_a_span_is_not_included(selection: Selection, span: tuple[int, int]) -> None:
    assert selection.span == span


def test_cursor_reads_what_it_writes_and_sorts_by_number() -> None:
    assert Cursor.read(str(FOUND.cursor)) == FOUND.cursor
    assert Cursor(2, 9) < Cursor(2, 10) < Cursor(10)


@pytest.mark.parametrize(
    ("states", "keys"),
    [
        ({State.DEAD}, (INDEX.dead,)),
        ({State.DEAD, State.DATA_GONE}, (INDEX.dead,)),
        ({State.ACCEPTED, State.WAITING}, (INDEX.open,)),
        ({State.QUARANTINED, State.WAITING}, (INDEX.open, INDEX.quarantined)),
        ({State.UNHANDLED}, tuple(sorted(INDEX.all_unhandled))),
        ({State.DONE, State.DEAD}, ()),
        (set(), ()),
    ],
)
def test_states_that_are_indexed_are_looked_up(states: set[State], keys: tuple[str, ...]) -> None:
    assert Selection(frozenset(states)).state_sets(INDEX) == keys


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "--since", "1h", "--until", "2h"], "--since should be earlier than --until"),
        (["list", "--since", "2026-11-20", "--until", "2026-11-20"], "--since should be earlier than --until"),
        (["list", "--type", "issuance.complete"], "did you mean issuance.completed?"),
        (["list", "--state", "gone"], "'data_gone'"),
        (["erase", "--resource", ""], "is no id"),
        (["erase", ""], "is no id"),
        (["list", "--after", "page 2"], "is no cursor"),
        (["erase"], "select events, or add --all"),
        (["erase", "--limit", "5", "--yes"], "select events, or add --all"),
        (["erase", "--after", "5-0", "--yes"], "select events, or add --all"),
        (["replay"], "select events, or add --all"),
        (["replay", "--state", "waiting", "--now", "--handler", "a.b"], "exclude each other"),
        (["replay", "--all", "--now", "--renamed"], "exclude each other"),
    ],
)
def test_wrong_usage_ends_with_2_before_redis_is_asked(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(events, arguments, env={"REDIS_URL": "redis://127.0.0.1:1/0"})
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
