"""HTTP for a follower, blocking: it does file work, and one request at a time."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.message import Message
from pathlib import Path

from tuf.api.exceptions import DownloadError

from client.mirror.transport import Answer

_LONGEST_WAIT_S = 3600.0


class HttpTransport:
    """`client.mirror.transport.Transport`: small answers by the standard library, files by ours.

    `data_folder` is where the downloader keeps what it learns of servers; `multicast` lets it join
    a transmission the server offers. `sleep` waits; `agent` is the User-Agent. A server that
    queues (503 with Retry-After) is waited for as it says, with the ticket it gave.
    """

    def __init__(
        self,
        data_folder: Path | None = None,
        *,
        multicast: bool = False,
        multicast_interface: str | None = None,
        agent: str = "tidegate-mirror",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._data_folder = data_folder
        self._multicast = multicast
        self._multicast_interface = multicast_interface
        self._agent = agent
        self._sleep = sleep
        self._opener = urllib.request.build_opener()

    def _open(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> http.client.HTTPResponse:
        request = urllib.request.Request(url, data=body or None, method=method)
        request.add_header("User-Agent", self._agent)
        for name, value in headers.items():
            request.add_header(name, value)
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
                try:
                    data = answer.read(limit_bytes)
                except (OSError, http.client.HTTPException) as fault:
                    raise DownloadError(f"{url}: {fault}") from fault
                lower = {name.lower(): value for name, value in answer.headers.items()}
                return Answer(answer.status, lower, data)

    def download(self, url: str, path: Path, length_bytes: int, sha256: str) -> None:
        from client import failures
        from client.api import Options, fetch_blocking

        options = Options(
            checksum=("sha256", bytes.fromhex(sha256)),
            multicast=self._multicast,
            multicast_interface=self._multicast_interface,
            data_folder=self._data_folder,
        )
        try:
            fetch_blocking([url], path, options)
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
