"""The HTTP side of a multicast session: capability, offer, and reports with their answers.

Laws:

- A client states its capability in the request header `Tidegate-Multicast`. Clients without it
  never get an offer.
- The offer is a JSON document of type `OFFER_TYPE`, the answer to a request with that header. It
  has everything that a receiver needs to read datagrams.
- Decoding checks sizes, addresses and numbers strictly. It ignores unknown keys, which later
  versions may add.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from .errors import BadHeader, ProtocolError
from .fec import MAX_BLOCK_BYTES, SCHEMES, BlockLayout, FecParameters
from .packet import MAX_K
from .strict_json import PRINTABLE, read_json

HEADER_NAME = "Tidegate-Multicast"
OFFER_TYPE = "application/vnd.tidegate.multicast-offer+json"
VERSION = 1
HASH_BYTES = 32

#: An offer has the hashes of up to this many blocks; longer lists are fetched by URL.
INLINE_HASHES = 256
_Url = Annotated[str, Meta(max_length=2000, pattern=PRINTABLE)]
_PARAMETER = re.compile(r'\s*([a-z]+)\s*=\s*("[^"]*"|[^;"\s]+)\s*(?:;|$)')


@dataclass(frozen=True, slots=True)
class Capability:
    """What a client can receive: codes (best first), its highest rate, the scope of groups.

    `rate_bytes_s` is `inf` when the client knows no bound. `families` has the address families of
    the interface on which it would join ("4", "6").
    """

    fec: tuple[str, ...]
    rate_bytes_s: float = math.inf
    scope: str = "link"
    families: tuple[str, ...] = ("4",)


def format_capability(capability: Capability) -> str:
    parts = [f"v={VERSION}", f'fec="{",".join(capability.fec)}"']
    if math.isfinite(capability.rate_bytes_s):
        parts.append(f"rate={int(capability.rate_bytes_s)}")
    parts += [f"scope={capability.scope}", f'ip="{",".join(capability.families)}"']
    return "; ".join(parts)


def parse_capability(value: str) -> Capability | None:
    """Read the header; None when it has another version.

    Unknown codes and parameters are ignored. Raises `BadHeader` when it cannot be read.
    """
    if len(value) > 1000:
        raise BadHeader(f"{HEADER_NAME} is longer than 1000 characters")
    found: dict[str, str] = {}
    at = 0
    while at < len(value):
        match = _PARAMETER.match(value, at)
        if match is None:
            raise BadHeader(f"{HEADER_NAME} cannot be read from {value[at:][:20]!r} on")
        found[match[1]] = match[2].strip('"')
        at = match.end()
    if found.get("v") != str(VERSION):
        return None
    fec = tuple(n for n in _names(found.get("fec", "none")) if n in SCHEMES) or ("none",)
    rate = math.inf
    if "rate" in found:
        if not re.fullmatch(r"[0-9]{1,15}", found["rate"]) or int(found["rate"]) == 0:
            raise BadHeader(f"{HEADER_NAME} has a rate that is no positive number of bytes/s")
        rate = float(found["rate"])
    scope = found.get("scope", "link")
    families = tuple(n for n in _names(found.get("ip", "4")) if n in ("4", "6"))
    scope = scope if scope in ("link", "site", "organisation") else "link"
    return Capability(fec, rate, scope, families or ("4",))


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",")))


@dataclass(frozen=True, slots=True)
class Offer:
    """Everything that a receiver must know before the first datagram. Times are seconds.

    - `member`: the receiver's secret name in its reports.
    - `mark_key`: checks the marks (`protocol.marks`).
    - `hashes`: the SHA-256 of the blocks without padding, in order; if empty, `hashes_url` serves
      them as raw bytes.
    - `source`: the sender's address, for a source-specific join when `ssm`.
    - `silence_s`: after this time without a datagram a receiver fetches the rest by unicast.
    - `repair_url`: serves the small ranges that a member lacks after the last pass.
    - `report_window_s`: reports about a pass are spread over it.
    - `report_every_s`: the interval of further reports while blocks are incomplete (0: none).
    - `meanwhile`: the session is gathering its members; until its first datagram or its end the
      receiver may fetch the file by unicast.
    """

    session: int
    member: str
    key: bytes = field(repr=False)
    mark_key: bytes = field(repr=False)
    group: str
    port: int
    source: str
    size_bytes: int
    etag: str
    fec: FecParameters
    rate_bytes_s: float
    start_in_s: float
    report_url: str
    object: int = 0
    ssm: bool = False
    ttl: int = 1
    sha256: bytes | None = None
    hashes: tuple[bytes, ...] = ()
    hashes_url: str = ""
    repair_url: str = ""
    report_window_s: float = 0.02
    report_every_s: float = 0.0
    report_joined: bool = False
    meanwhile: bool = False
    silence_s: float = 2.0

    def layout(self) -> BlockLayout:
        return BlockLayout(self.size_bytes, self.fec.symbol_bytes, self.fec.block_symbols)


class _Offer(msgspec.Struct):
    """An offer as it is written in JSON. Bytes are base64; `hashes` are one after the other."""

    v: int
    session: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
    member: Annotated[str, Meta(max_length=64, pattern=PRINTABLE)]
    key: Annotated[bytes, Meta(min_length=16, max_length=64)]
    #: Of Ed25519.
    mark_key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    group: str
    port: Annotated[int, Meta(ge=1, le=65_535)]
    source: str
    ttl: Annotated[int, Meta(ge=0, le=255)]
    object: Annotated[int, Meta(ge=0, le=255)]
    size_bytes: Annotated[int, Meta(ge=0, le=1 << 60)]
    etag: Annotated[str, Meta(max_length=300, pattern=PRINTABLE)]
    fec: FecParameters
    rate_bytes_s: Annotated[float, Meta(ge=1, le=1e12)]
    start_in_s: Annotated[float, Meta(ge=0, le=86_400)]
    silence_s: Annotated[float, Meta(ge=0.1, le=600)]
    report_url: _Url
    report_window_s: Annotated[float, Meta(ge=0, le=600)]
    report_every_s: Annotated[float, Meta(ge=0, le=600)]
    ssm: bool = False
    report_joined: bool = False
    meanwhile: bool = False
    sha256: bytes | UnsetType = UNSET
    hashes: bytes | UnsetType = UNSET
    hashes_url: _Url | UnsetType = UNSET
    repair_url: _Url | UnsetType = UNSET


def encode_offer(offer: Offer) -> bytes:
    """The offer as compact JSON. Without an optional value there is no key."""
    known = {name: getattr(offer, name) for name in _Offer.__struct_fields__ if name != "v"}
    for name in ("start_in_s", "silence_s", "report_window_s", "report_every_s"):
        known[name] = round(known[name], 4)
    for name in ("sha256", "hashes", "hashes_url", "repair_url"):
        known[name] = known[name] or UNSET
    known["session"] = f"{offer.session:016x}"
    known["rate_bytes_s"] = int(offer.rate_bytes_s)
    if offer.hashes:
        known["hashes"] = b"".join(offer.hashes)
    return msgspec.json.encode(_Offer(v=VERSION, **known))


def decode_offer(body: bytes) -> Offer:
    """Read an offer. Raises `ProtocolError`, which names the first fault."""
    found = read_json(body, _Offer, "the multicast offer")
    if found.v != VERSION:
        raise ProtocolError("the multicast offer has a version this client does not speak")
    if found.fec.symbol_bytes * found.fec.block_symbols > MAX_BLOCK_BYTES:
        raise ProtocolError("the multicast offer has blocks of more than 1 MiB")
    fields = msgspec.structs.asdict(found).items()
    known = {name: value for name, value in fields if name != "v" and value is not UNSET}
    packed = known.pop("hashes", b"")
    known |= {
        "session": int(found.session, 16),
        "group": _group(found.group),
        "source": _address(found.source, "source"),
        "hashes": tuple(packed[i : i + HASH_BYTES] for i in range(0, len(packed), HASH_BYTES)),
    }
    offer = Offer(**known)
    # Bounds a receiver's memory: their hashes have 64 MiB.
    if offer.layout().blocks > 1 << 21:
        raise ProtocolError("the multicast offer has too many blocks")
    if offer.hashes and (len(packed) % HASH_BYTES or len(offer.hashes) != offer.layout().blocks):
        raise ProtocolError("the multicast offer has not one hash for each block")
    if not offer.hashes and not offer.hashes_url and offer.size_bytes:
        raise ProtocolError("the multicast offer has no block hashes")
    return offer


def _address(text: str, name: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError as error:
        raise ProtocolError(f"{name!r} is no IP address") from error


def _group(text: str) -> str:
    group = _address(text, "group")
    if not ipaddress.ip_address(group).is_multicast:
        raise ProtocolError(f"{group} is not a multicast group")
    return group


@dataclass(frozen=True, slots=True)
class ReceiverReport:
    """One receiver's report, by POST to the offer's `report_url` within the report window.

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
