"""Every answer that is not a success: which code and title belong to a status, and what the body says."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from credhook.sandbox.http.wire import ABSENT, Wire

#: Status → code and title. 400, 401, 404 and 500 are the specification's; the others follow its style.
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


class Source(Wire):
    """Where in the request the fault lies."""

    pointer: str = ABSENT
    parameter: str = ABSENT


class Error(Wire):
    """One element of `errors`. `status` is a number, as the specification shows it in bodies."""

    id: str
    status: int
    code: str
    title: str
    detail: str
    source: Source = ABSENT
    meta: dict[str, Any] = ABSENT


class Errors(Wire):
    """The body of every refusal, an array even for one error (specification, "Errors")."""

    errors: list[Error]


class Refusal(Exception):
    """A request that is answered with an error; the message is the error's `detail`."""

    def __init__(
        self, status: int, detail: str, *, source: Source = ABSENT, headers: Mapping[str, str] | None = None
    ) -> None:
        """Refuse with a status of `CODES`; `detail` is for the caller, `headers` belong to the status."""
        super().__init__(detail)
        self.errors = Errors(errors=[error(status, detail, source)])
        self.status = status
        self.headers = headers

    @classmethod
    def of_validation(cls, problems: ValidationError, body: Any) -> "Refusal":
        """Turn what pydantic found in a body into one refusal with an error for each problem.

        No error quotes a value of the body.
        """
        refusal = cls(400, "The request is invalid.")
        refusal.errors = Errors(
            errors=[
                error(400, problem["msg"], Source(pointer=pointer(problem["loc"], body)))
                for problem in problems.errors(include_url=False, include_input=False, include_context=False)
            ]
        )
        return refusal


def error(status: int, detail: str, source: Source = ABSENT) -> Error:
    """Return one error with the code and the title of its status and an id of its own."""
    code, title = CODES[status]
    found: dict[str, Any] = {"source": source} if source is not None else {}
    return Error(id=str(uuid4()), status=status, code=code, title=title, detail=detail, **found)


def pointer(location: tuple[int | str, ...], body: Any) -> str:
    """Return a place in a body, where pydantic found a problem, as a JSON pointer (RFC 6901).

    A location counts the chosen variant of a union as a step; the body tells a variant from a field.
    """
    found = ""
    for place, step in enumerate(location):
        inside = _has(body, step)
        if inside or place == len(location) - 1:
            found += f"/{str(step).replace('~', '~0').replace('/', '~1')}"
        body = body[step] if inside else body
    return found


def _has(body: Any, step: int | str) -> bool:
    if isinstance(body, list):
        return isinstance(step, int) and step < len(body)
    return isinstance(body, dict) and step in body


def response(refusal: Refusal) -> Response:
    """Return the HTTP answer to a refused request."""
    return JSONResponse(refusal.errors.plain(), refusal.status, headers=refusal.headers)


async def answer_refusal(_: Request, refusal: Refusal) -> Response:
    """Answer what a noun refused."""
    return response(refusal)


async def answer_http_exception(request: Request, failure: HTTPException) -> Response:
    """Answer what the router refused, in the same envelope: an unknown path, a wrong method, a huge body."""
    details = {
        404: f"There is no {request.url.path}.",
        405: f"{request.url.path} does not answer {request.method}.",
    }
    status = failure.status_code if failure.status_code in CODES else 400
    return response(Refusal(status, details.get(status, failure.detail), headers=failure.headers))


async def answer_failure(_: Request, __: Exception) -> Response:
    """Answer a defect of the sandbox itself; the traceback goes to its log."""
    return response(Refusal(500, "The sandbox failed; its log says why."))


#: Starlette types every handler for Exception.
HANDLERS: dict[Any, Any] = {
    Refusal: answer_refusal,
    HTTPException: answer_http_exception,
    Exception: answer_failure,
}
