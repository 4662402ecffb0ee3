"""What a mover is configured with, by the addresses of this gate."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from ...protocol.errors import ProtocolError
from .movers import INTERNAL_PATH
from .settings import report_place

#: Whether downloads go on without a queue while the gate is away, or get a page.
IfAbsent = Literal["open", "closed"]


@dataclass(frozen=True, slots=True)
class SnippetTerms:
    """What a snippet is made from.

    `gate` and `report` are `unix:PATH` or `HOST:PORT`; `listen` is where a complete configuration
    listens, None for a snippet to include.
    """

    root: Path
    gate: str
    report: str
    listen: str | None
    if_absent: IfAbsent
    most_absent: int


def terms(
    root: Path,
    gate: str,
    report: str = "",
    listen: str | None = None,
    if_absent: IfAbsent = "open",
    most_absent: int = 200,
) -> SnippetTerms:
    """The same, checked. Raises ProtocolError."""
    for name, place in (("--gate", gate), ("--report", report), ("--listen", listen)):
        if place:
            _check_place(name, place)
    if listen is not None and listen.startswith("unix:"):
        raise ProtocolError("--listen is HOST:PORT, where clients come")
    if not root.is_absolute():
        raise ProtocolError(f"--root must be an absolute path, not {str(root)!r}")
    unsafe = sorted(set(str(root)) & set("$\"'\\;{}\n\r\t"))
    if unsafe:
        raise ProtocolError(
            f"--root cannot have {unsafe[0]!r} in it: the configuration has a use for it"
        )
    return SnippetTerms(root, gate, report_place(report, gate), listen, if_absent, most_absent)


def _check_place(name: str, place: str) -> None:
    if place.startswith("unix:"):
        path = place.removeprefix("unix:")
        if not path.startswith("/") or set(path) & set("$\"'\\;{}: \n"):
            raise ProtocolError(f"{name} needs an absolute path without blanks, not {place!r}")
        return
    host, colon, port = place.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ProtocolError(f"{name} is unix:PATH or HOST:PORT, not {place!r}")
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        if not bare or not all(letter.isalnum() or letter in ".-" for letter in bare):
            raise ProtocolError(f"{name} is unix:PATH or HOST:PORT, not {place!r}") from None


_NGINX_HTTP = """\
# Tidegate, for the http block (on Debian: /etc/nginx/conf.d/tidegate.conf).
log_format tidegate '$upstream_http_tidegate_lease $status $body_bytes_sent $request_completion';
limit_conn_zone $server_name zone=tidegate_absent:1m;
"""

_NGINX_SERVER = """\
# Tidegate, for a server block. The http block needs `tidegate gate snippet nginx --http`.
location / {{
    proxy_pass http://{upstream};
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host $http_host;

    # Who the client is, and its socket: written anew, whatever the client said.
    proxy_set_header X-Forwarded-For $remote_addr;
    proxy_set_header X-Forwarded-Proto $scheme;
    proxy_set_header Tidegate-Mover
        "nginx $server_protocol $remote_addr $remote_port $server_addr $server_port";

    # Clients wait inside their request, and small files come through here.
    proxy_buffering off;
    proxy_read_timeout 1h;
    # The gate's own pages and refusals pass as they are.
    proxy_intercept_errors off;
    error_page 502 504 = @tidegate_absent;
}}

# Files that the gate lets go. Only the gate can name this place.
location {internal}/ {{
    internal;
    alias "{root}/";
    # Digests and ranges are of the file as it is.
    gzip off;
    # The end of each transfer. Add your own access_log here if you want these lines there, too.
    access_log syslog:server={report},nohostname,tag=tidegate tidegate;
    add_header X-Content-Type-Options nosniff always;
    add_header Tidegate-Ticket $upstream_http_tidegate_ticket always;
    add_header Tidegate-Lease-Connections $upstream_http_tidegate_lease_connections always;
    add_header Repr-Digest $upstream_http_repr_digest always;
    add_header Link $upstream_http_link always;
}}

