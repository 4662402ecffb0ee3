"""`tidegate mirror follow` and `tidegate mirror status`."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urljoin

import click

from ...protocol.errors import ProtocolError
from ...protocol.units import format_duration, format_size, parse_duration, parse_size

if TYPE_CHECKING:
    from .follow import Followed
    from .problem import MirrorProblem


def _stop(*_: object) -> NoReturn:
    sys.exit(0)


@click.command()
@click.argument("url")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--channel", required=True, help="Name of the channel to follow.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The publisher's root.json, obtained in a way you trust (first run only).",
)
@click.option("--fingerprint", help="Or the SHA-256 of it that `mirror init` printed.")
@click.option("--once", is_flag=True, help="One round, then stop.")
@click.option("--rollback", is_flag=True, help="Go back to the previous version and stop.")
@click.option("--interval", default="60s", show_default=True, help="Longest time between rounds.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where trees and state are kept. On the same file system; default beside DIRECTORY.",
)
@click.option(
    "--memory",
    default="512MiB",
    show_default=True,
    help="Limit for the memory that file contents take.",
)
@click.option("--keep", default=1, show_default=True, help="Previous versions kept.")
@click.option("--replace", is_flag=True, help="Put the mirror in place of what DIRECTORY holds.")
@click.option(
    "--paranoid",
    is_flag=True,
    help="Read every file in each round, even if its timestamp is unchanged.",
)
@click.option("--pass", "pass_token", help="A priority pass given by the origin's operator.")
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Certificates (PEM) to trust besides the system's.",
)
@click.option("--multicast", is_flag=True, help="Join multicast when the origin offers it.")
@click.option("--multicast-interface", metavar="ADDR", help="Address of the interface to join on.")
@click.option(
    "--relay",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep fetched update files in this folder, for other mirrors to fetch once it is served.",
)
@click.option("--report-as", help="The name under which the origin admitted this mirror.")
@click.option(
    "--report-key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with the secret that `mirror admit` printed.",
)
@click.option("--own-url", help="Where this mirror serves; checked before each report.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def follow(
    url: str,
    directory: Path,
    channel: str,
    root: Path | None,
    fingerprint: str | None,
    once: bool,
    rollback: bool,
    interval: str,
    state: Path | None,
    memory: str,
    keep: int,
    replace: bool,
    paranoid: bool,
    pass_token: str | None,
    ca: str | None,
    multicast: bool,
    multicast_interface: str | None,
    relay: Path | None,
    report_as: str | None,
    report_key: Path | None,
    own_url: str | None,
    as_json: bool,
) -> None:
    """Keep DIRECTORY in step with a channel published at URL.

    Ends with 5 after a trouble that may pass, with 6 after one that needs an operator; the tree is
    then what it was.
    """
    from ..net.urls import BadUrl, parse
    from .fetching import HttpTransport
    from .follow import Follower, FollowSettings
    from .place import Place
    from .problem import MirrorProblem, named
    from .service import MirrorService, Reporting

    if keep < 0:
        raise click.UsageError("--keep cannot be negative.")
    if (report_as is None) != (report_key is None):
        raise click.UsageError("--report-as and --report-key go together.")
    try:
        settings = FollowSettings(
            channel,
            url.rstrip("/") + "/",
            memory_bytes=parse_size(memory),
            keep_previous=keep,
            replace_existing=replace,
            paranoid=paranoid,
            relay=relay,
        )
        interval_s = parse_duration(interval)
        parse(url)
        parse(own_url or url)
    except (ProtocolError, BadUrl) as fault:
        raise click.UsageError(str(fault)) from fault
    place = Place(directory, state)
    transport = HttpTransport(
        place.home / "client",
        multicast=multicast,
        multicast_interface=multicast_interface,
        pass_token=pass_token,
        ca_file=ca,
    )
    follower = Follower(place, settings, transport, time.time)
    reporting = None
    if report_as is not None and report_key is not None:
        try:
            reporting = Reporting(report_as, report_key.read_text("utf-8").strip(), own_url)
        except ValueError:
            told = f"{report_key} holds no text"
            raise click.BadParameter(told, param_hint="--report-key") from None
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    tell = _Teller(as_json)
    try:
        with named():
            if not follower.trust.pinned and root is not None:
                follower.trust.pin(root.read_bytes())
            elif not follower.trust.pinned and fingerprint is not None:
                follower.trust.pin_fingerprint(fingerprint.removeprefix("sha256:"))
            # No later round can mend it.
            follower.trust.check_pinned()
        if rollback:
            version = follower.rollback()
            tell.line("rolled-back", f"Back at version {version}.", version=version)
            return
    except MirrorProblem as problem:
        tell.failed(problem)
        sys.exit(_status(problem))
    service = MirrorService(
        follower,
        transport,
        time.time,
        time.sleep,
        steady=time.monotonic,
        interval_s=interval_s,
        reporting=reporting,
        done=tell.done,
        failed=tell.failed,
    )
    if not once:
        service.run()
    ended = service.round()
    if isinstance(ended, MirrorProblem):
        sys.exit(_status(ended))


def _status(problem: MirrorProblem) -> int:
    return 5 if problem.passing else 6


class _Teller:
    """Says what happens: sentences, none twice in a row, or one JSON object a line."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._last_text = ""

    def line(self, event: str, text: str, *, err: bool = False, **fields: object) -> None:
        from ..net.answers import clean

        if self._as_json:
            text = json.dumps({"event": event, **fields})
        elif text == self._last_text:
            return
        self._last_text = text
        click.echo(text if self._as_json else clean(text), err=err and not self._as_json)

    def done(self, followed: Followed) -> None:
        if not followed.changed:
            text = f"Version {followed.version}: nothing new."
        else:
            size = format_size(followed.fetched_bytes)
            text = f"Version {followed.version} is live; {size} fetched."
        if followed.repaired:
            text += f" Repaired {len(followed.repaired)} that had drifted."
        self.line(
            "round",
            text,
            version=followed.version,
            latest=followed.latest,
            changed=followed.changed,
            fetched_bytes=followed.fetched_bytes,
            repaired=list(followed.repaired),
        )

    def failed(self, problem: MirrorProblem) -> None:
        self.line(
            "trouble",
            f"{problem.code}: {problem}",
            err=True,
            code=problem.code,
            detail=str(problem),
        )


