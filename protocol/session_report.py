"""Receivers' reports during a multicast session, and the sender's answers.

Reports are sent by HTTP POST to the offer's `report_url`, spread over the report window.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ProtocolError
from .packet import MAX_K
from .strict_json import (
    MAX_ROWS,
    get_int,
    get_number,
    get_rows,
    get_text,
    load_object,
    plain_int,
)


@dataclass(frozen=True, slots=True)
class ReceiverReport:
    """One receiver's report.

    - `state`: joined, receiving, done or left.
    - `sequence`, `pass_number`: of the last datagram seen; wants are as of it.
    - `counts`: block -> further symbols that it needs.
    - `symbols`: block -> bit set of the source symbols that it lacks (codes that do not count).
    - `expected`, `received`, `overruns`: datagrams sent, received, and lost in the kernel so far.
    - `queue_ms`: the growth of the one-way delay.
    - `lag_ms`, `room_ms`: how far the receiver is behind its own socket buffer, and the lag at
      which that overflows (0: unknown).
    """

    member: str
    state: str
    pass_number: int = 0
    sequence: int = 0
    expected: int = 0
    received: int = 0
    overruns: int = 0
    queue_ms: int = 0
    counts: Mapping[int, int] = field(default_factory=dict)
    symbols: Mapping[int, int] = field(default_factory=dict)
    lag_ms: int = 0
    room_ms: int = 0

    @property
    def loss(self) -> float:
        """The share of lost datagrams, 0 to 1."""
        return 1 - min(self.received, self.expected) / self.expected if self.expected else 0.0


_STATES = ("joined", "receiving", "done", "left")


def encode_report(report: ReceiverReport) -> bytes:
    """The report as compact JSON. Runs of blocks with equal wants are joined."""
    document: dict[str, Any] = {
        "member": report.member,
        "state": report.state,
        "pass": report.pass_number,
    }
    for name in ("sequence", "expected", "received", "overruns", "queue_ms", "lag_ms", "room_ms"):
        if getattr(report, name):
            document[name] = getattr(report, name)
    if report.counts:
        runs: list[list[int]] = []
        for block, count in sorted(report.counts.items()):
            if runs and runs[-1][0] + runs[-1][1] == block and runs[-1][2] == count:
                runs[-1][1] += 1
            else:
                runs.append([block, 1, count])
        document["counts"] = runs
    if report.symbols:
        document["symbols"] = [[block, f"{bits:x}"] for block, bits in report.symbols.items()]
    return json.dumps(document, separators=(",", ":")).encode()


def decode_report(
    body: bytes, blocks: int = MAX_ROWS, is_member: Callable[[str], bool] = lambda name: True
) -> ReceiverReport:
    """Read a report about a file of `blocks` blocks. Raises `ProtocolError`.

    If the name is no member's, only name and state are read: an attacker's report must cost the
    sender no more than the attacker.
    """
    document = load_object(body, "the multicast report")
    state = document.get("state")
    if state not in _STATES:
        raise ProtocolError(f"the multicast report's state is none of {', '.join(_STATES)}")
    member = get_text(document, "member", 64)
    if not is_member(member):
        return ReceiverReport(member, state)
    counts: dict[int, int] = {}
    wanted = 0
    for run in get_rows(document, "counts", 3):
        first, length, count = (plain_int(value, 1 << 32) for value in run)
        wanted += length
        if wanted > blocks:
            raise ProtocolError("the multicast report wants more blocks than there can be")
        counts.update(dict.fromkeys(range(first, first + length), min(count, MAX_K)))
    symbols: dict[int, int] = {}
    for block, bits in get_rows(document, "symbols", 2):
        if not isinstance(bits, str) or not re.fullmatch(r"[0-9a-f]{1,1024}", bits):
            raise ProtocolError("the multicast report has a bit set that is not hexadecimal")
        symbols[plain_int(block, 1 << 32)] = int(bits, 16)
    return ReceiverReport(
        member,
        state,
        get_int(document, "pass", 0, 255),
        get_int(document, "sequence", 0, 0xFFFFFFFF, 0),
        get_int(document, "expected", 0, 1 << 53, 0),
        get_int(document, "received", 0, 1 << 53, 0),
        get_int(document, "overruns", 0, 1 << 53, 0),
        get_int(document, "queue_ms", 0, 1 << 31, 0),
        counts,
        symbols,
        get_int(document, "lag_ms", 0, 1 << 31, 0),
        get_int(document, "room_ms", 0, 1 << 31, 0),
    )


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    """The sender's answer. `action` is continue, unicast (leave the session) or closed."""

    action: str = "continue"
    report_window_s: float = 0.02


def encode_answer(answer: ReportAnswer) -> bytes:
    """The answer as compact JSON."""
    document = {"action": answer.action, "report_window_s": round(answer.report_window_s, 4)}
    return json.dumps(document, separators=(",", ":")).encode()


def decode_answer(body: bytes) -> ReportAnswer:
    """Read an answer. Raises `ProtocolError`."""
    document = load_object(body, "the answer to a multicast report")
    action = document.get("action")
    if action not in ("continue", "unicast", "closed"):
        raise ProtocolError("the answer to a multicast report names an unknown action")
    return ReportAnswer(action, get_number(document, "report_window_s", 0, 600))
