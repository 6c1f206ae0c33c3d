"""What an operator is told to look at, and how a fetch is counted."""

import pytest

from credhook.worker.api.errors import (
    ApiError,
    InvalidRequest,
    InvalidResponse,
    NotFound,
    Unauthorized,
    Unavailable,
    hint,
)
from credhook.worker.metrics import status_label

#: Causes of requests without an answer, and words of their hints.
UNANSWERED = {
    "name_resolution": "its host's name is not known here: check CREDHOOK_API_URL",
    "refused": "nothing listens there: check CREDHOOK_API_URL",
    "socket": "raise `ulimit -n`, or lower CREDHOOK_CONCURRENCY",
    "certificate": "no authority that is trusted here has signed its certificate: set SSL_CERT_FILE",
    "certificate_self_signed": "its certificate is signed by itself: set SSL_CERT_FILE",
    "certificate_name": "its certificate is for another name than the URL's host: check CREDHOOK_API_URL",
    "certificate_expired": "has expired: have it renewed, and check CREDHOOK_API_URL and the clock of this machine",
    "certificate_early": "is not valid yet: check the clock of this machine and CREDHOOK_API_URL",
    "certificate_authority": "may not sign others: have it issued by an authority, or check CREDHOOK_API_URL",
    "certificate_unfit": "its certificate may not be used for this: have it issued again for a server",
    "tls": "does not speak TLS as we do, or wants another certificate: check CREDHOOK_CLIENT_CERTFILE and",
    "timeout": "not within CREDHOOK_FETCH_TIMEOUT: check it and CREDHOOK_API_URL",
    "proxy": "check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, or CREDHOOK_API_URL",
    "protocol": "what answers there is no HTTP server: check CREDHOOK_API_URL",
    "unsendable": "check CREDHOOK_API_URL, and the credentials if they hold more than visible ASCII",
    "": "check CREDHOOK_API_URL",
}


@pytest.mark.parametrize(
    ("error", "word", "other"),
    [
        *((Unavailable("x", operation="a.b", cause=why), words, "TOKEN_URL") for why, words in UNANSWERED.items()),
        (Unavailable("x", operation="token", cause="certificate"), "SSL_CERT_FILE", "CREDHOOK_API_URL"),
        (Unavailable("x", operation="token", cause="certificate_name"), "CREDHOOK_TOKEN_URL", "SSL_CERT_FILE"),
        (Unavailable("x", operation="token", cause="certificate_expired"), "clock", "SSL_CERT_FILE"),
        (Unavailable("x", operation="token", cause="name_resolution"), "CREDHOOK_TOKEN_URL", "CREDHOOK_API_URL"),
        (Unauthorized("x", operation="token", status=401), "CREDHOOK_CLIENT_SECRET", "CREDHOOK_API_URL"),
        (Unauthorized("x", operation="users", status=401), "SCOPE, CREDHOOK_AUDIENCE and CREDHOOK_RESOURCE", "API_URL"),
        (InvalidResponse("x", operation="a.b", cause="other_id"), "set CREDHOOK_MATCH_IDS=0", "TOKEN_URL"),
        (InvalidResponse("x", operation="token", status=307, cause="redirect"), "CREDHOOK_TOKEN_URL", "CREDHOOK_API"),
        (
            InvalidResponse("x", operation="a.b", cause="redirect"),
            "redirects to another URL: check CREDHOOK_API_URL, its",
            "TOKEN_URL",
        ),
        (
            InvalidResponse("x", operation="a.b", cause="not_json"),
            "is not JSON: check CREDHOOK_API_URL, and that no",
            "TOKEN_URL",
        ),
        (NotFound("x", operation="endpoints.list", status=404), "check CREDHOOK_API_URL, the root", "TOKEN_URL"),
        (NotFound("x", operation="issuances.page", status=404), "check CREDHOOK_API_URL, the root", "TOKEN_URL"),
        # No setting is the cause of these.
        (NotFound("x", operation="presentations.get", status=404), "", "CREDHOOK"),
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
