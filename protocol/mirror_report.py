"""A mirror's signed report to its origin.

A report is a JSON body. A header field has its HMAC-SHA256 under the secret that the origin gave to
this mirror. A report has its time: old and repeated ones are refused.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from .channel import check_channel
from .errors import BadManifest, BadToken

SIGNATURE_HEADER = "Tidegate-Mirror-Signature"


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """A mirror serves `version` of `channel`. `trouble` is empty when all is well.

    `free`: whether a download would start there at once; None when the mirror does not know.
    `sent_at` is seconds since 1970 and rises from report to report.
    """

    mirror: str
    channel: str
    version: Annotated[int, Meta(ge=0, le=1 << 53)]
    sent_at: float
    trouble: str = ""
    free: bool | None = None


def _signature(body: bytes, secret: str) -> bytes:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest().encode("ascii")


def encode_report(report: MirrorReport, secret: str) -> tuple[bytes, str]:
    """The body and the value of its signature field."""
    body = msgspec.json.encode(report)
    return body, _signature(body, secret).decode("ascii")


def decode_report(
    body: bytes, signature: str, secret_of: Callable[[str], str | None], now: float
) -> MirrorReport:
    """Read and verify a report. Raises `BadToken` (not that mirror) or `BadManifest`."""
    # Bounds a report.
    if len(body) > 4096:
        raise BadManifest("A mirror report is at most 4 KiB.")
    try:
        report = msgspec.json.decode(body, type=MirrorReport)
    except (ValueError, RecursionError) as fault:
        raise BadManifest("The mirror report cannot be read.") from fault
    check_channel(report.channel)
    if not (report.mirror.isprintable() and report.trouble.isprintable()):
        raise BadManifest("The mirror report cannot be read.")
    secret = secret_of(report.mirror)
    if secret is None or not hmac.compare_digest(_signature(body, secret), signature.encode()):
        raise BadToken("The report is not signed by a mirror this origin admitted.")
    # How far the clocks of mirror and origin may differ.
    if not abs(report.sent_at - now) <= 300.0:
        raise BadToken("The report is too old; set the clocks of mirror and origin right.")
    return report