"""

_NGINX_OPEN = """\
# The gate is away: files go without a queue, to this many connections.
location @tidegate_absent {{
    root "{root}";
    limit_conn tidegate_absent {most};
    limit_conn_status 503;
}}
"""

_NGINX_CLOSED = """\
# The gate is away: clients are asked to come back.
location @tidegate_absent {
    default_type text/html;
    add_header Retry-After 30 always;
    return 503 "<!DOCTYPE html><title>Back soon</title><p>Back in a moment. Please try again.</p>";
}
"""

_NGINX_COMPLETE = """\
# nginx -c THIS-FILE -p AN-EMPTY-FOLDER
worker_processes auto;
pid nginx.pid;
error_log stderr;
events {{
    worker_connections 8192;
}}
http {{
    sendfile on;
    access_log off;
    types {{
    }}
    default_type application/octet-stream;
    client_body_temp_path client;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
{http}
    server {{
        listen {listen};
{server}
    }}
}}
"""


def _nginx(of: SnippetTerms) -> str:
    server = _NGINX_SERVER.format(
        upstream=of.gate, internal=INTERNAL_PATH, root=of.root, report=of.report
    )
    if of.if_absent == "open":
        server += _NGINX_OPEN.format(root=of.root, most=of.most_absent)
    else:
        server += _NGINX_CLOSED
    if of.listen is None:
        return server
    return _NGINX_COMPLETE.format(
        http=_indented(_NGINX_HTTP, 4), listen=of.listen, server=_indented(server, 8)
    )


_CADDY = """\
# Tidegate, for a site block. It has the log of this site: Caddy 2.6 knows one.
reverse_proxy {upstream} {{
    # Who the client is, and its socket: written anew, whatever the client said.
    header_up X-Forwarded-For {{remote_host}}
    header_up X-Forwarded-Proto {{scheme}}
    header_up Tidegate-Mover "caddy {{http.request.proto}} {{remote_host}} {{remote_port}}"
    flush_interval -1
    # Files that the gate lets go.
    @moved header X-Accel-Redirect *
    handle_response @moved {{
        root * "{root}"
        copy_response_headers {{
            include Content-Type Tidegate-Lease Tidegate-Ticket Tidegate-Lease-Connections
            include X-Content-Type-Options Repr-Digest Link
        }}
        # The entity tag is the gate's, which has compared If-Range with it.
        header {{
            ETag {{rp.header.Etag}}
            defer
        }}
        request_header Range "{{rp.header.Tidegate-Range}}"
        request_header -If-Range
        # The path is the client's own: a rewrite to the gate's would not decode it.
        file_server
    }}
}}
# The end of each transfer.
log {{
    output net {report}
    format filter {{
        wrap json
        fields {{
            request delete
        }}
    }}
}}
"""

_CADDY_OPEN = """\
# The gate is away: files go without a queue, whole: an error's answer has one status.
handle_errors {{
    @absent expression {{http.error.status_code}} in [502, 504]
    handle @absent {{
        root * "{root}"
        request_header -Range
        request_header -If-Match
        request_header -If-None-Match
        request_header -If-Modified-Since
        request_header -If-Unmodified-Since
        file_server {{
            status 200
        }}
    }}
}}
"""

_CADDY_CLOSED = """\
# The gate is away: clients are asked to come back.
handle_errors {
    @absent expression {http.error.status_code} in [502, 504]
    handle @absent {
        header Retry-After 30
        respond "Back in a moment. Please try again." 503
    }
}
"""

_CADDY_COMPLETE = """\
# caddy run --adapter caddyfile --config THIS-FILE
{{
    admin off
    auto_https off
}}
http://{listen} {{
{site}
}}
"""


def _caddy(of: SnippetTerms) -> str:
    report = of.report
    host = report.rpartition(":")[0]
    if not report.startswith("unix:") and host not in ("127.0.0.1", "[::1]", "localhost"):
        # Its log has what the client sees, the lease as well.
        raise ProtocolError("--report must be unix:PATH or on 127.0.0.1: Caddy shows leases")
    site = _CADDY.format(
        upstream=f"unix/{of.gate[5:]}" if of.gate.startswith("unix:") else of.gate,
        report=f"unixgram/{report[5:]}" if report.startswith("unix:") else f"udp/{report}",
        root=of.root,
    )
    site += _CADDY_OPEN.format(root=of.root) if of.if_absent == "open" else _CADDY_CLOSED
    if of.listen is None:
        return site
    return _CADDY_COMPLETE.format(listen=of.listen, site=_indented(site, 4))


_APACHE = """\
# Tidegate, for a virtual host. Needs a2enmod headers proxy proxy_http setenvif xsendfile, and for
# the last of them libapache2-mod-xsendfile.
UseCanonicalPhysicalPort On
ProxyAddHeaders Off
ProxyPreserveHost On
ProxyTimeout 3600
ProxyPass "/" "{upstream}" flushpackets=on retry=0

