"""How a download looks to its caller: silent, in plain lines, or as JSON events."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Mapping

from ...protocol.units import format_duration, format_size
from ..fetch.download import Download
from ..fetch.options import Progress, Result
from ..net.errors import DownloadFailed, Interrupted


class Quiet:
    """Nothing but failures, and what --explain asks for.

    It gets `begin`, any number of `event`, `end`, then `done`, which others sum up, or `failed`.
    """

    sums_up = False

    def __init__(self, explain: bool) -> None:
        self.explain = explain
        self.download: Download | None = None
        self._told_s = time.monotonic()

    def begin(self, download: Download) -> None:
        self.download = download

    def event(self, event: str, data: Mapping[str, object]) -> None:
        """Not shown."""

    def end(self) -> None:
        """Nothing to clean up."""

    def news(self, event: str, data: Mapping[str, object]) -> str | None:
        """The event as a line, unless the end of the download will say the same."""
        alone = self.download is not None and len(self.download.state.mirrors) == 1
        return None if alone and event == "mirror" else words(event, data)

    def is_due(self, interval_s: float) -> bool:
        """Whether to tell the progress again: not while there is only a place in a queue."""
        now, download = time.monotonic(), self.download
        if now - self._told_s < interval_s or download is None:
            return False
        if download.state.first_byte_s is None and any(
            mirror.visit.waits for mirror in download.state.mirrors
        ):
            return False
        self._told_s = now
        return True

    def say(self, text: str) -> None:
        # A closed pipe or a full disk of a log is no reason to fail.
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)

    def done(self, result: Result) -> None:
        lines = summary(result) if self.sums_up else []
        for line in [*lines, *(explain(result) if self.explain else ())]:
            self.say(line)

    def failed(self, problem: DownloadFailed) -> None:
        self.say(f"tidegate: {problem}{self.kept(problem)}")

    def kept(self, problem: DownloadFailed) -> str:
        """What a failed download left for the next try, as the end of a sentence."""
        download = self.download
        if download is None or download.failure is not problem or isinstance(problem, Interrupted):
            return ""
        kept = download.kept_bytes
        told = f"; {format_size(kept)} are kept, the same command goes on from there"
        return told if kept else ""


class Plain(Quiet):
    """A line now and then, for logs and pipes."""

    sums_up = True

    def event(self, event: str, data: Mapping[str, object]) -> None:
        text = self.news(event, data)
        if text is not None:
            self.say(text)
        elif event == "progress" and self.download is not None and self.is_due(5.0):
            self.say(progress_line(self.download.progress()))


class Json(Quiet):
    """One JSON object a line; progress at most every half second."""

    def __init__(self, explain: bool) -> None:
        super().__init__(explain)
        self._told_s = -math.inf

    def event(self, event: str, data: Mapping[str, object]) -> None:
        if event != "progress" or self.is_due(0.5):
            self.say(json.dumps({"event": event, **data}))

    def done(self, result: Result) -> None:
        rows = [
            {
                "url": s.url,
                "bytes": s.bytes,
                "rate": round(s.rate_bytes_s),
                "rtt_s": round(s.rtt_s, 6),
                "requests": s.requests,
                "connections": s.connections,
                "retries": s.retries,
                "waited_s": round(s.waited_s, 3),
                "dropped": s.dropped,
            }
            for s in result.sources
        ]
        self.event(
            "done",
            {
                "path": str(result.path) if result.path is not None else None,
                "size": result.size_bytes,
                "received": result.received_bytes,
                "resumed": result.resumed_bytes,
                "wasted": result.wasted_bytes,
                "seconds": round(result.seconds, 3),
                "first_byte_s": round(result.first_byte_s, 3),
                "rate": round(result.rate_bytes_s or 0.0),
                "verified": result.verified,
                "predicted_s": result.predicted_s,
                "culprits": list(result.culprits),
                "notes": list(result.notes),
                "mirrors": rows,
            },
        )

    def failed(self, problem: DownloadFailed) -> None:
        self.event("error", {"kind": problem.kind, "code": problem.code, "text": str(problem)})


def words(event: str, data: Mapping[str, object]) -> str | None:
    """An event as a line for people; None for those that are not news."""
    text = data.get("text")
    if event == "wait":
        line = f"Waiting: {text}."
        if data.get("place") is not None:
            line = f"Waiting: place {data['place']} in the queue."
        for key, told in (
            ("expected_s", "It should start in about"),
            ("done_s", "You should have it in about"),
            ("seconds", "Asking again in"),
        ):
            seconds = data.get(key)
            if isinstance(seconds, int | float):
                line += f" {told} {format_duration(float(seconds))}."
        return line
    if event == "retry":
        seconds = data.get("seconds")
        again = ""
        if isinstance(seconds, int | float):
            when = f"in {format_duration(float(seconds))}" if seconds > 0 else "at once"
            again = f"; trying again {when}"
        return f"{data.get('url', 'Check')}: {text}{again}."
    if event == "forget":
        return f"Forgotten: {text}."
    if event in ("multicast", "peers"):
        return f"{event.capitalize()}: {text}."
    if event == "mirror" and data.get("state") == "dropped":
        return f"{data['url']} is not used any more: {text}."
    return None


def progress_line(now: Progress) -> str:
    line = format_size(now.done_bytes)
    if now.size_bytes:
        share = 100 * now.done_bytes // now.size_bytes
        line += f" of {format_size(now.size_bytes)} ({share} %)"
    line += f", {format_size(now.rate_bytes_s)}/s"
    if now.left_s is not None:
        line += f", {format_duration(now.left_s)} left"
    return line


def summary(result: Result) -> list[str]:
    """What happened, in two lines or a few."""
    where = str(result.path) if result.path is not None else "standard output"
    fetched = result.received_bytes > 0 or result.verified == "nothing"
    if not fetched and result.resumed_bytes == result.size_bytes:
        return [f"{where} is complete: {format_size(result.size_bytes)}, {result.verified} right."]
    proof = {
        "checksum": "checksum right",
        "digest": "digest right",
        "pieces": "all pieces right",
        "length": "length right, no digest known",
        "nothing": "but the server told neither length nor digest: it may be cut short",
    }[result.verified]
    queued = max((source.waited_s for source in result.sources), default=0.0)
    seconds, after = result.seconds, ""
    if queued >= 1.0 and result.first_byte_s >= queued:
        seconds -= result.first_byte_s
        after = f" after {format_duration(queued)} of waiting"
    rate = result.rate_bytes_s
    speed = f" ({format_size(rate)}/s)" if rate is not None else ""
    head = f"{where}: {format_size(result.size_bytes)} in {seconds:.1f} s{speed}{after}"
    lines = [f"{head}, {proof}."]
    if result.resumed_bytes:
        lines.append(f"  {format_size(result.resumed_bytes)} were there from an earlier try.")
    if len(result.sources) > 1:
        for one in result.sources:
            line = f"  {one.url}: {format_size(one.bytes)}, {format_size(one.rate_bytes_s)}/s"
            if one.retries:
                line += f", {one.retries} {'retry' if one.retries == 1 else 'retries'}"
            if one.dropped is not None:
                line += f", dropped: {one.dropped}"
            lines.append(line)
        share = 100 * result.wasted_bytes / max(1, result.size_bytes)
        lines.append(f"  waste {format_size(result.wasted_bytes)} ({share:.1f} %)")
    return lines + [f"  {note}" for note in result.notes]


def explain(result: Result) -> list[str]:
    """Predicted against measured."""
    lines = list(result.forecast)
    if result.predicted_s is not None:
        ratio = result.seconds / result.predicted_s if result.predicted_s > 0 else 0.0
        lines.append(
            f"model: predicted {result.predicted_s:.2f} s, measured {result.seconds:.2f} s "
            f"({ratio:.2f} times)"
        )
    return lines + [
        f"  {one.url}: round trip {one.rtt_s * 1000:.1f} ms, {one.requests} requests on "
        f"{one.connections} connections, {format_size(one.rate_bytes_s)}/s while asked, "
        f"waited {one.waited_s:.1f} s"
        for one in result.sources
    ]
