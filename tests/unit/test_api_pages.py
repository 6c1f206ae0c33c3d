"""Pages of the platform's lists: what is read of them, and where they lead."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from credhook.worker.api import operations, responses
from credhook.worker.api.errors import InvalidResponse
from credhook.worker.api.http.exchange import Response
from credhook.worker.api.models import ListedResource
from credhook.worker.api.operations import Page

NOW = datetime(2026, 11, 22, tzinfo=UTC)
SHOWN = {
    "id": "p",
    "status": "verified",
    "updatedAt": "2026-11-22T10:00:00Z",
    "credentials": [{"attributes": {"a": 1}}],
}


def read(body: Any) -> Page[ListedResource]:
    response = Response(200, {}, json.dumps(body).encode())
    return responses.read(operations.PRESENTATIONS.page, response, NOW)


@pytest.mark.parametrize(
    ("links", "following"),
    [
        ({"next": "https://api.example/list?page%5Bafter%5D=2&size=10"}, "page%5Bafter%5D=2&size=10"),
        ({"next": "?cursor=a%2Fb"}, "cursor=a%2Fb"),
        ({"next": "https://evil.example/../elsewhere?x=%0d%0aHost: y"}, "x=%0D%0AHost%3A+y"),
        ({"next": None, "self": "https://api.example/list"}, None),
        ({}, None),
        (None, None),
        ([], None),
    ],
)
def test_of_a_link_only_its_query_is_followed(links: Any, following: str | None) -> None:
    assert read({"data": [], "links": links}).following == following


@pytest.mark.parametrize("link", ["https://api.example/list", "", 7, ["?a=b"], "?" + "a" * 5_000, "http://[x?a=b"])
def test_a_link_that_leads_nowhere_is_no_end_of_the_list(link: Any) -> None:
    with pytest.raises(InvalidResponse, match=r"^presentations\.page: the answer does not match the specification: "):
        read({"data": [], "links": {"next": link}})


def test_a_list_without_an_envelope_is_its_only_page() -> None:
    assert read([SHOWN]).following is None


def test_what_was_presented_is_dropped_unread() -> None:
    (item,) = read({"data": [SHOWN]}).items
    assert (item.id, item.status, item.updated_at) == ("p", "verified", datetime(2026, 11, 22, 10, tzinfo=UTC))
    assert not item.model_extra
    assert "attributes" not in item.model_dump_json()
