"""`tidegate admin`: the policy, its settings, what a change would do, and who changed what."""

from __future__ import annotations

import json
from typing import Any

import click

from ...protocol.units import parse_duration, parse_size
from . import show
from .steering import Steering, steer


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
    if name.endswith("_s"):
        return name, parse_duration(text)
    return name, text


@click.group()
def settings() -> None:
    """Show and change the policy and its settings."""


@settings.command("show")
@steer
def settings_show(s: Steering) -> None:
    """Print the policy in force and all its settings."""
    found = s.api.get("/settings")
    if s.shown(found):
        return
    _revision(found)
    show.facts(show.settings(found["settings"]))


@settings.command("overrides")
@steer
def settings_overrides(s: Steering) -> None:
    """List settings in force that are not what the configuration file says."""
    s.table(
        s.api.get("/settings/overrides"),
        "overrides",
        {
            "setting": "name",
            "file": "configured",
            "in force": "in_force",
        },
        "What the configuration file says is in force.",
    )


@settings.command("help")
@click.argument("names", nargs=-1)
@steer
def settings_help(s: Steering, names: tuple[str, ...]) -> None:
    """Say what settings mean, in which unit and within which bounds."""
    found = s.api.get("/settings/help")
    if s.shown(found):
        return
    for one in found["settings"]:
        if names and one["name"] not in names:
            continue
        bounds = ", ".join(f"{word} {number:,.12g}" for word, number in one["bounds"].items())
        click.echo(f"{one['name']} ({one['unit']}{', ' + bounds if bounds else ''})")
        click.echo(f"    {one['help']}")
        click.echo(f"    read by {', '.join(one['policies'])}; default {one['default']}")


def _changes(words: tuple[str, ...], policy: str | None) -> dict[str, Any]:
    if not words and policy is None:
        raise click.UsageError("Say what to change: NAME=VALUE or --policy.")
    return dict(read_setting(word) for word in words)


@settings.command("set")
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--policy", help="Another policy, by its name (fair, ticket, ...).")
@click.option("--note", default="", help="Why; kept with the revision.")
@click.option("--revision", type=int, help="Only if this is the revision in force.")
@steer
def settings_set(
    s: Steering, changes: tuple[str, ...], policy: str | None, note: str, revision: int | None
) -> None:
    """Change settings or the policy; no place is lost, no download is dropped."""
    body: dict[str, Any] = {"settings": _changes(changes, policy), "note": note}
    if policy is not None:
        body["policy"] = policy
    etag = f'"r{revision}"' if revision is not None else s.api.call("GET", "/settings").etag
    found = s.api.call("PATCH", "/settings", body, if_match=etag).body
    if not s.shown(found):
        _revision(found)


def _revision(found: Any) -> None:
    by = f"{found['who']}, {show.moment(found['at_s'])}"
    click.echo(show.clean(f"revision {found['number']}: {found['policy']} (by {by})"))


@click.command()
@click.option("--limit", default=20, show_default=True, help="At most this many.")
@click.option("--before", type=int, help="Only older than this one.")
@steer
def revisions(s: Steering, limit: int, before: int | None) -> None:
    """List the changes of the policy, newest first."""
    s.table(
        s.api.get("/revisions", limit=limit, before=before),
        "revisions",
        {
            "revision": "number",
            "when": ("at_s", show.moment),
            "who": "who",
            "policy": "policy",
            "restores": lambda row: row["restored_from"] or "-",
            "note": "note",
        },
        "The policy was never changed on this server.",
    )


@click.command()
@click.argument("number", type=int)
@click.option("--note", default="", help="Why; kept with the revision.")
@steer
def restore(s: Steering, number: int, note: str) -> None:
    """Make revision NUMBER current again."""
    etag = s.api.call("GET", "/settings").etag
    path = f"/revisions/{number}/restore"
    found = s.api.call("POST", path, {"note": note}, if_match=etag).body
    if not s.shown(found):
        _revision(found)


@click.command()
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--policy", help="Another policy, by its name (fair, ticket, ...).")
@click.option(
    "--workload",
    default="recorded",
    show_default=True,
    help="recorded (the last hour), or of the load test: exp1, exp2, release.",
)
@steer
def preview(s: Steering, changes: tuple[str, ...], policy: str | None, workload: str) -> None:
    """Simulate a change beside what is in force, without applying it."""
    current = s.api.get("/settings")
    body = {
        "policy": policy or current["policy"],
        "settings": {**current["settings"], **_changes(changes, policy)},
        "workload": workload,
    }
    begun = s.api.call("POST", "/previews", body).body
    found = s.api.wait_for_preview(begun["key"])
    if s.shown(found):
        return
    downloads = "1 download" if found["jobs"] == 1 else f"{found['jobs']:,} downloads"
    click.echo(f"{downloads}, simulated in {found['took_s']:.1f} s")
    show.table(
        ("measure", "now", "proposed", ""),
        (
            (
                row["label"],
                show.measure(row["now"], row["unit"]),
                show.measure(row["proposed"], row["unit"]),
                row["verdict"],
            )
            for row in found["measures"]
        ),
        "Nothing was measured.",
    )


@click.command()
@click.option("--span", "span", default="1h", show_default=True, help="How far back: 15m, 7d.")
@click.option("--points", default=60, show_default=True, help="At most this many points.")
@steer
def history(s: Steering, span: str, points: int) -> None:
    """Print recorded series as JSON: one time axis, one list a series."""
    click.echo(json.dumps(s.api.get("/history", span_s=parse_duration(span), points=points)))


@click.command()
@click.option("--span", default="24h", show_default=True, help="How far back: 15m, 7d.")
@click.option("--limit", default=20_000, show_default=True, help="At most this many downloads.")
@steer
def arrivals(s: Steering, span: str, limit: int) -> None:
    """Print recorded arrivals, one JSON object a line, for loadtest, simulate and plan."""
    found = s.api.get("/arrivals", span_s=parse_duration(span), limit=limit)
    if not s.shown(found):
        for arrival in found["arrivals"]:
            click.echo(json.dumps(arrival))
