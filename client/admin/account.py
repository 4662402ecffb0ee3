"""`tidegate admin`: users and API tokens."""

from __future__ import annotations

import click

from . import show
from .steering import Steering, steer


@click.group()
def tokens() -> None:
    """Issue, list and revoke API tokens."""


@tokens.command("list")
@steer
def tokens_list(s: Steering) -> None:
    """List API tokens."""
    s.table(
        s.api.get("/tokens"),
        "tokens",
        {
            "serial": "serial",
            "label": "label",
            "owner": "owner",
            "may": lambda row: ",".join(row["scopes"]),
            "expires": ("expires_s", show.moment),
            "last used": ("used_s", show.moment),
        },
        "There is no API token.",
    )


@tokens.command("issue")
@click.argument("label")
@click.option("--role", type=click.Choice(["viewer", "operator"]), default="viewer")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(["read", "queue", "policy", "files", "accounts"]),
    multiple=True,
    help="What it may do; may be given again. Without: all that its role may.",
)
@click.option("--days", default=90, show_default=True, help="0: until revoked.")
@steer
def tokens_issue(s: Steering, label: str, role: str, scopes: tuple[str, ...], days: int) -> None:
    """Issue an API token for LABEL and print it; it is shown only now.

    Changing settings needs the scope policy (or --role operator), which viewers do not have.
    """
    body = {"label": label, "role": role, "days": days or None, "scopes": list(scopes) or None}
    found = s.api.call("POST", "/tokens", body).body
    if not s.shown(found):
        click.echo(found["secret"])


@tokens.command("revoke")
@click.argument("serial")
@steer
def tokens_revoke(s: Steering, serial: str) -> None:
    """Revoke the API token SERIAL."""
    s.api.call("DELETE", f"/tokens/{serial}")
    s.report(f"API token {serial} is revoked.")


@click.group()
def users() -> None:
    """List, add and remove users."""


@users.command("list")
@steer
def users_list(s: Steering) -> None:
    """List users."""
    s.table(
        s.api.get("/users"),
        "users",
        {
            "name": "name",
            "role": "role",
            "codes": lambda row: "on" if row["one_time_codes"] else "off",
            "since": ("created_s", show.moment),
        },
        "There is no user.",
    )


@users.command("add")
@click.argument("name")
@click.option("--role", type=click.Choice(["viewer", "operator"]), default="viewer")
@click.password_option(help="Their first password; asked for when not given.")
@steer
def users_add(s: Steering, name: str, role: str, password: str) -> None:
    """Add the user NAME, who must change the password at the first login."""
    found = s.api.call("POST", "/users", {"name": name, "role": role, "password": password}).body
    if not s.shown(found):
        s.report(f"{found['name']} is a {found['role']} now.")


@users.command("remove")
@click.argument("name")
@steer
def users_remove(s: Steering, name: str) -> None:
    """Remove the user NAME and end their sessions and tokens."""
    s.api.call("DELETE", f"/users/{name}")
    s.report(f"{name} is gone.")
