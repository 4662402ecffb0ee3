"""Mirror fan-out: each client takes its file by parallel ranges that ride on one lease."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass

import gevent
import gevent.event
from gevent.pool import Group

from tidegate.client.net.answers import Body
from tidegate.client.net.retry import Action, FailureReason, GiveUp, RetryState, SendNow, WaitUntil
from tidegate.client.storage.piece_writer import Pieces
from tidegate.loadtest import options
from tidegate.loadtest.body import PieceCheck, receive
from tidegate.loadtest.catalogue import CATALOGUE, CatalogueFile
from tidegate.loadtest.recorder import must_count, tally
from tidegate.loadtest.replay import Replay
from tidegate.loadtest.users import Downloader, read_answer
from tidegate.loadtest.workloads import File, Visitor

__all__ = ["Fanout", "Ranged", "options"]

CONNECTIONS = 4
must_count("part_downloads", "no download came in several parts at a time")


class Ranged(Downloader):
    """Asks for the first part until admitted, then for all others at once, under its ticket."""

    def fetch(self, visitor: Visitor, file: File) -> None:
        self.client.client.clientpool = self.narrow_pool(64 * 1024, CONNECTIONS)
        entry = CATALOGUE.find(self.host, file)
        edges, pieces = self._cut(file, entry.path)
        began_s = time.monotonic()
        visit = RetryState(self.manners(visitor), random.Random(self.number), began_s)
        group = Group()
        started = gevent.event.Event()
        wish = _Wish(visitor, entry, visit, pieces, len(edges) == 2)
        parts = [group.spawn(self._part, wish, edges[0], edges[1], started)]
        started.wait()
        if wish.admitted:
            tally().observe(f"wait_{entry.kind}", time.monotonic() - began_s)
            for first, end in itertools.pairwise(edges[1:]):
                parts.append(group.spawn(self._part, wish, first, end, None))
        group.join()
        got = sum(part.value or 0 for part in parts)
        if got == file.size_bytes:
            tally().count("finished")
            tally().count("verified_bytes", got)
            if len(parts) > 1:
                tally().count("part_downloads")
            tally().observe("session", time.monotonic() - began_s)
        else:
            tally().count("gave_up" if wish.gave_up else "failed")
        self.client.client.clientpool.close()

    def _cut(self, file: File, path: str) -> tuple[list[int], Pieces | None]:
        """Where the parts begin and end, and the digests by which they are checked.

        A file that comes in one part is checked by its own digest.
        """
        size = file.size_bytes
        count = max(1, min(CONNECTIONS, size // (256 * 1024)))
        pieces = CATALOGUE.pieces(self.host, path, size) if count > 1 else None
        unit = pieces.length if pieces is not None else 1
        inner = {size * part // count // unit * unit for part in range(1, count)}
        return sorted({0, size} | inner), pieces

    def _part(self, wish: _Wish, first: int, end: int, started: gevent.event.Event | None) -> int:
        """Bytes [first, end); how many arrived and were right."""
        visit = wish.visit
        action: Action = visit.begin()
        try:
            while True:
                if isinstance(action, WaitUntil):
                    gevent.sleep(max(0.0, action.at - time.monotonic()))
                    action = visit.begin()
                if isinstance(action, GiveUp):
                    wish.gave_up = action.reason is FailureReason.WAITED_TOO_LONG
                if not isinstance(action, SendNow):
                    return 0
                headers = self.headers() | dict(visit.headers())
                headers["Range"] = f"bytes={first}-{end - 1}"
                with self.client.get(
                    wish.entry.path,
                    headers=headers,
                    stream=True,
                    catch_response=True,
                    name="range",
                ) as response:
                    meaning = read_answer(response)
                    if isinstance(meaning, Body):
                        visit.answered(time.monotonic(), meaning.granted)
                        wish.admitted = True
                        if started is not None:
                            started.set()
                        check = None if wish.pieces is None else PieceCheck(wish.pieces, first)
                        rate_bytes_s = wish.visitor.rate_bytes_s
                        got = receive(response.stream, end - first, rate_bytes_s, check)
                        fault = got.fault
                        if meaning.start != first:
                            fault = "another range than the one asked for"
                        elif wish.whole and wish.entry.sha256_hex not in (None, got.sha256_hex):
                            fault = "the bytes are not those that the server's SHA256SUMS names"
                        if fault is not None:
                            response.failure(fault)
                            return 0
                        response.success()
                        return got.count_bytes
                    action = visit.answered(time.monotonic(), meaning)  # type: ignore[arg-type]
                    response.success() if isinstance(action, WaitUntil) else response.failure(
                        str(meaning)
                    )
                    response.request_meta["name"] = "told to wait"
                tally().count("queued")
        finally:
            if started is not None:
                started.set()


@dataclass(slots=True)
class _Wish:
    """One download, whatever part of it; `whole` when there is only one."""

    visitor: Visitor
    entry: CatalogueFile
    visit: RetryState
    pieces: Pieces | None
    whole: bool
    admitted: bool = False
    gave_up: bool = False


class Fanout(Replay):
    """The population of `--workload`."""
