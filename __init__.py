"""The package `tidegate`: its command, and its library.

The command imports only the room of the subcommand that runs: `tidegate get` never loads
SQLAlchemy. The library is `tidegate.fetch` and the other names of `client.api`; they are imported
at first use.

A checkout and an installation have the same modules (docs/decisions/packaging.md). A checkout is
the package: `tidegate.py` is a link to this file, and `__path__` is the folder that holds it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tidegate.client.api import (
        AccessRefused,
        Corrupt,
        DownloadFailed,
        Interrupted,
        LocalProblem,
        Metalink,
        NetworkProblem,
        NoRoom,
        NotFound,
        Options,
        Progress,
        Result,
        SourceReport,
        UsageProblem,
        WaitedTooLong,
        fetch,
        fetch_blocking,
        fetch_bytes,
        read_metalink,
    )
    from tidegate.protocol.version import __version__

__all__ = [
    "AccessRefused",
    "Corrupt",
    "DownloadFailed",
    "Interrupted",
    "LocalProblem",
    "Metalink",
    "NetworkProblem",
    "NoRoom",
    "NotFound",
    "Options",
    "Progress",
    "Result",
    "SourceReport",
    "UsageProblem",
    "WaitedTooLong",
    "__version__",
    "fetch",
    "fetch_blocking",
    "fetch_bytes",
    "main",
    "read_metalink",
]
__path__ = [os.path.dirname(os.path.abspath(__file__))]


def __getattr__(name: str) -> Any:
    """Import the library when one of its names is first used (PEP 562)."""
    if name == "__version__":
        return importlib.import_module("tidegate.protocol.version").__version__
    if name in __all__:
        return getattr(importlib.import_module("tidegate.client.api"), name)
    raise AttributeError(f"module 'tidegate' has no attribute {name!r}")


#: Command (words as typed) -> (where it lives, one line of help).
COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": (
        "server.app.cli.serve:serve",
        "Serve a directory, admitting downloads by policy.",
    ),
    "gate": ("server.app.cli.gate:gate", "Decide here, and let nginx or another program send."),
    "config": ("server.app.cli.config:config", "Check or show the configuration."),
    "backup": (
        "server.app.cli.backup:backup",
        "Write keys, queue and accounts into one file.",
    ),
    "restore": ("server.app.cli.backup:restore", "Make a state folder from a backup."),
    "get": (
        "client.cli.get:get",
        "Download, waiting politely and verifying what arrives.",
    ),
    "loadtest": (
        "loadtest.cli:loadtest",
        "Send a server the crowd, and say what came of it.",
    ),
    "plan": (
        "loadtest.sim.plan_cli:plan",
        "What line a crowd would need, in virtual time.",
    ),
    "simulate": ("loadtest.sim.cli:simulate", "Try policies in virtual time."),
    "multicast send": (
        "server.app.cli.multicast:send",
        "Send a file to everybody at a set time.",
    ),
    "mirror init": ("server.app.cli.mirror:init", "Make the keys of a mirror channel."),
    "mirror admit": ("server.app.cli.mirror:admit", "Let a mirror be offered to clients."),
    "mirror publish": (
        "server.app.cli.mirror:publish",
        "Generate one update for all mirrors.",
    ),
    "mirror follow": (
        "client.mirror.cli:follow",
        "Keep a directory in step with a channel.",
    ),
    "mirror status": ("client.mirror.cli:status", "Show which mirrors are current."),
    "completion": (
        "client.cli.completion:completion",
        "What a shell needs to complete words.",
    ),
    "manual": ("client.cli.completion:manual", "The manual page of all commands."),
    "admin": ("client.admin.cli:admin", "Ask or steer a running server."),
    "admin reset-password": (
        "server.app.cli.reset_password:reset_password",
        "Give somebody a new password, on the host.",
    ),
}
GROUPS: Mapping[str, str] = {
    "mirror": "Keep mirrors in step with one origin.",
    "multicast": "Send a file once to many receivers.",
}


def _load(key: str) -> click.Command:
    module, _, attribute = COMMANDS[key][0].partition(":")
    command = getattr(importlib.import_module(f"tidegate.{module}"), attribute)
    assert isinstance(command, click.Command)
    return command


class LazyCommand(click.Command):
    """A command that is imported when it is run, and until then is only its line of help."""

    def __init__(self, key: str) -> None:
        super().__init__(key.rpartition(" ")[2], help=COMMANDS[key][1])
        self._key = key

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        return _load(self._key).make_context(info_name, args, parent, **extra)


class LazyGroup(click.Group):
    """A click group whose commands are imported when they are asked for."""

    def __init__(self, name: str, prefix: str = "", help: str | None = None) -> None:
        super().__init__(name=name, help=help)
        self._prefix = prefix

    def _words(self) -> list[str]:
        rest = [key[len(self._prefix) :] for key in COMMANDS if key.startswith(self._prefix)]
        return list(dict.fromkeys(words.split(" ")[0] for words in rest))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._words()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        key = self._prefix + cmd_name
        if key in COMMANDS:
            command = _load(key)
            if isinstance(command, click.Group):
                # Commands of the other room, which this one may not import.
                for longer in (words for words in COMMANDS if words.startswith(key + " ")):
                    command.add_command(LazyCommand(longer), longer.removeprefix(key + " "))
            return command
        if key in GROUPS:
            return LazyGroup(cmd_name, key + " ", GROUPS[key])
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as fault:
            import difflib

            close = difflib.get_close_matches(args[0], self._words(), 2)
            if not close:
                raise
            words = " or ".join(close)
            raise click.UsageError(f"{fault.message} Did you mean {words}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for word in self._words():
            key = self._prefix + word
            rows.append((word, COMMANDS[key][1] if key in COMMANDS else GROUPS[key]))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _show_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from tidegate.protocol.version import __version__

    python = ".".join(map(str, sys.version_info[:3]))
    click.echo(f"tidegate {__version__} (Python {python}, from {__path__[0]})")
    ctx.exit()


cli = LazyGroup(
    "tidegate", help="Serve files to a crowd, and tell each client when its turn comes."
)
cli.params.append(
    click.Option(
        ["--version"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_show_version,
        help="Show the version and exit.",
    )
)


def _open_closed_streams() -> None:
    """Give the standard streams that the caller has closed something to be.

    A file or a connection would get their numbers, and a line for people would end in it. What is
    meant for standard output must fail there, so its number can only be read.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR if number == 2 else os.O_RDONLY)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the program


def main() -> None:
    """Run the command line; exit with the subcommand's status."""
    _open_closed_streams()
    try:
        _run()
    except (ImportError, MemoryError) as fault:
        # An import that finds no memory for its library says so in these words.
        if isinstance(fault, ImportError) and "failed to map segment" not in str(fault):
            raise
        sys.exit("tidegate: There is too little memory; raise the limit (ulimit -v, MemoryMax=).")


def _run() -> None:
    if sys.argv[1:2] != ["get"]:
        sys.exit(cli(prog_name="tidegate"))
    try:
        cli(prog_name="tidegate")
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        # Taking the interpreter apart takes longer than many a download's last block.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(end.code or 0)


if __name__ == "__main__":
    main()
