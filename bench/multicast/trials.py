"""Everything that may go wrong, with real processes: every receiver must end with the right file.

Each trial is a network, and somebody who disturbs it. What is printed: receivers that have the
right file, bytes on the sender's wire over the file's size, seconds until the last has it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from bench.multicast.bench import PORT, MulticastBench, Ours
from bench.multicast.network import SENDER_ADDRESS, MulticastLab
from bench.shared import markdown

Act = Callable[[Ours], None]


@dataclass(frozen=True)
class Trial:
    """`expected` names the receivers that must get the file; empty: all."""

    name: str
    receivers: int = 8
    loss: float = 0.0
    losses: Sequence[float] = ()
    bursts: tuple[int, int] | None = None
    slow_mbit: dict[int, float] = field(default_factory=dict)
    late_s: dict[int, float] = field(default_factory=dict)
    act: Act | None = None
    expected: tuple[int, ...] = ()
    second: bool = False
    mangled: bool = False


def kill_receiver(ours: Ours) -> None:
    """One receiver is gone without a word after a second."""
    time.sleep(1.0)
    os.kill(ours.receivers[7], signal.SIGKILL)


def kill_sender(ours: Ours) -> None:
    """The server dies in the middle."""
    time.sleep(1.5)
    os.kill(ours.server, signal.SIGKILL)


def forge(ours: Ours) -> None:
    """Somebody in the network who knows group, port and session sends what looks right."""
    script = Path(__file__).with_name("forger.py")
    env = dict(os.environ)
    words = [sys.executable, str(script), f"http://{SENDER_ADDRESS}:{PORT}/-/multicast"]
    words += [ours.network.address(7)]
    ours.network.start(
        ours.network.receiver(7), words, ours.scratch / "forger.log", ours.scratch, env
    )


TRIALS = (
    Trial("30 % loss", loss=30),
    Trial("bursts: 50 lost in a row of each 1000", bursts=(50, 1000)),
    Trial("bursts: 400 lost in a row of each 4000", bursts=(400, 4000)),
    Trial("losses from 0 to 12 %", losses=(0, 0.5, 1, 2, 4, 6, 8, 12)),
    Trial("one receiver, 5 %", receivers=1, loss=5),
    Trial("two receivers, 5 %", receivers=2, loss=5),
    Trial("one ten times slower", loss=1, slow_mbit={0: 10.0}),
    Trial("one at 60 % of the line", loss=1, slow_mbit={0: 60.0}),
    Trial("one leaves without a word", loss=1, act=kill_receiver, expected=tuple(range(7))),
    Trial("one joins 1.5 s late", loss=1, late_s={7: 1.5}),
    Trial("sender killed midway, another mirror", loss=1, act=kill_sender, second=True),
    Trial("forged datagrams", loss=1, act=forge),
    Trial("one bit wrong in each 50th datagram", loss=1, mangled=True),
)


def build(trial: Trial, line_mbit: float, prefix: str) -> MulticastLab:
    """The network of a trial."""
    return MulticastLab(
        trial.receivers,
        trial.loss,
        line_mbit,
        prefix,
        losses=trial.losses or None,
        receiver_rates_mbit=trial.slow_mbit,
        bursts=trial.bursts,
        mangled=trial.mangled,
        second=trial.second,
    )


def run_trials(bench: MulticastBench, line_mbit: float, prefix: str, only: str, rounds: int) -> int:
    """Run and print all whose name contains `only`; the number that failed."""
    failed = 0
    click.echo(markdown.head("trial", "right files", "bytes", "time", "by TCP"))
    for trial in TRIALS:
        if only not in trial.name:
            continue
        for _ in range(rounds):
            urls, act = [], trial.act
            network = build(trial, line_mbit, prefix)
            if trial.second:
                urls = [f"http://{network.second_address}:{PORT}/obj.bin"]
                bench.second = True
            try:
                row = bench.run(
                    "ours",
                    network,
                    urls=urls,
                    late_s=trial.late_s,
                    act=act,
                    expected=trial.expected or None,
                )
            finally:
                bench.second = False
            failed += row.good != row.receivers
            tcp = 0
            for result in row.results:
                brought = result.get("bytes")
                tcp += int(brought.get("http", 0)) if isinstance(brought, dict) else 0
            figures = f"{row.ratio:.3f}", f"{row.seconds:.2f} s", f"{tcp / 1e6:.2f} MB"
            right = f"{row.good} of {row.receivers}"
            click.echo(markdown.row(trial.name, right, *figures))
            if row.good != row.receivers:
                click.echo(json.dumps(row.results, indent=1), err=True)
    return 1 if failed else 0
