"""`tidegate admin reset-password`: a new password for a user who lost the old one, on the host."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ...accounts.accounts import check_password
from ...accounts.password_reset import leave_reset
from ...control.problems import Problem


@click.command("reset-password")
@click.argument("name", default="admin")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("state"),
    show_default=True,
    help="The server's state folder.",
)
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
