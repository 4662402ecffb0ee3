"""`tidegate admin`: look at a running server and steer it, over the API its pages use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ...protocol.errors import ProtocolError
from . import account, policy, queue, release, report, show
from .api import AdminApi, AdminFault
from .steering import Steering, steer

_EPILOG = """\b
Exit status: 0 done, 2 wrong usage, 3 not found, 4 refused (role, bounds, changed meanwhile),
5 no answer."""
#: Exit status by the answer's status; 0: no answer, any other: refused.
_STATUSES = {0: 5, 404: 3}


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
            sys.exit(_STATUSES.get(fault.status, 4))


@click.group(cls=AdminGroup, epilog=_EPILOG)
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
        token = token_file.read_text(encoding="utf-8").strip()
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter("write it like http://127.0.0.1:8081", param_hint="--url")
    ctx.obj = Steering(AdminApi(url, token or "", ca), as_json)


@admin.command()
@steer
def status(s: Steering) -> None:
    """Say how the server is."""
    found = s.api.get("/state")
    if s.shown(found):
        return
    click.echo(found["headline"])
    if found["more"]:
        click.echo(found["more"])
    used = found["small_active"] + found["large_active"]
    wait = found["last_wait"]
    mode = "" if found["mode"] in ("", found["policy"]) else f", now {found['mode']}"
    capacity = found["capacity_bytes_s"]
    show.facts(
        (
            ("policy", found["policy"] + mode),
            (
                ("downloads", f"{used - found['paused']} running, {found['paused']} paused")
                if found["link_bound"]
                else ("slots", f"{used} of {found['slots']} used, {found['paused']} paused")
            ),
            (
                "queue",
                f"{found['people_waiting']} wait, {found['paused']} of them have begun, "
                f"{found['ready']} are ready",
            ),
            ("last in line", show.span(wait["expected_s"]) if wait else "-"),
            (
                "goodput",
                show.rate(found["goodput_bytes_s"])
                + (f" of {show.rate(capacity)}" if capacity else ""),
            ),
            ("connections", f"{found['connections']}, {found['held']} held"),
            (
                "multicast",
                f"{found['multicast_cohorts']} groups, {found['multicast_receivers']} receivers",
            ),
            *(
                (title, "too few to say" if found[name] is None else show.share(found[name]))
                for title, name in (
                    ("done in time", "end_within_p90"),
                    ("started in time", "eta_within_p90"),
                )
            ),
            ("faults", found["totals"]["errors_total"]),
            ("up", show.span(found["now_s"] - found["started_s"])),
            ("version", found["version"]),
        )
    )


@admin.command()
@click.option("--kind", default="", help="Only of this kind: apply, block, login ...")
@click.option("-s", "--search", default="", help="Only entries that contain this text.")
@click.option("--limit", default=50, show_default=True, help="At most this many.")
@steer
def events(s: Steering, kind: str, search: str, limit: int) -> None:
    """Show the log, newest first."""
    s.table(
        s.api.get("/events", kind=kind, q=search, limit=limit),
        "events",
        {
            "when": ("at_s", show.moment),
            "kind": "kind",
            "who": lambda row: row["who"] or "-",
            "what": "text",
        },
        "Nothing has happened.",
    )


def _rows(s: Steering, path: str, empty: str) -> None:
    s.table(
        s.api.get(path),
        "rows",
        {
            "name": "name",
            "state": "state",
            "facts": lambda row: ", ".join(f"{k} {v}" for k, v in row["facts"].items()),
        },
        empty,
    )


@admin.command()
@click.option("--test", is_flag=True, help="Send a test message to every place.")
@steer
def alerts(s: Steering, test: bool) -> None:
    """List the alert rules and which of them fire."""
    if test:
        s.table(
            s.api.call("POST", "/alerts/test").body,
            "sent",
            {"place": "place", "outcome": lambda row: row["fault"] or "sent"},
            "Nobody is told: the setting alerts.to is empty.",
        )
        return
    s.table(
        s.api.get("/alerts"),
        "alerts",
        {
            "since": ("firing_since_s", lambda at: show.moment(at) if at else "-"),
            "rule": "summary",
            "what to do": "advice",
        },
        "There are no rules.",
    )


@admin.command()
@steer
def mirrors(s: Steering) -> None:
    """List mirrors and their condition."""
    _rows(s, "/mirrors", "No mirror is configured or reports here.")


@admin.command()
@steer
def multicast(s: Steering) -> None:
    """List what is sent by multicast."""
    _rows(s, "/multicast", "Nothing is sent by multicast now.")


for command in (
    *(queue.doors, queue.downloads, queue.cancel, queue.tickets, queue.promote, queue.expire),
    *(queue.blocks, queue.block, queue.unblock),
    *(policy.settings, policy.revisions, policy.restore, policy.preview),
    *(policy.history, policy.arrivals, report.report),
    *(release.files, release.rules, release.prequeues, release.passes, release.waiting_page),
    *(account.tokens, account.users),
):
    admin.add_command(command)
