"""One request and its answer, free of Twisted; and the faults that become problem documents.

A handler is a coroutine from `Call` to `Answer`. `server.admin.resource` joins this to sockets, so
every page and every operation can be tried without one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from protocol.errors import ProtocolError
from server.admin.accounts import Role, Session, User

PROBLEM = "application/problem+json"
_TITLES = {
    400: "Bad request",
    401: "Log in first",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    412: "Changed meanwhile",
    413: "Too large",
    415: "Unsupported media type",
    422: "Invalid value",
    428: "Condition required",
    429: "Too many tries",
    500: "Server fault",
    503: "Not available now",
}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: a user's session, or an API token (then `session` is None)."""

    name: str
    role: Role
    user: User | None = None
    session: Session | None = None
    form_token: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One request as handlers see it. Header names are lower case."""

    method: str
    path: str
    now: float
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    body: bytes = b""
    peer: str = ""
    secure: bool = False
    who: Principal | None = None
    params: Mapping[str, str] = field(default_factory=dict)

    def arg(self, name: str, default: str = "") -> str:
        """The first value of a query field."""
        values = self.query.get(name)
        return values[0] if values else default

    def field(self, name: str, default: str = "") -> str:
        """The first value of a form field, as text."""
        values = self.form.get(name)
        return values[0].decode("utf-8", "replace").strip() if values else default

    def number(self, name: str, default: int, lowest: int, highest: int) -> int:
        """A query field as a number within bounds; whatever is not one is the default."""
        try:
            return min(highest, max(lowest, int(self.arg(name, str(default)))))
        except ValueError:
            return default

    @property
    def cookies(self) -> dict[str, str]:
        pairs = (part.strip().partition("=") for part in self.headers.get("cookie", "").split(";"))
        return {name: value for name, _, value in pairs if name}

    @property
    def wants_part(self) -> bool:
        """Whether htmx asks for a part of the page only."""
        return self.headers.get("hx-request") == "true"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; `follow` makes it an endless stream of events instead of `body`."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    follow: Callable[[], bytes] | None = None


class Problem(Exception):
    """An answer that is not the one wished for, as RFC 9457 has it.

    `errors` names each bad field with its bound: dicts of field, message and, where there are
    some, minimum, maximum, unit and allowed.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: str = "",
        errors: Sequence[Mapping[str, Any]] = (),
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code or _TITLES.get(status, "fault").lower().replace(" ", "-")
        self.errors = tuple(errors)
        self.headers = tuple(headers)

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "type": f"https://tidegate.invalid/problems/{self.code}",
            "title": _TITLES.get(self.status, "Fault"),
            "status": self.status,
            "detail": self.detail,
        }
        if self.errors:
            found["errors"] = [dict(error) for error in self.errors]
        return found

    def answer(self) -> Answer:
        headers = (("content-type", PROBLEM), *self.headers)
        return Answer(self.status, json.dumps(self.document()).encode(), headers)


def problem_of(error: ProtocolError) -> Problem:
    """Malformed input as a problem document."""
    return Problem(error.status, str(error), code=error.code)


def invalid(
    error: ValidationError, model: type[BaseModel], status: int = 422, where: str = ""
) -> Problem:
    """What pydantic found, field by field, each with the bounds that hold for it."""
    properties = model.model_json_schema().get("properties", {})
    errors = [
        field_error(fault["loc"], fault["msg"], properties, where)
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    first = errors[0]
    detail = f"{first['field']}: {first['message']}" if first["field"] else str(first["message"])
    return Problem(status, detail, code="invalid-value", errors=errors)


def field_error(
    loc: Sequence[int | str], message: str, properties: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """One field's fault as the problem document carries it."""
    words = [str(part) for part in loc]
    # Messages of our own validators come prefixed; the reader does not care whose fault it is.
    found: dict[str, Any] = {
        "field": ".".join(words),
        "message": message.removeprefix("Value error, "),
    }
    if where:
        found["in"] = where
    for rule in _rules(properties.get(words[0], {})) if words else ():
        found.update(rule)
    return found


def _rules(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = {
        "minimum": "minimum",
        "exclusiveMinimum": "above",
        "maximum": "maximum",
        "exclusiveMaximum": "below",
        "minLength": "shortest",
        "maxLength": "longest",
        "unit": "unit",
        "enum": "allowed",
    }
    found = [{names[key]: value} for key, value in schema.items() if key in names]
    for option in schema.get("anyOf", ()):
        found.extend(_rules(option))
    return found


def json_answer(value: BaseModel, status: int = 200, *headers: tuple[str, str]) -> Answer:
    body = value.model_dump_json().encode()
    return Answer(status, body, (("content-type", "application/json"), *headers))


def redirect(to: str, *headers: tuple[str, str]) -> Answer:
    """See other: the way on after every form that was sent."""
    return Answer(303, b"", (("location", to), *headers))


def html(text: str, status: int = 200, *headers: tuple[str, str]) -> Answer:
    return Answer(status, text.encode(), (("content-type", "text/html; charset=utf-8"), *headers))
