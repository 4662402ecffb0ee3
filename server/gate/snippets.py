"""What a mover is configured with, by the addresses of this gate."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit

from ...protocol.errors import ProtocolError
from ..files.paths import url_of
from .movers import FETCHING, INTERNAL_PATH
from .settings import AUTHORIZE_ROUTE, ROUTE, report_place

_LIGHTTPD_LUA = "/etc/lighttpd/tidegate.lua"
#: Whether downloads go on without a queue while the gate is away, or get a page.
IfAbsent = Literal["open", "closed"]


@dataclass(frozen=True, slots=True)
class SnippetTerms:
    """What a snippet is made from.

    `gate`, `report` are `unix:PATH` or `HOST:PORT`; `files` is where a backend has the files, for a
    mover that has none, and `origin` the URL of a store that has them. `listen` is where a complete
    configuration listens, None for a snippet to include. The mover sends files below `small_below`
    bytes by itself.
    """

    gate: str
    root: Path = Path("/")
    report: str = ""
    listen: str | None = None
    if_absent: IfAbsent = "open"
    most_absent: int = 200
    files: str = ""
    origin: str = ""
    small_below: int = 0

    def __post_init__(self) -> None:
        """Raises ProtocolError."""
        for name in ("gate", "report", "listen", "files"):
            place = getattr(self, name)
            if place:
                _check_place(f"--{name}", place)
        if self.listen is not None and self.listen.startswith("unix:"):
            raise ProtocolError("--listen is HOST:PORT, where clients come")
        if not self.root.is_absolute():
            raise ProtocolError(f"--root must be an absolute path, not {str(self.root)!r}")
        for name, text in (("root", str(self.root)), ("origin", self.origin)):
            unsafe = sorted(set(text) & set("$\"'\\;{}\n\r\t"))
            if unsafe:
                raise ProtocolError(
                    f"--{name} cannot have {unsafe[0]!r} in it: the configuration has a use for it"
                )


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


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Fill the blanks, names between `__`. One that is alone in its line is filled with lines."""

    def fill(blank: re.Match[str]) -> str:
        indent, lines, value = blank.groups()
        return values[value] if lines is None else re.sub(r"(?m)^(?=.*\S)", indent, values[lines])

    return re.sub(r"(?m)^( *)__([a-z]+)__\n|__([a-z]+)__", fill, text)


def _part(mover: str, part: str) -> str:
    """A mover has a `server` part, which a site includes, a `complete` configuration around it, one
    for a gate that is away (`open`, `closed`), and parts that stand apart.
    """
    return Path(__file__).with_name("configurations").joinpath(f"{mover}.{part}").read_text("utf-8")


def _logger(report: str) -> str:
    """The options of logger(1), which sends a line as the datagram that nginx would send."""
    if report.startswith("unix:"):
        return f"-u {report[5:]}"
    host, _, port = report.rpartition(":")
    return f"-d --rfc3164 -n {host.strip('[]')} -P {port}"


def _with_unix(prefix: str, place: str, otherwise: str = "") -> str:
    return f"{prefix}{place[5:]}" if place.startswith("unix:") else f"{otherwise}{place}"


def _nginx(of: SnippetTerms, report: str) -> dict[str, str]:
    if not of.origin:
        moved, upstream = _fill(_part("nginx", "disk"), {"root": str(of.root)}), ""
    else:
        url = urlsplit(of.origin)
        port = url.port or (443 if url.scheme == "https" else 80)
        name = url.hostname or ""
        place = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        origin = {
            "internal": INTERNAL_PATH,
            "originhost": url.netloc,
            "originname": name,
            "originpath": url.path,
            "originscheme": url.scheme,
        }
        moved = _fill(_part("nginx", "origin"), origin)
        upstream = _fill(_part("nginx", "upstream"), {"originplace": place})
    entry = _fill(_part("nginx", "entry"), {"root": str(of.root)})
    values = {
        "gate": of.gate,
        "upstream": upstream,
        "small": _small("nginx", of, _listed(of, '"{}" $uri;\n')),
        "entry": entry if of.small_below else "location / {\n",
    }
    http = _fill(_part("nginx", "http"), values)
    return {**values, "report": report, "http": http, "moved": moved}


def _small(mover: str, of: SnippetTerms, names: str = "") -> str:
    """The part with which a mover sends small files by itself; empty if it does not."""
    values = {"root": str(of.root), "below": str(of.small_below), "names": names}
    return _fill(_part(mover, "small"), values) if of.small_below else ""


