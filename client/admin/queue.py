"""`tidegate admin`: downloads, tickets and blocked addresses."""

from __future__ import annotations

from typing import Any

import click

from client.admin import show
from client.admin.steering import Steering, paged, read_moment, steer
from protocol.units import parse_duration


@click.command()
@paged
@steer
def downloads(s: Steering, search: str, limit: int, offset: int) -> None:
    """List running downloads."""
    found = s.api.get("/downloads", q=search, limit=limit, offset=offset)
    if s.shown(found):
        return
    show.table(
        ("number", "file", "client", "size", "left", "rate", "state"),
        (
            (
                row["lease"],
                row["file"],
                row["client"],
                show.size(row["size_bytes"]),
                show.size(row["remaining_bytes"]),
                show.rate(row["rate_bytes_s"]),
                "paused" if row["paused"] else f"{row['connections']} connections",
            )
            for row in found["leases"]
        ),
        "No download is running.",
    )


@click.command()
@click.argument("number", type=int)
@steer
def cancel(s: Steering, number: int) -> None:
    """End the download NUMBER and free its slot."""
    s.api.call("DELETE", f"/downloads/{number}")
    s.said(f"Download {number} is cancelled.")


@click.command()
@paged
@click.option("--state", type=click.Choice(["waiting", "ready"]), help="Only in this state.")
@steer
def tickets(s: Steering, search: str, limit: int, offset: int, state: str | None) -> None:
    """List who waits, in the order of their turn."""
    found = s.api.get("/tickets", q=search, limit=limit, offset=offset, state=state)
    if s.shown(found):
        return
    show.table(
        ("place", "ticket", "file", "client", "class", "starts in", "visits", "state"),
        (
            (
                row["place"] or "-",
                row["number"],
                row["file"],
                row["client"],
                row["kind"] or "-",
                show.span(row["expected_s"]),
                row["polls"],
                row["state"],
            )
            for row in found["tickets"]
        ),
        "Nobody is waiting.",
    )


@click.command()
@click.argument("number", type=int)
@steer
def promote(s: Steering, number: int) -> None:
    """Move ticket NUMBER to the head of the queue."""
    s.api.call("POST", f"/tickets/{number}/promote")
    s.said(f"Ticket {number} is next.")


@click.command()
@click.argument("number", type=int)
@steer
def expire(s: Steering, number: int) -> None:
    """Take ticket NUMBER out of the queue."""
    s.api.call("DELETE", f"/tickets/{number}")
    s.said(f"Ticket {number} has lost its place.")


@click.command()
@steer
def blocks(s: Steering) -> None:
    """List blocked addresses."""
    found = s.api.get("/blocks")
    if s.shown(found):
        return
    show.table(
        ("network", "since", "until", "by", "note"),
        (
            (
                r["network"],
                show.moment(r["since_s"]),
                show.moment(r["until_s"]),
                r["who"],
                r["note"],
            )
            for r in found["blocks"]
        ),
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
        s.said(f"{found['network']} is blocked.")


@click.command()
@click.argument("network")
@steer
def unblock(s: Steering, network: str) -> None:
    """Lift the block of NETWORK."""
    s.api.call("DELETE", "/blocks", query={"network": network})
    s.said(f"{network} is no longer blocked.")


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
    """Let what runs finish and nobody start; those who ask get a place."""
    body = {"closed": True, "text": text, "opens_s": read_moment(until) if until else None}
    _doors(s, s.api.call("PUT", "/doors", body).body)


@doors.command("open")
@steer
def doors_open(s: Steering) -> None:
    """Let downloads start again, in the order of the queue."""
    _doors(s, s.api.call("PUT", "/doors", {"closed": False}).body)


COMMANDS = (doors, downloads, cancel, tickets, promote, expire, blocks, block, unblock)
