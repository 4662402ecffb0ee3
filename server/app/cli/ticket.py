"""`tidegate ticket issue`: priority passes, signed with the server's own key."""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path

import click

from ....protocol.errors import ProtocolError
from ....protocol.ticket import Pass
from ....protocol.units import parse_duration
from ..config import CannotStart
from .serve import config_option, fail, flags_of, load_or_fail, state_option


@click.group()
def ticket() -> None:
    """Issue priority passes."""


@ticket.command()
@click.option("--class", "priority_class", required=True, help="Priority class, such as gold.")
@click.option("--path", default="/*", show_default=True, help="For which files: a shell pattern.")
@click.option("--valid", default="7d", show_default=True, help="How long, such as 12h or 7d.")
@click.option(
    "--count",
    type=click.IntRange(1, 1_000_000),
    default=1,
    show_default=True,
    help="How many to issue.",
)
@click.option(
    "--uses",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Downloads that each one is good for.",
)
@click.option("--note", default="", help="What they are for; kept with them.")
@click.option("--format", "shape", type=click.Choice(["text", "csv", "json"]), default="text")
@state_option
@config_option
def issue(
    priority_class: str,
    path: str,
    valid: str,
    count: int,
    uses: int,
    note: str,
    shape: str,
    state: str | None,
    file: Path | None,
) -> None:
    """Print signed passes, one a line; `tidegate get --pass PASS URL` uses one."""
    config = load_or_fail(file, flags_of({"state": state}))[1].config
    try:
        valid_s = parse_duration(valid)
    except ProtocolError as fault:
        fail([f"--valid: {fault}"], 2)
    weights = config.admission.class_weights
    if priority_class not in weights:
        known = ", ".join(sorted(weights))
        fail(
            [f"There is no class {priority_class!r}; configured in class_weights are: {known}."], 2
        )

    from ...admission.passes import PassBook
    from ...store.database import Database, StoreUnavailable, sqlite_url
    from ...store.queries import write_passes
    from ..keys import load_keys

    now = time.time()
    if not (config.state / "keys.json").is_file():
        # A new key would sign passes that no server knows.
        fail([f"{config.state} is no state folder of a server: name it by --state or --config."], 2)
    try:
        book = PassBook(load_keys(config.state / "keys.json", now), lambda record: None)
        terms = Pass("", priority_class, weights[priority_class], path, now, now + valid_s, uses)
        issued = [book.issue(terms, now, note) for _ in range(count)]
        database = Database(config.database or sqlite_url(config.state / "tidegate.db"))
        database.migrate()
        with database.begin() as session:
            write_passes(session, [record for _, record in issued])
        database.close()
    except StoreUnavailable as fault:
        fail([f"The database does not take the passes: {fault}"], 2)
    except OSError as fault:
        text = f"The state folder {config.state} cannot be used: {fault.strerror}; name another."
        fail([text], 2)
    except (CannotStart, ValueError) as fault:
        fail([str(fault)], 2)
    if shape == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(["ticket", "serial", "class", "path", "uses", "expires_s"])
        for token, record in issued:
            row = [token, record.serial, priority_class, path, uses, round(record.expires_s)]
            writer.writerow(row)
        return
    for token, record in issued:
        if shape == "json":
            document = {"ticket": token, "serial": record.serial, "class": priority_class}
            document |= {"path": path, "expires_s": str(round(record.expires_s))}
            click.echo(json.dumps(document))
        else:
            click.echo(token)
