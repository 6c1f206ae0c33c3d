"""What goes over the wire: camelCase JSON models, request bodies, and the bodies of errors."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any
from uuid import uuid4

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

#: Default of an optional field. Pydantic does not validate it, and `plain` does not write it. So a field may be
#: left out but not be null: the specification names no nullable field of a request.
ABSENT: Any = None

#: Accepts 1.0 for 1, since JSON has one type of number. In a field's metadata it stands after the bounds.
WHOLE = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
Whole = Annotated[int, WHOLE]

#: Status → code and title. 400, 401, 404 and 500 are the specification's. The others follow its style.
CODES: Mapping[int, tuple[str, str]] = {
    400: ("VALIDATION_ERROR", "Validation Failed"),
    401: ("UNAUTHORIZED", "Unauthorized"),
    404: ("NOT_FOUND", "Not Found"),
    405: ("METHOD_NOT_ALLOWED", "Method Not Allowed"),
    409: ("CONFLICT", "Conflict"),
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


class ErrorItem(WireModel):
    """One element of `errors`. `status` is a number, as the specification shows it in bodies."""

    id: str
    status: int
    code: str
    title: str
    detail: str
    source: dict[str, str] = ABSENT


class ErrorBody(WireModel):
    """The body of every error response: an array even for one error (specification, "Errors")."""

    errors: list[ErrorItem]


class SandboxError(HTTPException):
    """A request that is answered with an error. `detail` is for the caller, `source` is the place in the request."""

    source: Mapping[str, str] | None = None


def refusal(problems: ValidationError, body: Any) -> SandboxError:
    """Return a 400 for the first problem that pydantic found. It does not quote a value of the body."""
    first = problems.errors(include_url=False, include_input=False, include_context=False)[0]
    error = SandboxError(400, first["msg"])
    error.source = {"pointer": pointer(first["loc"], body)}
    return error


def pointer(location: tuple[int | str, ...], body: Any) -> str:
    """Return a location of pydantic as a JSON pointer (RFC 6901) into the body.

    A location counts the chosen variant of a union as a step. The body tells a variant from a field.
    """
    found = ""
    for place, step in enumerate(location, 1):
        try:
            body = body[step]
        except (LookupError, TypeError):
            if place < len(location):
                continue
        found += f"/{str(step).replace('~', '~0').replace('/', '~1')}"
    return found


def media_type(request: Request) -> str:
    """Return the type of a body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_json(request: Request, adapter: TypeAdapter[Any]) -> Any:
    """Return the body as the adapter's type. Refuse another content type with 415 and an invalid body with 400."""
    if media_type(request) != "application/json":
        raise SandboxError(415, "The body should be application/json.")
    try:
        body = from_json(await request.body(), allow_inf_nan=False)
        return adapter.validate_python(body)
    except ValidationError as problems:
        raise refusal(problems, body) from problems
    except ValueError as problem:
        raise SandboxError(400, f"The body is not JSON: {problem}.") from problem


async def answer_error(_: Request, error: Exception) -> Response:
    """Answer an error in the envelope of the specification, also an unknown path or a wrong method."""
    if not isinstance(error, HTTPException):
        error = SandboxError(500, "The sandbox failed; its log says why.")
    status = error.status_code
    code, title = CODES.get(status, CODES[400])
    more: dict[str, Any] = {"source": error.source} if isinstance(error, SandboxError) and error.source else {}
    item = ErrorItem(id=str(uuid4()), status=status, code=code, title=title, detail=error.detail, **more)
    return JSONResponse(ErrorBody(errors=[item]).plain(), status, headers=error.headers)
