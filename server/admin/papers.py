"""What operators have set up and must survive a restart, beside the policy: small documents.

Rules for files, blocked networks and the waiting page are each one JSON document, read once at the
start and written through; `StoredAccounts` keeps users, API tokens and sessions the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

from server.admin.accounts import AccountRows, ApiToken, Role, Session, User


class Tables(Protocol):
    """Rows as dictionaries (`server.store.accounts.OperatorTables`)."""

    def read(self, table: str) -> list[dict[str, Any]]: ...
    def put(self, table: str, values: dict[str, Any]) -> None: ...
    def drop(self, table: str, key: str) -> None: ...


class Papers:
    """Named documents."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._bodies = {row["name"]: dict(row["body"]) for row in tables.read("state")}

    def read(self, name: str) -> dict[str, Any]:
        """A document; empty when nobody wrote it yet."""
        return dict(self._bodies.get(name, {}))

    def all(self) -> list[tuple[str, dict[str, Any]]]:
        """Every document with its name."""
        return [(name, dict(body)) for name, body in self._bodies.items()]

    def write(self, name: str, body: dict[str, Any]) -> None:
        """Write a document with the store's next batch."""
        self._bodies[name] = body
        self._tables.put("state", {"name": name, "body": body})

    def read_list(self, name: str) -> list[dict[str, Any]]:
        """A document that is a list of rows."""
        return list(self.read(name).get("rows", ()))

    def write_list(self, name: str, rows: Sequence[Any]) -> None:
        """Write a list of dataclasses."""
        self.write(name, {"rows": [asdict(row) for row in rows]})


class StoredAccounts:
    """An `AccountStore` on the database."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def load(self) -> AccountRows:
        """Everything; blocks."""
        users = [User(**{**row, "role": Role(row["role"])}) for row in self._tables.read("users")]
        tokens = [
            ApiToken(**{**row, "role": Role(row["role"])}) for row in self._tables.read("tokens")
        ]
        return AccountRows(users, tokens, [Session(**row) for row in self._tables.read("sessions")])

    def put_user(self, user: User) -> None:
        self._tables.put("users", {**asdict(user), "role": user.role.value})

    def drop_user(self, name: str) -> None:
        self._tables.drop("users", name)

    def put_token(self, token: ApiToken) -> None:
        self._tables.put("tokens", {**asdict(token), "role": token.role.value})

    def drop_token(self, serial: str) -> None:
        self._tables.drop("tokens", serial)

    def put_session(self, session: Session) -> None:
        self._tables.put("sessions", asdict(session))

    def drop_session(self, key: str) -> None:
        self._tables.drop("sessions", key)
