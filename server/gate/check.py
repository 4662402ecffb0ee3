"""Walks through a gate as a client does: queue, transfer, report of the end."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ...protocol.errors import ProtocolError
from .settings import ROUTE

_PART_BYTES = 1 << 20
_TIMEOUT_S = 60.0
#: A report that is not there by then is lost; the socket's end is known by then, too.
_REPORT_S = 6.0
_AGENT = "tidegate-gate-check"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the walk: what was found, and what to do where `good` is false."""

    good: bool
    text: str


def connection_to(
    url: SplitResult, timeout_s: float, context: ssl.SSLContext | None = None
) -> http.client.HTTPConnection:
    """A connection to the host of this http or https URL, made by the first request."""
    host = url.hostname or ""
    if url.scheme == "https":
        return http.client.HTTPSConnection(host, url.port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(host, url.port, timeout=timeout_s)


class _Site:
    """The public address of a release."""

    def __init__(self, url: str, *, insecure: bool) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path in ("", "/"):
            raise ProtocolError(f"{url!r} is no http or https URL of a file")
        self.target = parts.path + (f"?{parts.query}" if parts.query else "")
        self._place = parts
        self._context = ssl._create_unverified_context() if insecure else None

    @contextmanager
    def get(
        self, target: str, headers: Mapping[str, str] = {}
    ) -> Iterator[http.client.HTTPResponse]:
        """Raises OSError or HTTPException."""
        with closing(connection_to(self._place, _TIMEOUT_S, self._context)) as connection:
            connection.request("GET", target, headers={"User-Agent": _AGENT, **headers})
            with closing(connection.getresponse()) as answer:
                yield answer

    def counts(self) -> dict[str, Any] | None:
        """What the gate tells of ended bodies; None where no gate answers."""
        with self.get(ROUTE) as answer:
            if answer.status != 200:
                return None
            try:
                found = json.loads(answer.read(10_000))
            except ValueError:
                return None
            return found if isinstance(found, dict) and "reported" in found else None


def check(
    url: str,
    wait_s: float,
    *,
    insecure: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Step]:
    """The steps, as they are walked; the walk ends at the first that is not good.

    Raises ProtocolError for a URL that cannot be walked to.
    """
    site = _Site(url, insecure=insecure)
    try:
        yield from _walk(site, wait_s, sleep)
    except (OSError, http.client.HTTPException) as fault:
        yield Step(False, f"The connection failed: {fault or type(fault).__name__}.")


def _walk(site: _Site, wait_s: float, sleep: Callable[[float], None]) -> Iterator[Step]:
    before = site.counts()
    if before is None:
        yield Step(
            False,
            f"No gate answers at {ROUTE}: include the snippet in this server block, and see that "
            "the gate runs.",
        )
        return
    yield Step(True, "A gate answers.")
    headers = {
        "Tidegate-Wait": "ticket",
        "Tidegate-Remaining": str(_PART_BYTES),
        "Range": f"bytes=0-{_PART_BYTES - 1}",
    }
    waited_s = 0.0
    while True:
        with site.get(site.target, headers) as answer:
            fields, status = answer.headers, answer.status
            if status != 503:
                body = answer.read()
                break
        ticket, again_s = fields["Tidegate-Ticket"], float(fields["Retry-After"] or 5)
        if ticket is None:
            yield Step(False, "The answer is 503 without a ticket: the gate does not queue it.")
            return
        place = fields["Tidegate-Place"] or "unknown"
        yield Step(True, f"In the queue: place {place}, next visit in {again_s:.0f} s.")
        if waited_s + again_s > wait_s:
            yield Step(False, f"Its turn does not come within {wait_s:.0f} s: give --wait.")
            return
        headers["Tidegate-Ticket"] = ticket
        sleep(again_s)
        waited_s += again_s
    yield from _judge(site, before, status, fields, len(body), sleep)


def _judge(
    site: _Site,
    before: Mapping[str, Any],
    status: int,
    fields: http.client.HTTPMessage,
    count: int,
    sleep: Callable[[float], None],
) -> Iterator[Step]:
    if status not in (200, 206):
        yield Step(False, f"The file is answered with {status}: name one that is there.")
        return
    if "Tidegate-Lease-Connections" not in fields:
        yield Step(
            False,
            "The file came without a lease: name one above the size of small files, which needs "
            "no turn.",
        )
        return
    if str(fields["Server"]).startswith("Tidegate"):
        yield Step(False, "The gate sent the file itself: nginx does not set Tidegate-Mover.")
        return
    yield Step(True, f"Sent by {fields['Server']}: {count} bytes.")
    waited_s = 0.0
    while waited_s < _REPORT_S:
        now = site.counts() or {}
        if now.get("reported", 0) > before["reported"]:
            yield Step(True, "The end was reported.")
            return
        sleep(0.5)
        waited_s += 0.5
    yield Step(
        False,
        "No end was reported: the access_log line of the snippet must name the gate's report "
        f"address, {before['report']}. Slots come back by the sockets alone.",
    )
