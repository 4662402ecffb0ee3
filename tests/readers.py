"""Everything that reads a stranger's bytes, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, get_type_hints

import tidegate.protocol.batch
import tidegate.protocol.channel
import tidegate.protocol.headers
import tidegate.protocol.manifest
import tidegate.protocol.mirror_report
import tidegate.protocol.packet
import tidegate.protocol.ranges
import tidegate.protocol.session
import tidegate.protocol.tree
import tidegate.protocol.tree_scan
import tidegate.protocol.units
import tidegate.server.files.mediatypes
import tidegate.server.files.paths
import tidegate.server.http.parsing
from tidegate.protocol.ticket import Key, KeyRing
from tidegate.server.admin.adapter import read_form
from tidegate.server.admission import client_keys
from tidegate.server.admission.client_programs import ToolTable
from tidegate.server.http.answers import prefers_html
from tidegate.server.http.cookies import read_cookie
from tidegate.server.http.phrases import phrases_for
from tidegate.server.http.proxies import ProxyHeader, TrustedProxies

_FORM = "multipart/form-data; boundary=x"
KEYS = KeyRing([Key("k1", b"0123456789abcdef")])
#: One of each class of bytes, and pairs in which a reader that goes back would go back for ever.
UNITS = [
    b"a", b"A", b"0", b" ", b"\t", b",", b";", b"=", b'"', b"\\", b"/", b"-", b".", b":", b"%",
    b"%41", b"&", b"<", b">", b"[", b"{", b"(", b"\0", b"\r", b"\n", b"\x80", b"\xff", b"#", b"?",
    b"a=", b"a,", b" ,", b'",', b'a="', b"0-", b"0-1,", b"for=", b"for=1,", b"<a>;", b"a;q=1,",
    b'"a", ', b"W/", b"bytes=", b"\\\"", b"a b", b"[1,", b'{"a":', b"../", b"//", b"10.0.0.1,",
    b"tidegate-visitor=", b"tidegate-ticket=a&", b"--x\r\n\r\n", b"\r\n--x\r\na:b\r\n\r\n",
    b"\r\n", b"; a=b;\r\n", b";name=",
]  # fmt: skip
#: What lets a reader come past its first look.
HEADS = [b"", b"--x\r\n\r\n", b"bytes=", b'"', b"<", b"[", b"{", b"/", b"t2.k1.", b"for="]
_NAMES = ("parse_", "decode_", "split_", "valid_", "origin_", "with_", "content_type", "type_of")
_MODULES: list[ModuleType] = [
    tidegate.protocol.batch,
    tidegate.protocol.channel,
    tidegate.protocol.headers,
    tidegate.protocol.manifest,
    tidegate.protocol.mirror_report,
    tidegate.protocol.packet,
    tidegate.protocol.ranges,
    tidegate.protocol.session,
    tidegate.protocol.tree,
    tidegate.protocol.tree_scan,
    tidegate.protocol.units,
    tidegate.server.files.mediatypes,
    tidegate.server.files.paths,
    tidegate.server.http.parsing,
]
Reader = Callable[[bytes], Any]


def discovered() -> Iterator[tuple[str, Reader]]:
    """Every reader of a module that wants text or bytes and nothing else."""
    for module in _MODULES:
        for name, function in vars(module).items():
            if (
                not name.startswith(_NAMES)
                or getattr(function, "__module__", "") != module.__name__
            ):
                continue
            parameters = inspect.signature(function).parameters.values()
            first, *others = parameters
            hint = get_type_hints(function)[first.name]
            if any(p.default is p.empty for p in others) or hint not in (bytes, str):
                continue
            yield f"{module.__name__}.{name}", reading(function, hint)


def reading(function: Callable[..., Any], kind: type) -> Reader:
    if kind is str:
        return lambda data: function(data.decode("latin-1"))
    return function


def from_proxy(header: ProxyHeader) -> Reader:
    proxies = TrustedProxies(["10.0.0.0/8"], header)
    name = header.encode()

    def read(data: bytes) -> None:
        proxies.client_address("10.0.0.1", {name: data})
        proxies.is_tls("10.0.0.1", {name: data, b"x-forwarded-proto": data})

    return read


READERS: dict[str, Reader] = {
    **dict(discovered()),
    "range": lambda data: tidegate.protocol.ranges.parse_range(data.decode("latin-1"), 1 << 40),
    "language": lambda data: phrases_for(data),
    "accept": lambda data: prefers_html(data),
    "cookie": lambda data: read_cookie({b"cookie": data}, b"tidegate-visitor"),
    "ticket in a field": lambda data: client_keys.find_ticket({b"tidegate-ticket": data}, b""),
    "ticket in a query": lambda data: client_keys.find_ticket({}, b"tidegate-ticket=" + data),
    "ticket in a cookie": lambda data: client_keys.find_ticket({b"cookie": data}, b""),
    "pass": lambda data: client_keys.find_pass({}, b"tidegate-pass&" + data),
    "remaining": lambda data: client_keys.find_remaining({b"tidegate-remaining": data}, 9),
    "read_ticket": lambda data: KEYS.read_ticket(data.decode("latin-1"), "a", "/f", 0.0),
    "read_visitor": lambda data: KEYS.read_visitor(data.decode("latin-1")),
    "read_pass": lambda data: KEYS.read_pass(data.decode("latin-1"), 0.0),
    "x-forwarded-for": from_proxy("x-forwarded-for"),
    "forwarded": from_proxy("forwarded"),
    "x-real-ip": from_proxy("x-real-ip"),
    "form": lambda data: read_form("application/x-www-form-urlencoded", data),
    "form in parts": lambda data: read_form(_FORM, data + b"\r\n--x--"),
    "head of a part": lambda data: read_form(_FORM, b"--x\r\nContent-Disposition:" + data),
    "kind of a form": lambda data: read_form(f"multipart/form-data{data.decode('latin-1')}", b""),
    "agent": lambda data: ToolTable().rule_for(data),
}
