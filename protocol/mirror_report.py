"""A mirror's signed report to its origin.

A report is a JSON body. A header field has its HMAC-SHA256 under the secret that the origin gave to
this mirror. A report has its time: old and repeated ones are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from .channel import check_channel
from .errors import BadManifest, BadToken
from .tree import check_number

SIGNATURE_HEADER = "Tidegate-Mirror-Signature"


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """A mirror serves `version` of `channel`. `trouble` is empty when all is well.

    `free`: whether a download would start there at once; None when the mirror does not know.
    `sent_at` is seconds since 1970 and rises from report to report.
    """

    mirror: str
    channel: str
    version: int
    sent_at: float
    trouble: str = ""
    free: bool | None = None


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a time")
    return float(value)


def _signature(body: bytes, secret: str) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def encode_report(report: MirrorReport, secret: str) -> tuple[bytes, str]:
    """The body and the value of its signature field."""
    body = json.dumps(asdict(report), separators=(",", ":")).encode("ascii")
    return body, _signature(body, secret)


def decode_report(
    body: bytes, signature: str, secret_of: Callable[[str], str | None], now: float
) -> MirrorReport:
    """Read and verify a report. Raises `BadToken` (not that mirror) or `BadManifest`."""
    # Bounds a report.
    if len(body) > 4096:
        raise BadManifest("A mirror report is at most 4 KiB.")
    try:
        report = MirrorReport(**json.loads(body))
        name, trouble, free = report.mirror, report.trouble, report.free
        shaped = isinstance(name, str) and isinstance(trouble, str) and free in (True, False, None)
        sent_at = _time(report.sent_at)
        check_channel(report.channel)
        check_number(report.version, "version")
    except (ValueError, TypeError, OverflowError, RecursionError) as fault:
        raise BadManifest("The mirror report cannot be read.") from fault
    if not shaped or not name.isprintable() or not trouble.isprintable():
        raise BadManifest("The mirror report cannot be read.")
    secret = secret_of(name)
    if secret is None or not hmac.compare_digest(_signature(body, secret), signature):
        raise BadToken("The report is not signed by a mirror this origin admitted.")
    # How far the clocks of mirror and origin may differ.
    if not abs(sent_at - now) <= 300.0:
        raise BadToken("The report is too old; set the clocks of mirror and origin right.")
    return report
