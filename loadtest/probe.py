"""Small requests to the server under test, by the downloader's own client.

So a login in the URL or in netrc, a proxy, and certificates of one's own (`--ca`) count here as in
`tidegate get`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from ..client.net.answers import Reply
from ..client.net.client import HttpClient
from ..client.net.errors import NetworkProblem, UsageProblem
from ..client.net.retry import RetryPolicy
from ..client.net.sockets import CertificateTrust


class ServerProbe:
    """Asks one server. `patience_s`: how long a busy server is waited for."""

    def __init__(
        self,
        host: str,
        ca: str | None = None,
        *,
        patience_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._host = host.rstrip("/")
        #: The server as people may read it, without a password.
        self.place = re.sub(r"//[^/]*@", "//", self._host)
        self._client = HttpClient(
            trust=CertificateTrust(ca or None),
            agent="tidegate-loadtest",
            manners=RetryPolicy(max_wait_s=patience_s),
            sleep=sleep,
        )

    def get(self, path: str, method: str = "GET") -> Reply:
        """The answer at a path. Raises OSError with a sentence when there is none."""
        try:
            # SHA256SUMS of a mirror with a million files.
            return self._client.request(method, self._host + path, limit_bytes=128 << 20)
        except (NetworkProblem, UsageProblem) as problem:
            raise OSError(f"{self.place} does not answer ({problem})") from None

    def size_of(self, path: str) -> int | None:
        """The size of the file there; -1 where a busy server does not say, None: no such file."""
        answer = self.get(path, "HEAD")
        if answer.status == 503:
            return -1
        return int(answer.headers.get("content-length", -1)) if answer.ok else None
