"""Pages and operations: declared where they are written, found by method and path.

`@pages.get("/queue")` declares a page, `@api.get("/downloads")` an operation of the JSON API. The
signature says what is taken (`path`, `query`, `body`: models) and what is given; an operation's
docstring is its summary. Validation and the OpenAPI document (`openapi`) read both.

A form does what an operation does: `@pages.post("/queue/block", then="/queue")` stands over the
operation itself, reads the same models from the form's fields and leads to `then`. What is refused
goes back to the page `again`, which shows the fault beside what was typed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any, Protocol, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import unquote

from pydantic import BaseModel, TypeAdapter, ValidationError

from ...policies.settings import one_line
from ..accounts.accounts import Scope
from ..accounts.sessions import COOKIE
from ..control.problems import Problem, invalid
from ..http.cookies import host_name
from .web import Answer, Call, json_answer, redirect

Handler = Callable[..., Awaitable[Any]]
H = TypeVar("H", bound=Handler)
API_ROOT = "/api/v1"


class Asked(Protocol):
    """What a handler is given: a call, and what is needed to answer it (`app.HandlerCall`)."""

    @property
    def call(self) -> Call:
        """The call."""

    @property
    def zone(self) -> tzinfo:
        """Where the person who asks reads the clock."""

    def refused(self, problem: Problem) -> Asked:
        """The same, to show the page of its form again."""


class Nothing(BaseModel, extra="forbid"):
    """No fields."""


@dataclass(frozen=True, slots=True)
class Route:
    """What answers one method and path; `scope` is what it needs, unless it is `public`.

    `own_account` pages are open to those who must choose a password first. `then` and `again` are
    for forms: where to go when it is done, and the page that is shown when it is refused.
    The rest is for operations of the API, which have a `tag`: `answer` None means 204 (or `media`).
    """

    method: str
    path: str
    handler: Handler
    scope: Scope = Scope.READ
    public: bool = False
    own_account: bool = False
    then: str = ""
    again: Handler | None = None
    tag: str = ""
    answer: type | None = None
    media: str = "application/json"
    status: int = 200
    if_match: bool = False

    async def __call__(self, ask: Asked) -> Answer:
        try:
            found = await self.handler(ask, **self._given(ask))
        except Problem as problem:
            if self.again is None:
                raise
            found = await self.again(ask.refused(problem), **_read(ask, self.again, _lenient))
        else:
            found = redirect(self.then) if self.then else found
        if isinstance(found, Answer):
            return found
        return Answer(204) if found is None else json_answer(found, self.status)

    @property
    def name(self) -> str:
        """What the document calls the operation."""
        first, *rest = self.handler.__name__.rstrip("_").split("_")
        return first + "".join(word.title() for word in rest)

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.handler) or "").partition("\n")[0]

    def takes(self, name: str) -> type[BaseModel]:
        """The model of the handler's `path`, `query` or `body`."""
        found: type[BaseModel] = _hints(self.handler).get(name, Nothing)
        return found

    def _given(self, ask: Asked) -> dict[str, BaseModel]:
        if not self.tag:
            return _read(ask, self.handler, _form if self.method == "POST" else _lenient)
        given = {
            "path": _validated(self.takes("path"), dict(ask.call.params), 404, "path"),
            "query": _validated(self.takes("query"), _flat(ask.call.query), 422, "query"),
        }
        if self.takes("body") is not Nothing:
            given["body"] = _read_body(self.takes("body"), ask.call)
        return {name: model for name, model in given.items() if type(model) is not Nothing}


class Routes:
    """Collects the routes of a module: pages, or with a `tag` operations of the API.

    What changes something needs the module's scope, what is looked at the scope read, unless
    `scope` says otherwise.
    """

    def __init__(self, scope: Scope = Scope.READ, tag: str = "") -> None:
        self.routes: list[Route] = []
        self._scope = scope
        self._tag = tag

    def get(self, path: str, **options: Any) -> Callable[[H], H]:
        return self._add("GET", path, {"scope": Scope.READ, **options})

    def post(self, path: str, **options: Any) -> Callable[[H], H]:
        return self._add("POST", path, options)

    def put(self, path: str, **options: Any) -> Callable[[H], H]:
        return self._add("PUT", path, options)

    def patch(self, path: str, **options: Any) -> Callable[[H], H]:
        return self._add("PATCH", path, options)

    def delete(self, path: str, **options: Any) -> Callable[[H], H]:
        return self._add("DELETE", path, options)

    def _add(self, method: str, path: str, options: dict[str, Any]) -> Callable[[H], H]:
        def declare(handler: H) -> H:
            given, place = {"scope": self._scope, **options}, path
            if self._tag:
                place = API_ROOT + path
                answer = given.get("answer", _hints(handler).get("return"))
                given["answer"] = None if answer in (Answer, type(None)) else answer
                status = 204 if answer is type(None) else 200
                given = {"tag": self._tag, "status": status, **given}
            self.routes.append(Route(method, place, handler, **given))
            return handler

        return declare


