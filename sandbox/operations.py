"""Operations as data. The server routes them and the OpenAPI documents describe them, so the two agree."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema, to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from credhook.sandbox.access import REALM, TOKEN_PATH, unauthorized
from credhook.sandbox.tenant import Tenant
from credhook.sandbox.wire import ErrorBody, ErrorPlace, SandboxError, WireModel, read_json

T = TypeVar("T")
Json = dict[str, Any]

#: Version of the platform's API description (specification, "Versioning").
API_VERSION = "1.0.0"


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

    @property
    def documented_path(self) -> str:
        """Return the path as OpenAPI writes it."""
        return self.path.replace(":path}", "}")

    async def serve(self, tenant: Tenant, request: Request) -> Response:
        """Answer a request, or raise the `SandboxError` that refuses it."""
        if self.needs_token:
            await tenant.faults.disturb(tenant.now().timestamp())
            token = tenant.tokens.check(request.headers.get("authorization"))
            if tenant.faults.take("unauthorized"):
                tenant.tokens.revoke(token)
                raise unauthorized("A fault of the sandbox: unauthorized.")
        arguments: list[Any] = list(request.path_params.values())
        if self.query is not None:
            arguments.append(_parse_query(request, self.query))
        if self.body is not None:
            arguments.append(await read_json(request, _adapter(self.body)))
        result = self.act(tenant, *arguments)
        if self.answer is None:
            return Response(status_code=self.status)
        swapped = self.needs_token and tenant.faults.swaps_envelope()
        found = result if isinstance(result, Listing) else Listing(result)
        content: Any = _plain(found.data)
        if self.enveloped != swapped:
            beside = {"links": dict(found.links), "meta": dict(found.meta)}
            content = {"data": content} | {name: value for name, value in beside.items() if value}
        return Response(to_json(content), self.status, media_type="application/json")


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
        answer = None if answer is NoneType else answer
        query, body = types.get("query"), types.get("body")
        OPERATIONS.append(SandboxOperation(method, path, act, status, enveloped, query, body, answer))
        return act

    return add


def routes(tenant: Tenant) -> list[Route]:
    """Return one route for each path, for all its methods. Starlette answers 405 only within one route."""
    paths: dict[str, dict[str, SandboxOperation]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = operation

    def route(path: str, methods: Mapping[str, SandboxOperation]) -> Route:
        async def serve(request: Request) -> Response:
            return await methods["GET" if request.method == "HEAD" else request.method].serve(tenant, request)

        return Route(path, serve, methods=list(methods))

    return [route(path, methods) for path, methods in paths.items()]


def _parse_query(request: Request, model: type[WireModel]) -> WireModel:
    try:
        return model.model_validate(dict(request.query_params), strict=False, extra="ignore")
    except ValidationError as problems:
        first = problems.errors(include_url=False, include_input=False, include_context=False)[0]
        raise SandboxError(400, first["msg"], source=ErrorPlace(parameter=str(first["loc"][0]))) from problems


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _plain(value: Any) -> Any:
    if isinstance(value, WireModel):
        return value.plain()
    return [_plain(element) for element in value] if isinstance(value, list) else value


def document(title: str, operations: Sequence[SandboxOperation]) -> Json:
    """Return the OpenAPI document of some operations."""
    schemas, definitions = _schemas(operations)
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.documented_path, {})[operation.method.lower()] = _described(
            operation, schemas, definitions
        )
    scheme = {"type": "http", "scheme": "bearer", "description": f"From POST {TOKEN_PATH.format(realm=REALM)}."}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": API_VERSION},
        "paths": paths,
        "components": {"schemas": definitions, "securitySchemes": {"accessToken": scheme}},
    }


class _SchemaGenerator(GenerateJsonSchema):
    """Leaves out titles that repeat a name, and the null that stands for an absent field."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  Overridden.
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        found = super().default_schema(schema)
        return {name: value for name, value in found.items() if (name, value) != ("default", None)}


def _schemas(operations: Iterable[SandboxOperation]) -> tuple[dict[str, Json], Json]:
    """Return the schema of each type by its text, and the definitions that the schemas share.

    By text, because an annotated union has no other identity that lasts. In the mode "validation" a field with a
    default is not required, which holds for answers too: they carry the fields that were set.
    """
    types = {repr(ErrorBody): ErrorBody}
    for operation in operations:
        types |= {repr(each): each for each in (operation.answer, operation.body, operation.query) if each}
    found, shared = TypeAdapter.json_schemas(
        [(key, "validation", _adapter(each)) for key, each in types.items()],
        ref_template="#/components/schemas/{model}",
        schema_generator=_SchemaGenerator,
    )
    return {key: schema for (key, _), schema in found.items()}, shared["$defs"]


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _described(operation: SandboxOperation, schemas: dict[str, Json], definitions: Json) -> Json:
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", operation.documented_path)
    ]
    described: Json = {
        "operationId": f"{operation.act.__module__.rpartition('.')[2]}.{operation.act.__name__}",
        "summary": str(operation.act.__doc__).partition("\n")[0],
        "parameters": parameters,
    }
    if operation.needs_token:
        described["security"] = [{"accessToken": []}]
    if operation.query is not None:
        properties = definitions[operation.query.__name__]["properties"]
        parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(schemas[repr(operation.body)])}
    refusal = {"description": "An error.", "content": _json(schemas[repr(ErrorBody)])}
    described["responses"] = {str(operation.status): _success(operation, schemas), "default": refusal}
    return described


def _success(operation: SandboxOperation, schemas: dict[str, Json]) -> Json:
    if operation.answer is None:
        return {"description": "Done; there is no body."}
    schema = schemas[repr(operation.answer)]
    if operation.enveloped:
        links = {"type": "object", "additionalProperties": {"type": "string"}}
        properties = {"data": schema, "links": links, "meta": {"type": "object"}}
        schema = {"type": "object", "required": ["data"], "properties": properties}
    return {"description": "Success.", "content": _json(schema)}
