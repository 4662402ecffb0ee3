"""What a session costs the sender, by the number of receivers: simulated receivers, real sender.

The carousel, the framing with codes and tags, and the reading of every report run as in the server;
receivers are numbers (how many symbols of each block each one got), so a thousand fit. Only the
sender's part is timed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import numpy as np

from bench.shared import markdown
from tidegate.protocol.fec import BlockLayout, FecParameters, block_symbols_for, scheme_for
from tidegate.protocol.marks import MarkSigner
from tidegate.protocol.session_report import ReceiverReport, decode_report, encode_report
from tidegate.server.multicast.carousel import Carousel
from tidegate.server.multicast.framing import Framer
from tidegate.server.multicast.schedule_steps import CarouselSettings, Mark
from tidegate.server.multicast.symbols import SymbolSource

P = ParamSpec("P")
T = TypeVar("T")
SYMBOL_BYTES = 1424
RATE_SYMBOLS_S = 8400.0


@dataclass(frozen=True)
class SenderCost:
    """CPU seconds of the sender for each GB of file, and what it sent and read."""

    receivers: int
    cpu_s_gb: float
    sent_ratio: float
    reports: int


def measure(receivers: int, mib: int = 32, loss: float = 0.05, seed: int = 1) -> SenderCost:
    """One session to its end."""
    rng = np.random.default_rng(seed)
    data = os.urandom(mib << 20)
    k = block_symbols_for(SYMBOL_BYTES)
    layout = BlockLayout(len(data), SYMBOL_BYTES, k)
    scheme = scheme_for(FecParameters("raptorq", SYMBOL_BYTES, k))
    carousel = Carousel(layout, scheme, CarouselSettings(), 0.0)
    source = SymbolSource(layout, scheme, lambda at, n: data[at : at + n])
    framer = Framer(1, b"k" * 32, MarkSigner(b"s" * 32))
    need = np.array([layout.k(b) for b in range(layout.blocks)])
    got = np.zeros((receivers, layout.blocks), dtype=np.int64)
    seen_symbols, spent = 0, 0.0
    over = np.zeros(layout.blocks, dtype=bool)

    def timed(call: Callable[P, T], *words: P.args, **named: P.kwargs) -> T:
        nonlocal spent
        begun = time.thread_time()
        result = call(*words, **named)
        spent += time.thread_time() - begun
        return result

    for member in range(receivers):
        timed(carousel.join, f"m{member}", 0.0)
        joined = encode_report(ReceiverReport(f"m{member}", "joined"))
        timed(_read, carousel, joined, 0.0)
    every_s = 0.2 * max(1.0, receivers / 64)
    next_s = rng.random(receivers) * every_s
    gone = np.zeros(receivers, dtype=bool)
    now, reports = 0.05, 0
    while not carousel.finished and now < 600:
        step = timed(carousel.next_step, now, 16)
        if step is None:
            now = max(carousel.wake_at, now + 0.001)
        elif isinstance(step, Mark):
            timed(framer.mark, step, now)
            seen_symbols += 1
            over[:] = True
            # A mark is answered by all, spread over the window.
            next_s = np.minimum(next_s, now + 0.002 + rng.random(receivers) * receivers * 0.0005)
        else:
            pay = timed(source.payloads, step.block, step.symbols, step.until)
            timed(framer.frame, step, pay, now)
            count = len(step.symbols)
            seen_symbols += count
            got[:, step.block] += rng.binomial(count, 1 - loss, receivers)
            over[: step.block] = True
            now += count / RATE_SYMBOLS_S
        for member in map(int, np.flatnonzero((next_s <= now) & ~gone)):
            lacks = np.maximum(0, need - got[member])
            state = "receiving" if lacks.any() else "done"
            wants = {int(b): int(lacks[b]) for b in np.flatnonzero((lacks > 0) & over)}
            next_s[member] = now + every_s
            if state == "receiving" and not wants:
                continue
            body = encode_report(
                ReceiverReport(
                    f"m{member}",
                    state,
                    sequence=seen_symbols - 1,
                    expected=seen_symbols,
                    received=round(seen_symbols * (1 - loss)),
                    counts=wants,
                )
            )
            gone[member] = state == "done"
            timed(_read, carousel, body, now)
            reports += 1
    sent = seen_symbols * (SYMBOL_BYTES + 90) / len(data)
    return SenderCost(receivers, spent / len(data) * 1e9, sent, reports)


def _read(carousel: Carousel, body: bytes, now: float) -> None:
    carousel.report(decode_report(body), now)


def table() -> str:
    """For 2, 8, 32 and 1000 receivers."""
    lines = []
    measure(2, mib=4)  # what is loaded and compiled at the first use is not counted
    for receivers in (2, 8, 32, 1000):
        cost = measure(receivers)
        figures = f"{cost.cpu_s_gb:.1f}", f"{cost.sent_ratio:.3f}"
        lines.append([cost.receivers, *figures, cost.reports])
    return markdown.table(("receivers", "sender CPU s/GB", "bytes", "reports"), lines)


if __name__ == "__main__":
    print(table())
