"""Answers that the specification leaves open: details of any shape, links of any form, times of ISO 8601."""

import copy
import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from credhook import InvalidResponse
from credhook.events import ISSUANCE, PRESENTATION
from credhook.worker.api import models
from credhook.worker.api.http.exchange import Response
from credhook.worker.api.operations import Presets, Templates, Users, Wallet, reading
from credhook.worker.api.responses import read
from support.platform.token_endpoint import behind, credentials, with_tokens
from support.platform.transports import api_over

NOW = datetime(2026, 11, 1, tzinfo=UTC)
TEXT = "eyJhbGciOiJFUzI1NiJ9." + 50 * "e30." + "x"
CLAIMS = {"given_name": "Ada"}


def response(body: object) -> Response:
    return Response(200, httpx.Headers(), json.dumps(body).encode())


def details(body: object, resource: Any = PRESENTATION) -> Any:
    return read(reading(resource)["get"], response(body), NOW, asked_for="p")


@pytest.mark.parametrize("wrap", [lambda body: body, lambda body: {"data": body, "meta": {"a": None}}])
@pytest.mark.parametrize(
    ("body", "has_data"),
    [
        ({"id": "p", "status": "verified", "credentials": [{"claims": CLAIMS}]}, True),
        ({"id": "p", "status": "verified", "credentials": TEXT}, True),
        ({"id": "p", "status": "verified", "credentials": [TEXT]}, True),
        ({"id": "p", "status": "verified", "credentials": {"pid": {"disclosed": CLAIMS}}}, True),
        ({"id": "p", "status": "verified", "vpToken": TEXT}, True),
        ({"id": "p", "type": "presentations", "attributes": {"status": "verified", "credentials": []}}, True),
        ({"presentation": {"id": "p", "status": "verified"}, "claims": CLAIMS}, True),
        ([{"id": "p", "status": "verified", "credentials": [{"attributes": CLAIMS}]}], True),
        ([{"claims": CLAIMS}, {"claims": CLAIMS}], True),
        (TEXT, True),
        ({"id": {"value": "p"}, "status": 7, "credentials": [7, None, True]}, True),
        ({"id": "p", "status": "verified", "credentials": [None]}, False),
        ({"id": "p", "status": "verified", "credentials": [{"attributes": {}, "issuer": "x"}]}, False),
        ({"id": "p", "status": "requested", "verifier": "shop"}, False),
        ({"id": "p", "status": "verified", "credentials": []}, False),
        ({}, False),
        ([], False),
        (None, False),
    ],
)
def test_details_of_any_shape_are_handed_over_whole(wrap: Any, body: Any, has_data: bool) -> None:
    document = wrap(body)
    for resource in (PRESENTATION, ISSUANCE):
        found = details(document, resource)
        assert found.id == "p"
        assert found.raw == document
        assert copy.deepcopy(found.model_copy(update={"status": "x"})).raw == document
        assert "Ada" not in repr(found)
        assert TEXT not in repr(found)
    presentation = details(document)
    assert presentation.has_data is has_data
    if has_data and not isinstance(body, list):
        assert not presentation.trusted  # No field of another form makes a presentation trusted.


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"id": "p", "id": "p", "status": "verified"}', "verified"),
        (b'{"id": "p", "status": "verified", "status": "verified"}', "verified"),
        (b'{"id": "p", "status": "failed", "status": "verified"}', ""),
        (b'{"data": {"id": "p", "status": "verified", "status": null}}', ""),
    ],
)
def test_a_name_twice_is_refused_only_if_the_answer_may_be_about_another_resource(body: bytes, status: str) -> None:
    found: Any = read(reading(PRESENTATION)["get"], Response(200, httpx.Headers(), body), NOW, asked_for="p")
    assert found.status == status


def test_raw_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match="read-only"):
        details({"id": "p", "status": "verified", "new": CLAIMS}).raw["new"]["given_name"] = "Grace"


BESIDE = {"links": {"self": "/x", "next": None}, "meta": {"total": None}, "errors": []}
TEMPLATE = {
    "id": "acme:x",
    "format": "mso_mdoc",
    "docType": "x.1",
    "attributes": [{"path": ["a"]}],
    "createdAt": "soon",
}
USER = {"id": "u", "username": "ada"}