# Who the client is, and its socket: written anew, whatever the client said.
SetEnvIf Server_Addr "(.*)" tidegate_addr=$1
RequestHeader set X-Forwarded-For "expr=%{{REMOTE_ADDR}}"
RequestHeader set X-Forwarded-Proto "expr=%{{REQUEST_SCHEME}}"
RequestHeader set Tidegate-Mover "expr=apache %{{SERVER_PROTOCOL}} %{{REMOTE_ADDR}} \
%{{REMOTE_PORT}} %{{reqenv:tidegate_addr}} %{{SERVER_PORT}} {quoted}"

# Files that the gate lets go.
XSendFile On
XSendFilePath "{root}"
Header note Tidegate-Lease tidegate-lease
Header unset Tidegate-Lease
Header unset Tidegate-Range

# The end of each transfer.
LogFormat "%{{tidegate-lease}}n %>s %B %X" tidegate
CustomLog "|/usr/bin/logger -t tidegate {report}" tidegate "expr=-n note('tidegate-lease')"

# The gate is away: clients are asked to come back.
ErrorDocument 503 "Back in a moment. Please try again."
Header always set Retry-After 30 "expr=%{{REQUEST_STATUS}} == 503 && -z resp('Retry-After')"
"""

_APACHE_COMPLETE = """\
# apache2 -DFOREGROUND -d AN-EMPTY-FOLDER -f THIS-FILE
ServerName {host}
Listen {listen}
PidFile apache.pid
DefaultRuntimeDir .
Mutex file:.
ErrorLog error.log
{modules}
<Location "/">
    Require all granted
</Location>
{server}"""

_APACHE_MODULES = (
    *("authz_core", "headers", "mpm_event", "proxy", "proxy_http", "setenvif", "xsendfile"),
)


def _apache(of: SnippetTerms) -> str:
    if of.if_absent == "open":
        raise ProtocolError("Apache sends no files without the gate: give --if-absent closed")
    host, _, port = of.report.rpartition(":")
    unix = of.report.startswith("unix:")
    server = _APACHE.format(
        upstream=f"{of.gate}|http://gate/" if of.gate.startswith("unix:") else f"http://{of.gate}/",
        # logger(1) sends a line as the datagram that nginx would send.
        report=f"-u {of.report[5:]}" if unix else f"-d --rfc3164 -n {host.strip('[]')} -P {port}",
        root=of.root,
        quoted=quote(str(of.root)),
    )
    if of.listen is None:
        return server
    modules = "\n".join(
        f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so"
        for name in _APACHE_MODULES
    )
    host = of.listen.rpartition(":")[0]
    return _APACHE_COMPLETE.format(listen=of.listen, host=host, modules=modules, server=server)


def _indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}" if line.strip() else line for line in text.splitlines(True))


#: By the name of a mover: what it is configured with.
SNIPPETS: Mapping[str, Callable[[SnippetTerms], str]] = {
    "apache": _apache,
    "caddy": _caddy,
    "nginx": _nginx,
}
#: What stands outside of the part that a site includes.
HTTP_PARTS: Mapping[str, str] = {"nginx": _NGINX_HTTP}
