"""A command of `tidegate admin` is one operation of the API and the way its answer is shown.

Options bear the names of the operation's fields. A table has the names of the answer's fields; its
values are written by the unit in the name: `_s`, `_bytes`, `_bytes_s`.
"""

from __future__ import annotations

import contextlib
import json
import re
import string
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import click

from ...protocol.units import BadUnit, format_duration, format_rate, format_size, parse_duration
from ..net.answers import clean
from .api import AdminApi


class Steering:
    """What the group's options say: the API, and whether to print documents as they come."""

    def __init__(self, api: AdminApi, as_json: bool) -> None:
        self.api = api
        self.as_json = as_json

    def tell(self, found: Any, show: Callable[[Any], None]) -> None:
        """Print the document as it came if JSON was asked for, or else as `show` does."""
        if self.as_json:
            click.echo(json.dumps(found, ensure_ascii=True))
        else:
            show(found)


steers = click.make_pass_decorator(Steering)


Show = Callable[[Mapping[str, Any]], None]


def operation(
    admin: click.Group,
    words: str,
    call: str,
    summary: str,
    *options: click.Option,
    shows: Show | str,
    fixed: Mapping[str, Any] | None = None,
) -> None:
    """Add the command `GROUP NAME ARGUMENT` that calls `METHOD /path/{field}` with its options.

    What does not stand in the path is the query of GET and DELETE, and the body of all others,
    together with what is `fixed`. `shows` may be a sentence with {fields} of options and answer.
    """
    method, path = call.split(" ")
    in_path = {field for _, field, _, _ in string.Formatter().parse(path) if field}
    *groups, name = [word for word in words.split(" ") if word.islower()]
    for word in groups:
        admin = cast(click.Group, admin.commands[word])
    params: list[click.Parameter] = [
        click.Argument([word.lower()], type=int if word == "NUMBER" else str)
        for word in words.split(" ")
        if word.isupper()
    ]

    @steers
    def run(s: Steering, /, **given: Any) -> None:
        fields = {key: value for key, value in given.items() if key not in in_path}
        fields |= fixed or {}
        body, query = (None, fields) if method in ("GET", "DELETE") else (fields or None, None)
        found = s.api.call(method, path.format_map(given), body, query).body
        if not isinstance(shows, str):
            s.tell(found, shows)
        elif not s.as_json:
            click.echo(clean(shows.format_map({**given, **(found or {})})))
        elif found is not None:
            s.tell(found, lambda _: None)

    admin.add_command(click.Command(name, callback=run, params=[*params, *options], help=summary))


def table(key: str, fields: str, empty: str = "") -> Show:
    """Shows the list under `key` of an answer by these fields of its rows."""

    def show(found: Mapping[str, Any]) -> None:
        names = fields.split(" ")
        heads = [re.sub("(_bytes)?(_s)?$", "", name).replace("_", " ") for name in names]
        rows = [[written(name, row[name]) for name in names] for row in found[key]]
        show_table(heads, rows, empty)

    return show


def read_moment(text: str) -> float:
    """`2030-01-31T12:00Z` (UTC unless it says otherwise) or `2h` from now, as Unix time."""
    with contextlib.suppress(ValueError):
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    try:
        return time.time() + parse_duration(text)
    except BadUnit:
        told = (
            f"{text!r} is no time; write it like 2030-01-31T12:00Z, or 2h for two hours from now."
        )
        raise BadUnit(told) from None


def moment(at_s: float | None) -> str:
    return "-" if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def written(name: str, value: Any) -> str:
    """The value of a field as people read it, by the unit in its name."""
    match value:
        case None | "":
            return "-"
        case str() if name == "sha256":
            # More of a digest tells a reader nothing.
            return value[:16]
        case bool():
            return "yes" if value else "no"
        case list():
            return ",".join(map(str, value))
        case dict():
            return ", ".join(f"{key} {part}" for key, part in value.items())
        case int() | float() if name.endswith("_bytes_s"):
            return format_rate(value)
        case int() | float() if name.endswith("_bytes"):
            return format_size(int(value))
        case int() | float() if name.endswith("_s"):
            # A time of the clock is above this, a duration below: 31 years.
            return moment(value) if value > 1e9 else format_duration(value)
    return str(value)


def show_table(heads: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """Columns as wide as their longest word; numbers to the right."""
    cells = [[clean(value) for value in row] for row in rows]
    if not cells:
        click.echo(empty)
        return
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    right = [
        all(c[:1].isdigit() or c == "-" for c in column) for column in zip(*cells, strict=True)
    ]
    for row in ([*heads], *cells):
        line = "  ".join(
            word.rjust(width) if to_right else word.ljust(width)
            for word, width, to_right in zip(row, widths, right, strict=True)
        )
        click.echo(line.rstrip())


def show_facts(facts: Mapping[str, object]) -> None:
    """Name and value, one a line; the further lines of a long text stand below its first."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        for at, line in enumerate(str(value).split("\n")):
            click.echo(f"{('' if at else name).ljust(width)}  {clean(line)}")
