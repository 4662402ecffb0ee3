"""A follower as a service: rounds, waiting for news between them, reports to the origin.

Laws. No trouble ends it. It never asks faster than every few seconds, whatever it is told. Looking
for drift takes at most a twentieth of its time, however large the tree is.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from urllib.parse import quote, urljoin

from tuf.api.exceptions import DownloadError

from ...protocol.errors import BadManifest
from ...protocol.mirror_report import SIGNATURE_HEADER, MirrorReport, encode_report
from ...protocol.units import whole_number
from .drift import KeptManifest
from .follow import Followed, Follower
from .problem import MirrorProblem
from .transport import ChannelTransport


@dataclass(frozen=True, slots=True)
class Reporting:
    """As whom this mirror reports, the secret the origin gave it, and where it serves itself."""

    name: str
    secret: str = field(repr=False)
    own_url: str | None = None


class MirrorService:
    """Runs rounds for ever: `clock` is seconds since 1970, `steady` seconds that never jump.

    `sleep` may be cut short by a signal. `interval_s` is the longest time between rounds, at most
    a minute for one that reports.
    """

    def __init__(
        self,
        follower: Follower,
        transport: ChannelTransport,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        *,
        steady: Callable[[], float] | None = None,
        interval_s: float = 60.0,
        reporting: Reporting | None = None,
        done: Callable[[Followed], None] = lambda followed: None,
        failed: Callable[[MirrorProblem], None] = lambda problem: None,
        rng: Random | None = None,
    ) -> None:
        self._follower = follower
        self._transport = transport
        self._clock = clock
        self._steady = steady or clock
        self._sleep = sleep
        # The origin takes a mirror for silent after three minutes.
        self._interval_s = interval_s if reporting is None else min(interval_s, 60.0)
        self._reporting = reporting
        self._done = done
        self._failed = failed
        self._rng = rng or Random()
        self._setbacks = 0
        self._promised = 0
        self._look_at = float("-inf")

    def run(self) -> None:
        """Follow until interrupted; troubles are told, reported, and tried again later."""
        while True:
            self.turn()

    def turn(self) -> None:
        """One round, and the pause after it."""
        followed = self.round()
        if isinstance(followed, Followed) and followed.latest >= self._promised:
            self._setbacks = 0
            self._promised = self.wait_for_news()
            return
        # It failed; or what the origin announced is not what it has signed, which may take a while
        # behind a cache, and for ever at a liar.
        pause_s = min(self._interval_s, 5.0 * 2 ** min(self._setbacks, 10))
        self._setbacks += 1
        self._sleep(pause_s * (0.75 + self._rng.random() / 2))

    def round(self) -> Followed | MirrorProblem:
        """One round and its report; why not when it failed."""
        began = self._steady()
        look = began >= self._look_at
        try:
            followed = self._follower.once(look=look)
        except MirrorProblem as problem:
            return self._round_failed(problem)
        except Exception as fault:
            # A fault of this program must not leave a mirror unattended.
            logging.getLogger(__name__).exception("a round failed")
            text = f"{type(fault).__name__}: {fault}"
            return self._round_failed(MirrorProblem("internal", text, passing=True))
        if look:
            ended = self._steady()
            # A twentieth of the time.
            self._look_at = ended + (ended - began) * 20
        self._done(followed)
        self.report("")
        return followed

    def _round_failed(self, problem: MirrorProblem) -> MirrorProblem:
        self._failed(problem)
        self.report(problem.code)
        return problem

    def wait_for_news(self) -> int:
        """Return when the origin names a newer version (which), or after the interval (0)."""
        settings, state = self._follower.settings, self._follower.place.state
        version = max(state.version, state.shunned)
        url = urljoin(settings.url, f"/-/mirrors/{settings.channel}/next?after={version}")
        end = self._steady() + self._interval_s
        while (left_s := end - self._steady()) > 0:
            asked = self._steady()
            # No origin holds a question for news this long.
            latest = self._latest(url, min(60.0, max(1.0, left_s)))
            if latest is None:
                # A plain file server, or no answer within the interval.
                self._sleep(max(0.0, end - self._steady()))
                return 0
            if latest > version:
                return latest
            if self._steady() - asked < 5.0:
                # It does not hold questions; 25 s is usual.
                self._sleep(min(left_s, 5.0 * (1 + self._rng.random())))
        return 0

    def _latest(self, url: str, timeout_s: float) -> int | None:
        try:
            answer = self._transport.request("GET", url, timeout_s=timeout_s)
            latest = json.loads(answer.body)["latest"] if answer.ok else None
        except (DownloadError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return latest if type(latest) is int else None

    def report(self, trouble: str) -> None:
        """Tell the origin how this mirror is; an origin that does not listen is no trouble."""
        reporting, state = self._reporting, self._follower.place.state
        if reporting is None:
            return
        settings = self._follower.settings
        free, own_trouble = self._serving(reporting)
        body, signature = encode_report(
            MirrorReport(
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
        if answer.refused:
            self._failed(
                MirrorProblem(
                    "report-refused",
                    "The origin refused this mirror's report: "
                    f"{answer.problem().get('detail') or answer.status}",
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
        if answer.missing:
            # Some other server: that it answers is all that can be known.
            return None, ""
        if not answer.ok:
            return False, "not-serving"
        free = {"yes": True, "no": False}.get(answer.headers.get("tidegate-free", ""))
        return free, self._offering(reporting.own_url)

    def _offering(self, own_url: str) -> str:
        """Whether it is this tree that is served there: some files must be there in their size."""
        place = self._follower.place
        if not place.state.version:
            return ""
        wrong = 0
        for _ in range(3):
            try:
                entry = KeptManifest(place.manifest).some_file(self._rng)
            except (OSError, BadManifest):
                return ""
            # Names that begin with a dot are mostly not served.
            if entry is None or "/." in f"/{entry.path}":
                continue
            url = urljoin(own_url.rstrip("/") + "/", quote(os.fsencode(entry.path)))
            try:
                answer = self._transport.request("HEAD", url, timeout_s=5.0)
            except DownloadError:
                continue
            length = whole_number(answer.headers.get("content-length", ""))
            plain = "content-encoding" not in answer.headers
            if answer.missing or (answer.ok and plain and length not in (None, entry.size_bytes)):
                wrong += 1
            elif answer.ok:
                return ""
        return "serves-other-files" if wrong else ""
