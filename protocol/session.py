"""The HTTP side of a multicast session: the client's capability and the server's offer.

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
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import BadHeader, ProtocolError
from .fec import MAX_BLOCK_BYTES, SCHEMES, BlockLayout, FecParameters
from .packet import MAX_K
from .strict_json import (
    get_bytes,
    get_int,
    get_map,
    get_number,
    get_text,
    load_object,
    to_base64,
)

HEADER_NAME = "Tidegate-Multicast"
OFFER_TYPE = "application/vnd.tidegate.multicast-offer+json"
VERSION = 1
HASH_BYTES = 32
MARK_KEY_BYTES = 32
#: An offer has the hashes of up to this many blocks; longer lists are fetched by URL.
INLINE_HASHES = 256
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
    """The value of the request header."""
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
        """The blocks of the object."""
        return BlockLayout(self.size_bytes, self.fec.symbol_bytes, self.fec.block_symbols)


def encode_offer(offer: Offer) -> bytes:
    """The offer as compact JSON."""
    document: dict[str, Any] = {
        "v": VERSION,
        "session": f"{offer.session:016x}",
        "member": offer.member,
        "key": to_base64(offer.key),
        "mark_key": to_base64(offer.mark_key),
        "group": offer.group,
        "port": offer.port,
        "source": offer.source,
        "ssm": offer.ssm,
        "ttl": offer.ttl,
        "object": offer.object,
        "size_bytes": offer.size_bytes,
        "etag": offer.etag,
        "fec": {
            "scheme": offer.fec.scheme,
            "symbol_bytes": offer.fec.symbol_bytes,
            "block_symbols": offer.fec.block_symbols,
            "group": offer.fec.group,
            "parity": offer.fec.parity,
        },
        "rate_bytes_s": int(offer.rate_bytes_s),
        "start_in_s": round(offer.start_in_s, 3),
        "silence_s": round(offer.silence_s, 3),
        "report_url": offer.report_url,
        "report_window_s": round(offer.report_window_s, 4),
        "report_every_s": round(offer.report_every_s, 3),
        "report_joined": offer.report_joined,
        "meanwhile": offer.meanwhile,
    }
    if offer.sha256 is not None:
        document["sha256"] = to_base64(offer.sha256)
    if offer.hashes:
        document["hashes"] = to_base64(b"".join(offer.hashes))
    if offer.repair_url:
        document["repair_url"] = offer.repair_url
    if offer.hashes_url:
        document["hashes_url"] = offer.hashes_url
    return json.dumps(document, separators=(",", ":")).encode()


def decode_offer(body: bytes) -> Offer:
    """Read an offer. Raises `ProtocolError`, which names the first fault."""
    document = load_object(body, "the multicast offer")
    if document.get("v") != VERSION:
        raise ProtocolError("the multicast offer has a version this client does not speak")
    fec = get_map(document, "fec")
    parameters = FecParameters(
        get_text(fec, "scheme", 20),
        get_int(fec, "symbol_bytes", 8, 65_000),
        get_int(fec, "block_symbols", 1, MAX_K),
        get_int(fec, "group", 0, MAX_K),
        get_int(fec, "parity", 0, 1 << 16),
    )
    if parameters.symbol_bytes * parameters.block_symbols > MAX_BLOCK_BYTES:
        raise ProtocolError("the multicast offer has blocks of more than 1 MiB")
    size = get_int(document, "size_bytes", 0, 1 << 60)
    packed = get_bytes(document, "hashes") if "hashes" in document else b""
    hashes = tuple(packed[i : i + HASH_BYTES] for i in range(0, len(packed), HASH_BYTES))
    offer = Offer(
        session=_session(document),
        member=get_text(document, "member", 64),
        key=get_bytes(document, "key"),
        mark_key=get_bytes(document, "mark_key"),
        group=_group(document),
        port=get_int(document, "port", 1, 65_535),
        source=_address(document, "source"),
        size_bytes=size,
        etag=get_text(document, "etag", 300),
        fec=parameters,
        rate_bytes_s=get_number(document, "rate_bytes_s", 1, 1e12),
        start_in_s=get_number(document, "start_in_s", 0, 86_400),
        report_url=get_text(document, "report_url", 2000),
        object=get_int(document, "object", 0, 255),
        ssm=document.get("ssm") is True,
        ttl=get_int(document, "ttl", 0, 255),
        sha256=get_bytes(document, "sha256") if "sha256" in document else None,
        hashes=hashes,
        hashes_url=get_text(document, "hashes_url", 2000) if "hashes_url" in document else "",
        repair_url=get_text(document, "repair_url", 2000) if "repair_url" in document else "",
        report_window_s=get_number(document, "report_window_s", 0, 600),
        report_every_s=get_number(document, "report_every_s", 0, 600),
        report_joined=document.get("report_joined") is True,
        meanwhile=document.get("meanwhile") is True,
        silence_s=get_number(document, "silence_s", 0.1, 600),
    )
    if not 16 <= len(offer.key) <= 64:
        raise ProtocolError("the multicast offer's key has not 16 to 64 bytes")
    if len(offer.mark_key) != MARK_KEY_BYTES:
        raise ProtocolError(f"the multicast offer's mark_key has not {MARK_KEY_BYTES} bytes")
    if hashes and (len(packed) % HASH_BYTES or len(hashes) != offer.layout().blocks):
        raise ProtocolError("the multicast offer has not one hash for each block")
    if not hashes and not offer.hashes_url and size:
        raise ProtocolError("the multicast offer has no block hashes")
    return offer


def _session(document: Mapping[str, Any]) -> int:
    value = document.get("session")
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{16}", value):
        raise ProtocolError("'session' is not 16 hexadecimal digits")
    return int(value, 16)


def _address(document: Mapping[str, Any], name: str) -> str:
    try:
        return str(ipaddress.ip_address(get_text(document, name, 60)))
    except ValueError as error:
        raise ProtocolError(f"{name!r} is no IP address") from error


def _group(document: Mapping[str, Any]) -> str:
    group = _address(document, "group")
    if not ipaddress.ip_address(group).is_multicast:
        raise ProtocolError(f"{group} is not a multicast group")
    return group
