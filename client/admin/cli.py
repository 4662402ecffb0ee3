"""`tidegate admin`: look at a running server and steer it, over the API its pages use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ...protocol.errors import ProtocolError
from . import commands, steps
from .api import AdminApi, AdminFault
from .operation import Steering


class AdminGroup(click.Group):
    """Ends with one sentence and a status instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ProtocolError as fault:
            click.echo(f"tidegate admin: {fault}", err=True)
            sys.exit(2)
        except AdminFault as fault:
            click.echo(f"tidegate admin: {fault}", err=True)
            if fault.status == 401:
                click.echo(
                    "Issue an API token on the page Account and give it as "
                    "TIDEGATE_ADMIN_TOKEN or --token-file.",
                    err=True,
                )
            # 0: no answer; any other: refused.
            sys.exit({0: 5, 404: 3}.get(fault.status, 4))


@click.group(
    cls=AdminGroup,
    epilog="""\b
Exit status: 0 done, 2 wrong usage, 3 not found, 4 refused (role, bounds, changed meanwhile),
5 no answer.""",
)
@click.option(
    "--url",
    envvar="TIDEGATE_ADMIN_URL",
    default="http://127.0.0.1:8081",
    show_default=True,
    show_envvar=True,
    help="Where the administration listens.",
)
@click.option("--token", envvar="TIDEGATE_ADMIN_TOKEN", show_envvar=True, help="An API token.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A file that holds the API token; other users cannot read it in the list of processes.",
)
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Certificates (PEM) to trust besides the system's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what the API answers.")
@click.pass_context
def admin(
    ctx: click.Context,
    url: str,
    token: str | None,
    token_file: Path | None,
    ca: str | None,
    as_json: bool,
) -> None:
    """Ask or steer a running server."""
    if token_file is not None:
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except ValueError:
            told = f"{token_file} holds no text"
            raise click.BadParameter(told, param_hint="--token-file") from None
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter("write it like http://127.0.0.1:8081", param_hint="--url")
    ctx.obj = Steering(AdminApi(url, token or "", ca), as_json)


for group, duty in (
    ("rules", "Show and change the rules for files."),
    ("passes", "Issue, list and revoke priority passes."),
    ("tokens", "Issue, list and revoke API tokens."),
    ("users", "List, add and remove users."),
):
    admin.add_command(click.Group(group, help=duty))
for command in (
    *(steps.settings, steps.restore, steps.preview),
    *(steps.alerts, steps.waiting_page, steps.report),
):
    admin.add_command(command)


@admin.group(invoke_without_command=True)
@click.pass_context
def doors(ctx: click.Context) -> None:
    """Show whether downloads may start; close the doors for maintenance, open them again."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(doors.commands["show"])


commands.add_record_commands(admin)
commands.add_queue_commands(admin)
commands.add_release_commands(admin)
commands.add_account_commands(admin)
