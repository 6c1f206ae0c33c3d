"""What a response means. Pure: each is made by hand."""

import copy
import json
import pickle
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credhook import ApiError, InvalidRequest, InvalidResponse, NotFound, Unauthorized, Unavailable
from credhook.events import ISSUANCE, PRESENTATION
from credhook.worker.api.errors import ErrorObject, error_objects, seconds_to_wait
from credhook.worker.api.http.exchange import Response
from credhook.worker.api.models import ListedResource
from credhook.worker.api.operations import Endpoints, Operation, Page, Presets, Users, Wallet, reading
from credhook.worker.api.responses import read
from credhook.worker.attempt.details import from_bytes, to_bytes
from credhook.worker.attempt.retry import error_text

NOW = datetime(2026, 11, 1, 10, 0, 0, tzinfo=UTC)
DOCUMENT = {"id": "p", "status": "verified"}
ISSUANCES, PRESENTATIONS = reading(ISSUANCE), reading(PRESENTATION)


def response(status: int = 200, body: object = None, **headers: str) -> Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Response(status, httpx.Headers(headers), content)


def refused(status: int, body: object = b"", **headers: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(PRESENTATIONS["get"], response(status, body, **headers), NOW, asked_for="p")
    return caught.value


@pytest.mark.parametrize(
    ("operation", "body", "wrong"),
    [
        (Users.list, b'[{"id":"a"},{"id":{}}]', "1.id: string type"),
        (ISSUANCES["list"], b'{"data":{}}', "the whole: list type"),
    ],
)
def test_mismatch_names_its_place(operation: Any, body: bytes, wrong: str) -> None:
    with pytest.raises(InvalidResponse, match=f": {wrong}$"):
        read(operation, response(200, body), NOW)


@pytest.mark.parametrize("status", [200, 201, 202, 203, 204, 206, 299])
def test_any_success_is_one_and_an_empty_one_only_where_nothing_is_read(status: int) -> None:
    assert read(PRESENTATIONS["get"], response(status, DOCUMENT), NOW).id == "p"
    assert read(Users.list, response(status, []), NOW) == ()
    assert read(Endpoints.delete, response(status, b""), NOW) is None
    assert error_text(refused(status)) == f"InvalidResponse {status} not_json"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        *((status, InvalidRequest) for status in (400, 402, 405, 406, 409, 413, 415, 418, 422, 451, 499)),
        *((status, Unauthorized) for status in (401, 403)),
        *((status, NotFound) for status in (404, 410)),
        *((status, Unavailable) for status in (408, 425, 429, 500, 501, 502, 503, 504, 507, 520, 599)),
        *((status, InvalidResponse) for status in (300, 301, 302, 303, 304, 307, 308)),
    ],
)
def test_a_status_says_what_to_do(status: int, error: type[ApiError]) -> None:
    body = {"errors": [{"detail": "d", "status": status}]}
    caught = refused(status, body, location="https://evil.example")
    redirect = error is InvalidResponse
    assert (type(caught), caught.status, caught.operation) == (error, status, "presentations.get")
    assert (caught.cause, len(caught.errors)) == (("redirect", 0) if redirect else ("", 1))
    assert str(status) in str(caught)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b'{"id": "p", "status": "\\ud8"}',
        b"[" * 200_000,
        b'{"id": "p", "status": "verified", "a": ' + b"[" * 250 + b"]" * 250 + b"}",
        b"1" * 10_000,
        {"errors": [{"detail": "d"}]},
        {"error": "x"},
        [{"id": "other"}],
        # The id of another one, hidden behind a second one.
        b'{"id": "other", "status": "verified", "id": "p"}',
        b'{"data": {"id": "other"}, "data": {"id": "p", "status": "verified"}}',
        b'{"\\u0069d": "other", "id": "p"}',
        b'\xef\xbb\xbf{"id": "q", "id": "p", "status": "verified", "a": "\\ud800"}',
    ],
    ids=lambda value: repr(value)[:50],
)
def test_a_success_that_does_not_match_is_not_understood(body: object) -> None:
    caught = refused(200, body)
    assert type(caught) is InvalidResponse
    assert caught.status == 200
    assert "\n" not in str(caught)


@pytest.mark.parametrize("body", [{"id": "p", "errors": [{}]}, {"status": "verified", "error": "x"}])
def test_details_count_beside_an_error(body: dict[str, object]) -> None:
    assert read(PRESENTATIONS["get"], response(200, body), NOW, asked_for="p").id == "p"


