"""`tidegate admin`: the group, and its commands that ask more than once or show more."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ...protocol.errors import ProtocolError
from ...protocol.units import format_duration, parse_duration, parse_size
from ..net.answers import clean
from . import commands
from .api import AdminApi, AdminFault
from .operation import (
    Steering,
    moment,
    read_moment,
    show_facts,
    show_table,
    steers,
    table,
)


def read_setting(word: str) -> tuple[str, Any]:
    """`slots=48`, `small_below_bytes=64KB`, `ticket_ttl_s=2m`, `ready_list=auto`,
    `class_weights=gold=4,silver=2`; raises click.BadParameter."""
    name, sign, text = word.partition("=")
    name = name.strip()
    if not sign or not name:
        raise click.BadParameter(f"{word!r} is no setting; write NAME=VALUE.")
    text = text.strip()
    if text in ("auto", ""):
        return name, None
    if text in ("true", "false"):
        return name, text == "true"
    if "=" in text:
        pairs = (pair.partition("=") for pair in text.split(","))
        try:
            return name, {key.strip(): float(number) for key, _, number in pairs}
        except ValueError:
            raise click.BadParameter(f"{word!r}: write NAME=CLASS=WEIGHT,CLASS=WEIGHT.") from None
    for kind in (int, float):
        try:
            return name, kind(text)
        except ValueError:
            continue
    if name.endswith("_bytes"):
        return name, parse_size(text)
    return name, parse_duration(text) if name.endswith("_s") else text


def _changes(words: tuple[str, ...], policy: str | None) -> dict[str, Any]:
    if not words and policy is None:
        raise click.UsageError("Say what to change: NAME=VALUE or --policy.")
    return dict(read_setting(word) for word in words)


def _setting_text(value: Any) -> str:
    """A setting as it can be given back to `settings set`."""
    match value:
        case None:
            return "auto"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case Mapping():
            return ",".join(f"{key}={number:g}" for key, number in value.items())
    return str(value)


def _show_revision(found: Mapping[str, Any]) -> None:
    by = f"{found['who']}, {moment(found['at_s'])}"
    click.echo(clean(f"revision {found['number']}: {found['policy']} (by {by})"))


def _show_settings(found: Mapping[str, Any]) -> None:
    _show_revision(found)
    show_facts({name: _setting_text(value) for name, value in found["settings"].items()})


@click.group()
def settings() -> None:
    """Show and change the policy and its settings."""


@settings.command("show")
@steers
def settings_show(s: Steering) -> None:
    """Print the policy in force and all its settings."""
    s.tell(s.api.get("/settings"), _show_settings)


@settings.command("help")
@click.argument("names", nargs=-1)
@steers
def settings_help(s: Steering, names: tuple[str, ...]) -> None:
    """Say what settings mean, in which unit and within which bounds."""

    def show(found: Mapping[str, Any]) -> None:
        for one in found["settings"]:
            if names and one["name"] not in names:
                continue
            bounds = ", ".join(f"{word} {number:,.12g}" for word, number in one["bounds"].items())
            click.echo(f"{one['name']} ({one['unit']}{', ' + bounds if bounds else ''})")
            click.echo(f"    {one['help']}")
            click.echo(f"    read by {', '.join(one['policies'])}; default {one['default']}")

    s.tell(s.api.get("/settings/help"), show)


@settings.command("set")
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--policy", help="Another policy, by its name (fair, ticket, ...).")
@click.option("--note", default="", help="Why; kept with the revision.")
@click.option("--revision", type=int, help="Only if this is the revision in force.")
@steers
def settings_set(
    s: Steering, changes: tuple[str, ...], policy: str | None, note: str, revision: int | None
) -> None:
    """Change settings or the policy; no place is lost, no download is dropped."""
    body: dict[str, Any] = {"settings": _changes(changes, policy), "note": note}
    if policy is not None:
        body["policy"] = policy
    etag = f'"r{revision}"' if revision is not None else s.api.call("GET", "/settings").etag
    s.tell(s.api.call("PATCH", "/settings", body, if_match=etag).body, _show_revision)


@click.command()
@click.argument("number", type=int)
@click.option("--note", default="", help="Why; kept with the revision.")
@steers
def restore(s: Steering, number: int, note: str) -> None:
    """Make revision NUMBER current again."""
    etag = s.api.call("GET", "/settings").etag
    path = f"/revisions/{number}/restore"
    s.tell(s.api.call("POST", path, {"note": note}, if_match=etag).body, _show_revision)


@click.command()
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--policy", help="Another policy, by its name (fair, ticket, ...).")
@click.option(
    "--workload",
    default="recorded",
    show_default=True,
    help="recorded (the last hour), or of the load test: exp1, exp2, release.",
)
@steers
def preview(s: Steering, changes: tuple[str, ...], policy: str | None, workload: str) -> None:
    """Simulate a change beside what is in force, without applying it."""
    current = s.api.get("/settings")
    body = {
        "policy": policy or current["policy"],
        "settings": {**current["settings"], **_changes(changes, policy)},
        "workload": workload,
    }
    begun = s.api.call("POST", "/previews", body).body
    found = s.api.settled(f"/previews/{begun['key']}", lambda found: str(found["state"]))
    if found["state"] == "failed":
        raise AdminFault(f"The simulation failed: {found['fault']}")
    if found["state"] != "done":
        raise AdminFault("The simulation takes too long; look at the policy page.")
    s.tell(found, _show_preview)


def _show_preview(found: Mapping[str, Any]) -> None:
    downloads = "1 download" if found["jobs"] == 1 else f"{found['jobs']:,} downloads"
    click.echo(f"{downloads}, simulated in {found['took_s']:.1f} s")
    rows = [
        (
            row["label"],
            _measure(row["now"], row["unit"]),
            _measure(row["proposed"], row["unit"]),
            row["verdict"],
        )
        for row in found["measures"]
    ]
    show_table(("measure", "now", "proposed", ""), rows, "Nothing was measured.")


def _measure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "s":
        return f"{value:.1f} s" if value < 120 else format_duration(value)
    return f"{value:,.0f}" if unit == "count" else f"{value:.2f}"


@click.command()
@click.option("--test", is_flag=True, help="Send a test message to every place.")
@steers
def alerts(s: Steering, test: bool) -> None:
    """List the alert rules and which of them fire."""
    if test:
        nobody = "Nobody is told: the setting alerts.to is empty."
        s.tell(s.api.call("POST", "/alerts/test").body, table("sent", "place fault", nobody))
        return
    s.tell(
        s.api.get("/alerts"),
        table("alerts", "firing_since_s summary advice", "There are no rules."),
    )


@click.command("waiting-page")
@click.option("--title", help="The heading; empty: that of more pages, or none.")
@click.option("--text", help="Below it; an empty line starts a new paragraph.")
@click.option("--state", default="", help="Only pages of this state: waiting, ready, closed, ….")
@click.option("--language", default="", help="Only pages in this language: de, pt, ….")
@click.option("--colour", help="Of links, buttons and bars, such as '#0b6e7f'; empty: ours.")
@steers
def waiting_page(s: Steering, /, state: str, language: str, **given: str | None) -> None:
    """Show the operator's words and colour on the waiting page, or change them."""
    found = s.api.get("/waiting-page")
    if any(value is not None for value in given.values()):
        of = {"state": state, "language": language}
        every = {"state": "", "language": "", "title": found["title"], "text": found["text"]}
        old = next((row for row in [every, *found["words"]] if of.items() <= row.items()), of)
        new = {name: value for name, value in given.items() if value is not None}
        found = s.api.call("PUT", "/waiting-page", {**old, **new}).body
    s.tell(found, _show_words)


