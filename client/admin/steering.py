"""What every command of `tidegate admin` shares: the API behind it, and how it speaks."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from ...protocol.units import parse_duration
from . import show
from .api import AdminApi

Row = dict[str, Any]
#: A field as it is; a field and how it is written; or what is made of the whole row.
Column = str | tuple[str, Callable[[Any], str]] | Callable[[Row], object]


def _cell(column: Column, row: Row) -> object:
    if isinstance(column, str):
        return row[column]
    if isinstance(column, tuple):
        field, write = column
        return write(row[field])
    return column(row)


class Steering:
    """What the group's options say: the API, and whether to print documents as they come."""

    def __init__(self, api: AdminApi, as_json: bool) -> None:
        self.api = api
        self.as_json = as_json

    def shown(self, found: Any) -> bool:
        """Print the document and say True if JSON was asked for."""
        if self.as_json:
            click.echo(json.dumps(found, ensure_ascii=True))
        return self.as_json

    def table(
        self, found: dict[str, Any], key: str, columns: Mapping[str, Column], empty: str
    ) -> None:
        """The rows under `key` as a table, or the whole document if JSON was asked for."""
        if self.shown(found):
            return
        rows = ([_cell(column, row) for column in columns.values()] for row in found[key])
        show.table(list(columns), rows, empty)

    def report(self, words: str) -> None:
        """Say what was done."""
        if not self.as_json:
            click.echo(words)


def steer(command: Callable[..., Any]) -> Callable[..., Any]:
    """Hand the group's `Steering` to a command as its first argument."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return command(click.get_current_context().find_object(Steering), *args, **kwargs)

    return wrapper


def paged(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a list: search, limit, offset."""
    command = click.option("--offset", default=0, help="Skip this many.")(command)
    command = click.option("--limit", default=50, show_default=True, help="At most this many.")(
        command
    )
    return click.option("-s", "--search", default="", help="Only entries that contain this text.")(
        command
    )


def read_moment(text: str) -> float:
    """`2030-01-31T12:00Z` (UTC unless it says otherwise) or `2h` from now, as Unix time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return time.time() + parse_duration(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
