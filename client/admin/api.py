"""The administration's JSON API, spoken by `tidegate admin`.

One blocking exchange a call: a command asks once or twice and ends.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

_ROOT = "/api/v1"
_TIMEOUT_S = 60.0


class AdminFault(Exception):
    """The call failed; the message is for people. `status` is 0 when nobody answered."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take the token somewhere else."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: the document (None for an empty answer) and its entity tag."""

    body: Any
    etag: str = ""


class AdminApi:
    """The API at `url` with an API token. `ca` is a file of certificates to trust beside."""

    def __init__(self, url: str, token: str, ca: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._token = token
        context = ssl.create_default_context(cafile=ca) if url.startswith("https:") else None
        # The administration is never behind the proxy that the environment may name.
        self._open = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            _NoRedirect,
            *([urllib.request.HTTPSHandler(context=context)] if context else []),
        ).open

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        if_match: str = "",
    ) -> Reply:
        """One exchange; `path` is below the API's root. Raises AdminFault."""
        given = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        target = self._url + _ROOT + quote(path) + ("?" + urlencode(given) if given else "")
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if if_match:
            headers["If-Match"] = if_match
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(target, data, headers, method=method)
        try:
            with self._open(request, timeout=_TIMEOUT_S) as answer:
                raw = answer.read()
                return Reply(json.loads(raw) if raw else None, answer.headers.get("ETag", ""))
        except urllib.error.HTTPError as error:
            with error:
                raise AdminFault(_told(error), error.code) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise AdminFault(f"{self._url} cannot be asked: {reason}") from None

    def get(self, path: str, **query: Any) -> Any:
        """The document at a path."""
        return self.call("GET", path, query=query).body

    def wait_for_preview(self, key: str, limit_s: float = 300.0) -> Any:
        """The preview once it is done; raises AdminFault when it failed or takes too long."""
        end_s = time.monotonic() + limit_s
        pause_s = 0.2
        while True:
            found = self.get(f"/previews/{key}")
            if found["state"] == "failed":
                raise AdminFault(f"The simulation failed: {found['fault']}")
            if found["state"] == "done":
                return found
            if time.monotonic() > end_s:
                raise AdminFault("The simulation takes too long; look at the policy page.")
            time.sleep(pause_s)
            pause_s = min(2.0, pause_s * 1.5)


def _told(error: urllib.error.HTTPError) -> str:
    """The problem document's sentence, field by field where it names fields."""
    try:
        problem = json.loads(error.read())
        detail = str(problem["detail"])
        faults = problem.get("errors", [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"The server answered {error.code} {error.reason}."
    if len(faults) < 2:
        return detail
    return "\n".join(f"{fault['field']}: {fault['message']}" for fault in faults)