def _listed(of: SnippetTerms, line: str = '["{}"] = true,\n', unsafe: str = "") -> str:
    """A `line` for each small file, of Lua if no other is given; none for `unsafe` names."""
    found = sorted(_small_names(of.root, of.small_below)) if of.small_below else ()
    names = (name.replace("\\", r"\\").replace('"', r"\"") for name in found)
    return "".join(line.format(name) for name in names if not set(name) & set(unsafe))


def _small_names(root: Path, below: int) -> Iterator[str]:
    """The small files of a release; none that is hidden or linked.

    nginx compares without regard to case: of two names that differ by it alone, none.
    """
    found: dict[bytes, list[bytes]] = {}
    for place, folders, names in os.walk(os.fsencode(root)):
        folders[:] = [name for name in folders if not name.startswith(b".")]
        for path in (os.path.join(place, name) for name in names):
            found.setdefault(path.lower(), []).append(path)
    for path, *others in found.values():
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(path)
            is_small = stat.S_ISREG(status.st_mode) and status.st_size < below
            if is_small and not others and not os.path.basename(path).startswith(b"."):
                text = path.decode("utf-8", "replace").removeprefix(str(root).rstrip("/"))
                # A name that is no text in one line passes the gate.
                if text.isprintable() and "\ufffd" not in text:
                    yield text


def _caddy(of: SnippetTerms, report: str) -> dict[str, str]:
    host = report.rpartition(":")[0]
    if not report.startswith("unix:") and host not in ("127.0.0.1", "[::1]", "localhost"):
        # Its log has what the client sees, the lease as well.
        raise ProtocolError("--report must be unix:PATH or on 127.0.0.1: Caddy shows leases")
    return {
        "gate": _with_unix("unix/", of.gate),
        "report": _with_unix("unixgram/", report, "udp/"),
        # Its quotes know no backslash, and braces are its own.
        "small": _small("caddy", of, _listed(of, '"{}" 1\n', '\\"{}')),
    }


