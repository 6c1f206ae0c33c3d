"""What a backfill reads in the platform's lists, and which events must have happened by that."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from credhook.events import EVENT_TYPES, ISSUANCE, PRESENTATION
from credhook.worker.api.errors import InvalidRequest, InvalidResponse, Unavailable
from credhook.worker.api.models import ListedResource
from credhook.worker.api.operations import Page
from credhook.worker.backfill.run import PAGE_SECONDS, STATES, Untold, Window, must_have_happened, walk


class Lists:
    """A list of which each page answers in turn with what it is told to, and the time that its reader waits."""

    def __init__(self, **pages: "list[Exception | str | None]") -> None:
        self.pages = pages
        self.now = 0.0
        self.asked: list[str] = []

    async def page(self, query: str) -> Page[ListedResource]:
        self.asked.append(query)
        answer = self.pages[query or "first"].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Page((ListedResource(id=query or "first", status="offered"),), answer)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def walked(self) -> list[str]:
        pages = walk(self.page, clock=lambda: self.now, sleep=self.sleep)
        return [one.id async for items in pages for one in items]


async def test_a_page_that_fails_for_a_while_is_read_again_and_not_those_before_it() -> None:
    later = [Unavailable("busy", retry_after=40.0), Unavailable("down")]
    lists = Lists(first=["second"], second=[*later, "third"], third=[None])
    assert await lists.walked() == ["first", "second", "third"]
    assert lists.asked == ["", "second", "second", "second", "third"]
    assert lists.now >= 40.0


async def test_patience_ends() -> None:
    lists = Lists(first=[Unavailable("down")] * 1_000)
    with pytest.raises(Unavailable):
        await lists.walked()
    assert lists.now <= PAGE_SECONDS
    lists = Lists(first=[Unavailable("busy", retry_after=PAGE_SECONDS + 1)])
    with pytest.raises(Unavailable):
        await lists.walked()
    assert lists.now == 0.0


async def test_what_does_not_pass_is_not_waited_for() -> None:
    with pytest.raises(InvalidRequest):
        await Lists(first=[InvalidRequest("no")]).walked()


async def test_a_circle_ends_the_walk() -> None:
    lists = Lists(first=["second"], second=["third"], third=["second"])
    with pytest.raises(InvalidResponse, match="leads in a circle"):
        await lists.walked()


NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
WINDOW = Window(NOW - timedelta(days=2), NOW - timedelta(hours=1))
#: Hours ago.
EARLIER, YOUNG, OLD = 5, 0.5, 72


def happened(
    status: str, *, created: float | None = 10, updated: float | None = EARLIER, wanted: tuple[str, ...] = EVENT_TYPES
) -> list[str]:
    kind = PRESENTATION if status.lower() in STATES[PRESENTATION] and status != "expired" else ISSUANCE
    if status == "failed":
        kind = ISSUANCE
    times = [None if age is None else NOW - timedelta(hours=age) for age in (created, updated)]
    resource = ListedResource(id="r", status=status, created_at=times[0], updated_at=times[1])
    found = must_have_happened(resource, kind, WINDOW, wanted)
    return ["|".join(each.rpartition(".")[2] for each in one.types) for one in found]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("offered", ["offered"]),
        ("partiallyIssued", ["offered", "partiallyIssued"]),
        ("COMPLETED", ["offered", "completed"]),
        ("failed", ["offered", "failed"]),
        ("expired", ["offered", "expired"]),
        ("revoked", ["offered"]),
        ("PENDING", ["requested"]),
        ("ANSWERED", ["requested"]),
        ("verified", ["requested", "data|verified"]),
        ("REJECTED", ["requested", "failed"]),
    ],
)
def test_a_status_tells_what_has_happened_in_order(status: str, expected: list[str]) -> None:
    assert happened(status) == expected


@pytest.mark.parametrize(
    ("status", "given", "expected"),
    [
        ("completed", {"created": EARLIER}, ["completed"]),  # It was never updated.
        ("completed", {"created": OLD}, ["completed"]),  # It was created before the window.
        ("completed", {"created": None}, ["completed"]),
        ("revoked", {"created": OLD}, []),
        ("completed", {"updated": YOUNG}, []),
        ("completed", {"updated": 1}, []),  # The window ends before that.
        ("completed", {"created": 48}, ["offered", "completed"]),
        ("completed", {"created": OLD, "updated": 48}, ["completed"]),
        ("completed", {"created": OLD, "updated": OLD - 1}, []),
        ("verified", {"wanted": ("openid4vc.verification.verified",)}, ["verified"]),
        ("verified", {"wanted": ("openid4vc.issuance.offered",)}, []),
    ],
)
def test_only_wanted_events_within_the_window_are_missed(
    status: str, given: dict[str, Any], expected: list[str]
) -> None:
    assert happened(status, **given) == expected


@pytest.mark.parametrize(
    ("resource", "why"),
    [
        (ListedResource(id="r", status="new", updated_at=NOW), "unknown_status"),
        (ListedResource(id="../r", status="offered", updated_at=NOW), "unreadable_id"),
        *(
            (ListedResource.model_validate_json(odd), "unreadable_id")
            for odd in ("null", "{}", '{"id": null}', '{"id": {}}', '["r"]')
        ),
        (ListedResource.model_validate_json('{"id": 77, "status": "offered"}'), "undated"),
        (ListedResource(id="r", status="offered"), "undated"),
        (ListedResource(id="r", status="offered", updated_at="yesterday"), "undated"),
    ],
)
def test_what_cannot_be_judged_says_why(resource: ListedResource, why: str) -> None:
    with pytest.raises(Untold, match=f"^{why}$"):
        list(must_have_happened(resource, ISSUANCE, WINDOW, EVENT_TYPES))


def test_every_type_but_those_that_cannot_be_told_is_announced_by_a_state() -> None:
    announced = {each for table in STATES.values() for states in table.values() for one in states for each in one}
    assert announced == set(EVENT_TYPES)
