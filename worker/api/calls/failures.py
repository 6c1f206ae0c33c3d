"""From a request without a usable response to the error that says what to do. Pure.

The failure's own words stay out: they can quote URLs.
"""

from credhook.worker.api.calls.errors import ApiError, InvalidRequest, InvalidResponse, Unavailable
from credhook.worker.api.calls.hints import advice
from credhook.worker.api.http.body_limit import BodyRefused
from credhook.worker.api.http.exchange import Unanswered, Unsendable


def error_of(operation: str, failure: Unanswered | Unsendable | BodyRefused) -> ApiError:
    """The error of a request by what its transport raised; the operation is `token` for the token endpoint."""
    if isinstance(failure, BodyRefused):
        return InvalidResponse(f"{operation}: {failure}", operation=operation, cause=failure.cause)
    if isinstance(failure, Unsendable):
        return InvalidRequest(f"{operation}: the request cannot be sent: {failure}", operation=operation)
    why = f"{failure.kind}, {failure.cause}" if failure.cause else failure.kind
    message = f"{operation}: no answer ({why}); {advice(operation, failure.cause)}"
    return Unavailable(message, operation=operation, cause=failure.cause)
