"""Operations as data. The server routes them and the OpenAPI documents describe them, so the two agree."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import urlencode

from pydantic import Field, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from credhook.sandbox.tenant import TOKEN_PATH, Tenant, unauthorized
from credhook.sandbox.wire import ErrorBody, Whole, WireModel, read_json, refusal

T = TypeVar("T")
M = TypeVar("M", bound=WireModel)
Json = dict[str, Any]


@dataclass(frozen=True)
class Listing(Generic[T]):
    """A result with `meta` and `links` beside its `data`."""

    data: T
    meta: Mapping[str, Any] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SandboxOperation:
    """One method of one path.

    Attributes:
        method: HTTP method.
        path: Path with its parameters in braces. `:path` after a parameter's name lets its value hold an encoded slash,
            because the server decodes the path before it looks for the route.
        act: Called with the tenant and the parameters of the path, in order. A parameter named `query` is the request's
            query and a parameter named `body` its body, each read as annotated. The result becomes `data`.
        status: Status of success.
        enveloped: Wrap the answer in `data`.
        query: Model of the query, or None.
        body: Type of the body, or None.
        answer: Type of `data`, or None if the answer has no body.
    """

    method: str
    path: str
    act: Callable[..., Any]
    status: int
    enveloped: bool
    query: Any
    body: Any
    answer: Any

    @property
    def needs_token(self) -> bool:
        """Return True for the platform's operations, False for the sandbox's own."""
        return not self.path.startswith("/sandbox/")

    async def serve(self, tenant: Tenant, request: Request) -> Response:
        """Answer a request, or raise the `HTTPException` that refuses it."""
        if self.needs_token:
            await tenant.faults.disturb(tenant.now().timestamp())
            token = tenant.tokens.check(request.headers.get("authorization"))
            if tenant.faults.take("unauthorized"):
                tenant.tokens.revoke(token)
                raise unauthorized("A fault of the sandbox: unauthorized.")
        arguments: list[Any] = list(request.path_params.values())
        if self.query is not None:
            try:
                arguments.append(self.query.model_validate(dict(request.query_params), strict=False, extra="ignore"))
            except ValidationError as problems:
                raise refusal("query", problems) from problems
        if self.body is not None:
            arguments.append(await read_json(request, _adapter(self.body)))
        result = self.act(tenant, *arguments)
        if self.answer is None:
            return Response(status_code=self.status)
        swapped = self.needs_token and tenant.faults.swaps_envelope()
        listing = result if isinstance(result, Listing) else Listing(result)
        content = _adapter(self.answer).dump_python(listing.data, mode="json", by_alias=True, exclude_unset=True)
        if self.enveloped != swapped:
            beside: Json = {"links": dict(listing.links), "meta": dict(listing.meta)}
            if self.needs_token and tenant.faults.on.all_links:
                here = f"{tenant.base_url}{request.url.path}"
                query = f"?{request.url.query}" if request.url.query else ""
                beside["links"] |= {"self": here + query, "related": here.rpartition("/")[0]}
            if self.needs_token and tenant.faults.on.meta:
                beside["meta"] |= {"sandbox": True, "note": None}
            content = {"data": content} | {name: value for name, value in beside.items() if value}
        return JSONResponse(content, self.status)


#: The query parameter of a list that says where its page begins. The link to the next page has it.
AFTER = "page[after]"


class PageQuery(WireModel):
    """The page of a list."""

    after: Whole = Field(0, ge=0, lt=2**53, alias=AFTER, description="Where the page begins, as `links.next` says.")


def page_of(tenant: Tenant, model: type[M], path: str, query: PageQuery) -> Listing[list[Any]]:
    """Return a page of records, the oldest first."""
    records, following = tenant.state.page(model, query.after, tenant.faults.on.page_size)
    pages: dict[str, int | None] = {"next": following}
    if tenant.faults.on.all_links:
        size = tenant.faults.on.page_size
        before, last = tenant.state.before(model, query.after, size), tenant.state.last(model, size)
        pages |= {"first": 0, "prev": before, "last": last}
    links = {
        name: f"{tenant.base_url}{path}?{urlencode({AFTER: after})}"
        for name, after in pages.items()
        if after is not None
    }
    return Listing(records, links=links)


#: Every operation, in the order of the modules that define them.
OPERATIONS: list[SandboxOperation] = []

F = TypeVar("F", bound=Callable[..., Any])


def operation(method: str, path: str, *, status: int = 200, enveloped: bool = True) -> Callable[[F], F]:
    """Add the decorated function to `OPERATIONS`. Its annotations give the types of query, body and answer."""

    def add(act: F) -> F:
        types = get_type_hints(act, include_extras=True)
        answer = types["return"]
        if get_origin(answer) is Listing:
            (answer,) = get_args(answer)
        answer = None if answer is type(None) else answer
        query, body = types.get("query"), types.get("body")
        OPERATIONS.append(SandboxOperation(method, path, act, status, enveloped, query, body, answer))
        return act

    return add


def routes(tenant: Tenant) -> list[Route]:
    """Return one route for each path. Starlette's `Allow` header names the methods of only one route."""

    def route(path: str) -> Route:
        methods = {operation.method: operation for operation in OPERATIONS if operation.path == path}

        async def serve(request: Request) -> Response:
            return await methods["GET" if request.method == "HEAD" else request.method].serve(tenant, request)

        # An id may hold a slash, which arrives decoded.
        return Route(path.replace("{id}", "{id:path}"), serve, methods=list(methods))

    return [route(path) for path in dict.fromkeys(operation.path for operation in OPERATIONS)]


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def document() -> Json:
    """Return the OpenAPI document of all operations."""
    definitions: Json = {}

    def schema(model: Any) -> Json:
        # In the mode "validation" a field with a default is not required. That suits answers, which carry only the
        # fields that were set.
        model_schema = _adapter(model).json_schema(ref_template="#/components/schemas/{model}")
        definitions.update(model_schema.pop("$defs", {}))
        return model_schema

    def content(model: Any, *, enveloped: bool = False) -> Json:
        model_schema = schema(model)
        if enveloped:
            links = {"type": "object", "additionalProperties": {"type": "string"}}
            properties = {"data": model_schema, "links": links, "meta": {"type": "object"}}
            model_schema = {"type": "object", "required": ["data"], "properties": properties}
        return {"content": {"application/json": {"schema": model_schema}}}

    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        path = operation.path.replace(":path}", "}")
        parameters: list[Json] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in re.findall(r"{(\w+)}", path)
        ]
        if operation.query is not None:
            properties = schema(operation.query)["properties"]
            parameters += [
                {"name": name, "in": "query", "schema": field_schema} for name, field_schema in properties.items()
            ]
        answer = {} if operation.answer is None else content(operation.answer, enveloped=operation.enveloped)
        described: Json = {
            "operationId": f"{operation.act.__module__.rpartition('.')[2]}.{operation.act.__name__}",
            "summary": str(operation.act.__doc__).partition("\n")[0],
            "parameters": parameters,
            "responses": {
                str(operation.status): {"description": "Success."} | answer,
                "default": {"description": "An error."} | content(ErrorBody),
            },
        }
        if operation.needs_token:
            described["security"] = [{"accessToken": []}]
        if operation.body is not None:
            described["requestBody"] = {"required": True} | content(operation.body)
        paths.setdefault(path, {})[operation.method.lower()] = described
    scheme = {"type": "http", "scheme": "bearer", "description": f"From POST {TOKEN_PATH}."}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Credential platform", "version": "1.0.0"},
        "paths": paths,
        "components": {"schemas": definitions, "securitySchemes": {"accessToken": scheme}},
    }
