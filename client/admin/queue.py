"""`tidegate admin`: downloads, tickets and blocked addresses."""

from __future__ import annotations

from typing import Any

import click

from ...protocol.units import parse_duration
from . import show
from .steering import Steering, paged, read_moment, steer


@click.command()
@paged
@steer
def downloads(s: Steering, search: str, limit: int, offset: int) -> None:
    """List running downloads."""
    s.table(
        s.api.get("/downloads", q=search, limit=limit, offset=offset),
        "leases",
        {
            "number": "lease",
            "file": "file",
            "client": "client",
            "size": ("size_bytes", show.size),
            "left": ("remaining_bytes", show.size),
            "rate": ("rate_bytes_s", show.rate),
            "state": lambda row: "paused" if row["paused"] else f"{row['connections']} connections",
        },
        "No download is running.",
    )


@click.command()
@click.argument("number", type=int)
@steer
def cancel(s: Steering, number: int) -> None:
    """End the download NUMBER and free its slot."""
    s.api.call("DELETE", f"/downloads/{number}")
    s.report(f"Download {number} is cancelled.")


@click.command()
@paged
@click.option("--state", type=click.Choice(["waiting", "ready"]), help="Only in this state.")
@steer
def tickets(s: Steering, search: str, limit: int, offset: int, state: str | None) -> None:
    """List the waiting tickets in the order of their turn."""
    s.table(
        s.api.get("/tickets", q=search, limit=limit, offset=offset, state=state),
        "tickets",
        {
            "place": lambda row: row["place"] or "-",
            "ticket": "number",
            "file": "file",
            "client": "client",
            "class": lambda row: row["kind"] or "-",
            "starts in": ("expected_s", show.span),
            "done in": ("done_s", show.span),
            "visits": "polls",
            "state": "state",
        },
        "No client is waiting.",
    )


@click.command()
@click.argument("number", type=int)
@steer
def promote(s: Steering, number: int) -> None:
    """Move ticket NUMBER to the head of the queue."""
    s.api.call("POST", f"/tickets/{number}/promote")
    s.report(f"Ticket {number} is next.")


@click.command()
@click.argument("number", type=int)
@steer
def expire(s: Steering, number: int) -> None:
    """Take ticket NUMBER out of the queue."""
    s.api.call("DELETE", f"/tickets/{number}")
    s.report(f"Ticket {number} has lost its place.")


@click.command()
@steer
def blocks(s: Steering) -> None:
    """List blocked addresses."""
    s.table(
        s.api.get("/blocks"),
        "blocks",
        {
            "network": "network",
            "since": ("since_s", show.moment),
            "until": ("until_s", show.moment),
            "by": "who",
            "note": "note",
        },
        "No address is blocked.",
    )


@click.command()
@click.argument("network")
@click.option("--for", "duration", help="How long: 2h, 7d. Without it: until unblocked.")
@click.option("--note", default="", help="Why; for the log.")
@steer
def block(s: Steering, network: str, duration: str | None, note: str) -> None:
    """Refuse an address or NETWORK, and end what it has."""
    body = {
        "network": network,
        "for_s": parse_duration(duration) if duration else None,
        "note": note,
    }
    found = s.api.call("POST", "/blocks", body).body
    if not s.shown(found):
        s.report(f"{found['network']} is blocked.")


@click.command()
@click.argument("network")
@steer
def unblock(s: Steering, network: str) -> None:
    """Lift the block of NETWORK."""
    s.api.call("DELETE", "/blocks", query={"network": network})
    s.report(f"{network} is no longer blocked.")


@click.group(invoke_without_command=True)
@click.pass_context
def doors(ctx: click.Context) -> None:
    """Show whether downloads may start; close the doors for maintenance, open them again."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(doors_show)


@doors.command("show")
@steer
def doors_show(s: Steering) -> None:
    """Say whether downloads may start."""
    _doors(s, s.api.get("/doors"))


def _doors(s: Steering, found: dict[str, Any]) -> None:
    if s.shown(found):
        return
    if not found["closed"]:
        click.echo("The doors are open.")
        return
    click.echo(f"The doors are closed since {show.moment(found['since_s'])}, by {found['who']}.")
    opens = show.moment(found["opens_s"])
    show.facts((*show.lines("text", found["text"]), ("expected to open", opens)))


@doors.command("close")
@click.option("--text", default="", help="What visitors read.")
@click.option("--until", help="When it is expected to end: 2030-01-31T12:00Z, or 2h from now.")
@steer
def doors_close(s: Steering, text: str, until: str | None) -> None:
    """Let running downloads finish and start no more; clients get a place in the queue."""
    body = {"closed": True, "text": text, "opens_s": read_moment(until) if until else None}
    _doors(s, s.api.call("PUT", "/doors", body).body)


@doors.command("open")
@steer
def doors_open(s: Steering) -> None:
    """Let downloads start again, in the order of the queue."""
    _doors(s, s.api.call("PUT", "/doors", {"closed": False}).body)
