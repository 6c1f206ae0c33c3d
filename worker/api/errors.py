"""What can go wrong with the platform, as a tree by what the caller does next.

    ApiError
    ├── InvalidRequest       fix the request: it will be refused every time
    ├── Unauthorized         fix the credentials or their permissions
    ├── NotFound             look whether the id is right; a record may lag behind its event
    ├── Unavailable          send the same request again, after `retry_after` seconds where it is given
    └── InvalidResponse      look at the platform's version or at what stands in between: it answered out of contract

A message is one line and holds names, statuses and codes only: never a body, a claim or a token. The platform's own
words are in `errors`, for those who may read them.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Final

import jiter

from credhook.worker.api.http.exchange import BodyRefused, Response, Unanswered, Unsendable
from credhook.worker.api.models import ObservedText, Otherwise, ResponseModel

_Object = Annotated[dict[str, Any] | None, Otherwise()]


class ErrorObject(ResponseModel):
    """One error in the platform's words. `detail` can name people, so no repr shows it. Specification: Errors."""

    shown: ClassVar = ("id", "status", "code")

    detail: ObservedText = None
    id: ObservedText = None
    #: A number in error bodies, and a string in the platform's own schema.
    status: ObservedText = None
    code: ObservedText = None
    title: ObservedText = None
    source: _Object = None
    meta: _Object = None


