"""What every command of `tidegate admin` shares: the API behind it, and how it speaks."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from client.admin.api import AdminApi
from protocol.units import parse_duration


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

    def said(self, words: str) -> None:
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
