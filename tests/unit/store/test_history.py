"""An event and its history, as `credhook events show` and the console tell them."""

from credhook.store import HISTORY_ENTRIES
from credhook.store.history import describe, lines

FIELDS = {
    "type": "a.type", "resource": "r1", "state": "waiting", "error": "a.b: ValueError", "only": "a.f",
    "received": "1000", "due": "61000", "lapses": "2", "p:a.f": "3 0", "p:a.b": "2 61000",
    "p:a.r": "1 61000", "p:a.w": "0 0",
    "trace": f"00-{'a' * 32}-{'b' * 16}-01",
    "h:a.f": "done 12", "h:a.g": "dead: GiveUp", "h:a.s": "skipped",
    "c:a.g": "0badc0de", "c:fetch": "510e0000", "c:a.b": "0721e2e5",
}  # fmt: skip
AT = "1970-01-01T00:00:04.000Z"
HISTORY = [
    {"at": AT, "replayed": {"by": "ada", "handler": "a.f"}},
    {"at": AT, "died": "own", "beside": 2, "cause": "510e0000"},
    {"at": AT, "state": "waiting", "error": "no", "milliseconds": 7, "worker": "w",
     "next_attempt_at": AT, "ran": {"a.f": 12}, "skipped": ["a.s"],
     "failures": [{"who": "a.b", "what": "ValueError", "ms": 5, "at": "x.py:1 f", "cause": "0721e2e5",
                   "attempt": 2, "next_attempt_at": AT}]},
    {"at": AT, "died": "ended", "beside": 0},
    {"at": AT, "died": "host"},
    {"at": AT, "state": "accepted", "retries": [{"who": "a.b", "what": "not yet", "attempt": 2}]},
    {"at": AT, "replayed": {"now": True}},
    {"at": AT, "replayed": {"by": "ada", "renamed": True}},
]  # fmt: skip


def test_event_is_described_line_by_line() -> None:
    more = {"history": HISTORY, "conflicts": [{"at": AT, "type": "a.other", "resource_id": "r9"}]}
    assert list(lines(describe("m1", FIELDS, lease=2_500.0) | more))[5:] == [
        "conflict   1970-01-01 00:00:04.000, the same id came with a.other r9",
        "next       1970-01-01 00:01:01.000",
        "held until 1970-01-01 00:00:02.500",
        "lapses     2, claims that no worker has settled",
        "handler    a.f: done in 12 ms, attempt 3",
        "handler    a.g: dead: GiveUp (cause 0badc0de)",
        "handler    a.s: skipped",
        "handler    a.b: failed 2 times, next at 1970-01-01 00:01:01.000 (cause 0721e2e5)",
        "handler    a.r: tried 1 time, next at 1970-01-01 00:01:01.000",
        "handler    a.w: waits",
        "fetch      failed (cause 510e0000)",
        "waits for  a.f",
        f"trace      {'a' * 32}",
        "1970-01-01 00:00:04.000  replayed by ada, handler a.f",
        "1970-01-01 00:00:04.000  its worker ended by itself, other events under way: 2 (cause 510e0000)",
        "1970-01-01 00:00:04.000  attempt by w in 7 ms: waiting: no, next at 1970-01-01 00:00:04.000",
        f"{'':25}a.f done in 12 ms",
        f"{'':25}a.s skipped",
        f"{'':25}a.b ValueError after 5 ms at x.py:1 f, attempt 2, next at 1970-01-01 00:00:04.000 (cause 0721e2e5)",
        "1970-01-01 00:00:04.000  its worker was ended",
        "1970-01-01 00:00:04.000  its worker went silent, with its host or cut off from Redis",
        "1970-01-01 00:00:04.000  attempt: handed back",
        f"{'':25}a.b chose to run again: not yet, attempt 2",
        "1970-01-01 00:00:04.000  replayed, due at once",
        "1970-01-01 00:00:04.000  replayed by ada, with renamed handlers",
    ]
    settled = describe("m1", FIELDS | {"state": "dead", "settled": "3500"})
    assert settled["milliseconds"] == 2_500
    assert "state      dead since 1970-01-01 00:00:03.500: a.b: ValueError" in lines(settled | more)
    for kept in (HISTORY_ENTRIES - 1, HISTORY_ENTRIES):
        entries = {"history": HISTORY[:1] * kept, "conflicts": []}
        assert ("(earlier entries are not kept)" in lines(settled | entries)) == (kept == HISTORY_ENTRIES)
