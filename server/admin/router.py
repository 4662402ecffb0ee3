"""The table of operations: from method and path to a handler, and to the OpenAPI document.

An `Operation` says once what it takes and gives; routing, validation and the document all read it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import unquote

from pydantic import BaseModel, ValidationError

from server.admin.accounts import Role
from server.admin.web import Answer, Call, Problem, invalid

M = TypeVar("M", bound=BaseModel)


class Nothing(BaseModel, extra="forbid"):
    """No fields."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The validated parts of a call."""

    call: Call
    params: Any
    query: Any
    body: Any

    @property
    def who(self) -> str:
        return self.call.who.name if self.call.who else "-"


Handler = Callable[[Asked], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing the API can do. `answer` None means 204 (or a document of `media`)."""

    name: str
    method: str
    path: str
    summary: str
    handler: Handler
    role: Role = Role.VIEWER
    tag: str = "server"
    params: type[BaseModel] = Nothing
    query: type[BaseModel] = Nothing
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    media: str = "application/json"
    status: int = 200
    if_match: bool = False
    public: bool = False

    async def __call__(self, call: Call) -> Answer:
        asked = Asked(
            call,
            _validated(self.params, dict(call.params), 404, "path"),
            _validated(self.query, _flat(call.query, self.query), 422, "query"),
            self._read_body(call) if self.body is not None else None,
        )
        return await self.handler(asked)

    def _read_body(self, call: Call) -> BaseModel:
        assert self.body is not None
        kind = call.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Problem(415, "Send the body as application/json.")
        try:
            # Strict: `false` is no number and "5" neither, whatever the form's fields may be.
            return self.body.model_validate_json(call.body, strict=True)
        except ValidationError as error:
            if any(fault["type"] == "json_invalid" for fault in error.errors()):
                raise Problem(400, "The body is not valid JSON.") from None
            raise invalid(error, self.body, where="body") from None


def _flat(query: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Query fields as single values; a repeated one is a fault for the model to name."""
    return {name: values[0] if len(values) == 1 else values for name, values in query.items()}


def _validated(model: type[M], values: Mapping[str, Any], status: int, where: str) -> M:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise invalid(error, model, status, where) from None


class Routed(Protocol):
    """What a router can find: pages and operations."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...


R = TypeVar("R", bound=Routed)


@dataclass(slots=True)
class Router(Generic[R]):
    """Finds what answers a method and path. `{word}` in a path stands for one segment."""

    _exact: dict[str, dict[str, R]] = field(default_factory=dict)
    _patterns: list[tuple[tuple[str, ...], dict[str, R]]] = field(default_factory=list)
    routes: list[R] = field(default_factory=list)

    def add(self, routes: Iterable[R]) -> None:
        for operation in routes:
            self.routes.append(operation)
            if "{" not in operation.path:
                self._exact.setdefault(operation.path, {})[operation.method] = operation
                continue
            words = tuple(operation.path.split("/"))
            for known, methods in self._patterns:
                if known == words:
                    methods[operation.method] = operation
                    break
            else:
                self._patterns.append((words, {operation.method: operation}))

    def find(self, method: str, path: str) -> tuple[R, dict[str, str]]:
        """The route and its path parameters; raises Problem 404 or 405."""
        methods, params = self._methods(path)
        if not methods:
            raise Problem(404, f"There is nothing at {path}.")
        wanted = "GET" if method == "HEAD" else method
        operation = methods.get(wanted)
        if operation is None:
            allowed = sorted({*methods, *(("HEAD",) if "GET" in methods else ())})
            raise Problem(
                405,
                f"{method} is not possible here; {', '.join(allowed)} is.",
                headers=(("allow", ", ".join(allowed)),),
            )
        return operation, params

    def _methods(self, path: str) -> tuple[Mapping[str, R], dict[str, str]]:
        if path in self._exact:
            return self._exact[path], {}
        words = path.split("/")
        for pattern, methods in self._patterns:
            if len(pattern) != len(words):
                continue
            params: dict[str, str] = {}
            for wanted, got in zip(pattern, words, strict=True):
                if wanted.startswith("{"):
                    params[wanted[1:-1]] = unquote(got, errors="replace")
                elif wanted != got:
                    break
            else:
                return methods, params
        return {}, {}


def openapi(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these operations."""
    schemas: dict[str, Any] = {"Problem": _PROBLEM_SCHEMA}
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(
            operation, schemas
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate administration",
            "version": version,
            "description": "Everything the administration pages can do. Rates are bytes per "
            "second, sizes bytes, times Unix seconds.",
        },
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "tidegate-admin"},
            },
        },
    }


_PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "What went wrong (RFC 9457); `errors` names each bad field with its bounds.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}


def _described(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    problem = {
        "description": "A problem document.",
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        },
    }
    good: dict[str, Any] = {"description": "Done."}
    if operation.answer is not None:
        good["content"] = {operation.media: {"schema": _reference(operation.answer, schemas)}}
    elif operation.status != 204:
        good["content"] = {operation.media: {"schema": {"type": "string"}}}
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"{operation.summary} Needs the role {operation.role}.",
        "tags": [operation.tag],
        "parameters": [
            *_parameters(operation.params, "path", schemas),
            *_parameters(operation.query, "query", schemas),
        ],
        "responses": {str(operation.status): good, "4XX": problem, "503": problem},
    }
    if operation.if_match:
        found["parameters"].append(
            {
                "name": "If-Match",
                "in": "header",
                "required": True,
                "description": "The ETag of the settings you have read; 412 when they changed.",
                "schema": {"type": "string"},
            }
        )
    if operation.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _reference(operation.body, schemas)}},
        }
    if operation.public:
        found["security"] = []
    return found


def _parameters(
    model: type[BaseModel], where: str, schemas: dict[str, Any]
) -> list[dict[str, Any]]:
    schema = _own_schema(model, schemas)
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "in": where,
            "required": where == "path" or name in required,
            "description": rules.get("description", ""),
            "schema": {key: value for key, value in rules.items() if key != "description"},
        }
        for name, rules in schema.get("properties", {}).items()
    ]


def _reference(model: type[BaseModel], schemas: dict[str, Any]) -> dict[str, str]:
    if model.__name__ not in schemas:
        schemas[model.__name__] = {}
        schemas[model.__name__] = _own_schema(model, schemas)
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _own_schema(model: type[BaseModel], schemas: dict[str, Any]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    for name, nested in schema.pop("$defs", {}).items():
        schemas.setdefault(name, nested)
    found: dict[str, Any] = json.loads(json.dumps(schema))
    return found
