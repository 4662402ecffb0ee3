"""Small JSON documents of the operator that survive a restart.

Rules for files, blocked networks and the waiting page are one document each. All are read once when
the server starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..store.accounts import OperatorTables


class KeyValues:
    """Documents by name."""

    def __init__(self, tables: OperatorTables) -> None:
        self._tables = tables
        self._bodies = {row["name"]: dict(row["body"]) for row in tables.read("operator_state")}

    def read(self, name: str) -> dict[str, Any]:
        """A document; empty if it was never written."""
        return dict(self._bodies.get(name, {}))

    def all(self) -> list[tuple[str, dict[str, Any]]]:
        return [(name, dict(body)) for name, body in self._bodies.items()]

    def write(self, name: str, body: dict[str, Any]) -> None:
        """Write a document with the store's next batch."""
        self._bodies[name] = body
        self._tables.put("operator_state", {"name": name, "body": body})

    def drop(self, name: str) -> None:
        if self._bodies.pop(name, None) is not None:
            self._tables.drop("operator_state", name)

    def read_list(self, name: str) -> list[dict[str, Any]]:
        return list(self.read(name).get("rows", ()))

    def write_list(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        self.write(name, {"rows": list(rows)})
