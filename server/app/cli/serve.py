"""`tidegate serve`: flags, signals, and what is printed."""

from __future__ import annotations

import hashlib
import os
import random
import re
import sys
import typing
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import click

from ....policies.settings import one_line, unit_of
from ..config import ConfigError, Flag, LoadedConfig, field_of, load_config

#: Each flag with its setting. Everything that a flag can say, the file can say too.
FLAGS: Mapping[str, str] = {
    "--listen": "listen",
    "--workers": "workers",
    "--cluster": "cluster",
    "--cluster-address": "cluster_address",
    "--admin": "admin",
    "--metrics-from": "metrics_from",
    "--policy": "policy",
    "--slots": "admission.slots",
    "--reserve-small": "admission.reserve_small",
    "--small-below": "admission.small_below_bytes",
    "--bandwidth": "bandwidth",
    "--state": "state",
    "--user": "user",
    "--tls-cert": "tls_cert",
    "--tls-key": "tls_key",
    "--trusted-proxy": "trusted_proxies",
    "--show-hidden": "show_hidden",
    "--access-log": "access_log",
    "--mirror": "mirrors",
    "--mirror-publish": "mirror_publish",
    "--mirror-channel": "mirror_channel",
    "--mirror-prefix": "mirror_prefix",
    "--multicast": "multicast.enabled",
    "--multicast-interface": "multicast.interface",
    "--multicast-rate": "multicast.rate",
    "--multicast-threshold": "multicast.threshold",
    "--multicast-window": "multicast.window_s",
    "--multicast-hold": "multicast.hold_share",
    "--multicast-fec": "multicast.fec",
}


def option(flag: str, setting: str, text: str = "") -> Callable[[Any], Any]:
    """The flag of a setting: one with several values is repeated, a switch has none.

    Without a `text` its help is what the setting says of itself but for links, and how a value is
    written.
    """
    field = field_of(setting)
    assert field is not None
    several = typing.get_origin(field.annotation) is tuple
    is_switch = field.annotation is bool
    if not text:
        text = re.sub(r", see \[.*?\]\(.*?\)", "", one_line(field.description))
        examples = {"bytes": "20KB", "bytes/s": "100Mbit", "s": "15s"}
        example = examples.get(unit_of(field.json_schema_extra) or "")
        text += f" Such as {example}." if example else ""
        if typing.get_origin(field.annotation) is typing.Literal:
            text += f" One of {', '.join(typing.get_args(field.annotation))}."
        text += " Repeatable." if several else ""
    return click.option(flag, multiple=several, is_flag=is_switch, default=None, help=text)


def _all_flags(command: Any) -> Any:
    for flag, setting in reversed(tuple(FLAGS.items())):
        command = option(flag, setting)(command)
    return command


#: Where every command reads the configuration.
config_option = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration file (default: ./tidegate.toml if present).",
)
#: Whose state it is about.
state_option = option("--state", FLAGS["--state"])


@click.command()
@click.argument("directory", metavar="[DIR]", required=False)
@_all_flags
@config_option
@click.option("--sample", is_flag=True, help="Make a small sample release if DIR is absent.")
def serve(file: Path | None, sample: bool, **options: Any) -> None:
    """Serve DIR, admitting downloads by policy."""
    flags = flags_of(options)
    load, loaded = load_or_fail(file, flags)
    ignored = next((one.name for key, one in flags.items() if key.startswith("multicast.")), None)
    if ignored and not loaded.config.multicast.enabled:
        fail([f"{ignored} has no effect without --multicast: add it, or leave this out."], 2)
    if sample and not loaded.config.directory.exists():
        make_sample(loaded.config.directory)
    # The reactor's choice and everything heavy come after the usage errors.
    from ..run import run

    fail(*run(loaded, load))


def flags_of(options: Mapping[str, Any], known: Mapping[str, str] = FLAGS) -> dict[str, Flag]:
    """The options that were given, by their dotted settings."""
    found: dict[str, Flag] = {}
    for name, value in options.items():
        if value is not None and value != ():
            flag = f"--{name.replace('_', '-')}"
            setting = known.get(flag, name)
            found[setting] = Flag(value, flag if flag in known else "DIR")
    return found


def load_or_fail(
    file: Path | None,
    flags: Mapping[str, Flag],
    defaults: Mapping[str, Flag] = MappingProxyType({}),
) -> tuple[Callable[[], LoadedConfig], LoadedConfig]:
    """How the configuration is read, now and later, and what it is now; faults end the command."""
    load = partial(load_config, file, os.environ, flags, defaults)
    try:
        loaded = load()
    except ConfigError as fault:
        fail(fault.faults, 2)
    for variable in loaded.ignored:
        click.echo(f"tidegate: {variable} names no setting and is ignored.", err=True)
    return load, loaded


def make_sample(directory: Path) -> None:
    """Fill `directory`, which must not exist yet; the same bytes every time."""
    directory.mkdir(parents=True)
    rng = random.Random(1997)
    sizes = {"amd64.iso": 24_000_000, "arm64.iso": 21_000_000}
    files = {f"tideland-1.0-{name}": size_bytes for name, size_bytes in sizes.items()}
    for name, size_bytes in {**files, "tideland-1.0.tar.gz": 3_400_000}.items():
        body = rng.randbytes(size_bytes)
        (directory / name).write_bytes(body)
        digest = hashlib.sha256(body).hexdigest()
        (directory / f"{name}.sha256").write_text(f"{digest}  {name}\n", "ascii")
    notes = """Tideland 1.0

A made-up release, for trying Tidegate: two images, one source archive, and these notes.
The images are random bytes; nothing in them runs.
"""
    (directory / "RELEASE-NOTES.txt").write_text(notes, "utf-8")


def fail(faults: list[str], status: int) -> NoReturn:
    """End the command with these sentences."""
    for fault in faults:
        click.echo(f"tidegate: {fault}", err=True)
    sys.exit(status)
