"""Mirror fan-out: each client takes its file by parallel ranges that ride on one lease."""

from __future__ import annotations

import itertools
import random
import time

import gevent
import gevent.event
from gevent.pool import Group

from client.session import Body, Fields, read
from client.visit import Action, Ask, GiveUp, Visit, WaitUntil
from loadtest import options
from loadtest.body import NarrowPool, receive
from loadtest.catalogue import CATALOGUE
from loadtest.recorder import tally
from loadtest.replay import Replay
from loadtest.users import Downloader
from loadtest.workloads import File, Visitor

__all__ = ["Fanout", "Ranged", "options"]

CONNECTIONS = 4
_LEAST_PART_BYTES = 256 * 1024


class Ranged(Downloader):
    """Asks for the first part until admitted, then for all others at once, under its ticket."""

    def fetch(self, visitor: Visitor, file: File) -> None:
        """One download in up to four parts."""
        self.client.client.clientpool = NarrowPool(
            64 * 1024, concurrency=CONNECTIONS, network_timeout=self.network_timeout
        )
        count = max(1, min(CONNECTIONS, file.size_bytes // _LEAST_PART_BYTES))
        edges = [file.size_bytes * part // count for part in range(count + 1)]
        began_s = time.monotonic()
        visit = Visit(self.manners(visitor), random.Random(self.number), began_s)
        kind = CATALOGUE.find(self.host, file).kind
        group = Group()
        started = gevent.event.Event()
        parts = [group.spawn(self._part, visitor, file, visit, edges[0], edges[1], started)]
        started.wait()
        tally().observe(f"wait_{kind}", time.monotonic() - began_s)
        for first, end in itertools.pairwise(edges[1:]):
            parts.append(group.spawn(self._part, visitor, file, visit, first, end, None))
        group.join()
        got = sum(part.value or 0 for part in parts)
        if got == file.size_bytes:
            tally().count("finished")
            tally().count("verified_bytes", got)
            tally().observe("session", time.monotonic() - began_s)
        else:
            tally().count("failed")
        self.client.client.clientpool.close()

    def _part(
        self,
        visitor: Visitor,
        file: File,
        visit: Visit,
        first: int,
        end: int,
        started: gevent.event.Event | None,
    ) -> int:
        """Bytes [first, end); how many arrived."""
        action: Action = visit.begin(time.monotonic())
        path = CATALOGUE.find(self.host, file).path
        try:
            while True:
                if isinstance(action, WaitUntil):
                    gevent.sleep(max(0.0, action.at - time.monotonic()))
                    action = visit.due(time.monotonic())
                if isinstance(action, GiveUp) or not isinstance(action, Ask):
                    return 0
                headers = self.headers() | dict(visit.headers())
                headers["Range"] = f"bytes={first}-{end - 1}"
                with self.client.get(
                    path, headers=headers, stream=True, catch_response=True, name="range"
                ) as response:
                    explanation = b""
                    if response.status_code >= 400:
                        explanation = (response.content or b"")[: 16 * 1024]
                    fields = Fields(list((response.headers or {}).items()))
                    meaning = read(response.status_code, fields, explanation, time.time())
                    if isinstance(meaning, Body):
                        visit.answered(time.monotonic(), meaning.granted)
                        if started is not None:
                            started.set()
                        got = receive(response.stream, end - first, visitor.rate_bytes_s)
                        if got.fault or meaning.start != first:
                            response.failure(got.fault or "another range than the one asked for")
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


class Fanout(Replay):
    """The population of `--workload`."""
