"""An operation as data: what the server routes and what `/openapi.json` describes, so that the two agree."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from credhook.sandbox.http.body import media_type, parse_json, read
from credhook.sandbox.http.errors import Refusal, Source
from credhook.sandbox.http.tokens import unauthorized
from credhook.sandbox.http.wire import Wire
from credhook.sandbox.tenant.tenant import Tenant

T = TypeVar("T")


@dataclass(frozen=True)
class Found(Generic[T]):
    """A result with `meta` and `links` beside its `data`, where there are any."""

    data: T
    meta: Mapping[str, Any] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    """One method of one path.

    Attributes:
        method: HTTP method.
        path: Path with its parameters in braces. `:path` after a parameter's name lets its value hold an encoded slash,
            which the server has decoded before it looks for the route.
        act: What is done, called with the tenant and the parameters of the path in their order. A parameter `query` is
            the request's query, a parameter `wanted` its body, each read as it is annotated; the result becomes `data`.
        summary: One sentence for `/openapi.json`.
        status: Status of success.
        enveloped: Whether the answer is wrapped in `data`.
        refusals: Statuses other than 400, 401 and those of faults that this operation answers with.
    """

    method: str
    path: str
    act: Callable[..., Any]
    summary: str
    status: int = 200
    enveloped: bool = True
    refusals: Sequence[int] = ()

    @cached_property
    def _types(self) -> dict[str, Any]:
        return get_type_hints(self.act, include_extras=True)

    @property
    def query(self) -> Any:
        """Model of the request's query; None where it has none."""
        return self._types.get("query")

    @property
    def body(self) -> Any:
        """Type of the request's body; None where it has none."""
        return self._types.get("wanted")

    @property
    def answer(self) -> Any:
        """Type of what becomes `data`; None where the answer has no body."""
        found = self._types["return"]
        found = get_args(found)[0] if get_origin(found) is Found else found
        return None if found is NoneType else found

    @property
    def needs_token(self) -> bool:
        """Whether it belongs to the platform; otherwise it is the sandbox's own."""
        return not self.path.startswith("/sandbox/")

    @property
    def documented_path(self) -> str:
        """The path as OpenAPI writes it."""
        return self.path.replace(":path}", "}")

    async def serve(self, tenant: Tenant, request: Request) -> Response:
        """Answer a request.

        Raises:
            Refusal: The request is not answered with success.
        """
        if self.needs_token:
            await _admit(tenant, request)
        return self._render(tenant, self.act(tenant, *await self._arguments(request)))

    async def _arguments(self, request: Request) -> list[Any]:
        found: list[Any] = list(request.path_params.values())
        if self.query is not None:
            found.append(_parse_query(request, self.query))
        if self.body is not None:
            found.append(await _parse_body(request, self.body))
        return found

    def _render(self, tenant: Tenant, result: Any) -> Response:
        if self.answer is None:
            return Response(status_code=self.status)
        swapped = self.needs_token and tenant.faults.swaps_envelope()
        found = result if isinstance(result, Found) else Found(result)
        content: Any = plain(found.data)
        if self.enveloped != swapped:
            beside = {"links": dict(found.links), "meta": dict(found.meta)}
            content = {"data": content} | {name: value for name, value in beside.items() if value}
        return Response(to_json(content), self.status, media_type="application/json")


def routes(operations: Iterable[Operation], tenant: Tenant) -> list[Route]:
    """Return a route for each path, which knows all the methods that the path answers."""
    paths: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = operation
    return [_route(path, methods, tenant) for path, methods in paths.items()]


def _route(path: str, methods: Mapping[str, Operation], tenant: Tenant) -> Route:
    async def serve(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await methods[method].serve(tenant, request)

    return Route(path, serve, methods=list(methods))


async def _admit(tenant: Tenant, request: Request) -> None:
    """Let a request of the platform's API through, unless a fault or a bad token stops it."""
    await tenant.faults.disturb(tenant.now().timestamp())
    token = tenant.tokens.check(request.headers.get("authorization"))
    if tenant.faults.take("unauthorized"):
        tenant.tokens.revoke(token)
        raise unauthorized("A fault of the sandbox: unauthorized.")


def _parse_query(request: Request, model: type[BaseModel]) -> BaseModel:
    try:
        return model.model_validate(dict(request.query_params), strict=False, extra="ignore")
    except ValidationError as problems:
        first = problems.errors(include_url=False, include_input=False, include_context=False)[0]
        parameter = str(first["loc"][0]) if first["loc"] else ""
        raise Refusal(400, first["msg"], source=Source(parameter=parameter)) from problems


async def _parse_body(request: Request, model: Any) -> Any:
    if media_type(request) != "application/json":
        raise Refusal(415, "The body should be application/json.")
    raw = await read(request)
    body = parse_json(raw)
    try:
        return _reader(model).validate_json(raw)
    except ValidationError as problems:
        raise Refusal.of_validation(problems, body) from problems


@cache
def _reader(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def plain(value: Any) -> Any:
    """Return the JSON form of a result."""
    if isinstance(value, Wire):
        return value.plain()
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    return value
