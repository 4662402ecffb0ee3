"""Browser: people who click a link, see the waiting page, and let it refresh itself."""

from __future__ import annotations

import re
import time
from urllib.parse import urljoin

import gevent
from locust import FastHttpUser

from tidegate.loadtest import options
from tidegate.loadtest.body import receive
from tidegate.loadtest.catalogue import CATALOGUE
from tidegate.loadtest.recorder import tally
from tidegate.loadtest.replay import Replay
from tidegate.loadtest.users import Downloader
from tidegate.loadtest.workloads import File, Visitor

__all__ = ["Browser", "Clicks", "options"]


class Clicks(Downloader):
    """One person, one file: obeys the page's Refresh as a browser does, cookies kept."""

    def headers(self) -> dict[str, str]:
        agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/130 Safari/537.36"
        fields = super().headers() | {
            "User-Agent": agent,
            "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
        }
        fields.pop("Tidegate-Client", None)  # A browser has a cookie instead.
        return fields

    def fetch(self, visitor: Visitor, file: File) -> None:
        """Click, and let the page do the rest until the file comes or patience ends."""
        self.client.cookiejar.clear()
        entry = CATALOGUE.find(self.host, file)
        began_s = time.monotonic()
        url = f"{self.host}{entry.path}"
        while True:
            with self.client.get(
                url, headers=self.headers(), stream=True, catch_response=True, name="page"
            ) as response:
                if response.status_code == 200 and _is_file(response):
                    tally().observe(f"wait_{entry.kind}", time.monotonic() - began_s)
                    got = receive(response.stream, file.size_bytes, visitor.rate_bytes_s)
                    response.request_meta["name"] = f"download {entry.kind}"
                    right = entry.sha256_hex in (None, got.sha256_hex)
                    if got.fault or not right:
                        response.failure(got.fault or "wrong bytes")
                        tally().count("failed")
                        return
                    response.success()
                    tally().count("finished")
                    tally().count("verified_bytes", got.count_bytes)
                    tally().observe("session", time.monotonic() - began_s)
                    return
                refresh = re.match(
                    r"\s*(\d+)\s*(?:;\s*url=(.*))?",
                    (response.headers or {}).get("refresh", ""),
                    flags=re.IGNORECASE,
                )
                if response.status_code != 503 or refresh is None:
                    response.failure(f"{response.status_code} and no Refresh: {response.error}")
                    tally().count("failed")
                    return
                response.stream.read(256 * 1024)
                response.success()
                response.request_meta["name"] = "waiting page"
            tally().count("queued")
            wait_s = float(refresh[1])
            if time.monotonic() + wait_s - began_s > visitor.patience_s:
                tally().count("gave_up")
                return
            if refresh[2]:
                url = urljoin(url, refresh[2].strip("'\" "))
            gevent.sleep(wait_s)


def _is_file(response: FastHttpUser) -> bool:
    return "tidegate-status" not in (response.headers or {})


class Browser(Replay):
    """The population of `--workload`."""
