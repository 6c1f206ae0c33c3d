"""What an operator should look at when the platform does not answer, or refuses us. Pure."""

from typing import Final

from credhook.worker.api.calls.errors import InvalidResponse, Unauthorized, Unavailable

#: Where a request goes, by the variable that says so.
_API: Final = "CREDHOOK_API_URL"
_TOKEN: Final = "CREDHOOK_TOKEN_URL"  # noqa: S105  A variable's name.

_BY_CAUSE: Final = {
    "name_resolution": "its host's name is not known here: check {where}",
    "refused": "nothing listens there: check {where}",
    "certificate": "its certificate is not trusted: set SSL_CERT_FILE to a file with its authority's, or check {where}",
    "tls": "it does not speak TLS as we do, or wants another certificate: check CREDHOOK_CLIENT_CERTFILE and {where}",
    "timeout": "not within CREDHOOK_FETCH_TIMEOUT: check it and {where}",
    "proxy": "check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, or {where}",
    "protocol": "what answers there is no HTTP server: check {where}",
}

#: The causes that a setting may be to blame for.
CAUSES: Final = frozenset(_BY_CAUSE)

_CREDENTIALS: Final = "check CREDHOOK_CLIENT_ID, CREDHOOK_CLIENT_SECRET, CREDHOOK_TOKEN_AUTH and CREDHOOK_TOKEN_URL"
_PERMISSIONS: Final = (
    "the platform does not accept the token: check CREDHOOK_CLIENT_ID, CREDHOOK_TOKEN_URL, CREDHOOK_SCOPE, "
    "CREDHOOK_AUDIENCE and CREDHOOK_RESOURCE"
)


def advice(operation: str, cause: str) -> str:
    """What to do about a request that had no answer; `cause` is a word of `causes`, or nothing."""
    return _BY_CAUSE.get(cause, "check {where}").format(where=_TOKEN if operation == "token" else _API)


_BY_MISUNDERSTANDING: Final = {
    "other_id": "the details carry another id: if the platform names them otherwise, set CREDHOOK_MATCH_IDS=0",
}


def hint(error: Exception) -> str:
    """What to do about an error, naming the setting that is the likely cause; empty where no setting is."""
    if isinstance(error, Unauthorized):
        return _CREDENTIALS if error.operation == "token" else _PERMISSIONS
    # With a time to come back it was not sent at all, since the platform is left alone.
    if isinstance(error, Unavailable) and error.status is None and error.retry_after is None:
        return advice(error.operation, error.cause)
    if isinstance(error, InvalidResponse):
        return _BY_MISUNDERSTANDING.get(error.cause, "")
    return ""
