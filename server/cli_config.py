"""`tidegate config check|show`: is the configuration good, and where does each value come from."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from server.config import ConfigError, LoadedConfig, load_config, setting_names, value_of

_FILE = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration file (default: ./tidegate.toml if present).",
)


@click.group()
def config() -> None:
    """Check or show the configuration."""


def _load(file: Path | None) -> LoadedConfig:
    try:
        return load_config(file, os.environ, {})
    except ConfigError as error:
        for fault in error.faults:
            click.echo(f"tidegate: {fault}", err=True)
        sys.exit(2)


@config.command()
@_FILE
def check(file: Path | None) -> None:
    """Say whether the configuration is good; exit 2 and name each fault when it is not."""
    loaded = _load(file)
    for variable in loaded.ignored:
        click.echo(f"tidegate: {variable} names no setting and is ignored.", err=True)
    click.echo(f"The configuration is good ({loaded.file or 'no file; defaults'}).")


@config.command()
@_FILE
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(file: Path | None, as_json: bool) -> None:
    """Show every setting, its value, and where the value came from."""
    loaded = _load(file)
    names = list(setting_names())
    if as_json:
        document = {
            name: {"value": plain(value_of(loaded.config, name)), "origin": loaded.origin(name)}
            for name in names
        }
        click.echo(json.dumps(document, indent=2))
        return
    section = ""
    for name in names:
        head, _, key = name.rpartition(".")
        if head != section:
            section = head
            click.echo(f"\n[{head}]")
        value = plain(value_of(loaded.config, name))
        text = f"{key} = {json.dumps(value)}" if value is not None else f"# {key} ="
        click.echo(f"{text:<44}  # {loaded.origin(name)}")


def plain(value: Any) -> Any:
    """A value as JSON knows it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value
