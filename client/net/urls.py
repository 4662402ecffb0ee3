"""URLs as the client needs them: where to connect, what to ask for, what to call the file. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote, urljoin, urlsplit

from .near import is_near


class BadUrl(ValueError):
    """Not a URL this client can fetch; the text says why."""


@dataclass(frozen=True, slots=True)
class Url:
    """An absolute http or https URL without fragment; `text` never shows a password.

    The zone of an IPv6 address stands in `host` after a percent sign, as systems want it.
    """

    scheme: str
    host: str
    port: int
    target: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    #: The host that named this URL in a redirect or a Link, see `near.may_lead`; empty: the user.
    led_by: str = field(default="", compare=False)

    @property
    def authority(self) -> str:
        """Host and, unless it is the usual one, port: the Host field. No zone: it means something
        on this machine only (RFC 6874, 4)."""
        return self._place(self.bare_host)

    @property
    def bare_host(self) -> str:
        """The host without a zone: what a certificate names."""
        return self.host.partition("%")[0] if ":" in self.host else self.host

    @property
    def text(self) -> str:
        host = self.host.replace("%", "%25") if ":" in self.host else self.host
        return f"{self.scheme}://{self._place(host)}{self.target}"

    def _place(self, host: str) -> str:
        host = f"[{host}]" if ":" in host else host
        usual = 443 if self.scheme == "https" else 80
        return host if self.port == usual else f"{host}:{self.port}"

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    def join(self, reference: str) -> Url:
        """The URL that `reference` means here; raises BadUrl."""
        try:
            joined = urljoin(self.text, _quoted(reference))
        except ValueError as error:
            raise BadUrl(f"{reference!r} is not a URL: {error}") from None
        aim = parse(joined)
        elsewhere = aim.host != self.host and not self.is_near
        return replace(aim, led_by=self.host if elsewhere else self.led_by)

    @property
    def is_near(self) -> bool:
        name = self.host.lower().rstrip(".")
        return name == "localhost" or name.endswith(".localhost") or is_near(name)

    def redirected(self, location: str, count: int, most: int) -> Url:
        """Where the answer of this URL leads, after `count` redirects; raises BadUrl.

        Never from https to http: what was asked for in secret is not asked for in the open.
        """
        if count > most:
            raise BadUrl("it redirects in circles")
        aim = self.join(location)
        if self.scheme == "https" and aim.scheme == "http":
            raise BadUrl("it redirects from https to http")
        return aim

    def file_name(self) -> str:
        """A safe name for the file: the last part of the path; empty when it has none."""
        return safe_name(unquote(self.target.split("?")[0].rpartition("/")[2]))


def parse(text: str) -> Url:
    """Read a URL; raises BadUrl with a sentence. Control characters are never passed on."""
    try:
        parts = urlsplit(_quoted(text.strip()))
        port = parts.port
    except ValueError:
        hint = "a port is a number up to 65535, and an IPv6 address stands in brackets"
        raise BadUrl(f"{text!r} is not a URL: {hint}") from None
    if parts.scheme not in ("http", "https"):
        aim = f"; write it like https://{text}" if re.match(r"\w[^/]*/(?!/)", text) else ""
        raise BadUrl(f"{text!r} is not an http or https URL{aim}")
    host = parts.hostname
    if not host:
        raise BadUrl(f"{text!r} names no host")
    if port == 0:
        raise BadUrl(f"{text!r} names port 0, which no server has")
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            raise BadUrl(f"{text!r} has an impossible host name") from None
    # A name or an address (RFC 3986, 3.2.2), and of an IPv6 address its zone.
    if not re.fullmatch(r"[A-Za-z0-9._~%!$&'()*+,;=:-]{1,255}", host):
        raise BadUrl(f"{text!r} has an impossible host name")
    if ":" in host:
        host = host.replace("%25", "%", 1)
    target = parts.path or "/"
    if parts.query:
        target += "?" + parts.query
    # A percent sign that begins no escape: someone typed the name. Servers answer 400 to it.
    return Url(
        parts.scheme,
        host,
        port or (443 if parts.scheme == "https" else 80),
        re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", target),
        unquote(parts.username) if parts.username is not None else None,
        unquote(parts.password) if parts.password is not None else None,
    )


def _quoted(text: str) -> str:
    if re.fullmatch(r"[!-~]*", text):
        return text
    head, _, tail = text.partition("://")
    host, slash, rest = tail.partition("/")
    kept = "%/:=&?~#+!$,;'@()*[]"
    return f"{head}://{host}{slash}{quote(rest, kept)}" if slash and _ else quote(text, kept)


def safe_name(name: str) -> str:
    """A name that is one plain file here, whatever a server or URL says; empty if hopeless."""
    name = name.replace("\\", "/").rpartition("/")[2]
    name = "".join(c if c.isprintable() and c not in '<>:"|?*' else "_" for c in name).strip()
    while len(name.encode()) > 200:
        name = name[: len(name) // 2]
    # A dash would begin an option; Windows drops dots and blanks at the end, and opens devices.
    name = name.lstrip(".- ").rstrip(". ")
    # What Windows takes for a device, whatever the folder.
    device = r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\..*)?"
    return f"_{name}" if re.fullmatch(device, name, flags=re.IGNORECASE) else name


def disposition_name(value: str | None) -> str | None:
    """The file name of a Content-Disposition (RFC 6266), made safe; None without one."""
    if not value:
        return None
    extended = re.search(r"filename\*\s*=\s*(?:UTF-8)''([^;\s]+)", value, re.IGNORECASE)
    if extended is not None:
        return safe_name(unquote(extended[1])) or None
    plain = re.search(r'filename\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]+))', value, re.IGNORECASE)
    if plain is None:
        return None
    name = plain[2] if plain[1] is None else re.sub(r"\\(.)", r"\1", plain[1])
    return safe_name(name) or None