TRUSTED, DOUBTFUL = {"has_data": True, "trusted": True}, {"has_data": True, "trusted": False}
NONE: list[Any] = [None, "", [], {}]
#: The details of a presentation, and what is read of them: all that is there, and nothing that nobody said.
SHAPES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"status": "verified"}, {"id": "p"}),
    ({"id": None, "status": "verified"}, {"id": "p"}),
    ({"id": "p"}, {"status": "", "credentials": ()}),
    ({"id": "p", "credentials": None}, {"credentials": ()}),
    ({"id": "p", "status": {"code": "verified"}}, {"status": "", "trusted": False}),
    ({"id": "p", "status": "verified", "credentials": {"isValid": True, "attributes": {"a": 1}}}, TRUSTED),
    ({"id": "p", "status": "verified", "credentials": {"pid": {"isValid": False, "attributes": {"a": 1}}}}, DOUBTFUL),
    ({"id": "p", "status": "verified", "credentials": {"pid": {"isValid": True, "attributes": {"a": 1}}}}, TRUSTED),
    *(({"id": "p", "credentials": {name: "x"}}, {"has_data": False}) for name in ("id", "status", "type", "isValid")),
    *(({"id": "p", "credentials": [{name: {"x": 1}}]}, {"has_data": False}) for name in ("links", "meta")),
    *(({"id": "p", "credentials": [{"claims": none}]}, {"has_data": False}) for none in NONE),
    ({"id": "p", "status": "verified", "credentials": ["eyJ.x"]}, DOUBTFUL),
    ({"id": "p", "status": "verified", "credentials": [{"attributes": [{"name": "a"}]}]}, DOUBTFUL),
    ({"id": "p", "credentials": [{"attributes": {"a": 1}}, {"type": ["VC"]}]}, {"has_data": True}),
    ({"id": "p", "created_at": "unknown", "credentials": [{"is_valid": True}]}, {"created_at": None, "trusted": False}),
    ({"id": "p", "credentials": [{"type": ["VC"], "name": {}, "attributes": None, "issues": ""}]}, {"has_data": False}),
    ({"id": "p", "error": {"message": ["no"]}, "expiresAt": {}, "updatedAt": []}, {"updated_at": None}),
    ({"id": "p", "authorizationRequestUri": {}, "createdAt": True}, {"authorization_request_uri": None}),
    ({"id": "p", "authorizationRequestQrUri": {}, "presentationTemplateId": []}, {"presentation_template_id": None}),
    ({"id": "p", "deep": json.loads("[" * 150 + "]" * 150)}, {"status": ""}),
]  # fmt: skip


def comes_back_as_it_was(details: Any, event_type: str) -> None:
    """Check that details are the same once a snapshot is read."""
    back = from_bytes(to_bytes(details), event_type, details.id)
    assert back is not None
    assert back == details
    assert type(back) is type(details)
    assert back.model_fields_set == details.model_fields_set
    assert to_bytes(back) == to_bytes(details)


@pytest.mark.parametrize(("document", "expected"), SHAPES)
def test_answers_are_read_in_any_valid_shape(document: dict[str, Any], expected: dict[str, Any]) -> None:
    found = read(PRESENTATIONS["get"], response(200, {"data": document}), NOW, asked_for="p")
    assert found.id == "p"
    assert {name: getattr(found, name) for name in expected} == expected
    comes_back_as_it_was(found, "openid4vc.verification.data")


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (rb'{"a": "x\uD83D", "c": "\uDfff"}', {"a": "x\ufffd", "c": "\ufffd"}),
        (rb'{"b": "\udbff", "c": "\udfff"}', {"b": "\ufffd", "c": "\ufffd"}),
        (rb'{"a": "x\ud83d", "b": "\ud83d\ude00", "c": "\\ud83d"}', {"a": "x\ufffd", "b": "😀", "c": r"\ud83d"}),
        (
            rb'{"a": "\\\ud83d\ud83d\ude00\ude00", "b": "\\\\ud83d\ude00"}',
            {"a": "\\\ufffd😀\ufffd", "b": "\\\\ud83d\ufffd"},
        ),
        (b'{"a": NaN, "b": 1}', {"b": 1}),
        (b'{"a": 1, "a": 2, "id": 1, "id": 2, "data": 1, "data": 2}', {"a": 2, "id": 2, "data": 2}),
        (b'{"a": "\xff"}', {"a": "\ufffd"}),
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_data_is_read_from_json_that_is_not_strict(mark: bytes, attributes: bytes, expected: dict[str, Any]) -> None:
    body = mark + b'{"id": "p", "status": "verified", "credentials": [{"attributes": ' + attributes + b"}]}"
    found = read(PRESENTATIONS["get"], response(200, body), NOW, asked_for="p")
    assert found.credentials[0].attributes.items() >= expected.items()
    assert from_bytes(to_bytes(found), "openid4vc.verification.data", "p") is not None
    assert len(read(PRESENTATIONS["list"], response(200, b"[%s]" % body.removeprefix(mark)), NOW)) == 1


