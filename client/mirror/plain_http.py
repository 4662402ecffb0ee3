"""HTTP for a follower, blocking: it runs in a thread of its own work and has one thing to do."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.message import Message
from pathlib import Path

from tuf.api.exceptions import DownloadError

from client.mirror.transport import Answer

_CHUNK_BYTES = 1 << 18
_TRIES = 5
_LONGEST_WAIT_S = 3600.0


class PlainTransport:
    """`client.mirror.transport.Transport` over the standard library.

    `sleep` waits; `agent` is the User-Agent. A server that queues (503 with Retry-After) is waited
    for as it says, with the ticket it gave.
    """

    def __init__(self, agent: str = "tidegate-mirror", sleep: Callable[[float], None] = time.sleep):
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
        waited = _Waiting(self._sleep)
        failures = 0
        while True:
            have = path.stat().st_size if path.exists() else 0
            if have > length_bytes:
                path.unlink()
                have = 0
            if have == length_bytes and _digest(path) == sha256:
                return
            if have == length_bytes and path.exists():
                path.unlink()
                have = 0
            headers = dict(waited.headers)
            if have:
                headers["Range"] = f"bytes={have}-"
            try:
                with self._open("GET", url, headers, b"", 30.0) as answer:
                    if waited.told(answer.status, answer.headers):
                        continue
                    if answer.status not in (200, 206):
                        raise DownloadError(f"{url} answered {answer.status}")
                    self._save(answer, path, have if answer.status == 206 else 0, length_bytes)
                return
            except (OSError, http.client.HTTPException) as fault:
                failures += 1
                if failures == _TRIES:
                    raise DownloadError(f"{url}: {fault}") from fault
                self._sleep(min(30.0, 0.5 * 2**failures))

    @staticmethod
    def _save(answer: http.client.HTTPResponse, path: Path, offset: int, length_bytes: int) -> None:
        with path.open("r+b" if offset else "wb") as out:
            out.seek(offset)
            while chunk := answer.read(_CHUNK_BYTES):
                out.write(chunk)
                if out.tell() > length_bytes:
                    raise DownloadError("More arrived than was signed for.")
            out.flush()
            os.fsync(out.fileno())
            if out.tell() < length_bytes:
                raise http.client.IncompleteRead(b"")


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


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
