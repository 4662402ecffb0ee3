"""The clients of a load test: Locust users whose manners are `client.net.retry`, the real client's.

A user carries out visitors of the schedule: all files of one, one after another. An answer that
says "come back" is no failure but a row of its own; a body that is short or wrong is one.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import gevent
import gevent.ssl
from locust import FastHttpUser, task

from ..client.net.answers import Body, Fields, Meaning, Redirect, read
from ..client.net.retry import (
    POLITE,
    Action,
    Failed,
    FailureReason,
    GiveUp,
    HoldOn,
    RetryPolicy,
    RetryState,
    SendNow,
    WaitUntil,
)
from .body import NarrowPool, receive
from .catalogue import CATALOGUE
from .recorder import tally
from .replay import ARRIVALS
from .tally import DownloadTally
from .workloads import File, Visitor, address_of


def read_answer(response: Any) -> Meaning:
    """What an answer means. Locust has read the body of an error by now, to word the failure."""
    explanation = (response.content or b"")[: 16 * 1024] if response.status_code >= 400 else b""
    fields = Fields(list((response.headers or {}).items()))
    return read(response.status_code, fields, explanation, time.time())


def _trusting(ca: str, **_: Any) -> gevent.ssl.SSLContext:
    """A TLS context that trusts what the system does, and the certificates in `ca`."""
    context = gevent.ssl.create_default_context()
    context.load_verify_locations(ca)
    return context


class Downloader(FastHttpUser):
    """A client that waits as it is told and takes what it came for."""

    abstract = True
    network_timeout = 600.0
    connection_timeout = 30.0
    #: Sent with every request.
    user_agents: ClassVar[dict[str, str]] = {"tickets": "tidegate-loadtest", "held": "Wget/1.21.3"}

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._options = environment.parsed_options
        self.number = 0
        # A client's kernel takes little before the client has read it, as over a slow line.
        self._narrow = self.narrow_pool(16 * 1024, 1)
        self.client.client.clientpool = self._narrow

    def narrow_pool(self, receive_buffer_bytes: int, concurrency: int) -> NarrowPool:
        """Connections that hold little and trust what `--ca` names."""
        ca = self._options.ca
        return NarrowPool(
            receive_buffer_bytes,
            concurrency=concurrency,
            network_timeout=self.network_timeout,
            connection_timeout=self.connection_timeout,
            ssl_context_factory=partial(_trusting, ca) if ca else None,
        )

    @task
    def next_visitor(self) -> None:
        """One arrival from beginning to end."""
        self.number, visitor = ARRIVALS.take(self._options)
        began_s = time.monotonic()
        try:
            for file in visitor.files:
                tally().count("arrived")
                self.fetch(visitor, file)
            tally().observe("visit", time.monotonic() - began_s)
        finally:
            self._narrow.close()
            tally().count("visitors_done")

    def manners(self, visitor: Visitor) -> RetryPolicy:
        """How this visitor behaves; rude ones ask every second (of scaled time)."""
        if self._options.manner == "held":
            return replace(POLITE, tickets=False, max_wait_s=visitor.patience_s)
        if not visitor.rude:
            return replace(POLITE, max_wait_s=visitor.patience_s)
        return replace(
            POLITE,
            max_wait_s=visitor.patience_s,
            own_retry_s=1.0 / self._options.time_scale,
            jitter=0.0,
        )

    def headers(self) -> dict[str, str]:
        """What every request of this client carries beside its ticket."""
        agent = self.user_agents[self._options.manner]
        fields = {"User-Agent": agent, "Accept-Encoding": "identity"}
        if self._options.addresses == "forwarded":
            # The name tells clients apart where the server does not trust the address.
            fields["X-Forwarded-For"] = address_of(self.number)
            fields["Tidegate-Client"] = f"loadtest-{self.number}"
        return fields

    def fetch(self, visitor: Visitor, file: File) -> None:
        """One download: ask, wait as told, take the body, check it, count it."""
        entry = CATALOGUE.find(self.host, file)
        began_s = time.monotonic()
        visit = RetryState(self.manners(visitor), random.Random(self.number), began_s)
        manner = "_rude" if visitor.rude else "_polite"
        manner = manner if self._options.rude_fraction else ""
        download = DownloadTally(tally(), visit, entry.kind, manner, began_s)
        action: Action = visit.begin()
        while True:
            match action:
                case SendNow():
                    action = self._ask(visitor, entry.path, entry.sha256_hex, download)
                case WaitUntil(at):
                    if at - time.monotonic() > 2.0:
                        self._narrow.close()
                    gevent.sleep(max(0.0, at - time.monotonic()))
                    action = visit.begin()
                case HoldOn():
                    return
                case GiveUp(reason, _):
                    gone = reason is FailureReason.WAITED_TOO_LONG
                    tally().count("gave_up" if gone else "failed")
                    return

    def _ask(
        self, visitor: Visitor, path: str, sha256_hex: str | None, download: DownloadTally
    ) -> Action:
        visit = download.visit
        headers = self.headers() | download.ask(time.monotonic())
        with self.client.get(
            path, headers=headers, stream=True, catch_response=True, name=f"attempt {download.kind}"
        ) as response:
            meta = response.request_meta
            if not response.status_code:
                response.failure(str(response.error))
                return visit.answered(time.monotonic(), Failed(str(response.error)))
            meaning = read_answer(response)
            if not isinstance(meaning, Body):
                if isinstance(meaning, Redirect):
                    meaning = Failed("redirected, which no download here should be")
                action = visit.answered(time.monotonic(), meaning)  # type: ignore[arg-type]
                if download.note_answer(time.monotonic(), meaning):
                    meta["name"] = f"told to wait {download.kind}"
                    response.success()
                else:
                    response.failure(str(getattr(meaning, "text", meaning)))
                return action
            now = time.monotonic()
            action = visit.answered(now, meaning.granted)
            download.note_start(now)
            length = None if meaning.end is None else meaning.end - meaning.start
            got = receive(response.stream, length, visitor.rate_bytes_s)
            meta["name"] = f"download {download.kind}"
            meta["response_time"] = (time.monotonic() - now) * 1000 + meta["response_time"]
            meta["response_length"] = got.count_bytes
            fault = got.fault
            if fault is None and sha256_hex is not None and got.sha256_hex != sha256_hex:
                fault = "the bytes are not those that the server's SHA256SUMS names"
            if fault is None:
                response.success()
                download.note_done(time.monotonic(), got.count_bytes)
            else:
                response.failure(fault)
                tally().count("failed")
            return action


class Visitors(Downloader):
    """Users that want the release."""
