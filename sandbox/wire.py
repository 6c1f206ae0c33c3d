"""The wire format: camelCase JSON models, request bodies, and the bodies of errors."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any
from uuid import uuid4

from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

#: Default of an optional field. Pydantic does not validate it, and `plain` does not write it. So a field may be
#: left out but not be null, since the specification names no nullable field of a request.
ABSENT: Any = None

#: Accepts 1.0 for 1, since JSON has one type of number. In a field's metadata it stands after the bounds.
WHOLE = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
Whole = Annotated[int, WHOLE]


class WireModel(BaseModel):
    """A value that is read from JSON or written as JSON.

    Unknown fields are refused. Otherwise a mistyped `filterType` would subscribe to everything in silence.
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
    meta: dict[str, JsonValue] = ABSENT


class ErrorBody(WireModel):
    """The body of every error response: an array even for one error (specification, "Errors")."""

    errors: list[ErrorItem]


class Misplaced(HTTPException):
    """A 400 for a value at one place of the request. `source`: the place, as an error of the specification has it."""

    def __init__(self, detail: str, source: dict[str, str]) -> None:
        super().__init__(400, detail)
        self.source = source


def refusal(part: str, problems: ValidationError) -> HTTPException:
    """Return a 400 for the first problem in a part of the request. It names the place and quotes no value."""
    first = problems.errors(include_url=False, include_input=False, include_context=False)[0]
    place = list(map(str, first["loc"]))
    pointer = "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in place)  # RFC 6901.
    source = {"parameter": place[0]} if part == "query" and place else {"pointer": pointer}
    return Misplaced(f"{'.'.join((part, *place))}: {first['msg']}.", source)


async def read_json(request: Request, adapter: TypeAdapter[Any]) -> Any:
    """Return the body as the adapter's type. Refuse another content type with 415 and an invalid body with 400."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "The body should be application/json.")
    try:
        return adapter.validate_python(from_json(await request.body(), allow_inf_nan=False))
    except ValidationError as problems:
        raise refusal("body", problems) from problems
    except ValueError as problem:
        raise HTTPException(400, f"The body is not JSON: {problem}.") from problem


async def answer_error(
    _: Request, error: Exception, *, with_source: bool = False, meta: dict[str, JsonValue] | None = None
) -> Response:
    """Answer an error in the envelope of the specification, also an unknown path or a wrong method.

    `with_source`: name the place of the error. `meta`: what it has beside its other fields.
    """
    if not isinstance(error, HTTPException):
        error = HTTPException(500, "The sandbox failed; its log says why.")
    status = HTTPStatus(error.status_code)
    # The specification has names of its own for a 400. Its other names are HTTP's.
    code, title = status.name, status.phrase
    if status is HTTPStatus.BAD_REQUEST:
        code, title = "VALIDATION_ERROR", "Validation Failed"
    more: dict[str, Any] = {"meta": meta} if meta else {}
    if with_source:
        more["source"] = error.source if isinstance(error, Misplaced) else {"pointer": ""}
    item = ErrorItem(id=str(uuid4()), status=error.status_code, code=code, title=title, detail=error.detail, **more)
    return JSONResponse(ErrorBody(errors=[item]).plain(), status, headers=error.headers)
