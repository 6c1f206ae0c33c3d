"""OpenAPI documents, made from the same operations and models that serve the requests."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import TypeAdapter

from credhook.sandbox.http import tokens
from credhook.sandbox.http.body import FORM
from credhook.sandbox.http.errors import CODES, Errors
from credhook.sandbox.tenant.operations import Operation

#: Version of the platform's API description (specification, "Versioning").
VERSION = "1.0.0"

BEARER = "accessToken"

#: What any operation may answer: a guard's refusal, and a defect.
ALWAYS = (403, 500)
#: What any operation of the platform may answer besides.
WITH_TOKEN = (401, 429)
#: What any operation with a body may answer besides.
WITH_BODY = (400, 413, 415)

HEADERS = {
    401: {"WWW-Authenticate": {"schema": {"const": "Bearer"}}},
    429: {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}},
}

Json = dict[str, Any]


def document(title: str, operations: Sequence[Operation]) -> Json:
    """Return the OpenAPI document of some operations; and of where access tokens come from, if they need one."""
    schemas = _Schemas([Errors, *_types(operations)])
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.documented_path, {})[operation.method.lower()] = _operation(operation, schemas)
    if any(operation.needs_token for operation in operations):
        paths[tokens.PATH] = {"post": _token_endpoint()}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": schemas.definitions,
            "securitySchemes": {
                BEARER: {
                    "type": "http",
                    "scheme": "bearer",
                    "description": f"POST {tokens.PATH.format(realm=tokens.REALM)} hands out tokens.",
                }
            },
        },
    }


class _Schemas:
    """The JSON schemas of some types, which share their definitions."""

    def __init__(self, types: Iterable[Any]) -> None:
        # By text, because an annotated union has no other identity that lasts.
        adapters = {repr(each): TypeAdapter(each) for each in types}
        # Validation is the mode in which a field without default is required and one with a default is not, which
        # holds for answers too: they carry what was set.
        found, shared = TypeAdapter.json_schemas(
            [(key, "validation", adapter) for key, adapter in adapters.items()],
            ref_template="#/components/schemas/{model}",
        )
        self._schemas = {key: _tidy(schema) for (key, _), schema in found.items()}
        self.definitions = _tidy(shared.get("$defs", {}))

    def of(self, each: Any) -> Json:
        """Return the schema of a type."""
        schema: Json = self._schemas[repr(each)]
        return schema


def _types(operations: Iterable[Operation]) -> list[Any]:
    return [
        each
        for operation in operations
        for each in (operation.answer, operation.body, operation.query)
        if each is not None
    ]


def _tidy(schema: Any) -> Any:
    """Drop the titles that repeat a name, and the null that stands for a field left out."""
    if isinstance(schema, dict):
        return {
            key: _tidy(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str)) and not (key == "default" and value is None)
        }
    return [_tidy(each) for each in schema] if isinstance(schema, list) else schema


def _operation(operation: Operation, schemas: _Schemas) -> Json:
    described: Json = {
        "operationId": f"{operation.act.__module__.rpartition('.')[2]}.{operation.act.__name__.rstrip('_')}",
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation.documented_path), *_query_parameters(operation, schemas)],
        "responses": {str(operation.status): _success(operation, schemas)}
        | {str(status): _refusal(status, schemas) for status in _refusals(operation)},
    }
    if operation.needs_token:
        described["security"] = [{BEARER: []}]
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(schemas.of(operation.body))}
    return described


def _refusals(operation: Operation) -> list[int]:
    """Return the statuses, other than success, that an operation may answer with."""
    return sorted(
        {
            *operation.refusals,
            *ALWAYS,
            *(WITH_TOKEN if operation.needs_token else ()),
            *(WITH_BODY if operation.body is not None else ()),
            *((400,) if operation.query is not None else ()),
        }
    )


def _success(operation: Operation, schemas: _Schemas) -> Json:
    if operation.answer is None:
        return {"description": "Done; there is no body."}
    schema = schemas.of(operation.answer)
    return {"description": "Success.", "content": _json(_envelope(schema) if operation.enveloped else schema)}


def _envelope(data: Json) -> Json:
    """Return the schema of the envelope around `data` (specification, "Response envelope")."""
    link = {"type": "string"}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {
            "data": data,
            "links": {"type": "object", "additionalProperties": link},
            "meta": {"type": "object"},
        },
    }


def _refusal(status: int, schemas: _Schemas) -> Json:
    refusal: Json = {"description": CODES[status][1], "content": _json(schemas.of(Errors))}
    return refusal | ({"headers": HEADERS[status]} if status in HEADERS else {})


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _path_parameters(path: str) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(operation: Operation, schemas: _Schemas) -> list[Json]:
    if operation.query is None:
        return []
    schema = schemas.of(operation.query)
    schema = schemas.definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return [{"name": name, "in": "query", "schema": each} for name, each in schema["properties"].items()]


def _token_endpoint() -> Json:
    text = {"type": "string"}
    refused = _json(
        {
            "type": "object",
            "required": ["error"],
            "properties": {"error": text, "error_description": text},
        }
    )
    said = {"type": "string", "minLength": 1}
    fields = {"grant_type": {"const": "client_credentials"}, "client_id": said, "client_secret": said}
    granted = {
        "access_token": text,
        "expires_in": {"const": tokens.LIFETIME},
        "refresh_expires_in": {"const": 0},
        "token_type": {"const": "Bearer"},
        "not-before-policy": {"const": 0},
        "scope": text,
    }
    # Other fields are let pass, each once: RFC 6749, section 3.2, forbids repeating any.
    form = {"type": "object", "required": list(fields), "properties": fields, "additionalProperties": text}
    return {
        "operationId": "tokens.grant",
        "summary": "Exchange client credentials for an access token.",
        "parameters": _path_parameters(tokens.PATH),
        "requestBody": {"required": True, "content": {FORM: {"schema": form}}},
        "responses": {
            "200": {
                "description": "A token.",
                "content": _json({"type": "object", "required": list(granted), "properties": granted}),
            },
            "400": {"description": "The form is wrong.", "content": refused},
            "401": {"description": "The client is unknown.", "content": refused},
            "403": {"description": CODES[403][1]},
            "404": {"description": "The realm is unknown.", "content": refused},
            "413": {"description": CODES[413][1]},
        },
    }
