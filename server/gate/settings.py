"""Settings of a gate: another program sends the files."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

#: Where a gate tells how bodies have ended.
ROUTE = "/-/gate"
#: Where a mover asks about the path that stands behind this.
AUTHORIZE_ROUTE = "/-/authorize"
#: Why a policy that fills the line needs to be told it.
NEEDS_LINE = "what the line carries is not found behind another program"
#: Below the state folder: what a gate serves that has no directory beside its origin.
NO_FILES = "no-files"


class GateSettings(BaseModel):
    """Whether a program in front sends the files, and how it says that it has."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )

    enabled: bool = False
    """A program in front, such as nginx, sends the files, see [gate](gate.md)."""
    report: str = Field("", max_length=200)
    """Where that program reports the end of a transfer by syslog datagram: unix:PATH or HOST:PORT
    (UDP). Empty: beside the first place of `listen`, at PATH.end or at the same port."""
    origin: str = Field("", max_length=2000)
    """The http or https URL of a bucket or server with the files that the directory has not. Its
    redirects are not followed."""
    sign: str = Field("", pattern=r"^(|s3:[a-z0-9-]+|cloudfront:[A-Za-z0-9]+|fastly|secure-link)$")
    """How URLs of the origin are signed: `s3:REGION`, `cloudfront:KEY-PAIR-ID`, `fastly`, or
    `secure-link` of nginx. Empty: not at all."""
    sign_file: Path | None = None
    """What URLs are signed with: the credentials file of the AWS tools (s3), a private key in PEM
    (cloudfront), or a line with the secret (fastly, secure-link)."""
    redirect: bool = False
    """Clients that are known to follow are sent to the origin at their turn. Otherwise the program
    in front fetches from there."""
    log_secret_file: Path | None = None
    """A line with the secret by which the origin's CDN posts its log. Redirects then name the
    lease."""
    assumed_bytes_s: float = Field(2_500_000.0, gt=0, json_schema_extra={"unit": "bytes/s"})
    """How fast a client downloads that was sent to the origin."""
    claim_s: float = Field(15.0, ge=1, le=3600, json_schema_extra={"unit": "s"})
    """A transfer that the program has not begun after this time gives its slot back."""

    def ports(self) -> frozenset[int]:
        """The ports to which a gate connects."""
        parts = urlsplit(self.origin)
        own = parts.port or (443 if parts.scheme == "https" else 80)
        return frozenset({own} if self.origin else ())

    @field_validator("origin")
    @classmethod
    def _origin(cls, url: str) -> str:
        return origin_url(url) if url else url


def origin_url(url: str) -> str:
    """The URL of an origin with a slash at its end. Raises ValueError."""
    parts = urlsplit(url)
    is_printed = url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or not is_printed:
        raise ValueError(f"{url!r} is no http or https URL without a query")
    # As a client names the host in its field `Host`, which is signed.
    host = parts.netloc.lower()
    if parts.port == {"http": 80, "https": 443}[parts.scheme]:
        host = host.rpartition(":")[0]
    url = parts._replace(netloc=host).geturl()
    return url if url.endswith("/") else f"{url}/"


def report_place(report: str, first_listener: str) -> str:
    """Where reports are received, by the setting and the first place of `listen`."""
    if report:
        return report
    return f"{first_listener}.end" if first_listener.startswith("unix:") else first_listener


def socket_path(place: str) -> Path | None:
    """The file of a `unix:` place; None for HOST:PORT."""
    return Path(place.removeprefix("unix:")) if place.startswith("unix:") else None


def absolute_place(place: str) -> str:
    """The same place for a program that runs in another folder."""
    path = socket_path(place)
    return place if path is None else f"unix:{path.absolute()}"
