"""Paper E's experiment replayed in virtual time: its Table 1 and figures 10 to 12, and our rules.

Wu, Hu, Yuan, Chiang, 5.1: each client asks for one of five files at random, waits for it, thinks
for 1 to 10 s, asks again; about 200 requests. Measured: PA, mean delay from a request to the whole
object; PB, the share of requests answered by multicast; PC, bytes sent over bytes that unicast
would have sent. *Paper*: the queue is looked at every 3 s, requests are dropped after 15 s, a
client that hears nothing for 20 s asks again without the word. *Ours*: a cohort starts when it is
complete, who is alone goes on by unicast when the window ends (the session's lead and a pass on a
10 Mb/s line, as theirs, included). The decisions are those of the server
(`server.multicast.demand`).
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass
from statistics import fmean

from bench.shared import markdown
from tidegate.protocol.fec import BlockLayout
from tidegate.protocol.paper_mode import DEFAULT_K, HEADER_BYTES, PaperOrder
from tidegate.server.multicast.demand import (
    DemandDetector,
    DemandSettings,
    Hold,
    Join,
    StartSession,
)

WINDOW_S, CHECK_S, PATIENCE_S, REQUESTS = 15.0, 3.0, 20.0, 200
LINE_BYTES_S = 10e6 / 8
LEAD_S = 0.25
SIZES = {
    "small": (6_000, 8_000, 10_000, 12_000, 14_000),
    "large": (36_000, 48_000, 60_000, 72_000, 84_000),
}
CLIENTS = (2, 4, 6, 8, 10)
THRESHOLDS = (2, 3, 4)
_SEEDS = 20


@dataclass(frozen=True)
class Measured:
    """PA in seconds, PB and PC as shares."""

    pa_s: float
    pb: float
    pc: float


def multicast_bytes(size: int) -> int:
    """What the paper's packets of one object carry, headers and parity included."""
    layout = BlockLayout(size, 1024, DEFAULT_K)
    return PaperOrder(layout).total * (HEADER_BYTES + 1024)


def replay(
    clients: int, threshold: int, sizes: tuple[int, ...], seed: int, *, paper: bool
) -> Measured:
    """One cell of the figures."""
    rng = random.Random(seed)
    hot = DemandDetector(
        DemandSettings(threshold, WINDOW_S, CHECK_S if paper else 0.0, least_bytes=0)
    )
    counter = itertools.count()
    events: list[tuple[float, int, str, int]] = []
    waiting: dict[str, tuple[int, int, float]] = {}
    delays: list[float] = []
    sent = unicast = by_multicast = asked = 0
    looks_at = float("inf")

    def at(when: float, what: str, client: int) -> None:
        heapq.heappush(events, (when, next(counter), what, client))

    def served(client: int, asked_at: float, done_at: float) -> None:
        delays.append(done_at - asked_at)
        at(done_at + rng.uniform(1, 10), "ask", client)

    for client in range(clients):
        at(rng.uniform(1, 10), "ask", client)
    while events:
        now, _, what, client = heapq.heappop(events)
        if what == "look":
            looks_at = float("inf")
        if what == "ask":
            if asked >= REQUESTS:
                continue
            asked += 1
            file = rng.randrange(len(sizes))
            unicast += sizes[file]
            key, name = str(file), f"{asked}"
            decision = hot.request(key, name, sizes[file], now)
            hot.prepared(key, now)
            assert isinstance(decision, Hold | Join)
            waiting[name] = (client, file, now)
        for outcome in hot.decide(now):
            rows = [waiting.pop(name) for name in outcome.waiters]
            size = sizes[rows[0][1]]
            if isinstance(outcome, StartSession):
                lead_s = 0.0 if paper else LEAD_S
                sent += multicast_bytes(size)
                by_multicast += len(rows)
                for one, _, asked_at in rows:
                    served(one, asked_at, now + lead_s + multicast_bytes(size) / LINE_BYTES_S)
            else:
                for one, _, asked_at in rows:
                    sent += size
                    begun = asked_at + PATIENCE_S if paper else now
                    served(one, asked_at, begun + size / LINE_BYTES_S)
        if hot.wake_at < looks_at:
            looks_at = hot.wake_at
            at(max(hot.wake_at, now + 1e-9), "look", -1)
    return Measured(sum(delays) / len(delays), by_multicast / asked, sent / unicast)


def mean(clients: int, threshold: int, kind: str, *, paper: bool, seeds: int = _SEEDS) -> Measured:
    """The mean over several seeds."""
    cells = [replay(clients, threshold, SIZES[kind], seed, paper=paper) for seed in range(seeds)]
    return Measured(
        fmean(c.pa_s for c in cells), fmean(c.pb for c in cells), fmean(c.pc for c in cells)
    )


def tables() -> str:
    """Both sizes, all thresholds, paper's rules and ours."""
    lines = []
    for kind in SIZES:
        lines.append(f"\n{kind} files: PA / PB / PC by number of clients\n")
        lines.append(markdown.head("rules, threshold", *CLIENTS))
        for paper in (True, False):
            for threshold in THRESHOLDS:
                cells = [mean(n, threshold, kind, paper=paper) for n in CLIENTS]
                texts = [f"{c.pa_s:.1f} s / {c.pb:.2f} / {c.pc:.2f}" for c in cells]
                lines.append(markdown.row(f"{'paper' if paper else 'ours'}, {threshold}", *texts))
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables())
