"""On the host: a new password for a user who lost the old one, and logins before strangers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ...accounts.accounts import check_password
from ...accounts.password_reset import leave_reset
from ...accounts.sessions import known_browser
from ...control.problems import Problem

_state_option = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("state"),
    show_default=True,
    help="The server's state folder.",
)


@click.command("login-link")
@_state_option
def login_link(state: Path) -> None:
    """Show a link for a new browser, whose logins then come before a flood of strangers' ones.

    It opens nothing by itself. Open it at the address of the administration, and log in.
    """
    try:
        click.echo(f"/login?known={known_browser((state / 'admin.key').read_bytes())}")
    except OSError as fault:
        click.echo(f"tidegate admin login-link: {fault.filename}: {fault.strerror}", err=True)
        sys.exit(4)


@click.command("reset-password")
@click.argument("name", default="admin")
@_state_option
@click.password_option(help="The new password; asked for when not given.")
def reset_password(name: str, state: Path, password: str) -> None:
    """Give NAME (admin) a new password, on the host, whether or not the server runs.

    It counts from the next login on, must be changed at it, and takes one-time codes off.
    """
    try:
        check_password(password)
        leave_reset(state, name, password)
    except Problem as fault:
        click.echo(f"tidegate admin reset-password: {fault}", err=True)
        sys.exit(2)
    except OSError as fault:
        told = f"{state} cannot be written: {fault.strerror}; run this as the server's user."
        click.echo(f"tidegate admin reset-password: {told}", err=True)
        sys.exit(4)
    click.echo(f"Log in as {name} with the new password now; you will be asked for another one.")