@pytest.mark.parametrize(("body", "cause"), [
    (b"{", "not_json"),
    (b'{"id": "q", "id": "p"}', "name_twice"),
    (b'{"data": {"id": "q", "id": "p"}}', "name_twice"),
    (b'{"data": {"id": "q"}, "data": {"id": "p"}}', "name_twice"),
])  # fmt: skip
def test_two_names_and_no_json_have_words_of_their_own(body: bytes, cause: str) -> None:
    assert error_text(refused(200, body)) == f"InvalidResponse 200 {cause}"


def test_an_issuance_is_taken_in_whatever_shape_and_its_id_may_be_a_number() -> None:
    document = {
        "id": 7,
        "credentials": ["c1", {"id": 5, "status": {}, "revocable": "?"}, {"revocable": True}],
        **{name: {} for name in ("exchange", "offerQrUri", "createdAt", "updatedAt")},
        "format": ["mdoc"],
        "offerUri": 1,
        "newField": [1, {"a": None}],
    }
    found = read(ISSUANCES["get"], response(200, document), NOW, asked_for="7")
    assert (found.id, found.exchange, found.format, found.offer_uri) == ("7", None, None, "1")
    assert [(each.id, each.revocable) for each in found.credentials] == [("c1", None), ("5", None), (None, True)]
    comes_back_as_it_was(found, "openid4vc.issuance.completed")
    with pytest.raises(InvalidResponse, match="another id"):
        read(ISSUANCES["get"], response(200, document), NOW, asked_for="8")


LOVELACE = "Ada Lovelace"


def test_the_message_names_the_place_and_not_the_value() -> None:
    with pytest.raises(InvalidResponse) as refusal:
        read(Users.external_identifier, response(200, {"data": {"externalIdentifier": [LOVELACE]}}), NOW)
    caught = refusal.value
    assert error_text(caught) == "InvalidResponse 200 externalIdentifier: string type"
    assert "Ada" not in "".join(traceback.format_exception(caught))
    assert caught.__suppress_context__  # It holds the body.


@pytest.mark.parametrize("status", [404, "404"])
def test_an_error_object_has_a_status_as_number_or_as_text(status: object) -> None:
    words = {"detail": "No such one", "id": "8c5f", "status": status, "code": "NOT_FOUND", "title": "Not Found"}
    objects = {"source": {"pointer": "/data/id", "parameter": "id"}, "meta": {"a": None}}
    caught = refused(404, {"errors": [words | objects, {"detail": "second"}]})
    first, second = caught.errors
    assert (first.status, first.code, first.title, first.id) == ("404", "NOT_FOUND", "Not Found", "8c5f")
    assert {"source": first.source, "meta": first.meta} == objects
    assert second.detail == "second"
    assert str(caught) == "presentations.get: the platform answered 404 (NOT_FOUND, error 8c5f)"


