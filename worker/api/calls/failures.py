"""From a request without a usable response to the error that says what to do. Pure.

The failure's own words stay out: they can quote URLs.
"""

from credhook.worker.api.calls.errors import ApiError, InvalidRequest, NotUnderstood
from credhook.worker.api.calls.hints import unanswered
from credhook.worker.api.http.body_limit import BodyRefused
from credhook.worker.api.http.exchange import Unanswered, Unsendable


def error_of(operation: str, failure: Unanswered | Unsendable | BodyRefused) -> ApiError:
    """The error of a request that failed.

    Args:
        operation: Name of the operation; `token` for the token endpoint.
        failure: What its transport raised.
    """
    if isinstance(failure, BodyRefused):
        return NotUnderstood(f"{operation}: {failure}", operation=operation, cause=failure.cause)
    if isinstance(failure, Unsendable):
        return InvalidRequest(f"{operation}: the request cannot be sent: {failure}", operation=operation)
    return unanswered(operation, failure.kind, failure.cause)
