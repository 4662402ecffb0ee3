"""Turns a URL into a connection route and request bytes: proxies, logins, fields of our own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from .errors import UsageProblem
from .identity import CLIENT_FIELD, STANDARD_FIELDS, client_name
from .network import Endpoint
from .urls import BadUrl, Url, parse

_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


class RequestBuilder:
    """What is the same for all requests of one download: environment, extra fields, our name."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        headers: Sequence[tuple[str, str]] = (),
        client_id: str | None = None,
        pass_token: str | None = None,
        secret: str | None = None,
    ) -> None:
        """`client_id` is sent as it stands, `secret` only as a name made for each origin."""
        self._environ = os.environ if environ is None else environ
        self._headers = list(headers)
        self._client_id = client_id
        self._secret = secret
        self._pass = pass_token
        self._logins: dict[str, str | None] = {}
        for name, value in [*headers, ("x", pass_token or ""), ("x", client_id or "")]:
            if not name or set(name.lower()) - _TOKEN or any(c in value for c in "\r\n\0"):
                raise UsageProblem(f"{name}: {value!r} cannot be a header; write NAME: VALUE")

    def proxy(self, url: Url) -> Url | None:
        """The proxy for this URL, from http_proxy, https_proxy, all_proxy and no_proxy."""
        name = self._proxy_variable(url)
        found = self._environ.get(name, "")
        if not found or self._exempt(url):
            return None
        try:
            return parse(found if "://" in found else f"http://{found}")
        except BadUrl as error:
            raise UsageProblem(f"the proxy in {name} is unusable: {error}") from None

    def _proxy_variable(self, url: Url) -> str:
        # HTTP_PROXY in capitals is not read: a web server could have set it from a request.
        names = ["https_proxy", "HTTPS_PROXY"] if url.scheme == "https" else ["http_proxy"]
        names += ["all_proxy", "ALL_PROXY"]
        return next((name for name in names if self._environ.get(name)), "")

    def _exempt(self, url: Url) -> bool:
        listed = self._environ.get("no_proxy") or self._environ.get("NO_PROXY") or ""
        for entry in (part.strip().lower() for part in listed.split(",")):
            name = entry.removeprefix("*").lstrip(".")
            if entry == "*":
                return True
            if name and ":" in name and not name.startswith("[") and name.count(":") == 1:
                name, _, port = name.partition(":")
                if port != str(url.port):
                    continue
            if name and (url.host == name.strip("[]") or url.host.endswith("." + name)):
                return True
        return False

    def route(self, url: Url) -> tuple[Endpoint, tuple[str, str, bytes] | None]:
        """Where to connect, and through what tunnel (TLS name, authority, login line)."""
        proxy = self.proxy(url)
        if proxy is None:
            tls_name = url.bare_host if url.scheme == "https" else None
            return Endpoint(url.host, url.port, tls_name, url.led_by), None
        secure = proxy.bare_host if proxy.scheme == "https" else None
        endpoint = Endpoint(proxy.host, proxy.port, secure, proxy_in=self._proxy_variable(url))
        if url.scheme != "https":
            return endpoint, None
        if secure is not None:
            raise UsageProblem("a proxy that itself speaks TLS cannot carry https URLs here")
        host = f"[{url.host}]" if ":" in url.host else url.host
        return endpoint, (url.host, f"{host}:{url.port}", self._proxy_login(proxy))

    def request(
        self,
        url: Url,
        origin: Url,
        fields: Sequence[tuple[str, str]] = (),
        *,
        method: str = "GET",
        body: bytes = b"",
    ) -> bytes:
        """A request for `url`; `origin` is what the user named: passwords, passes and the user's
        own fields go to no other host after a redirect."""
        proxy = self.proxy(url)
        plain = proxy is not None and url.scheme == "http"
        target = url.text if plain else url.target
        lines = [f"{method} {target} HTTP/1.1", f"Host: {url.authority}"]
        given = {name.lower() for name, _ in (*self._headers, *fields)}
        home = url.origin == origin.origin
        standard = [f"{n}: {v}" for n, v in STANDARD_FIELDS if n.lower() not in given]
        lines += standard
        if home:
            login = self._login(origin)
            if login is not None and "authorization" not in given:
                lines.append(f"Authorization: {login}")
            if self._pass is not None:
                lines.append(f"Tidegate-Pass: {self._pass}")
            lines += [f"{name}: {value}" for name, value in self._headers]
        if self._client_id is not None and home:
            lines.append(f"{CLIENT_FIELD}: {self._client_id}")
        elif self._secret is not None and home:
            lines.append(f"{CLIENT_FIELD}: {client_name(self._secret, origin)}")
        lines += [f"{name}: {value}" for name, value in fields]
        if body or method not in ("GET", "HEAD"):
            lines.append(f"Content-Length: {len(body)}")
        head = "\r\n".join(lines).encode("latin-1", "replace")
        if plain and proxy is not None:
            head += b"\r\n" + self._proxy_login(proxy).rstrip(b"\r\n")
        return head.rstrip(b"\r\n") + b"\r\n\r\n" + body

    @staticmethod
    def _basic(user: str, password: str) -> str:
        import base64  # loading it delays the first request, and few need it

        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def _proxy_login(self, proxy: Url) -> bytes:
        if proxy.user is None:
            return b""
        login = self._basic(proxy.user, proxy.password or "")
        return f"Proxy-Authorization: {login}\r\n".encode()

    def _login(self, url: Url) -> str | None:
        if url.user is not None:
            return self._basic(url.user, url.password or "")
        if url.host not in self._logins:
            self._logins[url.host] = self._from_netrc(url.host)
        return self._logins[url.host]

    def _from_netrc(self, host: str) -> str | None:
        named = self._environ.get("NETRC")
        home = self._environ.get("HOME")
        path = named or (os.path.join(home, ".netrc") if home else None)
        if path is None or not os.path.isfile(path):
            return None
        import contextlib
        import netrc

        found = None
        with contextlib.suppress(netrc.NetrcParseError, OSError, UnicodeDecodeError):
            found = netrc.netrc(path).authenticators(host)
        return None if found is None else self._basic(found[0] or "", found[2] or "")
