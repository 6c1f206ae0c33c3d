"""The word for why there was no answer, and what an operator is told to look at."""

import errno
import socket
import ssl

import httpx
import pytest

from credhook.worker.api.causes import cause_of
from credhook.worker.api.errors import ApiError, InvalidRequest, NotAuthenticated, NotUnderstood, TryLater
from credhook.worker.api.hints import advice, hint, unanswered


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
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] Connect"), "refused"),
        (OSError("odd"), ""),
        (OSError(errno.ENOSPC, ""), ""),
        (ssl.SSLCertVerificationError(1, "expired"), "certificate"),
        (ssl.SSLEOFError(8, ""), "closed"),
        (ssl.SSLError(1, "wrong version number"), "tls"),
        (httpx.ConnectTimeout(""), "timeout"),
        (led_by(httpx.PoolTimeout(""), TimeoutError()), "pool"),
        (httpx.RemoteProtocolError("Server disconnected without sending a response."), "closed"),
        (httpx.RemoteProtocolError("illegal status line"), "protocol"),
        (httpx.ReadError("closed in the middle of an answer"), "closed"),
        (httpx.ReadError(""), ""),
        (led_by(httpx.ConnectError("x"), OSError("all failed"), ConnectionRefusedError(111, "")), "refused"),
        (led_by(httpx.ConnectError("x"), ExceptionGroup("all", [OSError(errno.EHOSTUNREACH, "")])), "unreachable"),
        (ValueError("x"), ""),
    ],
    ids=str,
)
def test_an_error_has_the_word_of_what_led_to_it(error: Exception, word: str) -> None:
    assert cause_of(error) == word


def test_a_chain_that_leads_back_to_itself_ends() -> None:
    one, other = ValueError(), ValueError()
    one.__cause__, other.__cause__ = other, one
    assert cause_of(one) == ""


@pytest.mark.parametrize("cause", ["", "name_resolution", "refused", "certificate", "tls", "timeout", "protocol"])
def test_advice_names_the_variable_that_says_where_the_request_went(cause: str) -> None:
    assert "CREDHOOK_TOKEN_URL" in advice("token", cause)
    assert "CREDHOOK_API_URL" not in advice("token", cause)
    assert "CREDHOOK_API_URL" in advice("presentations.get", cause)
    assert "CREDHOOK_TOKEN_URL" not in advice("presentations.get", cause)


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (unanswered("token", "ConnectError", "certificate"), "SSL_CERT_FILE"),
        (unanswered("token", "ConnectError", "name_resolution"), "CREDHOOK_TOKEN_URL"),
        (unanswered("users.list", "ReadTimeout", "timeout"), "CREDHOOK_FETCH_TIMEOUT"),
        (unanswered("users.list", "ReadError", ""), "CREDHOOK_API_URL"),
        (NotAuthenticated("x", operation="token", status=401), "CREDHOOK_CLIENT_SECRET"),
        (NotAuthenticated("x", operation="users.list", status=401), "CREDHOOK_AUDIENCE"),
        (NotUnderstood("x", operation="presentations.get", cause="other_id"), "CREDHOOK_MATCH_IDS"),
        (NotUnderstood("x", operation="presentations.get", cause="too_large"), "CREDHOOK_MAX_ANSWER"),
    ],
)
def test_the_hint_names_the_setting_that_is_the_likely_cause(error: ApiError, word: str) -> None:
    assert word in hint(error)


@pytest.mark.parametrize(
    "error",
    [
        TryLater("x", operation="users.list", status=503),
        TryLater("not sent", operation="users.list", retry_after=3.0),
        NotUnderstood("x", operation="users.list", cause="schema"),
        InvalidRequest("x"),
        ValueError("x"),
    ],
    ids=str,
)
def test_there_is_no_hint_where_no_setting_is_the_cause(error: Exception) -> None:
    assert hint(error) == ""
