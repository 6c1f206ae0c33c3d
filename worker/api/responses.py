"""From an HTTP response to a result. Nothing is sent here."""

import json
import re
from codecs import BOM_UTF8
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, TypeVar, cast

import jiter
from pydantic import TypeAdapter, ValidationError

from credhook.worker.api.errors import InvalidResponse, refusal
from credhook.worker.api.http.exchange import Response
from credhook.worker.api.models import mismatch
from credhook.worker.api.operations import Operation, Page, following

R = TypeVar("R")

#: Names that decide what an answer is about. None may stand twice in the envelope or in the resource.
_DECIDING: Final = ("id", "status", "data")
#: The escape of half a surrogate pair, in text without escaped backslashes.
_HIGH, _LOW = r"\\ud[89ab][0-9a-f]{2}", r"\\ud[c-f][0-9a-f]{2}"
_LONE: Final = re.compile(f"(?i){_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}")


def read(
    operation: Operation[R],
    response: Response,
    now: datetime,
    *,
    asked_for: str | None = None,
    match_ids: bool = True,
) -> R:
    """Return what the operation promises; with `asked_for` and `match_ids` it may carry no other id.

    `now` is for a `Retry-After` that is a date.

    Raises:
        ApiError: The answer is a refusal, or not what the operation promises, or is about something else.
    """
    if not response.is_success:
        raise refusal(operation.name, response, now)
    if operation.raw:
        return cast("R", _document(operation.name, response) if response.body else None)
    if operation.each is not None:
        page = parse_list(operation.name, operation.each, response, paged=operation.paged)
        result = cast("R", page if operation.paged else page.items)
    elif operation.result is not None:
        result = parse(operation.name, operation.result, response)
    else:
        return cast("R", None)
    if asked_for is None:
        return result
    return cast("R", _identified(operation.name, asked_for, result, response.status, match_ids=match_ids))


def parse(operation: str, result: TypeAdapter[R], response: Response) -> R:
    """Read the body as `result`, whether or not it is wrapped into `data`.

    Raises:
        InvalidResponse: It is not JSON, has a deciding name twice, or does not match. The message names the place, not
            the value.
    """
    document = _document(operation, response)
    content = _data(document)
    if getattr(document, "unclear", False) or getattr(content, "unclear", False):
        raise _not_understood(operation, response.status, "it holds id, status or data twice", "name_twice")
    return _validated(operation, result, content, response.status)


def parse_list(operation: str, each: TypeAdapter[R], response: Response, *, paged: bool) -> Page[R]:
    """Read the body as a list, its elements as `each`, and if it is `paged`, where the next page is.

    Raises:
        InvalidResponse: As `parse`; or the link to the next page is none.
    """
    document = _document(operation, response)
    elements = _data(document)
    if not isinstance(elements, list):
        raise _not_understood(operation, response.status, "the whole: list type")
    items = tuple(
        _validated(operation, each, element, response.status, f"{place}.") for place, element in enumerate(elements)
    )
    try:
        return Page(items, following(document) if paged else None, len(response.body))
    except ValueError as error:
        raise _not_understood(operation, response.status, str(error)) from None


class _Doubled(dict[str, Any]):
    """An object with a name twice. The last value counts. `unclear`: the name is a deciding one."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.unclear = any(names.count(name) > 1 for name in _DECIDING)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Doubled(pairs)


#: Made once, since `json.loads` with this argument makes a decoder for each body.
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object)


def _document(operation: str, response: Response) -> Any:
    """Return the JSON of the body, read leniently: the data may be readable only this once.

    NaN and a byte order mark are accepted. What is no Unicode becomes U+FFFD. An object with a name twice is a
    `_Doubled`.

    Raises:
        InvalidResponse: It is not JSON.
    """
    body = response.body
    with suppress(ValueError):
        return jiter.from_json(body, catch_duplicate_keys=True, cache_mode="keys")
    with suppress(ValueError, RecursionError):
        text = body.removeprefix(BOM_UTF8).decode(errors="replace")
        if "\\ud" in text or "\\uD" in text:
            # A NUL is no JSON, so it can stand for an escaped backslash.
            text = _LONE.sub("\ufffd", text.replace("\0", "\1").replace(r"\\", "\0")).replace("\0", r"\\")
        jiter.from_json(text.encode())  # Refuses more than 200 levels. Pydantic could not write them again.
        return _DECODER.decode(text)
    raise _not_understood(operation, response.status, "the body is not JSON", "not_json")


def _data(document: Any) -> Any:
    """Return the content of the envelope, or the document if it has none."""
    return document["data"] if isinstance(document, dict) and "data" in document else document


def _validated(operation: str, result: TypeAdapter[R], document: Any, status: int, place: str = "") -> R:
    try:
        # The adapter's own method looks at six more options, which takes a fifth of the time.
        return cast("R", result.validator.validate_python(document, by_alias=True, by_name=False))
    except ValidationError as error:  # It holds the values.
        raise _not_understood(operation, status, place + mismatch(error)) from None


def _identified(operation: str, asked_for: str, result: Any, status: int, *, match_ids: bool) -> Any:
    """Return the result, with this id if it has none. With another id it belongs to another request, and is refused."""
    if not result.id:
        if not getattr(result, "status", ""):  # An error, perhaps, or something else altogether.
            raise _not_understood(operation, status, "neither id nor status")
        return result.model_copy(update={"id": asked_for})
    if result.id != asked_for and match_ids:
        raise InvalidResponse(
            f"{operation}: the answer is about another id than the one asked for; "
            "if the platform names its details otherwise, set CREDHOOK_MATCH_IDS=0",
            operation=operation,
            status=status,
            cause="other_id",
        )
    return result


def _not_understood(operation: str, status: int, wrong: str, cause: str = "") -> InvalidResponse:
    message = f"{operation}: the answer does not match the specification: {wrong}"
    return InvalidResponse(message, operation=operation, status=status, cause=cause or wrong)
