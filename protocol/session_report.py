"""Receivers' reports during a multicast session, and the sender's answers.

Reports are sent by HTTP POST to the offer's `report_url`, spread over the report window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .errors import ProtocolError
from .packet import MAX_K
from .strict_json import PRINTABLE, read_json


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


_Count = Annotated[int, Meta(ge=0, le=1 << 53)]
_Milliseconds = Annotated[int, Meta(ge=0, le=1 << 31)]
_Block = Annotated[int, Meta(ge=0, le=1 << 32)]


class _Sender(msgspec.Struct):
    """What is read of each report."""

    member: Annotated[str, Meta(max_length=64, pattern=PRINTABLE)]
    state: Literal["joined", "receiving", "done", "left"]


class _Report(_Sender, rename={"pass_number": "pass"}, omit_defaults=True):
    """A report as it is written in JSON. `counts` are runs: first block, length, count."""

    pass_number: Annotated[int, Meta(ge=0, le=255)]
    sequence: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)] = 0
    expected: _Count = 0
    received: _Count = 0
    overruns: _Count = 0
    queue_ms: _Milliseconds = 0
    lag_ms: _Milliseconds = 0
    room_ms: _Milliseconds = 0
    counts: list[tuple[_Block, _Block, _Block]] = []
    symbols: list[tuple[_Block, Annotated[str, Meta(pattern=r"^[0-9a-f]{1,1024}\Z")]]] = []


def encode_report(report: ReceiverReport) -> bytes:
    """The report as compact JSON. Runs of blocks with equal wants are joined."""
    known = {name: getattr(report, name) for name in _Report.__struct_fields__}
    runs: list[tuple[int, int, int]] = []
    for block, count in sorted(report.counts.items()):
        first, length, same = runs[-1] if runs else (-1, 0, -1)
        if first + length == block and same == count:
            runs[-1] = (first, length + 1, count)
        else:
            runs.append((block, 1, count))
    known["counts"] = runs
    known["symbols"] = [(block, f"{bits:x}") for block, bits in report.symbols.items()]
    return msgspec.json.encode(_Report(**known))


def decode_report(
    body: bytes, blocks: int = 1 << 20, is_member: Callable[[str], bool] = lambda name: True
) -> ReceiverReport:
    """Read a report about a file of `blocks` blocks. Raises `ProtocolError`.

    If the name is no member's, only name and state are read: an attacker's report must cost the
    sender no more than the attacker.
    """
    sender = read_json(body, _Sender, "the multicast report")
    if not is_member(sender.member):
        return ReceiverReport(sender.member, sender.state)
    found = read_json(body, _Report, "the multicast report")
    counts: dict[int, int] = {}
    wanted = 0
    for first, length, count in found.counts:
        wanted += length
        if wanted > blocks:
            raise ProtocolError("the multicast report wants more blocks than there can be")
        counts.update(dict.fromkeys(range(first, first + length), min(count, MAX_K)))
    known = msgspec.structs.asdict(found)
    known["counts"] = counts
    known["symbols"] = {block: int(bits, 16) for block, bits in found.symbols}
    return ReceiverReport(**known)


#: What a receiver does next: it stays, leaves the session, or finds it over.
Action = Literal["continue", "unicast", "closed"]


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    """The sender's answer."""

    action: Action = "continue"
    report_window_s: Annotated[float, Meta(ge=0, le=600)] = 0.02


def encode_answer(answer: ReportAnswer) -> bytes:
    return msgspec.json.encode(replace(answer, report_window_s=round(answer.report_window_s, 4)))


def decode_answer(body: bytes) -> ReportAnswer:
    """Read an answer. Raises `ProtocolError`."""
    return read_json(body, ReportAnswer, "the answer to a multicast report")
