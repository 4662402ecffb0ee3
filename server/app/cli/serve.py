"""`tidegate serve`: flags, signals, and what is printed."""

from __future__ import annotations

import hashlib
import os
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import click

from ..config import ConfigError, Flag, LoadedConfig, load_config

#: Click parameter -> dotted setting. Everything a flag can say, the file can say too.
FLAGS: Mapping[str, tuple[str, str]] = {
    "directory": ("directory", "DIR"),
    "listen": ("listen", "--listen"),
    "workers": ("workers", "--workers"),
    "cluster": ("cluster", "--cluster"),
    "cluster_address": ("cluster_address", "--cluster-address"),
    "admin": ("admin", "--admin"),
    "metrics_from": ("metrics_from", "--metrics-from"),
    "policy": ("policy", "--policy"),
    "slots": ("admission.slots", "--slots"),
    "reserve_small": ("admission.reserve_small", "--reserve-small"),
    "small_below": ("admission.small_below_bytes", "--small-below"),
    "bandwidth": ("bandwidth", "--bandwidth"),
    "state": ("state", "--state"),
    "user": ("user", "--user"),
    "tls_cert": ("tls_cert", "--tls-cert"),
    "tls_key": ("tls_key", "--tls-key"),
    "trusted_proxy": ("trusted_proxies", "--trusted-proxy"),
    "show_hidden": ("show_hidden", "--show-hidden"),
    "access_log": ("access_log", "--access-log"),
    "mirror": ("mirrors", "--mirror"),
    "mirror_publish": ("mirror_publish", "--mirror-publish"),
    "mirror_channel": ("mirror_channel", "--mirror-channel"),
    "mirror_prefix": ("mirror_prefix", "--mirror-prefix"),
    "multicast": ("multicast.enabled", "--multicast"),
    "multicast_interface": ("multicast.interface", "--multicast-interface"),
    "multicast_rate": ("multicast.rate", "--multicast-rate"),
    "multicast_threshold": ("multicast.threshold", "--multicast-threshold"),
    "multicast_window": ("multicast.window_s", "--multicast-window"),
    "multicast_hold": ("multicast.hold_share", "--multicast-hold"),
    "multicast_fec": ("multicast.fec", "--multicast-fec"),
}


@click.command()
@click.argument("directory", metavar="[DIR]", required=False)
@click.option(
    "--listen", multiple=True, help="HOST:PORT, [IPv6]:PORT, unix:PATH or systemd:; repeatable."
)
@click.option("--workers", help="Number of serving processes, or auto for one per core.")
@click.option("--cluster", help="postgresql://… that several machines share: one queue for all.")
@click.option("--cluster-address", help="HOST:PORT under which the other machines reach this one.")
@click.option("--admin", help="HOST:PORT of the admin page, or off.")
@click.option(
    "--metrics-from",
    multiple=True,
    help="Network that may read /metrics without an API token; repeatable.",
)
@click.option(
    "--policy",
    help="Admission policy: fcfs, reserve, ticket, fair, adaptive, or an installed one.",
)
@click.option("--slots", help="Downloads that may run at once, reserved ones included.")
@click.option("--reserve-small", help="Slots that large downloads never take.")
@click.option("--small-below", help="Files below this size are small, such as 20KB.")
@click.option("--bandwidth", help="Limit for everything the server sends, such as 100Mbit.")
@click.option("--state", help="Folder of keys, database and sessions.")
@click.option(
    "--user",
    help="When started as root: open the ports, then switch to this user for good, or stay root.",
)
@click.option("--config", "file", type=click.Path(path_type=Path), help="Configuration file.")
@click.option("--tls-cert", help="Certificate chain (PEM); switches TLS on.")
@click.option("--tls-key", help="Its private key (PEM).")
@click.option(
    "--trusted-proxy",
    multiple=True,
    help="Network (or `unix`) whose Forwarded and X-Forwarded-* fields count; repeatable.",
)
@click.option("--show-hidden", is_flag=True, default=None, help="Serve dot files, too.")
@click.option("--access-log", help="File for the access log; - is standard error, off none.")
@click.option("--mirror", multiple=True, help="URL of a mirror of DIR, best first; repeatable.")
@click.option("--multicast", is_flag=True, default=None, help="Send hot files once for everyone.")
@click.option("--multicast-interface", help="Address of the interface that multicast is sent from.")
@click.option("--multicast-rate", help="What all sessions together send, such as 95Mbit.")
@click.option("--multicast-threshold", help="Wishes for one file that make a session.")
@click.option("--multicast-window", help="Within so long, such as 15s.")
@click.option("--multicast-hold", help="Hold requests for this share of a pass; 0: the window.")
@click.option("--multicast-fec", help="auto, raptorq, xor, none or paper.")
@click.option("--mirror-publish", help="Publish directory whose followers are offered as mirrors.")
@click.option("--mirror-channel", help="The channel whose tree is served here.")
@click.option("--mirror-prefix", help="URL path of that tree, such as /pub/.")
@click.option("--sample", is_flag=True, help="Make a small sample release if DIR is absent.")
def serve(file: Path | None, sample: bool, **options: Any) -> None:
    """Serve DIR, admitting downloads by policy."""
    flags = flags_of(options)
    load, loaded = load_or_fail(file, flags)
    ignored = [words for key, words in FLAGS.values() if key in flags and _of_multicast(key)]
    if ignored and not loaded.config.multicast.enabled:
        fail([f"{ignored[0]} has no effect without --multicast: add it, or leave this out."], 2)
    if sample and not loaded.config.directory.exists():
        make_sample(loaded.config.directory)
    # The reactor's choice and everything heavy come after the usage errors.
    from ..run import run

    fail(*run(loaded, load))


def flags_of(options: Mapping[str, Any]) -> dict[str, Flag]:
    """The options that were given, by their dotted settings."""
    return {
        FLAGS[name][0]: Flag(value, FLAGS[name][1])
        for name, value in options.items()
        if value is not None and value != ()
    }


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


def _of_multicast(key: str) -> bool:
    return key.startswith("multicast.") and key != "multicast.enabled"


def fail(faults: list[str], status: int) -> NoReturn:
    """End the command with these sentences."""
    for fault in faults:
        click.echo(f"tidegate: {fault}", err=True)
    sys.exit(status)
