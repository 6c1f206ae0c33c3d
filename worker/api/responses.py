"""From an HTTP response to a result. Nothing is sent here."""

import json
import re
from codecs import BOM_UTF8
from contextlib import suppress
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, TypeVar, cast

import jiter
from pydantic import TypeAdapter, ValidationError

from credhook.worker.api.errors import InvalidResponse, refusal
from credhook.worker.api.http.exchange import Response
from credhook.worker.api.models import ResponseModel, data_of, mismatch, with_document
from credhook.worker.api.operations import Elements, Operation, Page, following

R = TypeVar("R")

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
    url: str = "",
    root: str = "",
) -> R:
    """Return what the operation promises; with `asked_for` and `match_ids` it may carry no other id.

    `now` is for a `Retry-After` that is a date. `url` and `root`, the API's, are for the link to the next page.

    Raises:
        ApiError: The answer is a refusal, or not what the operation promises, or is about something else.
    """
    if not response.is_success:
        raise refusal(operation.name, response, now)
    if operation.raw:
        return cast("R", _document(operation.name, response) if response.body else None)
    if operation.each is not None:
        document = _document(operation.name, response)
        items = _elements(operation.name, operation.each, document, response.status)
        if not operation.paged:
            return cast("R", Elements(items, document))
        try:
            return cast("R", Page(items, following(document, url, root), len(response.body), document))
        except ValueError as error:
            raise _not_understood(operation.name, response.status, str(error)) from None
    if operation.result is None:
        return cast("R", None)
    if asked_for is None:
        return parse(operation.name, operation.result, response)
    document = _document(operation.name, response)
    return identified(operation, document, asked_for, response.status, match_ids=match_ids)


def parse(operation: str, result: TypeAdapter[R], response: Response) -> R:
    """Read the body as `result`, whether or not it is wrapped into `data`.

    Raises:
        InvalidResponse: It is not JSON, has two values of `id` or `data`, or does not match. The message names the
            place, not the value.
    """
    return _parsed(operation, result, _document(operation, response), response.status)


def _parsed(operation: str, result: TypeAdapter[R], document: Any, status: int) -> R:
    content = data_of(document)
    if getattr(document, "unclear", False) or getattr(content, "unclear", False):
        raise _not_understood(operation, status, "it holds two values of id or data", "name_twice")
    model = _validated(operation, result, content, status)
    return with_document(model, document) if isinstance(model, ResponseModel) else model


def identified(
    operation: Operation[R], document: Any, asked_for: str, status: int = HTTPStatus.OK, *, match_ids: bool = True
) -> R:
    """Return the JSON of an answer as the operation's result, with the id asked for if it has none.

    Raises:
        InvalidResponse: It has another id and belongs to another request, is only an error, or does not match.
    """
    result: Any = _parsed(operation.name, cast("TypeAdapter[Any]", operation.result), document, status)
    is_error = isinstance(document, dict) and "data" not in document and (document.get("errors") or "error" in document)
    if is_error and not (result.id or result.status):
        raise _not_understood(operation.name, status, "it holds an error in place of data", "error")
    if not result.id:
        result = result.model_copy(update={"id": asked_for})
    elif result.id != asked_for and match_ids:
        raise InvalidResponse(
            f"{operation.name}: the answer is about another id than the one asked for; "
            "if the platform names its details otherwise, set CREDHOOK_MATCH_IDS=0",
            operation=operation.name,
            status=status,
            cause="other_id",
        )
    return result  # type: ignore[no-any-return]


def _elements(operation: str, each: TypeAdapter[Any], document: Any, status: int) -> tuple[Any, ...]:
    """Return the elements of a list."""
    elements = data_of(document)
    if not isinstance(elements, list):
        raise _not_understood(operation, status, "the whole: list type")
    items = (_validated(operation, each, element, status, f"{place}.") for place, element in enumerate(elements))
    return tuple(
        with_document(item, element) if isinstance(item, ResponseModel) else item
        for item, element in zip(items, elements, strict=True)
    )


class _Doubled(dict[str, Any]):
    """An object with a name twice. The last value counts, but two different states are no state.

    Attributes:
        unclear: True if it has two different values of `id` or `data`, so that it may be about another resource.
    """

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        different = {name for name, value in pairs if value != self[name]}
        self.unclear = not different.isdisjoint({"id", "data"})
        if "status" in different:
            self["status"] = None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    return unique if len(unique) == len(pairs) else _Doubled(pairs)


#: Made once, since `json.loads` with this argument makes a decoder for each body.
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object)


def _document(operation: str, response: Response) -> Any:
    """Return the JSON of the body, read leniently: the data may be readable only this once.

    NaN and a byte order mark are accepted. Bytes that are not Unicode become U+FFFD. An object with a name twice is a
    `_Doubled`.

    Raises:
        InvalidResponse: It is not JSON.
    """
    body = response.body
    with suppress(ValueError):
        return jiter.from_json(body, catch_duplicate_keys=True, cache_mode="keys")
    with suppress(ValueError):
        text = body.removeprefix(BOM_UTF8).decode(errors="replace")
        if "\\ud" in text or "\\uD" in text:
            # A NUL is no JSON, so it can stand for an escaped backslash.
            text = _LONE.sub("\ufffd", text.replace("\0", "\1").replace(r"\\", "\0")).replace("\0", r"\\")
        jiter.from_json(text.encode())  # Refuses more than 200 levels. Pydantic could not write them again.
        return _DECODER.decode(text)
    raise _not_understood(operation, response.status, "the body is not JSON", "not_json")


def _validated(operation: str, result: TypeAdapter[R], document: Any, status: int, place: str = "") -> R:
    try:
        # The adapter's own method looks at six more options, which takes a fifth of the time.
        return cast("R", result.validator.validate_python(document, by_alias=True, by_name=False))
    except ValidationError as error:  # It holds the values.
        raise _not_understood(operation, status, place + mismatch(error)) from None


def _not_understood(operation: str, status: int, wrong: str, cause: str = "") -> InvalidResponse:
    message = f"{operation}: the answer does not match the specification: {wrong}"
    return InvalidResponse(message, operation=operation, status=status, cause=cause or wrong)
