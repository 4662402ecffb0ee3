"""`tidegate admin`: files and their rules, priority passes, the waiting page."""

from __future__ import annotations

import csv
import sys
from typing import Any

import click

from . import show
from .steering import Steering, paged, read_moment, steer


@click.command()
@paged
@click.option("--sort", type=click.Choice(["path", "popular", "bytes", "size"]), default="path")
@steer
def files(s: Steering, search: str, limit: int, offset: int, sort: str) -> None:
    """List what is served."""
    s.table(
        s.api.get("/files", q=search, limit=limit, offset=offset, sort=sort),
        "files",
        {
            "path": "path",
            "size": ("size_bytes", show.size),
            "begun": "begun",
            "complete": "complete",
            "sent": ("sent_bytes", show.size),
            "sha256": lambda row: (row["sha256"] or row["digest_state"])[:16],
        },
        "No file is served.",
    )


@click.group()
def rules() -> None:
    """Show and change the rules for files."""


@rules.command("list")
@steer
def rules_list(s: Steering) -> None:
    """List the rules in force: those of the configuration, then those of operators."""
    s.table(
        s.api.get("/rules"),
        "rules",
        {
            "pattern": "path",
            "needs": lambda row: row["require_class"] or "-",
            "as": lambda row: row["treat_as"] or "-",
            "multicast": lambda row: {None: "-", True: "yes", False: "no"}[row["multicast"]],
            "hidden until": ("hidden_until_s", show.moment),
            "pre-queue from": ("prequeue_from_s", show.moment),
            "from": "source",
            "note": "note",
        },
        "There is no rule.",
    )


@rules.command("set")
@click.argument("path")
@click.option("--require-class", default="", help="Only with a pass of this class.")
@click.option("--treat-as", type=click.Choice(["small", "large"]), help="Whatever its size.")
@click.option("--multicast/--no-multicast", default=None, help="Allow or forbid multicast.")
@click.option("--hidden-until", help="2030-01-31T12:00 (UTC), or 2h from now.")
@click.option("--prequeue-from", help="When visitors may register; before --hidden-until.")
@click.option("--note", default="", help="Why.")
@steer
def rules_set(
    s: Steering,
    path: str,
    require_class: str,
    treat_as: str | None,
    multicast: bool | None,
    hidden_until: str | None,
    prequeue_from: str | None,
    note: str,
) -> None:
    """Set the rule for the files whose path fits PATH (with * and ?)."""
    body = {
        "path": path,
        "require_class": require_class,
        "treat_as": treat_as or "",
        "multicast": multicast,
        "hidden_until_s": read_moment(hidden_until) if hidden_until else None,
        "prequeue_from_s": read_moment(prequeue_from) if prequeue_from else None,
        "note": note,
    }
    found = s.api.call("PUT", "/rules", body).body
    if not s.shown(found):
        s.report(f"The rule for {found['path']} is set.")


@rules.command("remove")
@click.argument("path")
@steer
def rules_remove(s: Steering, path: str) -> None:
    """Remove the rule for PATH."""
    s.api.call("DELETE", "/rules", query={"path": path})
    s.report(f"The rule for {path} is gone.")


@click.command()
@steer
def prequeues(s: Steering) -> None:
    """List pre-queues with what is published of their draws."""
    s.table(
        s.api.get("/prequeues"),
        "prequeues",
        {
            "pattern": "path",
            "opens": ("opens_s", show.moment),
            "registered": "entered",
            "commitment": "commitment",
            "seed": lambda row: row["seed"] or "-",
        },
        "No release is planned.",
    )


@click.group()
def passes() -> None:
    """Issue, list and revoke priority passes."""


@passes.command("list")
@paged
@steer
def passes_list(s: Steering, search: str, limit: int, offset: int) -> None:
    """List the passes that were issued."""
    s.table(
        s.api.get("/passes", q=search, limit=limit, offset=offset),
        "passes",
        {
            "serial": "serial",
            "class": "kind",
            "files": "path",
            "until": ("expires_s", show.moment),
            "used": lambda row: f"{row['used']}/{row['max_uses']}",
            "state": lambda row: "revoked" if row["revoked"] else "good",
            "note": "note",
        },
        "No pass was issued yet.",
    )


@passes.command("issue")
@click.option("--class", "kind", required=True, help="A class of the setting class_weights.")
@click.option("--count", default=1, show_default=True)
@click.option("--path", default="*", show_default=True, help="For files that match this pattern.")
@click.option("--from", "start", help="Good from: a time or a duration; now.")
@click.option("--for", "end", default="7d", show_default=True, help="Good until: the same.")
@click.option("--max-uses", default=1, show_default=True, help="Downloads that each is good for.")
@click.option("--note", default="", help="What they are for.")
@steer
def passes_issue(
    s: Steering,
    kind: str,
    count: int,
    path: str,
    start: str | None,
    end: str,
    max_uses: int,
    note: str,
) -> None:
    """Issue passes and print them as CSV; the tokens are shown only now."""
    body = {
        "kind": kind,
        "count": count,
        "path": path,
        "not_before_s": read_moment(start) if start else None,
        "expires_s": read_moment(end),
        "max_uses": max_uses,
        "note": note,
    }
    found = s.api.call("POST", "/passes", body).body
    if s.shown(found):
        return
    sheet = csv.writer(sys.stdout, lineterminator="\n")
    sheet.writerow(["serial", "class", "path", "expires", "max_uses", "token"])
    for row in found["passes"]:
        until = show.moment(row["expires_s"])
        cells = [row["serial"], row["kind"], row["path"], until, row["max_uses"], row["token"]]
        sheet.writerow(cells)


@passes.command("revoke")
@click.argument("serial")
@steer
def passes_revoke(s: Steering, serial: str) -> None:
    """Make the pass SERIAL worthless."""
    s.api.call("DELETE", f"/passes/{serial}")
    s.report(f"Pass {serial} is revoked.")


@click.command("waiting-page")
@click.option("--title", help="The heading; empty: our words, in the visitor's language.")
@click.option("--text", help="Below it; an empty line starts a new paragraph.")
@steer
def waiting_page(s: Steering, title: str | None, text: str | None) -> None:
    """Show the operator's words on the waiting page, or change them."""
    found = s.api.get("/waiting-page")
    if title is not None or text is not None:
        body: dict[str, Any] = {
            "title": found["title"] if title is None else title,
            "text": found["text"] if text is None else text,
        }
        found = s.api.call("PUT", "/waiting-page", body).body
    if not s.shown(found):
        show.facts((("title", found["title"]), *show.lines("text", found["text"])))
