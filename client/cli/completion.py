"""`tidegate completion` and `tidegate manual`: the commands, as a shell and `man` want them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click


def _commands(group: click.Group, words: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, info_name=words)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, f"{words} {name}")
        elif command is not None and not command.hidden:
            yield f"{words} {name}", command


def _roff(text: str) -> str:
    """Text as roff takes it: no escapes, no line that begins like a request."""
    text = re.sub(r"\s+", " ", text.replace("\b", " ")).strip().replace("\\", "\\e")
    return re.sub(r"^(?=[.'])", r"\\&", text.replace("-", "\\-"))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        # The synopsis names an argument without a help text.
        if record is not None and (record[1] or isinstance(parameter, click.Option)):
            yield from (".TP", f"\\fB{_roff(record[0])}\\fR", _roff(record[1]) or "\\&")


def manual_page(group: click.Group, name: str) -> str:
    """A page of section 1 about every command of a group (roff, man macros)."""
    about = _roff(group.help or "")
    lines = [f'.TH {name.upper()} 1 "" "{name}" "User Commands"']
    lines += [".SH NAME", f"{name} \\- {about}", ".SH SYNOPSIS", f"\\fB{name}\\fR COMMAND ..."]
    lines.append(".SH COMMANDS")
    for words, command in _commands(group, name):
        context = click.Context(command, info_name=words)
        pieces = " ".join(command.collect_usage_pieces(context))
        lines += [f".SS {_roff(words)}", f"\\fB{_roff(words)}\\fR {_roff(pieces)}", ".PP"]
        for paragraph in (command.help or "").split("\n\n"):
            lines += [_roff(paragraph), ".PP"]
        lines += _options(command, context)
        if command.epilog:
            lines += [".PP", _roff(command.epilog)]
    return "\n".join(lines) + "\n"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what a shell needs to complete commands and options.

    For bash: eval "$(tidegate completion bash)", for zsh the same, for fish:
    tidegate completion fish | source.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(context.find_root().command, {}, "tidegate", "_TIDEGATE_COMPLETE").source())


@click.command()
@click.pass_context
def manual(context: click.Context) -> None:
    """Print the manual page of all commands: tidegate manual | man -l -."""
    group = context.find_root().command
    assert isinstance(group, click.Group)
    click.echo(manual_page(group, "tidegate"), nl=False)
