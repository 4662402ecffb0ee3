"""The one schema of a server's configuration: every setting with its bounds, unit and help."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from policies.settings import PolicySettings
from server.http.limits import HttpLimits
from server.multicast.settings import MulticastSettings
from server.rules import Rule
from server.tools import Manner, ToolRule

PolicyName = Literal["fcfs", "reserve", "ticket", "fair", "adaptive"]
_SECONDS: dict[str, Any] = {"unit": "s"}
_BYTES: dict[str, Any] = {"unit": "bytes"}
_RATE: dict[str, Any] = {"unit": "bytes/s"}
_LIMITS = HttpLimits()


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class HoldingSettings(_Section):
    """How clients are kept waiting inside their request."""

    most: int = Field(
        5000,
        ge=0,
        le=1_000_000,
        description="Clients held at once; beyond, they are answered 503 like all others.",
    )
    most_per_client: int = Field(
        64,
        ge=1,
        le=100_000,
        description="Requests of one client held at once.",
    )
    unknown: Manner = Field(
        "come-back",
        description="What a tool gets that neither `holding.tools` nor the built-in table names: "
        "`come-back` is 503 with Retry-After, `hold` keeps its request open.",
    )
    tools: tuple[ToolRule, ...] = Field(
        (),
        max_length=200,
        description="Which tool gets what, tried before the built-in table; first match wins.",
    )


class LimitSettings(_Section):
    """What one peer, and all together, may take of the server."""

    header_timeout_s: float = Field(
        _LIMITS.header_timeout_s,
        gt=0,
        le=3600,
        description="A request's header must be whole this long after its first byte.",
        json_schema_extra=_SECONDS,
    )
    idle_timeout_s: float = Field(
        _LIMITS.idle_timeout_s,
        gt=0,
        le=86400,
        description="A connection without a request is closed after this.",
        json_schema_extra=_SECONDS,
    )
    min_rate_bytes_s: float = Field(
        _LIMITS.min_rate_bytes_s,
        gt=0,
        le=1e9,
        description="A client that takes less than this on average is cut off.",
        json_schema_extra=_RATE,
    )
    min_rate_window_s: float = Field(
        _LIMITS.min_rate_window_s,
        gt=0,
        le=86400,
        description="The time over which that average is taken.",
        json_schema_extra=_SECONDS,
    )
    max_header_bytes: int = Field(
        _LIMITS.max_header_bytes,
        ge=1024,
        le=1 << 20,
        description="Longest request header.",
        json_schema_extra=_BYTES,
    )
    max_headers: int = Field(
        _LIMITS.max_headers, ge=8, le=10_000, description="Most fields of a request header."
    )
    max_connections: int = Field(
        _LIMITS.max_connections,
        ge=0,
        le=10_000_000,
        description="Connections in all; 0 is unbounded.",
    )
    max_connections_per_address: int = Field(
        _LIMITS.max_connections_per_address,
        ge=0,
        le=10_000_000,
        description="Connections of one address; 0 is unbounded.",
    )

    def http_limits(self) -> HttpLimits:
        """The same as the HTTP room wants it."""
        return HttpLimits(**self.model_dump())


class ServerConfig(_Section):
    """Everything that `tidegate serve` can be told."""

    directory: Path = Field(Path("release"), description="The directory that is served.")
    listen: tuple[str, ...] = Field(
        ("127.0.0.1:8080",),
        min_length=1,
        description="Where to listen: HOST:PORT, [IPv6]:PORT or unix:PATH; port 0 picks one.",
    )
    admin: str = Field(
        "127.0.0.1:8081", description="Where the admin page listens: HOST:PORT, or off."
    )
    metrics_from: tuple[str, ...] = Field(
        (),
        description="Networks that may read /metrics on the admin page without an API token, "
        "beside this machine.",
    )
    policy: PolicyName = Field("ticket", description="Who may start when.")
    bandwidth: float | None = Field(
        None,
        gt=0,
        le=1e12,
        description="Cap on all that leaves the server; empty: none.",
        json_schema_extra=_RATE,
    )
    state: Path = Field(Path("state"), description="Folder of keys, database and sessions.")
    database: str | None = Field(
        None, description="sqlite:///FILE or postgresql://…; empty: SQLite in the state folder."
    )
    show_hidden: bool = Field(False, description="Also serve files whose name starts with a dot.")
    access_log: str | None = Field(
        None, description="File for the access log, one JSON object a line; - is standard error."
    )
    tls_cert: Path | None = Field(None, description="Certificate chain (PEM); switches TLS on.")
    tls_key: Path | None = Field(None, description="Its private key (PEM).")
    trusted_proxies: tuple[str, ...] = Field(
        (),
        description="Networks (or `unix`) whose Forwarded and X-Forwarded-* fields are believed.",
    )
    mirrors: tuple[str, ...] = Field(
        (), description="URLs of mirrors of the served directory, best first."
    )
    mirror_publish: Path | None = Field(
        None, description="Publish directory of `tidegate mirror`; its mirrors are offered."
    )
    mirror_channel: str | None = Field(
        None, description="The channel whose tree is served here (needs mirror_publish)."
    )
    mirror_prefix: str = Field(
        "/",
        pattern=r"^/(.*/)?$",
        description="URL path under which that tree is served, with slashes at both ends.",
    )
    clients_per_address: int = Field(
        8,
        ge=1,
        le=65_536,
        description="How many clients are told apart behind one address (a NAT); bounds what one "
        "address can hoard.",
    )
    ticket_max_age_s: float = Field(
        7 * 86400.0,
        ge=60,
        le=30 * 86400.0,
        description="A ticket's token is worthless after this.",
        json_schema_extra=_SECONDS,
    )
    keys_rotate_s: float = Field(
        30 * 86400.0,
        ge=3600,
        le=3650 * 86400.0,
        description="How often a new signing key is made; old ones stay good for 30 days.",
        json_schema_extra=_SECONDS,
    )
    drain_s: float = Field(
        30.0,
        ge=0,
        le=86400,
        description="After SIGTERM, downloads have this long to finish.",
        json_schema_extra=_SECONDS,
    )
    admission: PolicySettings = Field(
        default_factory=PolicySettings, description="Settings of the policies."
    )
    holding: HoldingSettings = Field(
        default_factory=HoldingSettings, description="Clients that wait inside their request."
    )
    limits: LimitSettings = Field(
        default_factory=LimitSettings, description="Bounds on connections and requests."
    )
    multicast: MulticastSettings = Field(
        default_factory=MulticastSettings, description="Hot files once for everyone."
    )
    rules: tuple[Rule, ...] = Field(
        (), max_length=10_000, description="Rules for single files and folders."
    )

    @field_validator("listen")
    @classmethod
    def _listeners(cls, listen: tuple[str, ...]) -> tuple[str, ...]:
        for place in listen:
            if not place.startswith("unix:"):
                split_address(place)
            elif place == "unix:":
                raise ValueError("unix: needs a path, such as unix:/run/tidegate.sock")
        return listen

    @field_validator("admin")
    @classmethod
    def _admin(cls, admin: str) -> str:
        if admin != "off":
            split_address(admin)
        return admin

    @field_validator("trusted_proxies", "metrics_from")
    @classmethod
    def _networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            if network != "unix":
                ipaddress.ip_network(network, strict=False)
        return networks

    @field_validator("mirrors")
    @classmethod
    def _mirrors(cls, mirrors: tuple[str, ...]) -> tuple[str, ...]:
        for mirror in mirrors:
            parts = urlsplit(mirror)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{mirror!r} is not an http or https URL")
        return mirrors

    @model_validator(mode="after")
    def _agree(self) -> ServerConfig:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: give both or neither")
        return self

    def policy_settings(self) -> PolicySettings:
        """The policies' settings; the egress cap tells them what the link carries."""
        if self.bandwidth is None or self.admission.bandwidth_bytes_s is not None:
            return self.admission
        return self.admission.model_copy(update={"bandwidth_bytes_s": self.bandwidth})


#: Settings that a running server cannot change.
FIXED = (
    "directory",
    "listen",
    "admin",
    "state",
    "database",
    "show_hidden",
    "access_log",
    "tls_cert",
    "tls_key",
    "trusted_proxies",
    "multicast",
    "mirror_publish",
    "mirror_channel",
    "mirror_prefix",
)


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[IPv6]:PORT`; ValueError says how to write it."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT (or [IPv6]:PORT)")
    return host or "0.0.0.0", int(port)


def unit_of(extra: Any) -> str | None:
    """The unit that a field declares."""
    return extra.get("unit") if isinstance(extra, dict) else None
