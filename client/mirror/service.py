"""A follower as a service: rounds, waiting for news between them, reports to the origin."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urljoin

from tuf.api.exceptions import DownloadError

from client.mirror.follow import Followed, Follower
from client.mirror.problem import MirrorProblem
from client.mirror.transport import Transport
from protocol.mirror_report import SIGNATURE_HEADER, Report, encode_report

#: Longer than an origin holds a question for news.
_NEWS_TIMEOUT_S = 60.0
_FIRST_BACKOFF_S = 5.0


@dataclass(frozen=True, slots=True)
class Reporting:
    """As whom this mirror reports, the secret the origin gave it, and where it serves itself."""

    name: str
    secret: str
    own_url: str | None = None


class MirrorService:
    """Runs rounds for ever: `clock` is seconds since 1970, `sleep` may be cut short by a signal.

    `interval_s` is the longest time between rounds (a minute suits the origin's list).
    """

    def __init__(
        self,
        follower: Follower,
        transport: Transport,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        *,
        interval_s: float = 60.0,
        reporting: Reporting | None = None,
        done: Callable[[Followed], None] = lambda followed: None,
        failed: Callable[[MirrorProblem], None] = lambda problem: None,
    ) -> None:
        self._follower = follower
        self._transport = transport
        self._clock = clock
        self._sleep = sleep
        self._interval_s = interval_s
        self._reporting = reporting
        self._done = done
        self._failed = failed
        self._failures = 0

    def run(self) -> None:
        """Follow until interrupted; troubles are told, reported, and tried again later."""
        while True:
            if self.round() is None:
                self._failures += 1
                backoff_s = _FIRST_BACKOFF_S * 2 ** min(self._failures - 1, 10)
                self._sleep(min(self._interval_s, backoff_s))
            else:
                self._failures = 0
                self.wait_for_news()

    def round(self) -> Followed | None:
        """One round and its report; None when it failed."""
        try:
            followed = self._follower.once()
        except MirrorProblem as problem:
            self._failed(problem)
            self.report(problem.code)
            return None
        self._done(followed)
        self.report("")
        return followed

    def wait_for_news(self) -> None:
        """Return when the origin says there is a newer version, or after the interval."""
        settings = self._follower.settings
        version = max(self._follower.place.state.version, self._follower.place.state.shunned)
        url = urljoin(settings.url, f"/-/mirrors/{settings.channel}/next?after={version}")
        end = self._clock() + self._interval_s
        while (left_s := end - self._clock()) > 0:
            try:
                answer = self._transport.request(
                    "GET", url, timeout_s=min(_NEWS_TIMEOUT_S, max(1.0, left_s))
                )
                latest = json.loads(answer.body)["latest"] if answer.status == 200 else None
            except (DownloadError, ValueError, TypeError, KeyError):
                latest = None
            if latest is None:
                # A plain file server, or no answer within the interval.
                self._sleep(max(0.0, end - self._clock()))
                return
            if latest > version:
                return

    def report(self, trouble: str) -> None:
        """Tell the origin how this mirror is; an origin that does not listen is no trouble."""
        reporting, state = self._reporting, self._follower.place.state
        if reporting is None:
            return
        settings = self._follower.settings
        free, own_trouble = self._serving(reporting)
        body, signature = encode_report(
            Report(
                reporting.name,
                settings.channel,
                state.version,
                self._clock(),
                trouble or own_trouble,
                free,
            ),
            reporting.secret,
        )
        headers = {SIGNATURE_HEADER: signature, "Content-Type": "application/json"}
        url = urljoin(settings.url, "/-/mirrors/report")
        try:
            answer = self._transport.request("POST", url, headers=headers, body=body)
        except DownloadError:
            return
        if answer.status in (400, 401, 403):
            self._failed(
                MirrorProblem(
                    "report-refused",
                    "The origin refused this mirror's report: "
                    f"{_detail(answer.body) or answer.status}",
                )
            )

    def _serving(self, reporting: Reporting) -> tuple[bool | None, str]:
        """Whether this mirror's own server answers, and whether it would start a download now."""
        if reporting.own_url is None:
            return None, ""
        try:
            answer = self._transport.request(
                "GET", urljoin(reporting.own_url, "/-/ready"), timeout_s=5.0
            )
        except DownloadError:
            return None, "not-serving"
        if answer.status == 404:
            # Some other server: that it answers is all that can be known.
            return None, ""
        if answer.status != 200:
            return False, "not-serving"
        free = {"yes": True, "no": False}.get(answer.headers.get("tidegate-free", ""))
        return free, ""


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, TypeError, KeyError):
        return ""