class ApiError(Exception):
    """A request to the platform did not succeed.

    Attributes:
        operation: Name of the operation, such as `issuances.get`; `token` for the token endpoint.
        status: The HTTP status, or None where there was no answer.
        errors: The platform's error objects; empty where the body was something else.
        cause: Why there was no answer, a word of `Unanswered`; or what of the answer was not understood. Empty where
            the status says it all.
        retry_after: Seconds to wait before the request is sent again, if known.
    """

    def __init__(
        self,
        message: str,
        *,
        operation: str = "",
        status: int | None = None,
        errors: tuple[ErrorObject, ...] = (),
        cause: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.operation = operation
        self.status = status
        self.errors = errors
        self.cause = cause
        self.retry_after = retry_after


class InvalidRequest(ApiError):
    """The request is wrong and will stay wrong: 400, 409, 422, other 4xx, or an id that cannot go into a path."""


class Unauthorized(ApiError):
    """The platform does not accept our credentials: 401 to a fresh token, 403, or no token for this client."""


class NotFound(ApiError):
    """The platform has no such record, or no longer: 404, 410."""


class Unavailable(ApiError):
    """The platform cannot answer now: 408, 425, 429, 5xx, a time-out, or no connection."""


class InvalidResponse(ApiError):
    """The platform's answer is not what its specification promises: a redirect, or a body that does not match."""


#: The cause of a request that could not be sent. The values of a call are checked before, so a setting is to blame.
UNSENDABLE: Final = "unsendable"
_BY_CAUSE: Final = {
    "name_resolution": "its host's name is not known here: check {where}",
    "refused": "nothing listens there: check {where}",
    "socket": "the system gives this process no socket: raise `ulimit -n`, or lower CREDHOOK_CONCURRENCY",
    "certificate": "no authority that is trusted here has signed its certificate: set SSL_CERT_FILE to a file with its "
    "authority's and the public ones, have the server send its intermediate certificates, or check {where}",
    "certificate_self_signed": "its certificate is signed by itself: set SSL_CERT_FILE to a file with that certificate "
    "and the public ones, or check {where}",
    "certificate_name": "its certificate is for another name than the URL's host: check {where}, or have the "
    "certificate issued with this name",
    "certificate_expired": "its certificate, or its authority's, has expired: have it renewed, and check {where} and "
    "the clock of this machine",
    "certificate_early": "its certificate, or its authority's, is not valid yet: check the clock of this machine and "
    "{where}",
    "certificate_authority": "its certificate is signed by a certificate that may not sign others: have it issued by "
    "an authority, or check {where}",
    "certificate_unfit": "its certificate may not be used for this: have it issued again for a server, or check "
    "{where}",
    "tls": "it does not speak TLS as we do, or wants another certificate: check CREDHOOK_CLIENT_CERTFILE and {where}",
    "timeout": "not within CREDHOOK_FETCH_TIMEOUT: check it and {where}",
    "proxy": "check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, or {where}",
    "protocol": "what answers there is no HTTP server: check {where}",
    UNSENDABLE: "check {where}, and the credentials if they hold more than visible ASCII",
    "redirect": "the platform redirects to another URL: check {where}, its https:// and the slash at its end",
    "not_json": "the answer is not JSON: check {where}, and that no proxy answers in the platform's place",
    "other_id": "the details carry another id: if the platform names them otherwise, set CREDHOOK_MATCH_IDS=0",
}

#: The causes for which something else has answered in the platform's place: a proxy, a login, a page of maintenance.
IN_ITS_PLACE: Final = frozenset({"redirect", "not_json"})

#: The causes that a setting may be to blame for.
CAUSES: Final = frozenset(_BY_CAUSE)

#: Settings that a refusal of our credentials may be due to.
CREDENTIALS: Final = "CREDHOOK_CLIENT_ID, CREDHOOK_CLIENT_SECRET, CREDHOOK_TOKEN_AUTH and CREDHOOK_TOKEN_URL"
_PERMISSIONS: Final = (
    "the platform does not accept the token: check CREDHOOK_CLIENT_ID, CREDHOOK_TOKEN_URL, CREDHOOK_SCOPE, "
    "CREDHOOK_AUDIENCE and CREDHOOK_RESOURCE"
)


def advice(operation: str, cause: str) -> str:
    """Return what to do about a request that failed; `cause` is a word of `Unanswered` or of an error, or empty."""
    where = "CREDHOOK_TOKEN_URL" if operation == "token" else "CREDHOOK_API_URL"
    return _BY_CAUSE.get(cause, "check {where}").format(where=where)


def hint(error: Exception) -> str:
    """Return which setting to check because of an error; empty if no setting is the likely cause."""
    if isinstance(error, Unauthorized):
        return f"check {CREDENTIALS}" if error.operation == "token" else _PERMISSIONS
    # Without a cause but with a time to come back, it was not sent at all: the circuit is open.
    if isinstance(error, Unavailable) and error.status is None and (error.cause or error.retry_after is None):
        return advice(error.operation, error.cause)
    if isinstance(error, InvalidResponse) and error.cause in CAUSES:
        return advice(error.operation, error.cause)
    if isinstance(error, NotFound) and error.operation.endswith((".list", ".page")):  # It holds no id.
        return "check CREDHOOK_API_URL, the root of the API: it ends before /me-creds"
    return ""


def with_hint(error: ApiError, words: str = "") -> str:
    """Return the error's message with these words, and which setting to check unless the message names it."""
    message = f"{error}: {words}" if words else str(error)
    return message if "CREDHOOK_" in message else "; ".join(filter(None, [message, hint(error)]))


#: Statuses below 500 that pass by themselves: a time-out, a request sent too early, too many requests.
_PASSING: Final = {408, 425, 429}
#: Error objects kept of one answer: the specification says to read the first.
_MOST_ERRORS: Final = 16
#: A `code` or an error's `id` is put into a message only if it looks like one: the message goes into logs.
_WORD: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
#: An error code of OAuth, such as `invalid_client`. Nothing else of the token endpoint's body goes into a message.
_OAUTH_CODE: Final = re.compile(rb'"error"\s*:\s*"([a-z_]{1,40})"')
#: Settings to check, by error code.
_SETTINGS: Final = {
    "invalid_scope": "CREDHOOK_SCOPE",
    "invalid_target": "CREDHOOK_AUDIENCE and CREDHOOK_RESOURCE",
}


def refusal(operation: str, response: Response, now: datetime) -> ApiError:
    """Return the error for an answer without success, by its status."""
    status = response.status
    errors = error_objects(response.body)
    message = f"{operation}: the platform answered {status}{_reference(errors)}"
    if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        retry_after = seconds_to_wait(response.headers, now)
        return Unavailable(message, operation=operation, status=status, errors=errors, retry_after=retry_after)
    if status < HTTPStatus.BAD_REQUEST:
        return InvalidResponse(
            f"{message}; redirects are refused", operation=operation, status=status, cause="redirect"
        )
    kind = {401: Unauthorized, 403: Unauthorized, 404: NotFound, 410: NotFound}.get(status, InvalidRequest)
    return kind(message, operation=operation, status=status, errors=errors)


def oauth_code(body: bytes) -> str:
    """Return the error code of OAuth in an answer of the token endpoint, or ""."""
    code = _OAUTH_CODE.search(body)
    return code[1].decode() if code else ""


def token_refusal(response: Response, now: datetime) -> ApiError:
    """Return the error for an answer of the token endpoint that refuses a token."""
    error = refusal("token", response, now)
    if isinstance(error, Unavailable | InvalidResponse) and not response.is_success:
        return error
    # Every other 4xx is about the credentials, or about the URL that they are sent to.
    code = oauth_code(response.body)
    return Unauthorized(
        f"token: the token endpoint refuses this client: {response.status}{f' ({code})' if code else ''}; "
        f"check {_SETTINGS.get(code, CREDENTIALS)}",
        operation="token",
        status=response.status,
        errors=error.errors,
    )


def error_objects(body: bytes) -> tuple[ErrorObject, ...]:
    """Read the `errors` of a body, as far as it has any. A body that is something else has none."""
    try:
        document = jiter.from_json(body)
    except ValueError:
        return ()
    errors: Any = document.get("errors") if isinstance(document, dict) else None
    listed = errors if isinstance(errors, list) else [errors]
    return tuple(ErrorObject.model_validate(each) for each in listed[:_MOST_ERRORS] if isinstance(each, dict))


def seconds_to_wait(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds of `Retry-After`, which is a number or an HTTP date; None if it is neither.

    Such a date counts from the answer's own `Date`, or from `now` where there is none: our clock may be wrong, and the
    whole fleet would wait by it.
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    then, answered = _http_date(text), _http_date(headers.get("date", ""))
    return None if then is None else max(0.0, (then - (answered or now)).total_seconds())


def _http_date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return date.replace(tzinfo=date.tzinfo or UTC)


def _reference(errors: tuple[ErrorObject, ...]) -> str:
    """Return the code and id of the first error, which help to find it in the platform's logs."""
    first = errors[0] if errors else ErrorObject()
    words = [word for word in (first.code, first.id and f"error {first.id}") if word]
    known = [word for word in words if _WORD.fullmatch(word.removeprefix("error "))]
    return f" ({', '.join(known)})" if known else ""


def error_of(operation: str, failure: Unanswered | Unsendable | BodyRefused) -> ApiError:
    """Return the error for an exception of the transport; the operation is `token` for the token endpoint."""
    if isinstance(failure, BodyRefused):
        return InvalidResponse(f"{operation}: {failure}", operation=operation, cause="too_large")
    if isinstance(failure, Unsendable):
        message = f"{operation}: the request cannot be sent ({failure}); {advice(operation, UNSENDABLE)}"
        return Unavailable(message, operation=operation, cause=UNSENDABLE)
    message = f"{operation}: no answer ({failure}); {advice(operation, failure.cause)}"
    return Unavailable(message, operation=operation, cause=failure.cause)
