"""The library: fetch one file, blocking or as a Deferred.

    from client.api import Options, fetch_blocking
    result = fetch_blocking(["https://example.org/file.iso"], Path("file.iso"))

Several URLs are mirrors of one file. Errors are `client.failures.DownloadFailed` and its kinds,
each with an exit code and one sentence. `emit(event, data)` is called on the calling thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from client.download import Download
from client.failures import UsageProblem
from client.loop import Loop
from client.metalink import LIMIT_BYTES, Metalink, read_metalink
from client.net import Network
from client.options import Emit, Options, Result
from client.target import FileTarget, MemoryTarget, StreamTarget, Target
from client.urls import BadUrl, Url, parse

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

__all__ = [
    "Metalink",
    "Options",
    "Result",
    "build",
    "fetch",
    "fetch_blocking",
    "fetch_bytes",
    "read_metalink",
    "read_urls",
]


def _silent(event: str, data: Mapping[str, object]) -> None:
    """Nobody wants to know."""


def read_urls(urls: Sequence[str]) -> list[Url]:
    """URLs from text; raises UsageProblem with a sentence."""
    try:
        return list(dict.fromkeys(parse(url) for url in urls))
    except BadUrl as error:
        raise UsageProblem(str(error)) from None


def build(
    network: Network,
    urls: Sequence[Url],
    output: Path | int,
    options: Options,
    emit: Emit = _silent,
    metalink: Metalink | None = None,
) -> Download:
    """A download that has not started; `output` is a path, or a descriptor for in-order bytes."""
    if not urls:
        raise UsageProblem("nothing to fetch: name at least one URL")
    target: Target
    if isinstance(output, int):
        window = options.window_bytes
        if metalink is not None and metalink.pieces is not None:
            window = max(window, 4 * metalink.pieces.length)
        holder: list[Download] = []
        target = StreamTarget(output, network, window, lambda problem: holder[0].fail(problem))
        holder.append(Download(network, urls, target, options, emit, metalink))
        return holder[0]
    target = FileTarget(output)
    return Download(network, urls, target, options, emit, metalink)


def run(loop: Loop, download: Download) -> Result:
    """Run to the end; raises DownloadFailed. A KeyboardInterrupt stops it cleanly first."""
    try:
        download.start()
        loop.run_until(lambda: download.over)
    except KeyboardInterrupt:
        download.stop()
    except BaseException:
        download.stop()
        raise
    if download.failure is not None:
        raise download.failure
    assert download.result is not None
    return download.result


def fetch_blocking(
    urls: Sequence[str],
    output: Path | int,
    options: Options | None = None,
    emit: Emit = _silent,
    metalink: Metalink | None = None,
) -> Result:
    """Fetch and return when it is done; raises DownloadFailed."""
    loop = Loop()
    try:
        parsed = read_urls(urls)
        download = build(loop, parsed, output, options or Options(), emit, metalink)
        return run(loop, download)
    finally:
        loop.close()


def fetch_bytes(url: str, options: Options | None = None, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Fetch something small into memory; raises DownloadFailed."""
    loop = Loop()
    try:
        chosen = replace(options or Options(), mirrors=False, checksum=None, strategy="single")
        target = MemoryTarget(limit_bytes)
        run(loop, Download(loop, read_urls([url]), target, chosen, _silent))
        return target.data
    finally:
        loop.close()


def fetch(
    urls: Sequence[str],
    output: Path | int,
    options: Options | None = None,
    emit: Emit = _silent,
    metalink: Metalink | None = None,
) -> Deferred[Result]:
    """The same inside a running Twisted reactor; cancelling the Deferred stops the download.

    Fails with DownloadFailed.
    """
    from twisted.internet.defer import Deferred

    from client.net_twisted import TwistedNetwork

    network = TwistedNetwork()
    download = build(network, read_urls(urls), output, options or Options(), emit, metalink)
    deferred: Deferred[Result] = Deferred(lambda _: download.stop())

    def ended() -> None:
        if download.failure is not None:
            deferred.errback(download.failure)
        else:
            assert download.result is not None
            deferred.callback(download.result)

    download.when_over = ended
    download.start()
    return deferred
