"""How a download looks to its caller: silent, in plain lines, or as JSON events."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Protocol, TextIO

from client.download import Download
from client.failures import DownloadFailed
from client.options import Result
from client.target import UNKNOWN_SIZE


class Show(Protocol):
    """`begin`, any number of `event`, `end`, then `done` or `failed`."""

    def begin(self, download: Download) -> None: ...
    def event(self, event: str, data: Mapping[str, object]) -> None: ...
    def end(self) -> None: ...
    def done(self, result: Result) -> None: ...
    def failed(self, problem: DownloadFailed) -> None: ...


def size_text(count: float) -> str:
    """1234567 -> 1.23 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def time_text(seconds: float) -> str:
    """75 -> 1 min 15 s."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Quiet:
    """Nothing but failures, and what --explain asks for."""

    def __init__(self, explain: bool, out: TextIO | None = None) -> None:
        self.explain = explain
        self.out = out if out is not None else sys.stderr
        self.download: Download | None = None

    def begin(self, download: Download) -> None:
        self.download = download

    def event(self, event: str, data: Mapping[str, object]) -> None:
        """Not shown."""

    def end(self) -> None:
        """Nothing to clean up."""

    def say(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    def done(self, result: Result) -> None:
        if self.explain:
            for line in explain(result):
                self.say(line)

    def failed(self, problem: DownloadFailed) -> None:
        self.say(f"tidegate: {problem}")


class Plain(Quiet):
    """A line now and then, for logs and pipes."""

    interval_s = 5.0

    def __init__(self, explain: bool, out: TextIO | None = None) -> None:
        super().__init__(explain, out)
        self._told_s = time.monotonic()

    def event(self, event: str, data: Mapping[str, object]) -> None:
        text = words(event, data)
        if text is not None:
            self.say(text)
        elif event == "progress" and self.download is not None:
            now = time.monotonic()
            if now - self._told_s >= self.interval_s:
                self._told_s = now
                self.say(progress_line(self.download))

    def done(self, result: Result) -> None:
        for line in summary(result):
            self.say(line)
        super().done(result)


class Json(Quiet):
    """One JSON object a line; progress at most every half second."""

    interval_s = 0.5

    def __init__(self, explain: bool, out: TextIO | None = None) -> None:
        super().__init__(explain, out)
        self._told_s = 0.0

    def event(self, event: str, data: Mapping[str, object]) -> None:
        if event == "progress":
            now = time.monotonic()
            if now - self._told_s < self.interval_s or self.download is None:
                return
            self._told_s = now
            data = figures(self.download)
        self._line(event, data)

    def _line(self, event: str, data: Mapping[str, object]) -> None:
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
        self._line(
            "done",
            {
                "path": str(result.path) if result.path is not None else None,
                "size": result.size_bytes,
                "received": result.received_bytes,
                "resumed": result.resumed_bytes,
                "wasted": result.wasted_bytes,
                "seconds": round(result.seconds, 3),
                "verified": result.verified,
                "predicted_s": result.predicted_s,
                "culprits": list(result.culprits),
                "notes": list(result.notes),
                "mirrors": rows,
            },
        )

    def failed(self, problem: DownloadFailed) -> None:
        self._line("error", {"kind": problem.kind, "code": problem.code, "text": str(problem)})


def words(event: str, data: Mapping[str, object]) -> str | None:
    """An event as a line for people; None for those that are not news."""
    text = data.get("text")
    if event == "wait":
        line = f"Waiting: {text}."
        if data.get("place") is not None:
            line = f"Waiting: place {data['place']} in the queue."
        expected = data.get("expected_s")
        if isinstance(expected, int | float):
            line += f" It should start in about {time_text(float(expected))}."
        seconds = data.get("seconds")
        if isinstance(seconds, int | float):
            line += f" Asking again in {time_text(float(seconds))}."
        return line
    if event == "retry":
        seconds = data.get("seconds")
        again = ""
        if isinstance(seconds, int | float):
            again = f"; trying again in {time_text(float(seconds))}"
        return f"{data.get('url', 'Check')}: {text}{again}."
    if event == "multicast":
        return f"Multicast: {text}."
    if event == "mirror" and data.get("state") == "dropped":
        return f"{data['url']} is not used any more: {text}."
    return None


def figures(download: Download) -> dict[str, object]:
    """Where a download stands."""
    sink, board, now = download.sink, download.board, download.network.now()
    if sink is None or board is None:
        return {"bytes": 0, "size": None, "rate": 0}
    known = sink.size_bytes < UNKNOWN_SIZE
    rates = {}
    for source in download.sources:
        lanes = [board.lanes[n] for n in source.lanes if n in board.lanes]
        rate = sum(lane.rate(now) or 0.0 for lane in lanes if lane.blocks)
        rates[source.url.text] = round(rate)
    if download.joining is not None and (rate := download.joining.rate_bytes_s(now)):
        rates["multicast"] = round(rate)
    total = sum(rates.values())
    left = sink.size_bytes - sink.have.total
    return {
        "bytes": sink.have.total,
        "size": sink.size_bytes if known else None,
        "rate": total,
        "eta_s": round(left / total, 1) if total and known else None,
        "mirrors": rates,
    }


def progress_line(download: Download) -> str:
    """One plain line."""
    now = figures(download)
    done, size, rate, eta = (now.get(k) for k in ("bytes", "size", "rate", "eta_s"))
    assert isinstance(done, int)
    assert isinstance(rate, int)
    line = size_text(done)
    if isinstance(size, int) and size > 0:
        line += f" of {size_text(size)} ({100 * done // size} %)"
    line += f", {size_text(rate)}/s"
    if isinstance(eta, float):
        line += f", {time_text(eta)} left"
    return line


def summary(result: Result) -> list[str]:
    """What happened, in two lines or a few."""
    where = str(result.path) if result.path is not None else "standard output"
    if result.received_bytes == 0 and result.resumed_bytes == result.size_bytes:
        return [f"{where} is complete: {size_text(result.size_bytes)}, {result.verified} right."]
    fetched = result.size_bytes - result.resumed_bytes
    rate = fetched / result.seconds if result.seconds > 0 else 0.0
    proof = {
        "checksum": "checksum right",
        "digest": "digest right",
        "pieces": "all pieces right",
        "length": "length right, no digest known",
    }[result.verified]
    head = f"{where}: {size_text(result.size_bytes)} in {result.seconds:.1f} s"
    lines = [f"{head} ({size_text(rate)}/s), {proof}."]
    if result.resumed_bytes:
        lines.append(f"  {size_text(result.resumed_bytes)} were there from an earlier try.")
    if len(result.sources) > 1:
        for one in result.sources:
            line = f"  {one.url}: {size_text(one.bytes)}, {size_text(one.rate_bytes_s)}/s"
            if one.retries:
                line += f", {one.retries} {'retry' if one.retries == 1 else 'retries'}"
            if one.dropped is not None:
                line += f", dropped: {one.dropped}"
            lines.append(line)
        share = 100 * result.wasted_bytes / max(1, result.size_bytes)
        lines.append(f"  waste {size_text(result.wasted_bytes)} ({share:.1f} %)")
    lines += [f"  {note}" for note in result.notes]
    return lines


def explain(result: Result) -> list[str]:
    """Predicted against measured."""
    lines = list(result.forecast)
    if result.predicted_s is not None:
        ratio = result.seconds / result.predicted_s if result.predicted_s > 0 else 0.0
        lines.append(
            f"model: predicted {result.predicted_s:.2f} s, measured {result.seconds:.2f} s "
            f"({ratio:.2f} times)"
        )
    for one in result.sources:
        lines.append(
            f"  {one.url}: round trip {one.rtt_s * 1000:.1f} ms, {one.requests} requests on "
            f"{one.connections} connections, {size_text(one.rate_bytes_s)}/s while asked, "
            f"waited {one.waited_s:.1f} s"
        )
    return lines
