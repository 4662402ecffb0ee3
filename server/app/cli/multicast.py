"""`tidegate multicast send`: put a file on the schedule of a running (or later) server."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from pathlib import Path

import click

from ....protocol.errors import ProtocolError
from ....protocol.units import format_duration, parse_duration
from ...multicast.schedule import ScheduledSend, write_entry
from ..config import Flag
from .serve import config_option, fail, flags_of, load_or_fail, state_option


def parse_when(text: str, now: datetime) -> datetime:
    """`+10m` from now, `18:00` next, or an ISO 8601 time (local where it names no zone).

    `now` knows its zone. Raises `ProtocolError`.
    """
    text = text.strip()
    if text.startswith("+"):
        return now + timedelta(seconds=parse_duration(text[1:]))
    clock = re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?", text)
    if clock is not None:
        hour, minute, second = (int(part or 0) for part in clock.groups())
        at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return at if at > now else at + timedelta(days=1)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ProtocolError(
            f"{text!r} is no time; write 18:00, 2026-05-04T18:00, 2026-05-04T16:00Z or +10m"
        ) from error
    return at if at.tzinfo is not None else at.replace(tzinfo=now.tzinfo)


def url_path(text: str, directory: Path) -> str:
    """What the server calls a file. Raises `ProtocolError` when it does not serve it."""
    base = directory.resolve()
    given = Path(text)
    inside = base / text.lstrip("/")
    for candidate in (given.resolve(), inside.resolve()):
        if candidate.is_file() and candidate.is_relative_to(base):
            return "/" + candidate.relative_to(base).as_posix()
    raise ProtocolError(f"there is no file {text} below the served directory {directory}")


@click.command(
    epilog="FILE is a path of this host below the served directory, or, beginning with /, the path "
    "in the URL. Receivers that ask (tidegate get --multicast) in the ten minutes before are told "
    "to wait for the start; so keep the server's clock right."
)
@click.argument("path", metavar="FILE")
@click.option("--at", "when", default="+10s", show_default=True, help="When: 18:00, ISO, or +10m.")
@click.option("--passes", type=click.IntRange(1, 1000), default=1, show_default=True)
@click.option(
    "--return-channel/--no-return-channel",
    default=True,
    help="Whether receivers can report; without, parity is fixed and every pass is sent.",
)
@click.option("--directory", help="The directory the server serves.")
@state_option
@config_option
def send(
    path: str,
    when: str,
    passes: int,
    return_channel: bool,
    directory: str | None,
    state: str | None,
    file: Path | None,
) -> None:
    """Send FILE once to all receivers at a set time."""
    flags = flags_of({"state": state})
    if directory is not None:
        flags["directory"] = Flag(directory, "--directory")
    config = load_or_fail(file, flags)[1].config
    now = datetime.now().astimezone()
    try:
        at = parse_when(when, now)
        path = url_path(path, config.directory)
        entry = ScheduledSend(path, at.timestamp(), passes, return_channel)
        write_entry(config.state, entry)
    except ProtocolError as fault:
        fail([str(fault)], 2)
    except OSError as fault:
        fail([f"the schedule cannot be written: {fault.filename}: {fault.strerror}"], 2)
    left_s = max(0.0, entry.at - time.time())
    click.echo(f"{path} will be sent at {at:%Y-%m-%d %H:%M:%S %Z} (in {format_duration(left_s)}).")
    if not config.multicast.enabled:
        click.echo("Note: it is sent only by a server that runs with --multicast.", err=True)
