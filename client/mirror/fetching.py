"""HTTP for a follower, blocking: it does file work, and one request at a time."""

from __future__ import annotations

import base64
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.message import Message
from pathlib import Path
from typing import IO

from tuf.api.exceptions import DownloadError

from client.mirror.transport import Answer
from client.urls import BadUrl, parse
from client.visit import PASS_HEADER

_LONGEST_WAIT_S = 3600.0
_CHUNK_BYTES = 1 << 16
#: A small answer may take this many times its timeout in all, however it drips.
_PATIENCE = 4.0


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects, but never off http(s), nor from https to http."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        wanted = ("https://",) if req.full_url.startswith("https:") else ("https://", "http://")
        if not newurl.lower().startswith(wanted):
            raise urllib.error.URLError(f"it redirects to {newurl!r}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """http and https only: a URL must never read a local file."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    return opener


class HttpTransport:
    """`client.mirror.transport.Transport`: small answers by the standard library, files by ours.

    `data_folder` is where the downloader keeps what it learns of servers; `multicast` lets it join
    a transmission the server offers, `pass_token` is a preference pass. `sleep` waits, `clock`
    never jumps, `agent` is the User-Agent. A server that queues (503 with Retry-After) is waited
    for as it says, with the ticket it gave. A login may stand in the URL.
    """

    def __init__(
        self,
        data_folder: Path | None = None,
        *,
        multicast: bool = False,
        multicast_interface: str | None = None,
        pass_token: str | None = None,
        agent: str = "tidegate-mirror",
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._data_folder = data_folder
        self._multicast = multicast
        self._multicast_interface = multicast_interface
        self._pass_token = pass_token
        self._agent = agent
        self._sleep = sleep
        self._clock = clock
        self._opener = _opener()

    def _open(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> http.client.HTTPResponse:
        try:
            aim = parse(url)
        except BadUrl as fault:
            raise DownloadError(str(fault)) from fault
        request = urllib.request.Request(aim.text, data=body or None, method=method)
        request.add_header("User-Agent", self._agent)
        for name, value in headers.items():
            request.add_header(name, value)
        # Neither goes to whomever a redirect names.
        if self._pass_token is not None:
            request.add_unredirected_header(PASS_HEADER, self._pass_token)
        if aim.user is not None:
            login = base64.b64encode(f"{aim.user}:{aim.password or ''}".encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {login}")
        try:
            answer: http.client.HTTPResponse = self._opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as refusal:
            return refusal  # type: ignore[return-value]
        except (OSError, http.client.HTTPException, ValueError) as fault:
            raise DownloadError(f"{url}: {fault}") from fault
        return answer

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        limit_bytes: int = 1 << 20,
        timeout_s: float = 30.0,
    ) -> Answer:
        waited = _Waiting(self._sleep)
        while True:
            sent = {**(headers or {}), **waited.headers}
            with self._open(method, url, sent, body, timeout_s) as answer:
                if waited.told(answer.status, answer.headers):
                    continue
                data = self._body(answer, url, limit_bytes, _PATIENCE * timeout_s)
                lower = {name.lower(): value for name, value in answer.headers.items()}
                return Answer(answer.status, lower, data)

    def _body(
        self, answer: http.client.HTTPResponse, url: str, limit_bytes: int, patience_s: float
    ) -> bytes:
        parts: list[bytes] = []
        left, end = limit_bytes, self._clock() + patience_s
        try:
            while left and (part := answer.read1(min(left, _CHUNK_BYTES))):
                parts.append(part)
                left -= len(part)
                if self._clock() > end:
                    raise DownloadError(f"{url}: the answer drips too slowly")
        except (OSError, http.client.HTTPException) as fault:
            raise DownloadError(f"{url}: {fault}") from fault
        if left and answer.length:
            raise DownloadError(f"{url}: the answer ended early")
        return b"".join(parts)

    def download(self, url: str, path: Path, length_bytes: int, sha256: str) -> None:
        from client import failures
        from client.api import Metalink, Options, fetch_blocking

        digest = ("sha256", bytes.fromhex(sha256))
        options = Options(
            checksum=digest,
            multicast=self._multicast,
            multicast_interface=self._multicast_interface,
            data_folder=self._data_folder,
            pass_token=self._pass_token,
        )
        # Told the length, it takes no byte more from anybody, whatever he announces.
        signed = Metalink(path.name, length_bytes, digest, None, ())
        try:
            fetch_blocking([url], path, options, metalink=signed)
        except failures.Corrupt:
            # Whoever asked checks what is there, and tries again or gives it its name.
            path.unlink(missing_ok=True)
        except failures.Interrupted as stop:
            raise KeyboardInterrupt from stop
        except failures.LocalProblem as fault:
            if isinstance(fault.__cause__, OSError):
                raise fault.__cause__ from None
            raise DownloadError(str(fault)) from fault
        except failures.DownloadFailed as fault:
            raise DownloadError(str(fault)) from fault


class _Waiting:
    """Being asked to come back later: when, and with which ticket."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self.headers: dict[str, str] = {"Tidegate-Wait": "ticket"}
        self._sleep = sleep
        self._waited_s = 0.0

    def told(self, status: int, headers: Message) -> bool:
        """After a 503 with a time: wait, and say that the request is to be made again."""
        if status != 503 or not (after := headers.get("Retry-After", "")).isdigit():
            return False
        if ticket := headers.get("Tidegate-Ticket"):
            self.headers["Tidegate-Ticket"] = ticket
        wait_s = max(1.0, float(after))
        self._waited_s += wait_s
        if self._waited_s > _LONGEST_WAIT_S:
            return False
        self._sleep(wait_s)
        return True
