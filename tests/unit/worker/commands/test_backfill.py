"""What a backfill reads in the platform's lists, and which events must have happened by that."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from credhook.events import EVENT_TYPES, ISSUANCE, PRESENTATION, RESOURCES, Resource
from credhook.worker.api.client import pages
from credhook.worker.api.errors import InvalidResponse
from credhook.worker.api.models import ListedResource
from credhook.worker.api.operations import Page
from credhook.worker.commands.backfill import UnclearHistory, Window, must_have_happened


@pytest.mark.parametrize(("last", "said"), [(3, "leads in a circle"), (999, "after 101 pages without an element")])
async def test_links_that_lead_in_a_circle_or_to_nothing_end_the_list(last: int, said: str) -> None:
    async def page(query: str) -> Page[str]:
        number = int(query or 0)
        return Page(("one",) if number == 9 else (), str(number % last + 1))

    with pytest.raises(InvalidResponse, match=said):
        assert [one async for one in pages(page)]


NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
WINDOW = Window(NOW - timedelta(days=2), NOW - timedelta(hours=1))
read = ListedResource.model_validate_json
#: Hours ago.
EARLIER, YOUNG, OLD = 5, 0.5, 72


def happened(
    kind: Resource, status: str, *, created: float | None = 10, updated: float = EARLIER, wanted: Any = EVENT_TYPES
) -> list[str]:
    times = [None if age is None else NOW - timedelta(hours=age) for age in (created, updated)]
    resource = ListedResource(id="r", status=status, created_at=times[0], updated_at=times[1])
    found = must_have_happened(resource, kind, WINDOW, wanted)
    return ["|".join(each.rpartition(".")[2] for each in one.types) for one in found]


@pytest.mark.parametrize(
    ("kind", "status", "given", "expected"),
    [
        (ISSUANCE, "offered", {}, ["offered"]),
        (ISSUANCE, "partiallyIssued", {}, ["offered", "partiallyIssued"]),
        (ISSUANCE, "COMPLETED", {}, ["offered", "completed"]),
        (ISSUANCE, "revoked", {}, ["offered"]),
        *((ISSUANCE, status, {}, ["offered", status]) for status in ("failed", "expired")),
        *((PRESENTATION, status, {}, ["requested"]) for status in ("requested", "PENDING", "ANSWERED")),
        (PRESENTATION, "verified", {}, ["requested", "data|verified"]),
        *((PRESENTATION, status, {}, ["requested", status]) for status in ("failed", "expired")),
        (PRESENTATION, "REJECTED", {}, ["requested", "failed"]),
        (ISSUANCE, "completed", {"created": EARLIER}, ["completed"]),  # It was never updated.
        (ISSUANCE, "completed", {"created": OLD}, ["completed"]),  # It was created before the window.
        (ISSUANCE, "completed", {"created": None}, ["completed"]),
        (ISSUANCE, "revoked", {"created": OLD}, []),
        (ISSUANCE, "completed", {"updated": YOUNG}, []),
        (ISSUANCE, "completed", {"updated": 1}, []),  # The window ends before that.
        (ISSUANCE, "completed", {"created": 48}, ["offered", "completed"]),
        (ISSUANCE, "completed", {"created": OLD, "updated": 48}, ["completed"]),
        (ISSUANCE, "completed", {"created": OLD, "updated": OLD - 1}, []),
        (PRESENTATION, "verified", {"wanted": ("openid4vc.verification.verified",)}, ["verified|data"]),
        (PRESENTATION, "verified", {"wanted": ("openid4vc.issuance.offered",)}, []),
    ],
)
def test_status_tells_which_events_must_have_happened(
    kind: Resource, status: str, given: dict[str, Any], expected: list[str]
) -> None:
    assert happened(kind, status, **given) == expected


@pytest.mark.parametrize(
    ("resource", "why"),
    [
        (ListedResource(id="r", status="new", updated_at=NOW), "unknown_status"),
        (ListedResource(id="../r", status="offered", updated_at=NOW), "unreadable_id"),
        *((read(odd), "unreadable_id") for odd in ("null", "{}", '{"id": null}', '{"id": {}}', '["r"]')),
        (read('{"id": 77, "status": "offered"}'), "undated"),
        (ListedResource(id="r", status="offered"), "undated"),
        (ListedResource(id="r", status="offered", updated_at="yesterday"), "undated"),
    ],
)
def test_backfill_says_why_it_cannot_judge_a_resource(resource: ListedResource, why: str) -> None:
    with pytest.raises(UnclearHistory, match=f"^{why}$"):
        list(must_have_happened(resource, ISSUANCE, WINDOW, EVENT_TYPES))


def test_every_event_type_announces_a_state_of_its_resource() -> None:
    for resource in RESOURCES:
        announced = {name for states in resource.states.values() for types in states for name in types}
        assert announced == {event_type.name for event_type in resource.event_types}
