"""The OpenAPI 3.1 document, from what the operations declare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, TypeAdapter

from ...policies.settings import one_line
from ..accounts.proofs import COOKIE
from ..http.cookies import host_name
from .router import Nothing, Route


def openapi(routes: Iterable[Route], version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    models: dict[type, None] = {ProblemOut: None}
    for route in routes:
        methods = paths.setdefault(route.path, {})
        methods[route.method.lower()] = _described(route)
        models |= dict.fromkeys(one for one in (route.takes("body"), route.answer) if one)
    models.pop(Nothing, None)
    _, schemas = TypeAdapter.json_schemas(
        [(one, "validation", TypeAdapter(one)) for one in models], ref_template=_place("{model}")
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
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": COOKIE,
                    "description": f"Over TLS `{host_name(COOKIE, secure=True)}`.",
                },
            },
        },
    }


class BadField(BaseModel):
    field: str
    message: str


class ProblemOut(BaseModel):
    """What went wrong (RFC 9457); `errors` names each bad field with its bounds."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[BadField] = []


def _described(route: Route) -> dict[str, Any]:
    problem = {
        "description": "A problem document.",
        "content": {"application/problem+json": {"schema": _reference(ProblemOut)}},
    }
    good: dict[str, Any] = {"description": "Done."}
    if route.answer is not None:
        good["content"] = {route.media: {"schema": _reference(route.answer)}}
    elif route.status != 204:
        kind = "object" if route.media == "application/json" else "string"
        good["content"] = {route.media: {"schema": {"type": kind}}}
    needs = "" if route.public else f" Needs the scope {route.scope}."
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "description": f"{route.summary}{needs}",
        "tags": [route.tag],
        "parameters": [
            *_parameters(route.takes("path"), "path"),
            *_parameters(route.takes("query"), "query"),
        ],
        "responses": {str(route.status): good, "414": problem, "4XX": problem, "503": problem},
    }
    if route.if_match:
        found["responses"]["412"] = problem
        found["parameters"].append(
            {
                "name": "If-Match",
                "in": "header",
                "required": True,
                "description": "The ETag of the settings you have read; 412 when they changed.",
                "schema": {"type": "string"},
            }
        )
    body = route.takes("body")
    if body is not Nothing:
        found["responses"]["413"] = problem
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _reference(body)}},
        }
    if route.public:
        found["security"] = []
    return found


def _parameters(model: type[BaseModel], where: str) -> list[dict[str, Any]]:
    schema = model.model_json_schema()
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "in": where,
            "required": where == "path" or name in required,
            "description": one_line(rules.get("description")),
            "schema": {key: value for key, value in rules.items() if key != "description"},
        }
        for name, rules in schema.get("properties", {}).items()
    ]


def _place(model: str) -> str:
    """Where the document has the schema of a model."""
    return f"#/components/schemas/{model}"


def _reference(model: type) -> dict[str, str]:
    return {"$ref": _place(model.__name__)}