def _show_words(page: Mapping[str, Any]) -> None:
    show_facts({name: page[name] for name in ("title", "text", "colour")})
    for row in page["words"]:
        where = " ".join(filter(None, (row["state"], row["language"])))
        show_facts({f"{where}: {name}": row[name] for name in ("title", "text") if row[name]})


@click.command()
@click.option("--span", default="24h", show_default=True, help="How long: 15m, 7d.")
@click.option("--until", help="Its end: 2030-01-31T12:00 (UTC); now.")
@click.option("--path", default="", help="Only files that fit this pattern, such as '/43.0/*'.")
@steers
def report(s: Steering, span: str, until: str | None, path: str) -> None:
    """Say what came of a span or a release, and what nginx would have done (simulated)."""
    # A full minute: the server simulates one report once, however often it is asked for.
    end_s = read_moment(until) if until else time.time() // 60 * 60 + 60
    asked = {"since_s": end_s - parse_duration(span), "until_s": end_s, "path": path}
    found = s.api.settled("/report", lambda found: str(found["comparison"]["state"]), asked)
    s.tell(found, _show_report)


def _show_report(found: Mapping[str, Any]) -> None:
    period, figures = found["period"], found["figures"]
    click.echo(f"{moment(period['since_s'])} to {moment(period['until_s'])}")
    for sentence in found["words"]:
        click.echo(clean(sentence))
    programs = [{"program": one["name"], "downloads": one["count"]} for one in figures["programs"]]
    networks = [{"network": one["name"], "clients": one["count"]} for one in figures["networks"]]
    for fields, rows in (
        ("path begun complete sent_bytes", figures["files"]),
        ("program downloads", programs),
        ("network clients", networks),
    ):
        if rows:
            click.echo()
            # Rows of each table of a report.
            table("rows", fields)({"rows": rows[:10]})


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
for command in (*(settings, restore, preview, alerts, waiting_page, report),):
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
