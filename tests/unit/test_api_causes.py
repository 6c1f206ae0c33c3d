"""The word for why there was no answer, and what an operator is told to look at."""

import errno
import socket
import ssl

import httpx
import pytest

from credhook.worker.api.errors import (
    ApiError,
    InvalidRequest,
    InvalidResponse,
    Unauthorized,
    Unavailable,
    hint,
)
from credhook.worker.api.http.exchange import Request, Unanswered
from credhook.worker.api.http.httpx_transport import HttpxTransport, cause_of
from credhook.worker.metrics import status_label


def led_by(error: Exception, *causes: BaseException) -> Exception:
    """The error with a chain of causes behind it."""
    last: BaseException = error
    for cause in causes:
        last.__cause__ = cause
        last = cause
    return error


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (socket.gaierror(-2, "unknown"), "name_resolution"),
        (ConnectionRefusedError(errno.ECONNREFUSED, ""), "refused"),
        (ConnectionRefusedError(), "refused"),
        (ConnectionResetError(errno.ECONNRESET, ""), "reset"),
        (BrokenPipeError(errno.EPIPE, ""), "reset"),
        (ConnectionResetError(), "closed"),  # uvloop's own, for an end in the middle of the handshake.
        (OSError(errno.EHOSTUNREACH, ""), "unreachable"),
        (OSError(errno.ENETUNREACH, ""), "unreachable"),
        (OSError(errno.ETIMEDOUT, ""), "timeout"),
        (TimeoutError(), "timeout"),
        (OSError("odd"), ""),
        (OSError(errno.ENOSPC, ""), ""),
        (ssl.SSLCertVerificationError(1, "expired"), "certificate"),
        (ssl.SSLEOFError(8, ""), "closed"),
        (ssl.SSLError(1, "wrong version number"), "tls"),
        (ValueError("x"), ""),
    ],
    ids=str,
)
def test_an_error_has_the_word_of_what_led_to_it(error: Exception, word: str) -> None:
    assert cause_of(error) == word


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (httpx.ConnectTimeout(""), "timeout"),
        (httpx.ReadTimeout(""), "timeout"),
        (httpx.RemoteProtocolError("Server disconnected without sending a response."), "closed"),
        (httpx.RemoteProtocolError("illegal status line"), "protocol"),
        (httpx.ReadError("closed in the middle of an answer"), "closed"),
        (httpx.ReadError(""), ""),
        (led_by(httpx.ReadError("closed"), ConnectionResetError(errno.ECONNRESET, "")), "reset"),
        (led_by(httpx.ConnectError("x"), OSError("all failed"), ConnectionRefusedError(111, "")), "refused"),
        (led_by(httpx.ConnectError("x"), ExceptionGroup("all", [OSError(errno.EHOSTUNREACH, "")])), "unreachable"),
    ],
    ids=str,
)
async def test_what_one_of_httpxs_transports_raises_has_the_same_words(error: Exception, word: str) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise error

    transport = HttpxTransport(httpx.MockTransport(fail), 5.0, longest=1)
    with pytest.raises(Unanswered) as failure:
        await transport.send(Request("GET", "https://api.example", {}))
    assert (failure.value.cause, failure.value.kind) == (word, type(error).__name__)


def test_a_chain_that_leads_back_to_itself_ends() -> None:
    one, other = ValueError(), ValueError()
    one.__cause__, other.__cause__ = other, one
    assert cause_of(one) == ""


@pytest.mark.parametrize(
    ("error", "word", "other"),
    [
        (Unavailable("x", operation="token", cause="certificate"), "SSL_CERT_FILE", "CREDHOOK_API_URL"),
        (Unavailable("x", operation="token", cause="name_resolution"), "CREDHOOK_TOKEN_URL", "CREDHOOK_API_URL"),
        (Unavailable("x", operation="users.list", cause="timeout"), "CREDHOOK_FETCH_TIMEOUT", "CREDHOOK_TOKEN_URL"),
        (Unavailable("x", operation="users.list", cause="proxy"), "HTTPS_PROXY", "CREDHOOK_TOKEN_URL"),
        (Unavailable("x", operation="users.list", cause="proxy"), "ALL_PROXY", "CREDHOOK_TOKEN_URL"),
        (Unavailable("x", operation="users.list", cause="refused"), "CREDHOOK_API_URL", "CREDHOOK_TOKEN_URL"),
        (Unavailable("x", operation="users.list", cause=""), "CREDHOOK_API_URL", "CREDHOOK_TOKEN_URL"),
        (Unauthorized("x", operation="token", status=401), "CREDHOOK_CLIENT_SECRET", "CREDHOOK_API_URL"),
        (Unauthorized("x", operation="users.list", status=401), "CREDHOOK_AUDIENCE", "CREDHOOK_API_URL"),
        (InvalidResponse("x", operation="presentations.get", cause="other_id"), "CREDHOOK_MATCH_IDS", "TOKEN_URL"),
    ],
)
def test_the_hint_names_the_setting_that_is_the_likely_cause_and_not_the_other(
    error: ApiError, word: str, other: str
) -> None:
    assert word in hint(error)
    assert other not in hint(error)


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (Unauthorized("x", operation="token", status=401), "token"),
        (Unavailable("x", operation="token", cause="refused"), "token"),
        (Unauthorized("x", operation="presentations.get", status=401), "401"),
        (Unavailable("x", operation="presentations.get", status=503), "5xx"),
        (ApiError("x", operation="presentations.get", status=409), "4xx"),
        (Unavailable("x", operation="presentations.get", cause="refused"), "none"),
        (InvalidResponse("x", operation="presentations.get", status=200, cause="schema"), "not_understood"),
    ],
)
def test_a_fetch_is_counted_under_the_status_or_why_there_is_none(error: ApiError, label: str) -> None:
    assert status_label(error) == label


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("x", operation="users.list", status=503),
        Unavailable("not sent", operation="users.list", retry_after=3.0),
        InvalidResponse("x", operation="users.list", cause="schema"),
        InvalidRequest("x"),
        ValueError("x"),
    ],
    ids=str,
)
def test_there_is_no_hint_where_no_setting_is_the_cause(error: Exception) -> None:
    assert hint(error) == ""
