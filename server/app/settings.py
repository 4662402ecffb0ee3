"""The one schema of a server's configuration: every setting with its bounds, unit and help."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from ...policies.registry import POLICIES, unknown_policy
from ...policies.settings import PolicySettings
from ..accounts.oidc_settings import OidcSettings
from ..admission.client_programs import Manner, ToolRule
from ..admission.rules import Rule
from ..control.alert_settings import AlertSettings
from ..gate.settings import NEEDS_LINE, GateSettings, report_place
from ..http.limits import HttpLimits
from ..http.proxies import ProxyHeader
from ..http.tls import INTERMEDIATE, TlsVersion
from ..multicast.settings import MulticastSettings
from ..torrent.settings import TorrentSettings
from .log_format import parse_format
from .log_outlets import log_file


def _known_policy(name: str) -> str:
    if name not in POLICIES:
        raise ValueError(unknown_policy(name))
    return name


PolicyName = Annotated[str, AfterValidator(_known_policy)]
_LIMITS = HttpLimits()
#: The word in `listen` and `admin` for sockets that systemd opened.
HANDED_OVER = "systemd:"


Seconds = Annotated[float, Field(json_schema_extra={"unit": "s"})]


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )


class HoldingSettings(_Section):
    """How clients are kept waiting inside their request."""

    most: int = Field(5000, ge=0, le=1_000_000)
    """How many clients wait inside their request. Beyond it, the network with most of them loses
    its oldest one, which keeps its place."""
    unknown: Manner = "hold"
    """How a program waits that neither `holding.tools` nor the built-in table names: see
    `manner`."""
    tools: tuple[ToolRule, ...] = Field((), max_length=200)
    """How programs wait, tried before the built-in table; the first match counts."""


class LimitSettings(_Section):
    """What one peer, and all together, may take of the server."""

    header_timeout_s: Seconds = Field(_LIMITS.header_timeout_s, gt=0, le=3600)
    """A request's header must be complete this long after its first byte."""
    idle_timeout_s: Seconds = Field(_LIMITS.idle_timeout_s, gt=0, le=86400)
    """A connection without a request is closed after this time."""
    min_rate_bytes_s: float = Field(
        _LIMITS.min_rate_bytes_s, gt=0, le=1e9, json_schema_extra={"unit": "bytes/s"}
    )
    """A client that reads slower than this on average is cut off."""
    min_rate_window_s: Seconds = Field(_LIMITS.min_rate_window_s, gt=0, le=86400)
    """The time over which the average reading rate is taken."""
    max_connections: int = Field(_LIMITS.max_connections, ge=0, le=10_000_000)
    """The number of connections in all; 0: as many as the limit on open files allows."""
    max_connections_per_address: int = Field(
        _LIMITS.max_connections_per_address, ge=0, le=10_000_000
    )
    """The number of connections of one address; 0: no limit."""

    def http_limits(self) -> HttpLimits:
        return HttpLimits(**self.model_dump())


