"""The library: `tidegate.fetch` and what belongs to it (docs/library.md), and its parts.

`already_there`, `read_urls`, `open_network`, `build` and `finish` are for `client.cli` and
`client.mirror`, which watch a download while it runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .fetch.download import Download
from .fetch.metalink import LIMIT_BYTES, Metalink, read_metalink
from .fetch.options import OnEvent, OnProgress, Options, Progress, Result, SourceReport, is_path
from .net.errors import (
    AccessRefused,
    Corrupt,
    DownloadFailed,
    Interrupted,
    LocalProblem,
    NetworkProblem,
    NoRoom,
    NotFound,
    UsageProblem,
    WaitedTooLong,
)
from .net.network import Network
from .net.sockets import AsyncioNetwork, CertificateTrust, run_blocking
from .net.urls import BadUrl, Url, parse
from .storage.output import FileOutput, MemoryOutput, Output, StreamOutput

__all__ = [
    "AccessRefused",
    "Corrupt",
    "DownloadFailed",
    "Interrupted",
    "LocalProblem",
    "Metalink",
    "NetworkProblem",
    "NoRoom",
    "NotFound",
    "Options",
    "Progress",
    "Result",
    "SourceReport",
    "UsageProblem",
    "WaitedTooLong",
    "already_there",
    "build",
    "fetch",
    "fetch_blocking",
    "fetch_bytes",
    "finish",
    "open_network",
    "read_metalink",
    "read_urls",
]


def _ignore(event: str, data: Mapping[str, object]) -> None:
    """For callers without `on_event`."""


def read_urls(urls: str | Sequence[str]) -> list[Url]:
    """URLs from text, without repetitions; raises UsageProblem with a sentence."""
    urls = [urls] if isinstance(urls, str) else urls
    if not isinstance(urls, Sequence) or not all(isinstance(url, str) for url in urls):
        raise UsageProblem(f"a URL is text, several are a list of text; {urls!r} is neither")
    try:
        return list(dict.fromkeys(parse(url) for url in urls))
    except BadUrl as error:
        raise UsageProblem(str(error)) from None


def open_network(options: Options, most_idle: int = 0) -> AsyncioNetwork:
    """The network of one or more downloads, in the running event loop; to be closed by `close`.

    `most_idle` connections to a server stay open between downloads.
    """
    return AsyncioNetwork(CertificateTrust(options.ca_file, options.insecure), most_idle)


def build(
    network: Network,
    urls: Sequence[Url],
    output: Path | int,
    options: Options,
    on_event: OnEvent = _ignore,
    metalink: Metalink | None = None,
    *,
    chosen: bool = True,
) -> Download:
    """A download that has not started; `output` is a path, or a descriptor for in-order bytes.

    `chosen`: the user named that path, so a file there is replaced; else it is left alone.
    """
    if not urls:
        raise UsageProblem("nothing to fetch: name at least one URL")
    target: Output
    if isinstance(output, int):
        window = options.window_bytes
        if metalink is not None and metalink.pieces is not None:
            window = max(window, 4 * metalink.pieces.length)
        holder: list[Download] = []
        target = StreamOutput(output, network, window, lambda problem: holder[0].fail(problem))
        holder.append(Download(network, urls, target, options, on_event, metalink))
        return holder[0]
    return Download(network, urls, FileOutput(output, chosen=chosen), options, on_event, metalink)


def already_there(path: Path, algorithm: str, digest: str, size: int | None) -> Result | None:
    """The finished file, when it is there with this size, if told, and hexadecimal digest."""
    try:
        if not path.is_file() or size not in (None, path.stat().st_size):
            return None
        with path.open("rb") as file:
            if hashlib.file_digest(file, algorithm).hexdigest() != digest:
                return None
            size = file.tell()
    except OSError:
        return None
    return Result(path, size, 0, size, 0.0, "checksum", notes=("it was there already",))


async def finish(download: Download) -> Result:
    """Start a download and wait for its end; raises DownloadFailed. Cancelling keeps the rest."""
    over = asyncio.Event()
    download.when_over = over.set
    try:
        download.start()
        await over.wait()
    finally:
        download.stop()
    if download.failure is not None:
        raise download.failure
    assert download.result is not None
    return download.result


async def fetch(
    urls: str | Sequence[str],
    output: str | os.PathLike[str] | int,
    options: Options | None = None,
    on_event: OnEvent = _ignore,
    metalink: Metalink | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Result:
    """Fetch one file from its mirrors inside a running event loop; raises DownloadFailed.

    `output` is a path, or a descriptor that gets the bytes in order. A cancelled `fetch` keeps
    what arrived, and the same call resumes it. `on_progress` is called about ten times a second
    and when the file is whole, `on_event(event, data)` with what `--json` prints. What they raise
    ends the download: it is the `__cause__` of the LocalProblem that `fetch` raises.
    """
    chosen = Options() if options is None else options
    if not isinstance(chosen, Options):
        raise UsageProblem(f"options are an Options, not {chosen!r}")
    places = read_urls(urls)
    path: Path | int
    if isinstance(output, str | os.PathLike) and isinstance(os.fspath(output), str):
        path = Path(output)
        if not path.name or not is_path(path):
            raise UsageProblem(f"the output {os.fspath(output)!r} names no file")
    elif isinstance(output, int) and not isinstance(output, bool):
        path = output
    else:
        raise UsageProblem(f"the output is a path or a file descriptor, not {output!r}")

    def tell(event: str, data: Mapping[str, object]) -> None:
        if event == "progress" and on_progress is not None:
            on_progress(download.progress())
        on_event(event, data)

    network = open_network(chosen)
    download = build(network, places, path, chosen, tell, metalink)
    try:
        result = await finish(download)
    finally:
        await network.close()
    if on_progress is not None:
        try:
            on_progress(replace(download.progress(), rates_bytes_s={}))
        except Exception as fault:
            text = f"the file is whole, but on_progress failed ({type(fault).__name__}: {fault})"
            raise LocalProblem(text) from fault
    return result


def fetch_blocking(
    urls: str | Sequence[str],
    output: str | os.PathLike[str] | int,
    options: Options | None = None,
    on_event: OnEvent = _ignore,
    metalink: Metalink | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Result:
    """`fetch` for a program without an event loop, in any thread.

    Ctrl-C raises Interrupted. Raises UsageProblem where an event loop runs in this thread.
    """
    return run_blocking(
        lambda: fetch(urls, output, options, on_event, metalink, on_progress=on_progress)
    )


def fetch_bytes(url: str, options: Options | None = None, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Fetch something small into memory, blocking; raises DownloadFailed."""
    chosen = replace(options or Options(), mirrors=False, checksum=None)

    async def run() -> bytes:
        target = MemoryOutput(limit_bytes)
        network = open_network(chosen)
        try:
            await finish(Download(network, read_urls(url), target, chosen, _ignore))
        finally:
            await network.close()
        return target.data

    return run_blocking(run)
