"""`tidegate admin report`: the report of a span or a release, in a terminal."""

from __future__ import annotations

import time
from typing import Any

import click

from ...protocol.units import parse_duration
from . import show
from .api import TUNING
from .steering import Column, Steering, read_moment, steer

_ROWS = 10
_LOOK_S = 1.0


@click.command()
@click.option("--span", default="24h", show_default=True, help="How long: 15m, 7d.")
@click.option("--until", help="Its end: 2030-01-31T12:00 (UTC); now.")
@click.option("--path", default="", help="Only files that fit this pattern, such as '/43.0/*'.")
@steer
def report(s: Steering, span: str, until: str | None, path: str) -> None:
    """Say what came of a span or a release, and what nginx would have done (simulated)."""
    # A full minute: the server simulates one report once, however often it is asked for.
    end_s = read_moment(until) if until else time.time() // 60 * 60 + 60
    asked = {"since_s": end_s - parse_duration(span), "until_s": end_s, "path": path}
    found = _compared(s, asked)
    if s.shown(found):
        return
    click.echo(f"{show.moment(found['since_s'])} to {show.moment(found['until_s'])}")
    for sentence in found["words"]:
        click.echo(show.clean(sentence))
    if found["files"]:
        click.echo()
        files: dict[str, Column] = {
            "file": "path",
            "begun": "begun",
            "complete": "complete",
            "sent": ("sent_bytes", show.size),
        }
        s.table({"files": found["files"][:_ROWS]}, "files", files, "")
    for name in ("programs", "networks"):
        if found[name]:
            click.echo()
            s.table({name: found[name][:_ROWS]}, name, {name[:-1]: "name", "count": "count"}, "")


def _compared(s: Steering, asked: dict[str, Any]) -> Any:
    """The report once the comparison with nginx is there, or takes too long."""
    end_s = time.monotonic() + TUNING.preview_s
    while True:
        found = s.api.call("GET", "/report", query=asked).body
        if found["comparison"]["state"] not in ("waiting", "running"):
            return found
        if time.monotonic() > end_s:
            return found
        time.sleep(_LOOK_S)
