"""`tidegate mirror init` and `tidegate mirror publish`."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from platformdirs import user_data_path

from ....protocol.errors import ProtocolError
from ....protocol.tree import name_some
from ....protocol.units import format_duration, format_size, parse_duration, parse_size

if TYPE_CHECKING:
    from ....protocol.batch_generate import GeneratedUpdate
    from ....protocol.channel import Edge
    from ...mirror.publish import Progress, Published

T = TypeVar("T")


def _passphrase(path: Path | None) -> str | None:
    return path.read_text().rstrip("\n") if path is not None else None


def _sentence_of(work: Callable[[], T]) -> T:
    """Run it; a known trouble becomes one sentence and exit status 1."""
    from ...mirror.objects import ObjectError
    from ...mirror.repository import RepositoryProblem

    try:
        return work()
    except (RepositoryProblem, ObjectError, ProtocolError) as fault:
        raise click.ClickException(str(fault)) from fault
    except OSError as fault:
        raise click.ClickException(
            f"{fault.filename or 'The disk'}: {fault.strerror}. Nothing was published; "
            "the last version stays in force."
        ) from fault


_publish_dir = click.argument("publish_dir", type=click.Path(path_type=Path, file_okay=False))
_keys = click.option(
    "--keys",
    type=click.Path(path_type=Path, file_okay=False),
    default=lambda: user_data_path("tidegate") / "mirror-keys",
    help="Folder of the private keys. Never one that is served.",
)


@click.command()
@_publish_dir
@_keys
@click.option(
    "--root-passphrase-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Encrypt the root key with the passphrase in this file.",
)
def init(publish_dir: Path, keys: Path, root_passphrase_file: Path | None) -> None:
    """Make the keys and the empty signed repository in PUBLISH_DIR.

    Run it again, with the root key in place, to renew the root's expiry and replace the online
    keys.
    """
    from ...mirror.repository import initialise, utc

    root = _sentence_of(
        lambda: initialise(publish_dir, keys, utc(time.time()), _passphrase(root_passphrase_file))
    )
    click.echo(f"Repository: {publish_dir}")
    click.echo(f"Keys:       {keys}")
    click.echo(f"Root:       sha256:{hashlib.sha256(root).hexdigest()}")
    click.echo(
        f"Move {keys / 'root.pem'} to an offline medium now; only `mirror init` needs it.\n"
        "Give followers the root fingerprint (or metadata/root.json) by a way you trust."
    )


@click.command()
@click.argument("tree", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--channel", required=True, help="Name of the channel; made if it is new.")
@click.option(
    "--to",
    "publish_dir",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The publish directory made by `mirror init`; serve it with `tidegate serve`.",
)
@_keys
@click.option("--delta/--no-delta", default=True, help="Encode changes against the last version.")
@click.option(
    "--paranoid", is_flag=True, help="Read every file again, even if its timestamp is unchanged."
)
@click.option("--xattrs", is_flag=True, help="Transfer extended attributes (user.* only).")
@click.option(
    "--memory",
    default="256MiB",
    show_default=True,
    help="Limit for the memory that file contents take.",
)
@click.option(
    "--multicast-state",
    type=click.Path(path_type=Path, file_okay=False),
    help="State folder of the server that serves PUBLISH_DIR: schedule the update's multicast.",
)
@click.option(
    "--multicast-prefix", default="/", show_default=True, help="URL path of PUBLISH_DIR there."
)
@click.option(
    "--multicast-in", default="60s", show_default=True, help="When, counted from the publish."
)
@click.option("--keep", default=16, show_default=True, help="Versions followers may start from.")
def publish(
    tree: Path,
    channel: str,
    publish_dir: Path,
    keys: Path,
    delta: bool,
    paranoid: bool,
    xattrs: bool,
    memory: str,
    multicast_state: Path | None,
    multicast_prefix: str,
    multicast_in: str,
    keep: int,
) -> None:
    """Publish TREE as the next version of a channel, as one update for all its mirrors."""
    from ...mirror.publish import Publisher, PublishSettings

    if keep < 2:
        raise click.UsageError("--keep must be at least 2: followers start from somewhere.")

    delay_s = _sentence_of(lambda: parse_duration(multicast_in))

    def announce(updates: Iterable[tuple[Edge, GeneratedUpdate]]) -> None:
        if multicast_state is not None:
            from ...mirror.publish import schedule_updates

            at = time.time() + delay_s
            if schedule_updates(multicast_state, multicast_prefix, channel, updates, at):
                # Followers ask as soon as they can know: the session must be open by then. The
                # server reads its schedule once a second.
                time.sleep(1.5)

    def work() -> Published:
        settings = PublishSettings(
            delta=delta,
            paranoid=paranoid,
            attributes=xattrs,
            memory_bytes=parse_size(memory),
            keep_versions=keep,
        )
        publisher = Publisher(publish_dir, keys, channel, settings)
        with _bar() as show:
            return publisher.publish(tree, time.time(), show, announce)

    done = _sentence_of(work)
    for path in done.skipped:
        click.echo(f"left out (not a file, directory or link): {path}", err=True)
    for path in done.stripped:
        click.echo(
            f"published without its set-user-id, set-group-id or sticky bit: {path}", err=True
        )
    if done.bared:
        kept = "only those named user.* travel" if xattrs else "--xattrs takes those named user.*"
        click.echo(
            f"published without extended attributes ({kept}): {name_some(done.bared)}", err=True
        )
    if not done.changed:
        click.echo(f"{channel}: nothing changed; version {done.version} signed anew.")
        return
    click.echo(
        f"{channel}: version {done.version}, {done.seen.files} files, {done.seen.read_files} of "
        "them read."
    )
    if multicast_state is not None:
        click.echo(f"  multicast in {format_duration(delay_s)}")
    for edge, made in done.updates:
        kind = f"update from {edge.from_version}" if edge.from_version else "snapshot"
        click.echo(
            f"  {kind}: {format_size(edge.length_bytes)}, {made.changes} changes, "
            f"{made.renames} moved, {made.deletions} deleted, "
            f"{made.contents} contents of {format_size(made.content_bytes)}"
        )


@click.command()
@_publish_dir
@click.argument("name")
@click.argument("url", required=False)
@click.option("--relay-url", help="Where it serves the folder of its `follow --relay`.")
@click.option("--remove", is_flag=True, help="Take the mirror off the list instead.")
def admit(
    publish_dir: Path,
    name: str,
    url: str | None,
    relay_url: str | None,
    remove: bool,
) -> None:
    """Let the mirror NAME, which serves under URL, be offered to clients.

    Prints the secret for `mirror follow --report-key`.
    """
    from ...mirror.routes import admit as offer_to_clients
    from ...mirror.routes import expel

    if remove:
        _sentence_of(lambda: expel(publish_dir, name))
    elif url is None:
        raise click.UsageError("Give the URL under which the mirror serves the tree.")
    else:
        click.echo(_sentence_of(lambda: offer_to_clients(publish_dir, name, url, relay_url)))


@contextlib.contextmanager
def _bar() -> Iterator[Progress]:
    """A progress bar on a terminal, silence elsewhere."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("publishing", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total or None
        )