@functools.cache
def _hints(handler: Handler) -> dict[str, Any]:
    return get_type_hints(handler)


def _read(
    ask: Asked, handler: Handler, read: Callable[[Asked, type[BaseModel]], BaseModel]
) -> dict[str, BaseModel]:
    """What a page takes: `read` finds its query or its form, the path is strict."""
    wanted = _hints(handler)
    given = {name: read(ask, wanted[name]) for name in wanted if name in ("query", "body")}
    if "path" in wanted:
        given["path"] = _validated(wanted["path"], dict(ask.call.params), 404, "path")
    return given


def _form(ask: Asked, model: type[BaseModel]) -> BaseModel:
    """The form's fields and what stands in the path as a model. Raises Problem 422.

    An empty field is null where that is allowed, else the default; a secret (a field that no
    `repr` shows) is taken as it was typed, blanks and all. Times are in the person's zone.
    """
    call = ask.call
    values: dict[str, Any] = {n: v for n, v in call.params.items() if n in model.model_fields}
    for name, known in model.model_fields.items():
        kinds = (known.annotation, *get_args(known.annotation))
        text = call.field(name) if known.repr else call.raw(name)
        if any(get_origin(kind) is list for kind in kinds) and name in call.form:
            values[name] = [value.decode("utf-8", "replace") for value in call.form[name]]
        elif text:
            values[name] = text
        elif name in call.form and type(None) in kinds:
            values[name] = None
    try:
        return model.model_validate(values, context=ask.zone)
    except ValidationError as error:
        raise invalid(error, model) from None


def _lenient(ask: Asked, model: type[BaseModel]) -> BaseModel:
    """The query of a page as a model; what does not fit it is left out."""
    values = {name: found[0].strip() for name, found in ask.call.query.items()}
    try:
        return model.model_validate(values, extra="ignore", context=ask.zone)
    except ValidationError as error:
        bad = {str(fault["loc"][0]) for fault in error.errors()}
        left = {name: value for name, value in values.items() if name not in bad}
        return model.model_validate(left, extra="ignore", context=ask.zone)


def _flat(query: Mapping[str, Any]) -> dict[str, Any]:
    """Query fields as single values; a repeated one is a fault for the model to name."""
    return {name: values[0] if len(values) == 1 else values for name, values in query.items()}


def _validated(
    model: type[BaseModel], values: Mapping[str, Any], status: int, where: str
) -> BaseModel:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise invalid(error, model, status, where) from None


def _read_body(model: type[BaseModel], call: Call) -> BaseModel:
    kind = call.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, "Send the body as application/json.")
    try:
        # Strict: `false` is no number and "5" neither, whatever the form's fields may be.
        return model.model_validate_json(call.body, strict=True)
    except ValidationError as error:
        if any(fault["type"] == "json_invalid" for fault in error.errors()):
            raise Problem(400, "The body is not valid JSON.") from None
        raise invalid(error, model, where="body") from None


@dataclass(slots=True)
class Router:
    """Finds what answers a method and path. `{word}` in a path stands for one segment."""

    routes: list[Route] = field(default_factory=list)
    _exact: dict[str, dict[str, Route]] = field(default_factory=dict)
    _patterns: dict[tuple[str, ...], dict[str, Route]] = field(default_factory=dict)

    def add(self, routes: list[Route]) -> None:
        """Take these up; of two patterns that fit, the first one given counts."""
        for route in routes:
            self.routes.append(route)
            if "{" in route.path:
                words = tuple(route.path.split("/"))
                self._patterns.setdefault(words, {})[route.method] = route
            else:
                self._exact.setdefault(route.path, {})[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route and its path parameters; raises Problem 404 or 405."""
        methods, params = self._methods(path)
        if not methods:
            raise Problem(404, f"There is nothing at {path}.")
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(sorted({*methods, *(("HEAD",) if "GET" in methods else ())}))
            told = f"{method} is not possible here; {allowed} is."
            raise Problem(405, told, headers=(("allow", allowed),))
        return route, params

    def _methods(self, path: str) -> tuple[Mapping[str, Route], dict[str, str]]:
        if path in self._exact:
            return self._exact[path], {}
        words = path.split("/")
        for pattern, methods in self._patterns.items():
            if len(pattern) != len(words):
                continue
            pairs = list(zip(pattern, words, strict=True))
            if all(want == got or want.startswith("{") for want, got in pairs):
                return methods, {
                    want[1:-1]: unquote(got, errors="replace")
                    for want, got in pairs
                    if want.startswith("{")
                }
        return {}, {}


# -- the OpenAPI 3.1 document, from what the operations declare --------------------------------


def openapi(routes: Iterable[Route], version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    models: dict[type, None] = {ProblemOut: None}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _described(route)
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
