"""`tidegate gate`: decide here, and let another program send the files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ....protocol.errors import ProtocolError
from ....protocol.units import parse_duration, parse_size
from ...gate.settings import NO_FILES, origin_url
from ...gate.snippets import CONFIGURED, STORES, SnippetTerms
from ...gate.snippets import snippet as snippet_of
from ..config import Flag
from .serve import FLAGS, fail, flags_of, load_or_fail, option, serve


class GateGroup(click.Group):
    """`tidegate gate DIR` is short for `tidegate gate run DIR`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=GateGroup)
def gate() -> None:
    """Decide who may download, and let the program in front, such as nginx, send the files.

    \b
    tidegate gate DIR --listen unix:/run/tidegate/gate.sock
    tidegate gate --origin URL --listen unix:/run/tidegate/gate.sock
    tidegate gate snippet nginx --root DIR --gate unix:/run/tidegate/gate.sock
    """


def run(file: Path | None, **options: Any) -> None:
    """Run the gate for the files in DIR (`run` may be left out), at an origin, or both."""
    flags = {
        **flags_of(options, {**FLAGS, **{flag: _FLAGS[flag][0] for flag in _FLAGS}}),
        "gate.enabled": Flag(True, "gate"),
    }
    defaults = {
        # It keeps its slots by admission alone: no mover can pause a download.
        "policy": Flag("ticket", "gate"),
        "trusted_proxies": Flag(("unix", "127.0.0.1", "::1"), "gate"),
        # nginx goes on sending, and the next gate finds what it sends.
        "drain_s": Flag(0.0, "gate"),
    }
    load, loaded = load_or_fail(file, flags, defaults)
    if loaded.config.gate.origin and loaded.origin("directory") == "default":
        defaults["directory"] = Flag(str(loaded.config.state / NO_FILES), "gate")
        load, loaded = load_or_fail(file, flags, defaults)
    # The reactor's choice and everything heavy come after the usage errors.
    from ..run import run as run_server

    fail(*run_server(loaded, load))


#: What a gate has of its own, as `serve.FLAGS`.
_FLAGS = {
    "--report": (
        "gate.report",
        "Where the mover reports the end of a transfer: unix:PATH or HOST:PORT (UDP). Default: "
        "beside the gate's address.",
    ),
    "--assumed-rate": (
        "gate.assumed_bytes_s",
        "How fast clients are taken to download that are sent on.",
    ),
    "--log-secret-file": (
        "gate.log_secret_file",
        "Where the secret is with which the origin's log comes.",
    ),
    "--redirect": ("gate.redirect", "Send clients that follow to the origin."),
    "--sign-file": ("gate.sign_file", "Where the secret for --sign is."),
    "--sign": ("gate.sign", "s3:REGION, cloudfront:KEY-PAIR-ID, fastly or secure-link."),
    "--origin": (
        "gate.origin",
        "URL of a bucket or server with the files that DIR has not (nginx).",
    ),
}
#: What `tidegate serve` has as well.
_shared = {
    *("directory", "listen", "admin", "metrics_from", "policy", "slots", "reserve_small"),
    *("small_below", "bandwidth", "state", "user", "file", "trusted_proxy", "show_hidden"),
    *("access_log", "mirror"),
}
_run = click.Command(
    "run",
    callback=run,
    params=[param for param in serve.params if param.name in _shared],
    help=run.__doc__,
)
for _flag, (_setting, _text) in _FLAGS.items():
    option(_flag, _setting, _text)(_run)
gate.add_command(_run)


@gate.command()
@click.argument("mover", type=click.Choice([*CONFIGURED, *STORES]))
@click.option("--root", type=click.Path(path_type=Path), help="The folder of the release.")
@click.option("--files", default="", help="HOST:PORT of the server that has the files.")
@click.option("--gate", default="", help="Where the gate listens: unix:PATH or HOST:PORT.")
@option("--report", *_FLAGS["--report"])
@option("--origin", *_FLAGS["--origin"])
@click.option(
    "--part",
    type=click.Choice(["http", "lua", "clusters"]),
    help="A part that stands apart: the http block of nginx, the Lua of haproxy and lighttpd, the "
    "clusters of envoy.",
)
@click.option("--complete", is_flag=True, help="A whole configuration; needs --listen.")
@click.option("--listen", help="HOST:PORT at which a whole configuration listens.")
@click.option(
    "--if-absent",
    type=click.Choice(["open", "closed"]),
    default="open",
    show_default=True,
    help="Without the gate: files go without a queue, or clients are asked to come back.",
)
@click.option(
    "--absent-connections",
    "most_absent",
    type=click.IntRange(1, 65535),
    default=200,
    show_default=True,
    help="How many connections get files without the gate (nginx, haproxy, envoy).",
)
@click.option(
    "--small-below",
    default="0",
    help="The program in front sends files below this size by itself. apache and lighttpd look; "
    "the others get a list of what is in DIR now.",
)
def snippet(mover: str, part: str | None, complete: bool, small_below: str, **given: Any) -> None:
    """Print what MOVER is configured with, or the store of an origin."""
    names_files = given["root"] or given["files"] or given["origin"]
    needs_files = part != "http" or small_below != "0"
    if not (given["gate"] or mover in STORES) or (needs_files and not names_files):
        raise click.UsageError("Give --root DIR or --origin URL, and --gate ADDRESS.")
    if complete != (given["listen"] is not None):
        raise click.UsageError("--complete and --listen HOST:PORT belong together.")
    try:
        if given["origin"]:
            given["origin"] = origin_url(given["origin"])
        terms = {name: value for name, value in given.items() if value is not None}
        of = SnippetTerms(**terms, small_below=parse_size(small_below))
        click.echo(snippet_of(mover, of, part or ""), nl=False)
    except (ProtocolError, ValueError) as fault:
        raise click.UsageError(str(fault)) from fault


@gate.command()
@click.argument("url")
@click.option("--wait", default="10m", show_default=True, help="How long to wait for a turn.")
@click.option("--insecure", is_flag=True, help="Believe any certificate.")
def check(url: str, wait: str, insecure: bool) -> None:
    """Walk through the queue, a transfer and its end report; say what is missing.

    URL names a large file of the release, as clients see it.
    """
    from ...gate.check import check as walk

    try:
        steps = walk(url, parse_duration(wait), insecure=insecure)
        for step in steps:
            click.echo(f"{'ok      ' if step.good else 'missing '} {step.text}")
            if not step.good:
                sys.exit(1)
    except ProtocolError as fault:
        raise click.UsageError(str(fault)) from fault
