"""The command line: each subcommand is imported when it runs.

`tidegate get` never loads SQLAlchemy. The shell reads 130 from a command that Ctrl-C ends.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from . import __path__

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
    "admin login-link": (
        "server.app.cli.reset_password:login_link",
        "Let a new browser log in during a flood of logins.",
    ),
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


@contextlib.contextmanager
def _ends_in_words() -> Iterator[None]:
    """End with 130 at Ctrl-C, where click would say "Aborted!", and tell an own fault in a line."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort) as fault:
        # A prompt aborts at the end of its input, too.
        if isinstance(fault.__context__, EOFError):
            raise
        sys.exit(130)
    except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
        raise
    except Exception as fault:
        if os.environ.get("TIDEGATE_TRACEBACK"):
            raise
        text = f"Error: a fault in tidegate: {type(fault).__name__}: {fault}"
        click.echo(f"{text}\nPlease report it with what TIDEGATE_TRACEBACK=1 shows.", err=True)
        sys.exit(70)


class LazyGroup(click.Group):
    """A click group whose commands are imported when they are asked for."""

    def __init__(self, name: str, prefix: str = "", help: str | None = None) -> None:
        super().__init__(name=name, help=help)
        self._prefix = prefix

    def _words(self) -> list[str]:
        rest = [key[len(self._prefix) :] for key in COMMANDS if key.startswith(self._prefix)]
        return list(dict.fromkeys(words.split(" ")[0] for words in rest))

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _ends_in_words():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _ends_in_words():
            return super().invoke(ctx)

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


def run() -> None:
    """Run the words of the process; exit with the subcommand's status."""
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
