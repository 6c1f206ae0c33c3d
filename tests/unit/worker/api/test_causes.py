"""What an operator is told to look at, and how a fetch is counted."""

import pytest

from credhook.worker.api.errors import ApiError, InvalidRequest, InvalidResponse, Unauthorized, Unavailable, hint
from credhook.worker.metrics import status_label


@pytest.mark.parametrize(
    ("error", "word", "other"),
    [
        (Unavailable("x", operation="token", cause="certificate"), "SSL_CERT_FILE", "CREDHOOK_API_URL"),
        (Unavailable("x", operation="token", cause="certificate_name"), "CREDHOOK_TOKEN_URL", "SSL_CERT_FILE"),
        (Unavailable("x", operation="token", cause="certificate_expired"), "clock", "SSL_CERT_FILE"),
        (Unavailable("x", operation="token", cause="name_resolution"), "CREDHOOK_TOKEN_URL", "CREDHOOK_API_URL"),
        (Unavailable("x", operation="users.list", cause="timeout"), "CREDHOOK_FETCH_TIMEOUT", "CREDHOOK_TOKEN_URL"),
        (Unavailable("x", operation="users.list", cause="proxy"), "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY", "TOKEN_URL"),
        (Unavailable("x", operation="users.list", cause="refused"), "CREDHOOK_API_URL", "CREDHOOK_TOKEN_URL"),
        (Unavailable("x", operation="users.list", cause=""), "CREDHOOK_API_URL", "CREDHOOK_TOKEN_URL"),
        (Unauthorized("x", operation="token", status=401), "CREDHOOK_CLIENT_SECRET", "CREDHOOK_API_URL"),
        (Unauthorized("x", operation="users", status=401), "SCOPE, CREDHOOK_AUDIENCE and CREDHOOK_RESOURCE", "API_URL"),
        (InvalidResponse("x", operation="presentations.get", cause="other_id"), "CREDHOOK_MATCH_IDS", "TOKEN_URL"),
        (InvalidResponse("x", operation="token", status=307, cause="redirect"), "CREDHOOK_TOKEN_URL", "CREDHOOK_API"),
        (InvalidResponse("x", operation="users.list", status=301, cause="redirect"), "CREDHOOK_API_URL", "TOKEN_URL"),
        (InvalidResponse("x", operation="users.list", status=200, cause="not_json"), "CREDHOOK_API_URL", "TOKEN_URL"),
        # No setting is the cause of these.
        (Unavailable("x", operation="users.list", status=503), "", "CREDHOOK"),
        (Unavailable("not sent", operation="users.list", retry_after=3.0), "", "CREDHOOK"),
        (InvalidResponse("x", operation="users.list", cause="schema"), "", "CREDHOOK"),
        (InvalidRequest("x"), "", "CREDHOOK"),
        (ValueError("x"), "", "CREDHOOK"),
    ],
)
def test_hint_names_only_the_likely_setting(error: Exception, word: str, other: str) -> None:
    assert bool(hint(error)) == bool(word)
    assert word in hint(error)
    assert other not in hint(error)


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (Unauthorized("x", operation="token", status=401), "token"),
        (Unavailable("x", operation="token", cause="refused"), "token"),
        (Unauthorized("x", operation="presentations.get", status=401), "401"),
        (Unauthorized("x", operation="presentations.get", status=403), "403"),
        (Unavailable("x", operation="presentations.get", status=503), "5xx"),
        (ApiError("x", operation="presentations.get", status=409), "4xx"),
        (Unavailable("x", operation="presentations.get", cause="refused"), "none"),
        (InvalidResponse("x", operation="presentations.get", status=200, cause="schema"), "not_understood"),
    ],
)
def test_a_fetch_is_counted_under_the_status_or_why_there_is_none(error: ApiError, label: str) -> None:
    assert status_label(error) == label
