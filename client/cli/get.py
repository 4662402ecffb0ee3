"""`tidegate get`: reads the command line, shows progress, ends with a documented status."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import click

from ...protocol.version import __version__


class _Unit(click.ParamType[Any]):
    """A size, rate or duration with its unit."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | int:
        from ...protocol import units

        reader: Callable[[str], float | int] = getattr(units, f"parse_{self.name}")
        try:
            return reader(value) if isinstance(value, str) else value
        except units.BadUnit as error:
            self.fail(str(error), param, ctx)


def _checksum(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, bytes] | None:
    if value is None:
        return None
    from ..fetch.options import read_checksum
    from ..net.errors import UsageProblem

    try:
        return read_checksum(value)
    except UsageProblem as problem:
        raise click.BadParameter(str(problem), ctx, param) from None


def _headers(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    found = []
    for value in values:
        name, colon, text = value.partition(":")
        if not colon:
            raise click.BadParameter(f"{value!r} is no header; write NAME: VALUE", ctx, param)
        found.append((name.strip(), text.strip()))
    return tuple(found)


class _Interruptible(click.Command):
    """Ends with 130 at Ctrl-C, where click would say "Aborted!" and end with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(130)


@click.command(
    cls=_Interruptible,
    epilog="""\b
Exit status: 0 done, 2 wrong usage, 3 not found, 4 refused, 5 network, 6 corrupt,
7 gave up waiting, 8 cannot write here, 130 interrupted.""",
)
@click.argument("urls", nargs=-1, metavar="URL...")
@click.option("-o", "--output", help="File to write, or - for standard output, in order.")
@click.option("--checksum", callback=_checksum, help="The file's expected digest: sha256:HEX.")
@click.option("--explain", is_flag=True, help="Say what was predicted, decided and measured.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line on standard error.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless it fails.")
@click.version_option(__version__, message="tidegate %(version)s")
@click.option(
    "--limit-rate", "limit_bytes_s", type=_Unit("rate"), help="Limit the rate: 2MB/s, 10Mbit."
)
@click.option("-H", "--header", "headers", multiple=True, callback=_headers, help="NAME: VALUE.")
@click.option("--pass", "pass_token", help="A priority pass given by the operator.")
@click.option(
    "--ca",
    "ca_file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Certificates (PEM) to trust besides the system's.",
)
@click.option(
    "--insecure", is_flag=True, help="Accept any certificate. The digest is still checked."
)
@click.option(
    "--connections", type=click.IntRange(1, 16), help="Connections to each mirror  [default: 1]."
)
@click.option("-r", "--recursive", is_flag=True, help="Fetch a whole folder.")
@click.option("--multicast", is_flag=True, help="Join multicast when the server offers it.")
@click.option("--multicast-interface", metavar="ADDR", help="Address of the interface to join on.")
@click.option("--peers", is_flag=True, help="Exchange pieces with others who fetch the file.")
@click.option(
    "--upload-rate",
    "upload_bytes_s",
    type=_Unit("rate"),
    default="10Mbit",
    show_default=True,
    help="With --peers: what they are given at most.",
)
@click.option(
    "--no-mirrors", is_flag=True, help="Use only the URLs given, not the mirrors that servers name."
)
@click.option(
    "--forget",
    is_flag=True,
    help="First forget the name that servers know you by, and their remembered rates.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=_Unit("duration"),
    default=30.0,
    help="Give up on a connection after this long without data.",
)
@click.option("--wait/--no-wait", default=True, help="Wait when the server is busy.")
@click.option("--max-wait", type=_Unit("duration"), help="Give up rather than wait longer.")
def get(**given: Any) -> None:
    """Fetch a file, politely: waits its turn, uses all mirrors, resumes, verifies.

    URLs that end in the same name are mirrors of one file; others are files of their own, fetched
    one after the other. With -o FILE or --checksum all are mirrors of one file. A FILE.meta4 (here
    or a URL) names mirrors and digests.
    """
    # Nothing of what is loaded becomes garbage, and a twentieth of the start was looking for it.
    gc.disable()
    from .running import run_get

    gc.freeze()
    gc.enable()
    if not given["urls"] and not given["forget"]:
        raise click.UsageError("Name at least one URL, or a FILE.meta4.")
    sys.exit(run_get(given))
