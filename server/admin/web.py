"""One request and its answer, free of sockets.

A handler is a coroutine from `HandlerCall` to `Answer`. `server.admin.adapter` joins this to the
HTTP room, so every page and every operation can be tried without a socket.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic_core import to_json

from ...protocol import problems
from ..accounts.accounts import ApiToken, Role, Scope, Scopes, Session, User
from ..control.problems import Problem
from ..http.cookies import host_name, read_cookies


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
        return self.owner.role

    def may(self, scope: Scope) -> bool:
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

    @property
    def only_reads(self) -> bool:
        """Whether its method is a safe one (RFC 9110, 9.2.1)."""
        return self.method in ("GET", "HEAD", "OPTIONS")

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

    def cookie(self, name: str) -> str:
        """The value of the first cookie of this name; empty when there is none."""
        return next(self.cookies(name), "")

    def cookies(self, name: str) -> Iterator[str]:
        """The values of all cookies of this name of ours, see `host_name`."""
        field = self.headers.get("cookie", "").encode("latin-1", "replace")
        own = host_name(name, secure=self.secure).encode()
        return (one.decode("latin-1") for one in read_cookies({b"cookie": field}, own))


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. A page is in `pieces` until it is written out."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    pieces: Iterator[str] | None = None


def json_answer(value: object, status: int = 200, *headers: tuple[str, str]) -> Answer:
    """A model, or a record of the domain, as JSON."""
    body = to_json(value, inf_nan_mode="null")
    return Answer(status, body, (("content-type", "application/json"), *headers))


def redirect(to: str, *headers: tuple[str, str]) -> Answer:
    """See other: the way on after every form that was sent."""
    return Answer(303, b"", (("location", to), *headers))


def html(page: Iterator[str] | bytes, status: int = 200, *headers: tuple[str, str]) -> Answer:
    fields = (("content-type", "text/html; charset=utf-8"), *headers)
    if isinstance(page, bytes):
        return Answer(status, page, fields)
    return Answer(status, headers=fields, pieces=page)


def problem_answer(problem: Problem) -> Answer:
    members = {"errors": problem.errors} if problem.errors else {}
    body = problems.document(problem.status, problem.code, problem.detail, **members)
    return Answer(problem.status, body, (("content-type", problems.MEDIA_TYPE), *problem.headers))


def csv_answer(name: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Answer:
    """A table to download, safe to open in a spreadsheet; a cell without a value is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(heads)
    for row in rows:
        writer.writerow([_inert(cell) for cell in row])
    headers = (
        ("content-type", "text/csv; charset=utf-8"),
        ("content-disposition", f'attachment; filename="{name}"'),
    )
    return Answer(200, out.getvalue().encode(), headers)


def _inert(cell: object) -> object:
    """A cell that no spreadsheet takes for a formula."""
    return "'" + cell if isinstance(cell, str) and cell[:1] in "=+-@\t\r" and cell else cell