@pytest.mark.parametrize(
    ("operation", "data"),
    [(Templates.get, TEMPLATE), (Users.by_external_identifier, USER), (Users.list, [USER]), (Wallet.accept, [])],
)
def test_links_meta_and_errors_are_reachable_beside_the_data(operation: Any, data: object) -> None:
    document = {"data": data, **BESIDE}
    assert read(operation, response(document), NOW).raw == document


def test_a_page_has_links_and_meta_beside_its_items() -> None:
    document = {"data": [USER], **BESIDE}
    page: Any = read(Users.page, response(document), NOW)
    assert (page.raw, page.items[0].raw) == (document, USER)


def test_a_template_of_another_form_is_read_as_it_is() -> None:
    template = read(Templates.get, response({"data": TEMPLATE}), NOW)
    assert (template.id, template.name, template.attributes) == ("acme:x", None, [{"path": ["a"]}])
    assert (template.created_at, template.raw) == ("soon", {"data": TEMPLATE})
    with pytest.raises(InvalidResponse):
        read(Templates.get, response({"data": {"name": "x"}}), NOW)


ROOT = "https://api.example/tenant"
PATH = "/me-creds/api/presentations"


@pytest.mark.parametrize(
    ("link", "second"),
    [
        ("?page=2", f"{PATH}?page=2"),
        (f"/tenant{PATH}?cursor=a%2Fb==&x", f"{PATH}?cursor=a%2Fb==&x"),
        ("presentations?after=é", f"{PATH}?after=%C3%A9"),
        ("presentations/pages/2", f"{PATH}/pages/2"),
        (f"{ROOT}{PATH}/2?size=1", f"{PATH}/2?size=1"),
        (f"HTTPS://API.example:443/tenant{PATH}?page=2", f"{PATH}?page=2"),
        (f"https://api.example:443/tenant{PATH}/pages/2", f"{PATH}/pages/2"),
        ({"href": f"{ROOT}/other?page=2"}, "/other?page=2"),
        ("//evil.example/tenant/x?page=2", f"{PATH}?page=2"),
        ("http://internal:8080/x?page=2", f"{PATH}?page=2"),
        ("/elsewhere?page=2", f"{PATH}?page=2"),
        ("/tenant/%2e%2e/x?page=2", f"{PATH}?page=2"),
        ("?page=100%", f"{PATH}?page=100%25"),
    ],
)
async def test_a_link_of_any_form_leads_to_the_next_page_and_to_no_other_host(link: Any, second: str) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        links = {"next": link} if len(asked) == 1 else {}
        return httpx.Response(200, json={"data": [{"id": str(len(asked)), "status": "x"}], "links": links})

    async with api_over(behind(with_tokens(answer)), ROOT, credentials()) as api:
        assert [each.id for each in await api.presentations.list()] == ["1", "2"]
    assert asked == [ROOT + PATH, ROOT + second]


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("2026-11-21T24:00:00Z", datetime(2026, 11, 22, tzinfo=UTC)),
        ("20261121T2400", datetime(2026, 11, 22, tzinfo=UTC)),
        ("2026-12-31T23:59:60Z", datetime(2027, 1, 1, tzinfo=UTC)),
        ("20261231T235960.5Z", datetime(2027, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-12-31T23:59:60+01:00", datetime(2026, 12, 31, 23, tzinfo=UTC)),
        ("2026-325", datetime(2026, 11, 21, tzinfo=UTC)),
        ("2026-325T10:00:00Z", datetime(2026, 11, 21, 10, tzinfo=UTC)),
        ("2026325T100000Z", datetime(2026, 11, 21, 10, tzinfo=UTC)),
        ("2026325", datetime(2026, 11, 21, tzinfo=UTC)),
        ("2026-W47-6T10:00Z", datetime(2026, 11, 21, 10, tzinfo=UTC)),
        ("2026-366", "2026-366"),
        ("9999-12-31T24:00:00Z", "9999-12-31T24:00:00Z"),
        ("2026-11-21T24:01:00Z", "2026-11-21T24:01:00Z"),
    ],
)
def test_forms_of_iso_8601_are_read(text: str, read_as: object) -> None:
    assert models.Issuance.model_validate({"id": "i", "updatedAt": text}).updated_at == read_as


def test_a_whole_number_may_have_a_decimal_point() -> None:
    future = {"days": 1.0, "months": 0, "years": 2}
    assert models.Future.model_validate(future).days == 1
    for wrong in (1.5, True, "1", -1.0):
        with pytest.raises(ValueError, match="validation error"):
            models.Future.model_validate(future | {"days": wrong})
    assert Presets.create.body is not None