@pytest.mark.parametrize(
    ("body", "details"),
    [
        (b"", []),
        (b"<html>Bad Gateway</html>", []),
        (b"\xff", []),
        (b"[" * 200_000, []),
        (b'{"errors": null}', []),
        (b'{"errors": "all wrong"}', []),
        (b'{"errors": {"detail": "one"}}', ["one"]),
        (b'{"errors": [{"detail": "one"}, "two", null, {"detail": "three"}]}', ["one", "three"]),
        (b'{"errors": [{"detail": {"nested": 1}, "status": [4], "source": "s", "meta": 1, "code": 7}]}', [None]),
        (b'{"errors": [{"detail": "one", "title": {}, "id": [], "code": true}]}', ["one"]),
        (b'{"error": "x", "message": "y"}', []),
        (b"[1]", []),
        (b'{"errors": [' + b",".join([b"{}"] * 10_000) + b"]}", [None] * 16),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_body_that_is_not_the_envelope_is_tolerated(body: bytes, details: list[str | None]) -> None:
    assert [each.detail for each in error_objects(body)] == details
    assert type(refused(502, body)) is Unavailable


def test_message_quotes_the_platform_only_if_it_looks_like_a_code() -> None:
    both = (("BAD\nforged line", "Ada Lovelace", ""), ("A" * 65, "b" * 64, f" (error {'b' * 64})"))
    for code, id_, words in (*both, (None, "8c5f", " (error 8c5f)")):
        error = {"detail": "Ada is unknown", "code": code, "id": id_, "title": "Ada"}
        caught = refused(400, {"errors": [error]})
        assert str(caught) == f"presentations.get: the platform answered 400{words}"
        assert "Ada" not in repr(caught)
    assert "Ada is unknown" not in repr(caught.errors)


@pytest.mark.parametrize("error", [InvalidRequest, Unauthorized, NotFound, Unavailable, InvalidResponse])
def test_errors_keep_what_they_say_when_copied_and_pickled(error: type[ApiError]) -> None:
    original = error("words", operation="users.list", status=500, errors=(ErrorObject(detail="d"),))
    for again in (copy.copy(original), pickle.loads(pickle.dumps(original))):
        assert type(again) is error
        assert (str(again), again.operation, again.status, again.errors[0].detail) == ("words", "users.list", 500, "d")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("Sun, 01 Nov 2026 10:02:00 GMT", 120.0),
        ("Sun, 01 Nov 2026 09:00:00 GMT", 0.0),
        ("Sunday, 01-Nov-26 10:00:30 GMT", 30.0),
        ("Sun, 01 Nov 2026 12:00:30 +0200", 30.0),
        ("Sun, 01 Nov 2026 10:00:30 -0000", 30.0),  # It says nothing of a zone.
        ("9" * 400, 999_999_999.0),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        (None, None),
        ("٣", None),
        ("Sun, 99 Nov 2026 10:02:00 GMT", None),
        ("Sun, 01 Nov 9999999999 10:02:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str | None, seconds: float | None) -> None:
    assert seconds_to_wait({} if text is None else {"retry-after": text}, NOW) == seconds


@pytest.mark.parametrize(
    ("date", "seconds"),
    [("Sun, 01 Nov 2026 10:01:50 GMT", 10.0), ("Sun, 01 Nov 2026 11:00:00 GMT", 0.0), ("soon", 120.0), ("", 120.0)],
)
def test_such_a_date_counts_from_when_the_platform_says_that_it_answered(date: str, seconds: float) -> None:
    assert seconds_to_wait({"retry-after": "Sun, 01 Nov 2026 10:02:00 GMT", "date": date}, NOW) == seconds


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["data", "errors", "id"]), inner),
    max_leaves=8,
)


@given(st.sampled_from([200, 201, 204, 302, 400, 401, 404, 429, 500]), json_values | st.binary())
def test_every_body_is_a_result_or_an_error_of_ours(status: int, body: Any) -> None:
    asked: list[Operation[Any]] = [ISSUANCES["get"], Users.list, Wallet.accept, Presets.create]
    for operation in asked:
        with suppress(ApiError):
            read(operation, response(status, body), NOW)


SHOWN = {**DOCUMENT, "createdAt": [], "updatedAt": "2026-11-22T10:00:00Z", "credentials": [{"attributes": {"a": 1}}]}


def page(body: Any) -> Page[ListedResource]:
    result: Page[ListedResource] = read(PRESENTATIONS["page"], response(200, body), NOW)
    return result


@pytest.mark.parametrize(
    ("links", "following"),
    [
        ({"next": "https://api.example/list?page%5Bafter%5D=2&size=10"}, "page%5Bafter%5D=2&size=10"),
        ({"next": "?cursor=a%2Fb"}, "cursor=a%2Fb"),
        ({"next": "?filter=&page=2"}, "filter=&page=2"),
        ({"next": "?filter=a&filter=b"}, "filter=a&filter=b"),
        ({"next": "?a=" + "b" * 4_093}, "a=" + "b" * 4_093),
        ({"next": "https://evil.example/../elsewhere?x=%0d%0aHost: y"}, "x=%0d%0aHost:%20y"),
        ({"next": None, "self": "https://api.example/list"}, None),
        ({"next": ""}, None),
        ({"next": {"href": "?a=b", "meta": {}}}, "a=b"),
        ({"next": {"href": None}}, None),
        ({}, None),
        (None, None),
        ([], None),
    ],
)
def test_of_a_link_only_its_query_is_followed(links: Any, following: str | None) -> None:
    assert page({"data": [], "links": links}).following == following


@pytest.mark.parametrize("link", ["https://api.example/list", 0, 7, ["?a=b"], "?" + "a" * 5_000, "http://[x?a=b"])
def test_a_link_that_leads_nowhere_is_no_end_of_the_list(link: Any) -> None:
    with pytest.raises(InvalidResponse, match=r"^presentations\.page: the answer does not match the specification: "):
        page({"data": [], "links": {"next": link}})
    assert read(Wallet.accept, response(201, {"data": [], "links": {"next": link}}), NOW) == ()  # It has no pages.


def test_presented_data_is_dropped_unread() -> None:
    (item,) = page({"data": [SHOWN]}).items
    assert page([SHOWN]) == Page((item,), None, len(json.dumps([SHOWN])))  # Without an envelope it is the only page.
    assert (item.id, item.status, item.updated_at) == ("p", "verified", datetime(2026, 11, 22, 10, tzinfo=UTC))
    assert not item.model_extra
    assert "attributes" not in item.model_dump_json()
