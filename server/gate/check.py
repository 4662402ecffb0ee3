"""Walks through a gate as a client does: queue, transfer, report of the end."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ...protocol.errors import ProtocolError
from .settings import ROUTE
from .snippets import files_of, reports_of

_PART_BYTES = 1 << 20
#: What the gate itself says no with; no mover does.
_PROBLEM = "application/problem+json"


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
        try:
            parts = urlsplit(url)
        except ValueError as fault:
            raise ProtocolError(f"{url!r} is no URL: {fault}") from fault
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
        with closing(connection_to(self._place, 60.0, self._context)) as connection:
            named = {"User-Agent": "tidegate-gate-check", **headers}
            connection.request("GET", target, headers=named)
            with closing(connection.getresponse()) as answer:
                yield answer

    def gate(self) -> Mapping[str, Any] | int:
        """What the gate tells of itself; where none answers, the status of what does."""
        with self.get(ROUTE) as answer:
            with suppress(ValueError):
                found = json.loads(answer.read(10_000))
                if answer.status == 200 and isinstance(found, dict) and "reported" in found:
                    return found
            return answer.status


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
    before = site.gate()
    if isinstance(before, int):
        yield Step(
            False,
            f"No gate answers at {ROUTE}, but a status {before}: include the snippet in this site "
            "and reload it, and see that the gate runs at the snippet's address.",
        )
        return
    fault = _unreached(before)
    if fault:
        yield Step(False, fault)
        return
    mover = before["mover"]
    client = before["client"]
    yield Step(True, f"The gate answers through {mover}. It sees this client at {client}.")
    if not before["seen"]:
        yield Step(
            True, f"It does not see the sockets of {mover}: it knows ends by reports, no progress."
        )
    headers = {
        "Tidegate-Wait": "ticket",
        "Tidegate-Remaining": str(_PART_BYTES),
        "Range": f"bytes=0-{_PART_BYTES - 1}",
    }
    waited_s = 0.0
    while True:
        with site.get(site.target, headers) as answer:
            fields, status = answer.headers, answer.status
            body = answer.read()
        if status != 503 or fields["Content-Type"] != _PROBLEM:
            break
        ticket, again_s = fields["Tidegate-Ticket"], float(fields["Retry-After"] or 5)
        if ticket is None:
            yield Step(False, f"The gate answers 503 without a ticket: {_detail(body)}")
            return
        place = fields["Tidegate-Place"] or "unknown"
        yield Step(True, f"In the queue: place {place}, next visit in {again_s:.0f} s.")
        if waited_s + again_s > wait_s:
            yield Step(False, f"Its turn does not come within {wait_s:.0f} s: give --wait.")
            return
        headers["Tidegate-Ticket"] = ticket
        sleep(again_s)
        waited_s += again_s
    yield from _judge(site, before, status, fields, body, sleep)


def _unreached(gate: Mapping[str, Any]) -> str:
    """Why the gate cannot let this request's sender move a file; empty if it can."""
    if not gate["trusted"]:
        return (
            "The gate does not trust the program in front: give the address that it comes from "
            "with --trusted-proxy."
        )
    if not gate["mover"]:
        return (
            "Requests reach the gate without the field Tidegate-Mover, so it sends all files "
            "itself: include the whole snippet, and pass the field on if another proxy stands "
            "between."
        )
    return ""


def _detail(body: bytes) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["detail"])
    return "it says no reason."


def _judge(
    site: _Site,
    before: Mapping[str, Any],
    status: int,
    fields: http.client.HTTPMessage,
    body: bytes,
    sleep: Callable[[float], None],
) -> Iterator[Step]:
    mover = before["mover"]
    if status not in (200, 206):
        if fields["Content-Type"] == _PROBLEM:
            told = f"The gate answers {status}: {_detail(body)}"
            yield Step(False, f"{told} Name a file that is there.")
        else:
            remedy = files_of(mover, of_origin=before["origin"])
            yield Step(False, f"{mover} answers {status} for an admitted file: {remedy}.")
        return
    if "Tidegate-Lease-Connections" not in fields:
        yield Step(
            False,
            "The file came without a lease: name one above the size of small files, which needs "
            "no turn.",
        )
        return
    yield Step(True, f"Sent by {mover}: {len(body)} bytes.")
    waited_s = 0.0
    # A report that is not there by then is lost; the socket's end is known by then, too.
    while waited_s < 6.0:
        now = site.gate()
        if not isinstance(now, int) and now["reported"] > before["reported"]:
            yield Step(True, "The end was reported.")
            return
        sleep(0.5)
        waited_s += 0.5
    yield Step(
        False,
        f"No end was reported: {reports_of(mover, before['report'] or 'of its --report')}. "
        "Slots come back by the sockets alone.",
    )