@click.command()
@click.argument("where")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="As given to `mirror follow`.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(where: str, state: Path | None, as_json: bool) -> None:
    """Show the mirrors of an origin (WHERE is its URL) or the state of a mirror (a directory)."""
    if where.startswith(("http://", "https://")):
        _origin_status(where, as_json)
    else:
        _own_status(Path(where), state, as_json)


def _own_status(directory: Path, home: Path | None, as_json: bool) -> None:
    from .place import Place
    from .problem import MirrorProblem

    place = Place(directory, home)
    try:
        state = place.load()
    except MirrorProblem as problem:
        raise click.ClickException(str(problem)) from problem
    if not state.version:
        raise click.ClickException(f"{directory} mirrors nothing yet.")
    previous = [version for version, _, _ in state.previous if version]
    if as_json:
        fields = {"channel": state.channel, "url": state.url, "version": state.version}
        click.echo(json.dumps({**fields, "previous": previous, "shunned": state.shunned}))
        return
    click.echo(f"{directory}: version {state.version} of {state.channel} from {state.url}")
    if previous:
        click.echo(f"  kept for going back: {', '.join(map(str, previous))}")
    if state.shunned > state.version:
        click.echo(f"  rolled back: waits for a version after {state.shunned}")


def _origin_status(url: str, as_json: bool) -> None:
    from tuf.api.exceptions import DownloadError

    from ..net.answers import clean
    from .fetching import HttpTransport

    try:
        answer = HttpTransport().request("GET", urljoin(url, "/-/mirrors"))
        if not answer.ok:
            raise click.ClickException(f"{url} keeps no list of mirrors (it said {answer.status}).")
        shown = json.loads(answer.body)
        lines = [f"{channel}: version {latest}" for channel, latest in shown["latest"].items()]
        for row in shown["mirrors"]:
            free = {True: ", free", False: ", queueing", None: ""}[row["free"]]
            lines.append(
                f"  {row['name']}  {row['condition']}{free}  version {row['version']}  seen "
                f"{format_duration(row['seen_s'])} ago  {row['url']}  {row['trouble']}".rstrip()
            )
    except (
        *(DownloadError, ValueError, KeyError, TypeError, AttributeError, RecursionError),
    ) as fault:
        raise click.ClickException(f"{url} gave no list of mirrors: {fault}") from fault
    for line in [json.dumps(shown)] if as_json else map(clean, lines):
        click.echo(line)
