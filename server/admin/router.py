"""Pages and operations: declared where they are written, found by method and path.

`@pages.get("/queue")` declares a page, `@api.get("/downloads")` an operation of the JSON API. An
operation's signature says what it takes (`path`, `query`, `body`: models) and what it gives;
its docstring is its summary. Validation and the OpenAPI document (`openapi`) read both.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, get_type_hints
from urllib.parse import unquote

from pydantic import BaseModel, ValidationError

from server.admin.accounts import Scope
from server.admin.web import Answer, Call, Problem, invalid, json_answer

H = TypeVar("H", bound=Callable[..., Awaitable[Any]])
API_ROOT = "/api/v1"


class Asked(Protocol):
    """What a handler is given: a call, and what is needed to answer it (`app.HandlerCall`)."""

    @property
    def call(self) -> Call:
        """The call."""
        ...


class Nothing(BaseModel, extra="forbid"):
    """No fields."""


@dataclass(frozen=True, slots=True)
class Described:
    """What an operation takes and gives. `answer` None means 204 (or a document of `media`)."""

    name: str
    summary: str
    tag: str
    path: type[BaseModel] = Nothing
    query: type[BaseModel] = Nothing
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    media: str = "application/json"
    status: int = 200
    if_match: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """What answers one method and path; `scope` is what it needs, unless it is `public`.

    `own_account` pages are open to those who must choose a password first.
    """

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    scope: Scope = Scope.READ
    public: bool = False
    own_account: bool = False
    operation: Described | None = None

    async def __call__(self, ask: Asked) -> Answer:
        what = self.operation
        if what is None:
            found = await self.handler(ask)
            assert isinstance(found, Answer)
            return found
        call, given = ask.call, {}
        path = _validated(what.path, dict(call.params), 404, "path")
        query = _validated(what.query, _flat(call.query), 422, "query")
        if what.path is not Nothing:
            given["path"] = path
        if what.query is not Nothing:
            given["query"] = query
        if what.body is not None:
            given["body"] = _read_body(what.body, call)
        result = await self.handler(ask, **given)
        if isinstance(result, Answer):
            return result
        return Answer(204) if result is None else json_answer(result, what.status)


class PageRoutes:
    """Collects the pages of a module."""

    def __init__(self, scope: Scope = Scope.READ) -> None:
        self.routes: list[Route] = []
        self._scope = scope

    def get(self, path: str, **options: Any) -> Callable[[H], H]:
        """A page that is looked at; needs the scope read unless `scope` says otherwise."""
        return self._add("GET", path, {"scope": Scope.READ, **options})

    def post(self, path: str, **options: Any) -> Callable[[H], H]:
        """A form that is sent; needs the module's scope."""
        return self._add("POST", path, {"scope": self._scope, **options})

    def _add(self, method: str, path: str, options: dict[str, Any]) -> Callable[[H], H]:
        def declare(handler: H) -> H:
            self.routes.append(Route(method, path, handler, **options))
            return handler

        return declare


class Operations:
    """Collects the operations of a module; what changes something needs the module's scope."""

    def __init__(self, tag: str, scope: Scope = Scope.READ) -> None:
        self.routes: list[Route] = []
        self._tag = tag
        self._scope = scope

    def get(self, path: str, **options: Any) -> Callable[[H], H]:
        """Reads; needs the scope read."""
        return self._add("GET", path, {"scope": Scope.READ, **options})

    def post(self, path: str, **options: Any) -> Callable[[H], H]:
        """Acts."""
        return self._add("POST", path, options)

    def put(self, path: str, **options: Any) -> Callable[[H], H]:
        """Replaces."""
        return self._add("PUT", path, options)

    def patch(self, path: str, **options: Any) -> Callable[[H], H]:
        """Changes single fields."""
        return self._add("PATCH", path, options)

    def delete(self, path: str, **options: Any) -> Callable[[H], H]:
        """Ends or removes."""
        return self._add("DELETE", path, options)

    def _add(self, method: str, path: str, options: dict[str, Any]) -> Callable[[H], H]:
        scope = options.pop("scope", self._scope)
        public = options.pop("public", False)

        def declare(handler: H) -> H:
            hints = get_type_hints(handler)
            answer = options.pop("answer", hints.get("return"))
            model = isinstance(answer, type) and issubclass(answer, BaseModel)
            what = Described(
                name=_camel(handler.__name__.rstrip("_")),
                summary=(inspect.getdoc(handler) or "").partition("\n")[0],
                tag=options.pop("tag", self._tag),
                path=hints.get("path", Nothing),
                query=hints.get("query", Nothing),
                body=hints.get("body"),
                answer=answer if model else None,
                status=options.pop("status", 204 if answer is type(None) else 200),
                **options,
            )
            self.routes.append(
                Route(method, API_ROOT + path, handler, scope, public, operation=what)
            )
            return handler

        return declare


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


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
