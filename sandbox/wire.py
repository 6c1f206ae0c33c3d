"""What goes over the wire: camelCase JSON models, request bodies, and the bodies of errors."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any
from uuid import uuid4

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

#: Default of an optional field. Pydantic does not validate it, and `plain` does not write it. So a field may be
#: left out but not be null: the specification names no nullable field of a request.
ABSENT: Any = None

#: One path segment that survives every client and proxy unchanged: the shape of an id that a caller may choose.
ID_PATTERN = r"^[A-Za-z0-9_~:-][A-Za-z0-9._~:-]{0,127}$"

MAX_BODY_BYTES = 1_048_576

#: Accepts 1.0 for 1, since JSON has one type of number. In a field's metadata it stands after the bounds.
WHOLE = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
Whole = Annotated[int, WHOLE]

#: Status → code and title. 400, 401, 404 and 500 are the specification's. The others follow its style.
CODES: Mapping[int, tuple[str, str]] = {
    400: ("VALIDATION_ERROR", "Validation Failed"),
    401: ("UNAUTHORIZED", "Unauthorized"),
    403: ("FORBIDDEN", "Forbidden"),
    404: ("NOT_FOUND", "Not Found"),
    405: ("METHOD_NOT_ALLOWED", "Method Not Allowed"),
    409: ("CONFLICT", "Conflict"),
    413: ("PAYLOAD_TOO_LARGE", "Payload Too Large"),
    415: ("UNSUPPORTED_MEDIA_TYPE", "Unsupported Media Type"),
    429: ("TOO_MANY_REQUESTS", "Too Many Requests"),
    500: ("INTERNAL_SERVER_ERROR", "Internal Server Error"),
}


class WireModel(BaseModel):
    """A value that is read from JSON or written as JSON.

    Unknown fields are refused: a mistyped `filterType` would otherwise subscribe to everything in silence.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        strict=True,
        validate_by_alias=True,
        validate_by_name=True,
    )

    def plain(self) -> dict[str, Any]:
        """Return the JSON form, with only the fields that were set."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class StampedModel(WireModel):
    """A resource with an id and the times of its creation and its latest change."""

    id: str
    created_at: datetime
    updated_at: datetime


class ErrorPlace(WireModel):
    """The place of an error in the request."""

    pointer: str = ABSENT
    parameter: str = ABSENT


class ErrorItem(WireModel):
    """One element of `errors`. `status` is a number, as the specification shows it in bodies."""

    id: str
    status: int
    code: str
    title: str
    detail: str
    source: ErrorPlace = ABSENT
    meta: dict[str, Any] = ABSENT


class ErrorBody(WireModel):
    """The body of every error response: an array even for one error (specification, "Errors")."""

    errors: list[ErrorItem]


class SandboxError(Exception):
    """A request that is answered with an error. The message is the error's `detail`."""

    def __init__(
        self, status: int, detail: str, *, source: ErrorPlace = ABSENT, headers: Mapping[str, str] | None = None
    ) -> None:
        """Take a status of `CODES`. `detail` is for the caller, `headers` belong to the status."""
        super().__init__(detail)
        self.status = status
        self.headers = headers
        self.body = ErrorBody(errors=[_item(status, detail, source)])

    @classmethod
    def of_validation(cls, problems: ValidationError, body: Any) -> "SandboxError":
        """Return a 400 with one error for each problem that pydantic found. No error quotes a value of the body."""
        error = cls(400, "The request is invalid.")
        error.body = ErrorBody(
            errors=[
                _item(400, problem["msg"], ErrorPlace(pointer=pointer(problem["loc"], body)))
                for problem in problems.errors(include_url=False, include_input=False, include_context=False)
            ]
        )
        return error

    def response(self) -> Response:
        """Return the HTTP response."""
        return JSONResponse(self.body.plain(), self.status, headers=self.headers)


def _item(status: int, detail: str, source: ErrorPlace) -> ErrorItem:
    code, title = CODES[status]
    more: dict[str, Any] = {} if source is None else {"source": source}
    return ErrorItem(id=str(uuid4()), status=status, code=code, title=title, detail=detail, **more)


def pointer(location: tuple[int | str, ...], body: Any) -> str:
    """Return a location of pydantic as a JSON pointer (RFC 6901) into the body.

    A location counts the chosen variant of a union as a step. The body tells a variant from a field.
    """
    found = ""
    for place, step in enumerate(location):
        try:
            body, inside = body[step], True
        except (LookupError, TypeError):
            inside = False
        if inside or place == len(location) - 1:
            found += f"/{str(step).replace('~', '~0').replace('/', '~1')}"
    return found


def media_type(request: Request) -> str:
    """Return the type of a body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request) -> bytes:
    """Return the body, or refuse it with 413 if it is larger than `MAX_BODY_BYTES`."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise SandboxError(413, f"The body is larger than {MAX_BODY_BYTES} bytes.")
    return bytes(body)


async def read_json(request: Request, adapter: TypeAdapter[Any]) -> Any:
    """Return the body as the adapter's type. Refuse another content type with 415 and an invalid body with 400."""
    if media_type(request) != "application/json":
        raise SandboxError(415, "The body should be application/json.")
    try:
        body = from_json(await read_body(request), allow_inf_nan=False)
        json.dumps(body, allow_nan=False)  # The parser reads 1e999 as an infinity, which cannot be written back.
    except ValueError as problem:
        raise SandboxError(400, f"The body is not JSON: {problem}.") from problem
    try:
        return adapter.validate_python(body)
    except ValidationError as problems:
        raise SandboxError.of_validation(problems, body) from problems


async def _answer(request: Request, error: Exception) -> Response:
    """Answer an error in the envelope of the specification, also an unknown path or a wrong method."""
    match error:
        case SandboxError():
            return error.response()
        case HTTPException():
            details = {
                404: f"There is no {request.url.path}.",
                405: f"{request.url.path} does not answer {request.method}.",
            }
            status = error.status_code if error.status_code in CODES else 400
            return SandboxError(status, details.get(status, error.detail), headers=error.headers).response()
        case ClientDisconnect():
            return SandboxError(400, "The body ended early.").response()
    return SandboxError(500, "The sandbox failed; its log says why.").response()


#: Starlette types every handler for Exception.
ERROR_HANDLERS: dict[Any, Any] = dict.fromkeys((SandboxError, HTTPException, ClientDisconnect, Exception), _answer)
