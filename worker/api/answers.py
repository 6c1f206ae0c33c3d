"""From an HTTP response to a result, or to the error that says what to do. Pure: nothing is sent here."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, cast

import httpx
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from worker.api.errors import (
    ApiError,
    ErrorObject,
    InvalidRequest,
    NotAuthenticated,
    NotThere,
    NotUnderstood,
    TryLater,
)
from worker.api.models.base import mismatch
from worker.api.operations import Operation

R = TypeVar("R")

#: Statuses below 500 that pass by themselves: a time-out, a request sent too early, too many requests.
_PASSING = {408, 425, 429}

#: Error objects kept of one answer: the specification says to read the first.
_MOST_ERRORS = 16

#: A `code` or an error's `id` is put into a message only if it looks like one: the message goes into logs.
_WORD = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def read(operation: Operation[R], response: httpx.Response, now: datetime) -> R:
    """Return what the operation promises.

    Args:
        operation: What was asked.
        response: The answer, with its body read.
        now: Wall-clock time, for a `Retry-After` that is a date.

    Raises:
        ApiError: The answer is a refusal, or not what the operation promises.
    """
    if not response.is_success:
        raise refusal(operation.name, response, now)
    if response.status_code not in operation.expects:
        raise NotUnderstood(
            f"{operation.name}: the platform answered {response.status_code} instead of {operation.expects[0]}",
            operation=operation.name,
            status=response.status_code,
        )
    if operation.result is None:
        return cast("R", None)
    return parse(operation.name, operation.result, response)


def parse(operation: str, result: TypeAdapter[R], response: httpx.Response) -> R:
    """Read the body as `result`, whether or not it is wrapped into `data`.

    Raises:
        NotUnderstood: It is not JSON, or does not match. The message names the place, not the value.
    """
    try:
        document = from_json(response.content, allow_inf_nan=False)
        if isinstance(document, dict) and "data" in document:
            document = document["data"]
        return result.validate_python(document, by_alias=True, by_name=False)
    except ValidationError as error:
        wrong = mismatch(error)
    except (ValueError, RecursionError):
        wrong = "the body is not JSON"
    # Raised outside of the handlers, so that no traceback leads to an exception that holds the body.
    raise NotUnderstood(
        f"{operation}: the answer does not match the specification: {wrong}",
        operation=operation,
        status=response.status_code,
    )


def refusal(operation: str, response: httpx.Response, now: datetime) -> ApiError:
    """Say by its status what an answer without success means."""
    status = response.status_code
    errors = error_objects(response.content)
    message = f"{operation}: the platform answered {status}{_reference(errors)}"
    if status in _PASSING or status >= httpx.codes.INTERNAL_SERVER_ERROR:
        retry_after = seconds_to_wait(response.headers.get("retry-after"), now)
        return TryLater(message, operation=operation, status=status, errors=errors, retry_after=retry_after)
    if status < httpx.codes.BAD_REQUEST:
        return NotUnderstood(f"{message}; redirects are refused", operation=operation, status=status)
    if status == httpx.codes.NOT_FOUND:
        return NotThere(message, operation=operation, status=status, errors=errors)
    if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        return NotAuthenticated(message, operation=operation, status=status, errors=errors)
    return InvalidRequest(message, operation=operation, status=status, errors=errors)


def error_objects(body: bytes) -> tuple[ErrorObject, ...]:
    """Read the `errors` of a body, as far as it has any. A body that is something else has none."""
    try:
        document = from_json(body)
    except (ValueError, RecursionError):
        return ()
    errors: Any = document.get("errors") if isinstance(document, dict) else None
    listed = errors if isinstance(errors, list) else [errors]
    return tuple(ErrorObject.model_validate(each) for each in listed[:_MOST_ERRORS] if isinstance(each, dict))


def seconds_to_wait(retry_after: str | None, now: datetime) -> float | None:
    """Read a `Retry-After`, which is a number of seconds or an HTTP date; None if it is neither."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        then = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, (then.replace(tzinfo=then.tzinfo or UTC) - now).total_seconds())


def _reference(errors: tuple[ErrorObject, ...]) -> str:
    """What of the first error helps to find it in the platform's own logs."""
    first = errors[0] if errors else ErrorObject()
    words = [word for word in (first.code, first.id and f"error {first.id}") if word]
    known = [word for word in words if _WORD.fullmatch(word.removeprefix("error "))]
    return f" ({', '.join(known)})" if known else ""
