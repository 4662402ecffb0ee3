"""The administration's JSON API, spoken by `tidegate admin`.

One blocking exchange a call: a command asks once or twice and ends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from ..net import answers as net
from ..net.client import HttpClient
from ..net.errors import NetworkProblem, UsageProblem
from ..net.retry import RetryPolicy
from ..net.sockets import CertificateTrust

#: Every administration gives it without a login.
_DOCUMENT = "/openapi.json"


class AdminFault(Exception):
    """The call failed; the message is for people. `status` is 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class AdminReply:
    """What came back: the document (None for an empty answer) and its entity tag."""

    body: Any
    etag: str = ""


class AdminApi:
    """The API at `url` with an API token. `ca` is a file of certificates to trust beside."""

    def __init__(self, url: str, token: str, ca: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._token = token
        # The administration is never behind the proxy that the environment may name, and a redirect
        # would take the token somewhere else.
        self._client = HttpClient(
            trust=CertificateTrust(ca),
            environ={},
            manners=RetryPolicy(max_wait_s=0.0),
            redirects=False,
        )

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        if_match: str = "",
    ) -> AdminReply:
        """One exchange; `path` is below the API's root. Raises AdminFault."""
        given = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        # Words of the command line may be no UTF-8: their bytes are sent.
        words = urlencode(given, errors="surrogateescape")
        target = f"{self._url}/api/v1{quote(path, errors='surrogateescape')}?{words}".rstrip("?")
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if if_match:
            headers["If-Match"] = if_match
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            answer = self._client.request(
                method,
                target,
                headers=headers,
                body=data or b"",
                # A list of all files of a large site.
                limit_bytes=256 << 20,
                timeout_s=60.0,
            )
        except NetworkProblem as problem:
            raise AdminFault(f"{self._url} cannot be asked: {problem}") from None
        except UsageProblem as problem:
            raise AdminFault(str(problem)) from None
        if answer.status in (404, 405) and path != _DOCUMENT and not self._is_administration():
            raise AdminFault(
                f"No administration answers at {self._url}. `tidegate serve` prints its address "
                "(Admin); give it as --url or TIDEGATE_ADMIN_URL.",
                404,
            )
        if not answer.done:
            raise AdminFault(_told(answer), answer.status)
        try:
            document = json.loads(answer.body) if answer.body else None
        except (ValueError, RecursionError):
            raise AdminFault(f"{self._url} answered with something that is not JSON.") from None
        return AdminReply(document, answer.headers.get("etag", ""))

    def _is_administration(self) -> bool:
        try:
            return isinstance(self.get(_DOCUMENT), dict)
        except AdminFault as fault:
            return fault.status != 404

    def get(self, path: str) -> Any:
        return self.call("GET", path).body

    def settled(
        self, path: str, state_of: Callable[[Any], str], query: Mapping[str, Any] | None = None
    ) -> Any:
        """The document once its simulation has ended, or as it is after five minutes."""
        end_s = time.monotonic() + 300.0
        pause_s = 0.2
        while True:
            found = self.call("GET", path, query=query).body
            if state_of(found) not in ("waiting", "running") or time.monotonic() > end_s:
                return found
            time.sleep(pause_s)
            pause_s = min(2.0, pause_s * 1.5)


def _told(answer: net.Reply) -> str:
    """The problem document's sentence, field by field where it names fields."""
    try:
        problem = json.loads(answer.body)
        detail = str(problem["detail"])
        faults = problem.get("errors", [])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        text = answer.body.decode("utf-8", "replace").strip()
        is_sentence = 0 < len(text) < 200 and text.isprintable() and not text.startswith("<")
        return f"The server answered {answer.status}" + (f": {text}." if is_sentence else ".")
    if len(faults) < 2:
        return detail
    return "\n".join(f"{fault['field']}: {fault['message']}" for fault in faults)
