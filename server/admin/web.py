"""One request and its answer, free of sockets; and the faults that become problem documents.

A handler is a coroutine from `HandlerCall` to `Answer`. `server.admin.adapter` joins this to the
HTTP room, so every page and every operation can be tried without a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from protocol import problems
from protocol.errors import ProtocolError
from server.admin.accounts import ApiToken, Role, Scope, Scopes, Session, User
from server.http.answers import phrase
from server.http.cookies import read_cookie

M = TypeVar("M", bound=BaseModel)
#: What a status means where nothing more exact is said.
_CODES = {
    400: "bad-request",
    401: "log-in-first",
    403: "not-allowed",
    404: "not-found",
    405: "method-not-allowed",
    409: "conflict",
    415: "unsupported-media-type",
    422: "invalid-value",
    428: "condition-required",
    429: "too-many-tries",
    500: "server-fault",
    503: "not-available-now",
}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: a user's session, or an API token (then `session` is None)."""

    name: str
    scopes: Scopes
    owner: User
    session: Session | None = None
    token: ApiToken | None = None
    form_token: str = field(default="", repr=False)

    @property
    def role(self) -> Role:
        """The role of the person behind it."""
        return self.owner.role

    def may(self, scope: Scope) -> bool:
        """Whether this kind of act is open to it."""
        return scope in self.scopes


@dataclass(frozen=True, slots=True)
class Call:
    """One request as handlers see it. Header names are lower case.

    `peer` is the client's address, seen through trusted proxies; empty for a Unix socket.
    """

    method: str
    path: str
    now: float
    query: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    form: Mapping[str, Sequence[bytes]] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
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

    def raw(self, name: str) -> str:
        """A form field as it was typed: blanks belong to a password."""
        values = self.form.get(name)
        return values[0].decode("utf-8", "replace") if values else ""

    def number(self, name: str, default: int, lowest: int, highest: int) -> int:
        """A query field as a number within bounds; anything else is the default."""
        try:
            return min(highest, max(lowest, int(self.arg(name, str(default)))))
        except ValueError:
            return default

    def whole(self, name: str, default: int | None = None) -> int:
        """A form field or path parameter as a whole number. Raises Problem 422 or 404."""
        given = self.params.get(name)
        text = self.field(name) if given is None else given
        if not text and default is not None:
            return default
        if text.isascii() and text.isdigit() and len(text) < 19:
            return int(text)
        if given is not None:
            raise Problem(404, f"There is no {name} {text[:40]}.")
        raise wrong(name, "This must be a whole number.")

    def cookie(self, name: str) -> str:
        """The value of a cookie; empty when there is none."""
        field = self.headers.get("cookie", "").encode("latin-1", "replace")
        found = read_cookie({b"cookie": field}, name.encode())
        return (found or b"").decode("latin-1")


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
        self.code = code or _CODES[status]
        self.errors = [dict(error) for error in errors]
        self.headers = tuple(headers)

    @property
    def title(self) -> str:
        """What kind of fault it is, for the head of a page."""
        return phrase(self.status)

    def answer(self) -> Answer:
        """The problem document."""
        members = {"errors": self.errors} if self.errors else {}
        body = problems.document(self.status, self.code, self.detail, **members)
        headers = (("content-type", problems.MEDIA_TYPE), *self.headers)
        return Answer(self.status, body, headers)


def problem_of(error: ProtocolError) -> Problem:
    """Malformed input as a problem document."""
    return Problem(error.status, str(error), code=error.code)


def wrong(name: str, message: str, **bounds: Any) -> Problem:
    """One bad field, its message and its bounds."""
    errors = [{"field": name, "message": message, **bounds}]
    return Problem(422, f"{name}: {message}", code="invalid-value", errors=errors)


def invalid(
    error: ValidationError, model: type[BaseModel], status: int = 422, where: str = ""
) -> Problem:
    """What pydantic found, field by field, each with the bounds that hold for it."""
    properties = model.model_json_schema().get("properties", {})
    errors = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        words = [str(part) for part in fault["loc"]]
        # Messages of our own validators come prefixed; the reader does not care whose fault it is.
        message = fault["msg"].removeprefix("Value error, ")
        found: dict[str, Any] = {"field": ".".join(words), "message": message}
        if where:
            found["in"] = where
        if words:
            found.update(_bounds(properties.get(words[0], {})))
        errors.append(found)
    first = errors[0]
    detail = f"{first['field']}: {first['message']}" if first["field"] else str(first["message"])
    return Problem(status, detail, code="invalid-value", errors=errors)


_BOUNDS = {
    "minimum": "minimum",
    "exclusiveMinimum": "above",
    "maximum": "maximum",
    "exclusiveMaximum": "below",
    "minLength": "shortest",
    "maxLength": "longest",
    "unit": "unit",
    "enum": "allowed",
}


def _bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    found = {_BOUNDS[key]: value for key, value in schema.items() if key in _BOUNDS}
    for option in schema.get("anyOf", ()):
        found |= _bounds(option)
    return found


def checked(model: type[M], values: Mapping[str, Any]) -> M:
    """A form's values as the model that the API takes. Raises Problem 422."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise invalid(error, model) from None


def json_answer(value: BaseModel, status: int = 200, *headers: tuple[str, str]) -> Answer:
    """A model as JSON."""
    body = value.model_dump_json().encode()
    return Answer(status, body, (("content-type", "application/json"), *headers))


def redirect(to: str, *headers: tuple[str, str]) -> Answer:
    """See other: the way on after every form that was sent."""
    return Answer(303, b"", (("location", to), *headers))


def html(text: str | bytes, status: int = 200, *headers: tuple[str, str]) -> Answer:
    """A page."""
    body = text.encode() if isinstance(text, str) else text
    return Answer(status, body, (("content-type", "text/html; charset=utf-8"), *headers))
