"""`tidegate serve`: flags, signals, and what is printed."""

from __future__ import annotations

import hashlib
import os
import random
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import click

from ..config import ConfigError, Flag, LoadedConfig, field_of, load_config

#: Each flag with its setting and its help. Everything that a flag can say, the file can say too.
FLAGS: Mapping[str, tuple[str, str]] = {
    "--listen": ("listen", "HOST:PORT, [IPv6]:PORT, unix:PATH or systemd:; repeatable."),
    "--workers": ("workers", "Number of serving processes, or auto for one per core."),
    "--cluster": ("cluster", "postgresql://… that several machines share: one queue for all."),
    "--cluster-address": (
        "cluster_address",
        "HOST:PORT under which the other machines reach this one.",
    ),
    "--admin": ("admin", "HOST:PORT of the admin page, or off."),
    "--metrics-from": (
        "metrics_from",
        "Network that may read /metrics without an API token; repeatable.",
    ),
    "--policy": (
        "policy",
        "Admission policy: fcfs, reserve, ticket, fair, adaptive, or an installed one.",
    ),
    "--slots": ("admission.slots", "Downloads that may run at once, reserved ones included."),
    "--reserve-small": ("admission.reserve_small", "Slots that large downloads never take."),
    "--small-below": (
        "admission.small_below_bytes",
        "Files below this size are small, such as 20KB.",
    ),
    "--bandwidth": ("bandwidth", "Limit for everything the server sends, such as 100Mbit."),
    "--state": ("state", "Folder of keys, database and sessions."),
    "--user": (
        "user",
        "When started as root: open the ports, then switch to this user for good, or stay root.",
    ),
    "--tls-cert": ("tls_cert", "Certificate chain (PEM); switches TLS on."),
    "--tls-key": ("tls_key", "Its private key (PEM)."),
    "--trusted-proxy": (
        "trusted_proxies",
        "Network (or `unix`) whose Forwarded and X-Forwarded-* fields count; repeatable.",
    ),
    "--show-hidden": ("show_hidden", "Serve dot files, too."),
    "--access-log": ("access_log", "File for the access log; - is standard error, off none."),
    "--mirror": ("mirrors", "URL of a mirror of DIR, best first; repeatable."),
    "--mirror-publish": (
        "mirror_publish",
        "Publish directory whose followers are offered as mirrors.",
    ),
    "--mirror-channel": ("mirror_channel", "The channel whose tree is served here."),
    "--mirror-prefix": ("mirror_prefix", "URL path of that tree, such as /pub/."),
    "--multicast": ("multicast.enabled", "Send hot files once for everyone."),
    "--multicast-interface": (
        "multicast.interface",
        "Address of the interface that multicast is sent from.",
    ),
    "--multicast-rate": ("multicast.rate", "What all sessions together send, such as 95Mbit."),
    "--multicast-threshold": ("multicast.threshold", "Wishes for one file that make a session."),
    "--multicast-window": ("multicast.window_s", "Within so long, such as 15s."),
    "--multicast-hold": (
        "multicast.hold_share",
        "Hold requests for this share of a pass; 0: the window.",
    ),
    "--multicast-fec": ("multicast.fec", "auto, raptorq, xor or none."),
}


def option(flag: str, setting: str, text: str) -> Callable[[Any], Any]:
    """The flag of a setting: one with several values is repeated, a switch has none."""
    field = field_of(setting)
    assert field is not None
    several = typing.get_origin(field.annotation) is tuple
    is_switch = field.annotation is bool
    return click.option(flag, multiple=several, is_flag=is_switch, default=None, help=text)


def _all_flags(command: Any) -> Any:
    for flag, (setting, text) in reversed(tuple(FLAGS.items())):
        command = option(flag, setting, text)(command)
    return command


#: Where every command reads the configuration.
config_option = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration file (default: ./tidegate.toml if present).",
)
#: Whose state it is about.
state_option = option("--state", *FLAGS["--state"])


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


def flags_of(
    options: Mapping[str, Any], known: Mapping[str, tuple[str, str]] = FLAGS
) -> dict[str, Flag]:
    """The options that were given, by their dotted settings."""
    found: dict[str, Flag] = {}
    for name, value in options.items():
        if value is not None and value != ():
            flag = f"--{name.replace('_', '-')}"
            setting = known[flag][0] if flag in known else name
            found[setting] = Flag(value, flag if flag in known else "DIR")
    return found


def load_or_fail(
    file: Path | None,
    flags: Mapping[str, Flag],
    defaults: Mapping[str, Flag] = MappingProxyType({}),
) -> tuple[Callable[[], LoadedConfig], LoadedConfig]:
    """How the configuration is read, now and later, and what it is now; faults end the command."""

    def load() -> LoadedConfig:
        return load_config(file, os.environ, flags, defaults)

    try:
        return load, load()
    except ConfigError as fault:
        fail(fault.faults, 2)


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