def _apache(of: SnippetTerms, report: str) -> dict[str, str]:
    modules = ["authz_core", "headers", "mpm_event", "proxy", "proxy_http", "setenvif", "xsendfile"]
    upstream = f"{of.gate}|http://gate/" if of.gate.startswith("unix:") else f"http://{of.gate}/"
    lines = (f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so" for name in modules)
    return {
        "gate": upstream,
        "logger": _logger(report),
        "modules": "\n".join(lines) + "\n",
        "small": _small("apache", of),
    }


def _lighttpd(of: SnippetTerms, report: str) -> dict[str, str]:
    host, _, port = of.gate.rpartition(":")
    place = f'"host" => "{host}", "port" => {port}'
    if of.gate.startswith("unix:"):
        place = f'"host" => "{of.gate[5:]}"'
    # It loads no script by a relative path.
    script = 'var.CWD + "/tidegate.lua"' if of.listen else f'"{_LIGHTTPD_LUA}"'
    return {"gate": place, "logger": _logger(report), "script": script}


def _haproxy(of: SnippetTerms, report: str) -> dict[str, str]:
    return {
        "gate": _with_unix("unix@", of.gate),
        "report": _with_unix("", report),
        "names": _listed(of),
    }


def _envoy_address(place: str) -> str:
    if place.startswith("unix:"):
        return f"{{pipe: {{path: {place[5:]}}}}}"
    host, _, port = place.rpartition(":")
    return f'{{socket_address: {{address: "{host.strip("[]")}", port_value: {port}}}}}'


def _envoy(of: SnippetTerms, report: str) -> dict[str, str]:
    values = {"most": str(of.most_absent)}
    for name, place in (("gate", of.gate), ("files", of.files), ("listen", of.listen or "")):
        # Envoy looks up no name in a cluster of another type, and has no socket of a file in this.
        values[f"{name}type"] = "STATIC" if place.startswith("unix:") else "STRICT_DNS"
        values[name] = _envoy_address(place)
    ungated = {"ungated": _part("envoy", "ungated")}
    small = _fill(_part("envoy", "small"), ungated) if of.small_below else ""
    names = sorted(_small_names(of.root, of.small_below)) if small else ()
    return {
        **values,
        "clusters": _fill(_part("envoy", "clusters"), values),
        "route": ROUTE,
        "authorize": AUTHORIZE_ROUTE,
        "asked": _fill(_part("envoy", "gate"), ungated),
        "names": "".join(small.replace("NAME", url_of(name[1:].encode())) for name in names),
    }


@dataclass(frozen=True, slots=True)
class _Configured:
    """How one mover is configured. `blanks`: what it spells in its own way.

    `reports` names the part of its snippet that reports ends by datagrams, `posts` that it reports
    to the gate's own address instead. `apart` is the part that stands apart, `lua` the file of a
    part in Lua. `sends_alone`: it sends files without the gate.
    """

    blanks: Callable[[SnippetTerms, str], dict[str, str]]
    reports: str
    apart: str = ""
    sends_alone: bool = True
    has_files: bool = True
    lua: str = ""
    posts: bool = False


CONFIGURED: Mapping[str, _Configured] = {
    "apache": _Configured(_apache, "CustomLog, with /usr/bin/logger,", sends_alone=False),
    "caddy": _Configured(_caddy, "the log of the site, which is opened after the gate starts,"),
    "envoy": _Configured(
        *(_envoy, "access_log, with its http_service,", "clusters"),
        has_files=False,
        posts=True,
    ),
    "haproxy": _Configured(
        *(_haproxy, "log, with its log-format,", "lua"),
        has_files=False,
        lua="/etc/haproxy/tidegate.lua",
    ),
    "lighttpd": _Configured(
        *(_lighttpd, "accesslog.filename, with /usr/bin/logger,", "lua"),
        sends_alone=False,
        lua=_LIGHTTPD_LUA,
    ),
    "nginx": _Configured(_nginx, "access_log", "http"),
}


#: What an origin is configured with, to give its files to those alone who show a signed URL.
STORES = ("cloudfront", "s3")


def _bucket(origin: str) -> dict[str, str]:
    """The bucket of Amazon S3 at this URL. Raises ProtocolError."""
    place = r"https://(([\w.-]+?)\.s3[.-][\w.-]+\.amazonaws\.com)((?:/[\w.-]+)*)/"
    found = re.fullmatch(place, origin, re.ASCII)
    if found is None:
        raise ProtocolError("--origin must be https://BUCKET.s3.REGION.amazonaws.com/FOLDER/")
    return dict(zip(("host", "bucket", "folder"), found.groups(), strict=True))


def reports_of(mover: str, place: str) -> str:
    """What must hold for the ends of this mover to reach a gate that receives them at `place`."""
    known = CONFIGURED[mover]
    if known.posts:
        return f"{known.reports} must post to {ROUTE} of the gate"
    return f"{known.reports} must name the gate's report address, {place}"


def files_of(mover: str, *, of_origin: bool) -> str:
    """What must hold for this mover to have the files."""
    if of_origin:
        return "it must reach the origin, which must accept what the gate signs with"
    if CONFIGURED[mover].has_files:
        return "its root must be the folder of the gate, and its user must be able to read it"
    return "the server that --files names must run, and have the folder of the gate"


def snippet(mover: str, of: SnippetTerms, part: str = "") -> str:
    """What a mover or store is configured with; or a `part` that stands apart.

    Raises ProtocolError.
    """
    if mover in STORES:
        return _fill(_part(mover, "server"), _bucket(of.origin))
    known = CONFIGURED[mover]
    if part and part != known.apart:
        raise ProtocolError(f"{mover} has no part {part}: leave --part out")
    if not part and not known.has_files and not of.files:
        raise ProtocolError(f"{mover} has no files: give --files HOST:PORT, which serves them")
    if of.small_below and (of.origin or of.root == Path("/")):
        raise ProtocolError("--small-below needs the files here: give --root DIR, and no --origin")
    if of.origin and mover not in FETCHING:
        does = " and ".join(sorted(FETCHING))
        raise ProtocolError(f"{mover} sends no files of an origin: {does} does")
    if not part and (of.origin or not known.sends_alone) and of.if_absent == "open":
        what = "files of an origin" if of.origin else "files"
        raise ProtocolError(f"{mover} sends no {what} without the gate: give --if-absent closed")
    host, _, port = (of.listen or "").rpartition(":")
    values = {
        "root": str(of.root),
        "quoted": quote(str(of.root)),
        "internal": INTERNAL_PATH,
        "most": str(of.most_absent),
        "below": str(of.small_below),
        "files": of.files,
        "lua": known.lua if of.listen is None else "tidegate.lua",
        "listen": of.listen or "",
        "host": host,
        "port": port,
        **known.blanks(of, report_place(of.report, of.gate)),
    }
    if part:
        return _fill(_part(mover, part), values)
    values["absent"] = _fill(_part(mover, of.if_absent), values)
    server = _fill(_part(mover, "server"), values)
    if of.listen is None:
        return server
    return _fill(_part(mover, "complete"), {**values, "server": server})
