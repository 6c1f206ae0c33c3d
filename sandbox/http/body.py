"""Request bodies: read to a limit, then understood as JSON or as a form."""

import json
from typing import Any
from urllib.parse import parse_qsl

from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from credhook.sandbox.http.errors import Refusal

#: Bytes of a body that are kept; a larger one is answered with 413.
LARGEST = 1_048_576

#: Bytes that are read before giving up. What exceeds `LARGEST` is read and dropped, because a client that is still
#: sending when the connection closes may never see the answer.
PATIENCE = 16 * LARGEST

FORM = "application/x-www-form-urlencoded"


async def read(request: Request) -> bytes:
    """Return a body.

    Raises:
        Refusal: With 413, if it is larger than `LARGEST`; with 400, if the client has gone before its end.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size <= LARGEST:
                parts.append(part)
            if size > PATIENCE:
                break
    except ClientDisconnect as problem:
        raise Refusal(400, "The body ended early.") from problem
    if size > LARGEST:
        raise Refusal(413, f"The body is larger than {LARGEST} bytes.")
    return b"".join(parts)


async def read_form(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form, in their order."""
    return parse_qsl((await read(request)).decode("utf-8", "replace"))


def parse_json(raw: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        Refusal: With 400 for what is no JSON, and for numbers that no JSON could carry back: NaN, infinities, and
            those so large that reading them makes an infinity.
    """
    try:
        value = from_json(raw, allow_inf_nan=False)
        # The parser lets 1e999 through as an infinity; only writing it out strictly shows one, however deep.
        json.dumps(value, allow_nan=False)
    except ValueError as problem:
        raise Refusal(400, f"The body is not JSON: {problem}.") from problem
    return value


def media_type(request: Request) -> str:
    """Return the type of a body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