class ServerConfig(_Section):
    """Everything that `tidegate serve` can be told."""

    directory: Path = Path("release")
    """The directory that is served."""
    listen: tuple[str, ...] = Field(("127.0.0.1:8080",), min_length=1)
    """HOST:PORT, [IPv6]:PORT (without IPv4), unix:PATH, or systemd: for the sockets of its socket
    unit. Port 0 picks a free one."""
    workers: int | Literal["auto"] = 1
    """The number of processes that serve and share one queue, or auto: one per core."""
    small_files_bytes: int | None = Field(
        None, ge=0, le=1 << 40, json_schema_extra={"unit": "bytes"}
    )
    """Memory for small files, over all workers. Empty: a 64th of the machine's memory, between 32
    and 256 MiB."""
    admin: str = "127.0.0.1:8081"
    """The place of the admin page: HOST:PORT, off, or systemd: for the socket of a unit with
    FileDescriptorName=admin."""
    metrics_from: tuple[str, ...] = ()
    """Networks that may read /metrics without an API token, besides this machine."""
    policy: PolicyName = "fair"
    """Admission policy: fcfs, reserve, ticket, fair, adaptive, or an installed one."""
    bandwidth: float | None = Field(None, gt=0, le=1e12, json_schema_extra={"unit": "bytes/s"})
    """The upper bound for everything the server sends. Below it the server measures what the line
    carries."""
    state: Path = Path("state")
    """The folder of keys, database and sessions."""
    database: str | None = Field(None, pattern=r"^(sqlite:///|postgresql[:+])")
    """sqlite:///FILE or postgresql://…. Empty: SQLite in the state folder."""
    cluster: str | None = None
    """The database postgresql://… that machines share for one queue, see [cluster](cluster.md). It
    replaces `database`."""
    cluster_address: str | None = None
    """The HOST:PORT at which other machines reach this one. Empty: the address towards the
    database, and any port."""
    cluster_lease_s: Seconds = Field(1.0, ge=0.5, le=60)
    """A leader that does not renew its lease within this time ends and is replaced."""
    security_contact: tuple[str, ...] = Field((), max_length=20)
    """Where to report a vulnerability, best first: mailto:, https: or tel: URIs, for
    /.well-known/security.txt (RFC 9116)."""
    show_hidden: bool = False
    """Whether files are served whose name starts with a dot."""
    access_log: str | None = None
    """A file, - for standard error, journal, syslog, syslog:PATH or syslog:HOST:PORT; off for none.
    SIGUSR1 and SIGHUP open the file again."""
    access_log_format: str = Field("combined", max_length=2000)
    """A line of the access log: combined, json, or a pattern with {fields}, see
    [operations](operations.md#access-log)."""
    access_log_most: int = Field(6000, ge=0, le=1_000_000_000)
    """Lines of one address per minute in the access log; the operator's log counts the others. 0:
    no limit."""
    log_format: Literal["text", "json"] = "text"
    """The format of the operator's log on standard error."""
    waiting_pages: Path | None = None
    """The folder of your own templates for the waiting page (Jinja2, sandboxed): waiting.html, and
    if they differ ready.html, busy.html, closed.html, pre-queue.html."""
    tls_cert: Path | None = None
    """The certificate chain (PEM). It switches TLS on."""
    tls_key: Path | None = None
    """The private key of the certificate (PEM)."""
    user: str | None = Field(None, min_length=1)
    """The user that serves after root has opened the sockets of `listen`. It must be able to read
    the release and the private key, and to write the logs. `root` stays root."""
    confine: bool = True
    """Whether a started server gives up what it does not need, by Landlock and seccomp, see
    [security](security.md#what-a-bug-could-reach)."""
    tls_min_version: TlsVersion = "1.2"
    """The oldest version of TLS: 1.2 or 1.3."""
    tls_ciphers: str = Field(INTERMEDIATE, max_length=2000)
    """The ciphers of TLS 1.2 by their OpenSSL names."""
    tls_hsts_s: Seconds = Field(0.0, ge=0, le=10 * 365 * 86400.0)
    """How long browsers must use only https (Strict-Transport-Security). 0: not sent."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies in front (or `unix`) whose `proxy_header` counts."""
    proxy_header: ProxyHeader = "x-forwarded-for"
    """The one header that names the client. The trusted proxies must set it themselves."""
    proxy_protocol: bool = False
    """Whether the trusted proxies use PROXY protocol version 2 instead of a header."""
    mirrors: tuple[str, ...] = ()
    """URLs of mirrors of the served directory, best first."""
    mirror_publish: Path | None = None
    """The publish directory of `tidegate mirror`; its followers are offered as mirrors."""
    mirror_channel: str | None = None
    """The channel whose tree is served here. It needs `mirror_publish`."""
    mirror_prefix: str = Field("/", pattern=r"^/(.*/)?$")
    """The URL path of that tree, with slashes at both ends."""
    clients_per_address: int = Field(1000, ge=1, le=65_536)
    """How many clients are told apart behind one address (NAT); further ones share a few places."""
    ticket_max_age_s: Seconds = Field(7 * 86400.0, ge=60, le=30 * 86400.0)
    """How long a ticket is valid."""
    keys_rotate_s: Seconds = Field(30 * 86400.0, ge=3600, le=3650 * 86400.0)
    """How often a new signing key is made. Old keys stay valid for 30 days."""
    drain_s: Seconds = Field(30.0, ge=0, le=86400)
    """How long downloads may continue after SIGTERM, also those whose client takes nothing. A
    second SIGTERM ends them."""
    admission: PolicySettings = Field(default_factory=PolicySettings)
    """Settings of the policies."""
    holding: HoldingSettings = Field(default_factory=HoldingSettings)
    """Clients that wait inside their request."""
    limits: LimitSettings = Field(default_factory=LimitSettings)
    """Bounds on connections and requests."""
    multicast: MulticastSettings = Field(default_factory=MulticastSettings)
    """Hot files once for everyone."""
    torrent: TorrentSettings = Field(default_factory=TorrentSettings)
    """Downloads from each other."""
    gate: GateSettings = Field(default_factory=GateSettings)
    """Another program sends the files."""
    alerts: AlertSettings = Field(default_factory=AlertSettings)
    """Who is told when an alert rule fires."""
    oidc: OidcSettings = Field(default_factory=OidcSettings)
    """Operators log in through an OpenID Connect provider."""
    rules: tuple[Rule, ...] = Field((), max_length=10_000)
    """Rules for single files and folders."""

    @field_validator("listen")
    @classmethod
    def _listeners(cls, listen: tuple[str, ...]) -> tuple[str, ...]:
        for place in listen:
            if place == HANDED_OVER:
                if listen.count(place) > 1:
                    raise ValueError(f"{place} stands for all sockets: name it once")
            elif not place.startswith("unix:"):
                split_address(place)
            elif place == "unix:":
                raise ValueError("unix: needs a path, such as unix:/run/tidegate.sock")
        return listen

    @field_validator("admin")
    @classmethod
    def _admin(cls, admin: str) -> str:
        if admin not in ("off", HANDED_OVER):
            split_address(admin)
        return admin

    @field_validator("access_log")
    @classmethod
    def _access_log(cls, place: str | None) -> str | None:
        # As for the other places; a file of that name is ./off.
        return None if place == "off" else place

    @field_validator("access_log_format")
    @classmethod
    def _access_log_format(cls, text: str) -> str:
        parse_format(text)
        return text

    @field_validator("cluster_address")
    @classmethod
    def _cluster_address(cls, address: str | None) -> str | None:
        if address is not None:
            split_address(address)
        return address

    @field_validator("trusted_proxies", "metrics_from")
    @classmethod
    def _networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            if network != "unix":
                ipaddress.ip_network(network, strict=False)
        return networks

    @field_validator("security_contact")
    @classmethod
    def _contacts(cls, contacts: tuple[str, ...]) -> tuple[str, ...]:
        for contact in contacts:
            if not re.fullmatch(r"(mailto:|https://|tel:)[!-~]{1,500}", contact):
                raise ValueError(
                    f"{contact!r} is not a URI such as mailto:security@example.org or "
                    "https://example.org/report"
                )
        return contacts

    @field_validator("directory", "state", mode="before")
    @classmethod
    def _named(cls, path: Any) -> Any:
        if path == "":
            raise ValueError("must not be empty: write . for the present folder")
        return path

    @field_validator("rules")
    @classmethod
    def _rules(cls, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        for rule in rules:
            # Otherwise it fits no file, and a release meant to be hidden is there.
            if rule.path[0] not in "/*":
                raise ValueError(f"the path {rule.path!r} begins with neither / nor *")
            if rule.prequeue_from is not None and rule.hidden_until is None:
                raise ValueError(f"the pre-queue of {rule.path!r} needs hidden_until, its end")
        return rules

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
        places = [one for one in (*self.listen, self.admin) if one not in (HANDED_OVER, "off")]
        for number, place in enumerate(places):
            if any(_same_place(place, one) for one in places[:number]):
                raise ValueError(f"listen and admin name {place} twice: give each place a port")
        if self.proxy_protocol and self.tls_cert is not None:
            raise ValueError("proxy_protocol and tls_cert exclude each other: the proxy ends TLS")
        if self.proxy_protocol and not self.trusted_proxies:
            raise ValueError("proxy_protocol needs trusted_proxies: who may say who the client is")
        if self.cluster is not None and not self.cluster.startswith("postgresql"):
            raise ValueError("cluster is the URL of a PostgreSQL database: postgresql://…")
        if self.cluster is not None and self.database is not None:
            raise ValueError("cluster names the database: leave database out")
        if self.mirror_channel is not None and self.mirror_publish is None:
            raise ValueError("mirror_channel needs mirror_publish, the folder that has the channel")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: give both or neither")
        log = log_file(self.access_log)
        if log is not None and log.resolve().is_relative_to(self.directory.resolve()):
            raise ValueError("access_log must not lie in the served directory: all could read it")
        if self.gate.enabled:
            self._agree_on_a_gate()
        return self

    def _agree_on_a_gate(self) -> None:
        if POLICIES[self.policy].link_bound and self.policy_settings().bandwidth_bytes_s is None:
            raise ValueError(f"a gate with the policy {self.policy} needs bandwidth: {NEEDS_LINE}")
        if self.worker_count() > 1 or self.cluster is not None:
            raise ValueError("a gate is one process: leave workers and cluster out")
        if not self.trusted_proxies:
            raise ValueError("a gate needs trusted_proxies: the program that sends the files")
        place = report_place(self.gate.report, self.listen[0])
        if place == HANDED_OVER:
            raise ValueError("gate.report is missing: unix:PATH or HOST:PORT beside `systemd:`")
        if place.startswith("unix:"):
            if place == "unix:":
                raise ValueError("gate.report: unix: needs a path")
        elif split_address(place)[1] == 0:
            raise ValueError("gate.report needs a port: nginx must know it")

    @field_validator("workers", mode="before")
    @classmethod
    def _workers(cls, workers: Any) -> Any:
        # Before the schema, which would name both of its kinds in a fault.
        if workers == "auto":
            return workers
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if str(int(workers)) == str(workers).strip() and 1 <= int(workers) <= 256:
                return int(workers)
        raise ValueError("must be 1 to 256, or auto")

    def worker_count(self) -> int:
        """How many processes serve; one has the queue in it."""
        return len(os.sched_getaffinity(0)) if self.workers == "auto" else int(self.workers)

    def needing_restart(self, old: ServerConfig) -> list[str]:
        """The settings that differ from `old` and that a running server cannot change."""
        return [
            name
            for name in type(self).model_fields
            if name in FIXED and getattr(old, name) != getattr(self, name)
        ]

    def policy_settings(self) -> PolicySettings:
        """The policies' settings; the egress cap tells them what the link carries."""
        if self.bandwidth is None or self.admission.bandwidth_bytes_s is not None:
            return self.admission
        return self.admission.model_copy(update={"bandwidth_bytes_s": self.bandwidth})


#: Settings that a running server cannot change: all but those that its rooms follow.
FIXED = ServerConfig.model_fields.keys() - {
    *("policy", "admission", "rules", "bandwidth", "mirrors", "holding", "limits", "drain_s"),
    *("clients_per_address", "ticket_max_age_s", "keys_rotate_s", "metrics_from"),
    "waiting_pages",
}


def _same_place(one: str, other: str) -> bool:
    if one.startswith("unix:") or other.startswith("unix:"):
        return one == other
    (host, port), (host_2, port_2) = split_address(one), split_address(other)
    if port == 0 or port != port_2 or (":" in host) != (":" in host_2):
        return False
    return host == host_2 or not {"0.0.0.0", "::"}.isdisjoint((host, host_2))


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
