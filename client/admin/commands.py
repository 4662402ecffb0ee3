"""The commands of `tidegate admin` that are one operation each."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

from ...protocol.units import format_duration, format_rate, parse_duration
from .operation import moment, operation, read_moment, show_facts, table, written

Option = Callable[..., click.Option]


def _option(*names: str, **given: Any) -> click.Option:
    return click.Option(names, show_default=bool(given.get("default")), **given)


_duration: Option = partial(_option, type=parse_duration, metavar="DURATION")
_hour: Option = partial(_option, type=read_moment, metavar="TIME")


def _limit(default: int, what: str = "") -> click.Option:
    return _option("--limit", default=default, help=f"At most this many{what}.")


def _search() -> click.Option:
    return _option("-s", "--search", "q", default="", help="Only entries that contain this text.")


def _page() -> tuple[click.Option, ...]:
    return _search(), _limit(50), _option("--offset", default=0, help="Skip this many.")


def _one_of(name: str, *choices: str, **given: Any) -> click.Option:
    return _option(name, type=click.Choice(choices), **given)


def _note(why: str) -> click.Option:
    return _option("--note", default="", help=why)


def add_queue_commands(admin: click.Group) -> None:
    """Downloads, tickets, blocked addresses and the doors."""
    add = partial(operation, admin)
    running = "lease file client size_bytes remaining_bytes rate_bytes_s connections paused"
    add(
        *("downloads", "GET /downloads", "List running downloads."),
        *_page(),
        shows=table("leases", running, "No download is running."),
    )
    add(
        *("cancel NUMBER", "DELETE /downloads/{number}"),
        "End the download NUMBER and free its slot.",
        shows="Download {number} is cancelled.",
    )
    line = "place number file client kind expected_s done_s polls state"
    add(
        *("tickets", "GET /tickets", "List the waiting tickets in the order of their turn."),
        *_page(),
        _one_of("--state", "waiting", "ready", help="Only in this state."),
        shows=table("tickets", line, "No client is waiting."),
    )
    add(
        *("promote NUMBER", "POST /tickets/{number}/promote", "Move ticket NUMBER to the head."),
        shows="Ticket {number} is next.",
    )
    add(
        *("expire NUMBER", "DELETE /tickets/{number}", "Take ticket NUMBER out of the queue."),
        shows="Ticket {number} has lost its place.",
    )
    add(
        *("blocks", "GET /blocks", "List blocked addresses."),
        shows=table("blocks", "network since_s until_s who note", "No address is blocked."),
    )
    add(
        *("block NETWORK", "POST /blocks", "Refuse an address or NETWORK, and end what it has."),
        _duration("--for", "for_s", help="How long: 2h, 7d. Without it: until unblocked."),
        _note("Why; for the log."),
        _option("--sure", is_flag=True, help="Even your own address, or a large network."),
        shows="{network} is blocked.",
    )
    add(
        *("unblock NETWORK", "DELETE /blocks", "Lift the block of NETWORK."),
        shows="{network} is no longer blocked.",
    )
    add("doors show", "GET /doors", "Say whether downloads may start.", shows=_show_doors)
    add(
        *("doors close", "PUT /doors"),
        "Let running downloads finish and start no more; clients get a place in the queue.",
        _option("--text", default="", help="What visitors read."),
        _hour("--until", "opens_s", help="When it is expected to end: 2030-01-31T12:00Z, or 2h."),
        fixed={"closed": True},
        shows=_show_doors,
    )
    add(
        *("doors open", "PUT /doors", "Let downloads start again, in the order of the queue."),
        fixed={"closed": False},
        shows=_show_doors,
    )


def _show_doors(found: Mapping[str, Any]) -> None:
    if not found["closed"]:
        click.echo("The doors are open.")
        return
    click.echo(f"The doors are closed since {moment(found['since_s'])}, by {found['who']}.")
    show_facts({"text": found["text"], "expected to open": moment(found["opens_s"])})


def add_release_commands(admin: click.Group) -> None:
    """Files and their rules, draws and priority passes."""
    add = partial(operation, admin)
    add(
        *("files", "GET /files", "List what is served."),
        *_page(),
        _one_of("--sort", "path", "popular", "bytes", "size", default="path"),
        shows=table(
            "files", "path size_bytes begun complete sent_bytes sha256", "No file is served."
        ),
    )
    rules = "path require_class treat_as multicast hidden_until_s prequeue_from_s source note"
    add(
        *("rules list", "GET /rules"),
        "List the rules in force: those of the configuration, then those of operators.",
        shows=table("rules", rules, "There is no rule."),
    )
    add(
        *("rules set PATH", "PUT /rules"),
        "Set the rule for the files whose path fits PATH (with * and ?).",
        _option("--require-class", default="", help="Only with a pass of this class."),
        _one_of(
            *("--treat-as", "small", "large"),
            callback=lambda _context, _option, chosen: chosen or "",
            help="Whatever its size.",
        ),
        _option("--multicast/--no-multicast", default=None, help="Allow or forbid multicast."),
        _hour("--hidden-until", "hidden_until_s", help="2030-01-31T12:00 (UTC), or 2h from now."),
        _hour("--prequeue-from", "prequeue_from_s", help="When visitors may register; earlier."),
        _note("Why."),
        shows="The rule for {path} is set.",
    )
    add(
        *("rules remove PATH", "DELETE /rules", "Remove the rule for PATH."),
        shows="The rule for {path} is gone.",
    )
    add(
        *("prequeues", "GET /prequeues", "List pre-queues with what is published of their draws."),
        shows=table("prequeues", "path opens_s entered commitment seed", "No release is planned."),
    )
    issued = "serial kind path expires_s used max_uses revoked note"
    add(
        *("passes list", "GET /passes", "List the passes that were issued."),
        *_page(),
        shows=table("passes", issued, "No pass was issued yet."),
    )
    add(
        *("passes issue", "POST /passes"),
        "Issue passes and print them as CSV; the tokens are shown only now.",
        _option("--class", "kind", required=True, help="A class of the setting class_weights."),
        _option("--count", default=1),
        _option("--path", default="*", help="For files that match this pattern."),
        _hour("--from", "not_before_s", help="Good from: a time or a duration; now."),
        _hour("--for", "expires_s", default="7d", help="Good until: the same."),
        _option("--max-uses", default=1, help="Downloads that each is good for."),
        _note("What they are for."),
        shows=_show_passes,
    )
    add(
        *("passes revoke SERIAL", "DELETE /passes/{serial}", "Make the pass SERIAL worthless."),
        shows="Pass {serial} is revoked.",
    )


def _show_passes(found: Mapping[str, Any]) -> None:
    sheet = csv.writer(sys.stdout, lineterminator="\n")
    sheet.writerow(["serial", "class", "path", "expires", "max_uses", "token"])
    for row in found["passes"]:
        until = moment(row["expires_s"])
        cells = [row["serial"], row["kind"], row["path"], until, row["max_uses"], row["token"]]
        sheet.writerow(cells)


def add_account_commands(admin: click.Group) -> None:
    """Users and API tokens."""
    add = partial(operation, admin)
    role: Option = partial(_one_of, "--role", "viewer", "operator", default="viewer")
    held = "serial label owner scopes expires_s used_s"
    add(
        *("tokens list", "GET /tokens", "List API tokens."),
        shows=table("tokens", held, "There is no API token."),
    )
    add(
        *("tokens issue LABEL", "POST /tokens"),
        "Issue an API token for LABEL and print it; it is shown only now.\n\n"
        "Changing settings needs the scope policy (or --role operator), which viewers do not have.",
        role(),
        _option(
            *("--scope", "scopes"),
            type=click.Choice(["read", "queue", "policy", "files", "accounts"]),
            multiple=True,
            callback=lambda _context, _option, chosen: list(chosen) or None,
            help="What it may do; may be given again. Without: all that its role may.",
        ),
        _option(
            "--days",
            default=90,
            callback=lambda _context, _option, days: days or None,
            help="0: until revoked.",
        ),
        shows="{secret}",
    )
    add(
        *("tokens revoke SERIAL", "DELETE /tokens/{serial}", "Revoke the API token SERIAL."),
        shows="API token {serial} is revoked.",
    )
    add(
        *("users list", "GET /users", "List users."),
        shows=table("users", "name role one_time_codes created_s", "There is no user."),
    )
    add(
        *("users add NAME", "POST /users"),
        "Add the user NAME, who must change the password at the first login.",
        role(),
        _option(
            *("--password",),
            prompt=True,
            confirmation_prompt=True,
            hide_input=True,
            help="Their first password; asked for when not given.",
        ),
        shows="{name} is a {role} now.",
    )
    add(
        *("users remove NAME", "DELETE /users/{name}"),
        "Remove the user NAME and end their sessions and tokens.",
        shows="{name} is gone.",
    )


def add_record_commands(admin: click.Group) -> None:
    """The server at a glance, and what was recorded of it."""
    add = partial(operation, admin)
    add("status", "GET /state", "Say how the server is.", shows=_show_status)
    add(
        *("events", "GET /events", "Show the log, newest first."),
        _option("--kind", default="", help="Only of this kind: apply, block, login ..."),
        _search(),
        _limit(50),
        shows=table("events", "at_s kind who text", "Nothing has happened."),
    )
    add(
        *("mirrors", "GET /mirrors", "List mirrors and their condition."),
        shows=table("rows", "name state facts", "No mirror is configured or reports here."),
    )
    add(
        *("multicast", "GET /multicast", "List what is sent by multicast."),
        shows=table("rows", "name state facts", "Nothing is sent by multicast now."),
    )
    add(
        *("history", "GET /history"),
        "Print recorded series as JSON: one time axis, one list a series.",
        _duration("--span", "span_s", default="1h", help="How far back: 15m, 7d."),
        _option("--points", default=60, help="At most this many points."),
        shows=lambda found: click.echo(json.dumps(found)),
    )
    add(
        *("arrivals", "GET /arrivals"),
        "Print recorded arrivals, one JSON object a line, for loadtest, simulate and plan.",
        _duration("--span", "span_s", default="24h", help="How far back: 15m, 7d."),
        _limit(20_000, " downloads"),
        shows=lambda found: click.echo(
            "".join(f"{json.dumps(arrival)}\n" for arrival in found["arrivals"]), nl=False
        ),
    )
    add(
        *("settings overrides", "GET /settings/overrides"),
        "List settings in force that are not what the configuration file says.",
        shows=table(
            "overrides",
            "name configured in_force",
            "What the configuration file says is in force.",
        ),
    )
    changes = "number at_s who policy restored_from note"
    add(
        *("revisions", "GET /revisions", "List the changes of the policy, newest first."),
        _limit(20),
        _option("--before", type=int, help="Only older than this one."),
        shows=table("revisions", changes, "The policy was never changed on this server."),
    )


def _show_status(found: Mapping[str, Any]) -> None:
    click.echo(found["headline"])
    if found["more"]:
        click.echo(found["more"])
    begun, paused = found["small_active"] + found["large_active"], found["paused"]
    mode = "" if found["mode"] in ("", found["policy"]) else f", now {found['mode']}"
    capacity, by_line = found["capacity_bytes_s"], found["link_bound"]
    used = begun - found["slotless"] - found["doubted"]
    running = f"{begun - paused} running" if by_line else f"{used} of {found['slots']} used"
    judged = {"done in time": "end_within_p90", "started in time": "eta_within_p90"}
    show_facts(
        {
            "policy": found["policy"] + mode,
            "downloads" if by_line else "slots": f"{running}, {paused} paused",
            "queue": f"{found['people_waiting']} wait, {paused} of them have begun, "
            f"{found['ready']} are ready",
            "last in line": written("expected_s", (found["last_wait"] or {}).get("expected_s")),
            "goodput": format_rate(found["goodput_bytes_s"])
            + (f" of {format_rate(capacity)}" if capacity else ""),
            "connections": f"{found['connections']}, {found['held']} held",
            "multicast": f"{found['multicast_cohorts']} groups, "
            f"{found['multicast_receivers']} receivers",
            **{
                title: "too few to say" if found[name] is None else f"{found[name] * 100:.0f} %"
                for title, name in judged.items()
            },
            "faults": found["totals"]["errors_total"],
            "up": format_duration(found["now_s"] - found["started_s"]),
            "version": found["version"],
        }
    )
