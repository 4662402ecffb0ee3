"""The library: fetch one file from its mirrors, inside asyncio or blocking.

    from tidegate import fetch, fetch_blocking

    result = await fetch(["https://a.example/x.iso", "https://b.example/x.iso"], Path("x.iso"))
    result = fetch_blocking(["https://a.example/x.iso"], Path("x.iso"))

Several URLs are mirrors of one file. Errors are `client.net.errors.DownloadFailed` and its kinds,
each with an exit code and one sentence. Cancelling `fetch` keeps what arrived; the same call goes
on from there. `emit(event, data)` is called on the calling thread, with the events that
docs/parallel.md lists for `--json`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .fetch.download import Download
from .fetch.metalink import LIMIT_BYTES, Metalink, read_metalink
from .fetch.options import Emit, Options, Result
from .net.errors import UsageProblem
from .net.network import Network
from .net.sockets import AsyncioNetwork, CertificateTrust, run_blocking
from .net.urls import BadUrl, Url, parse
from .storage.output import FileOutput, MemoryOutput, Output, StreamOutput

__all__ = [
    "Metalink",
    "Options",
    "Result",
    "build",
    "fetch",
    "fetch_blocking",
    "fetch_bytes",
    "finish",
    "open_network",
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


def open_network(options: Options) -> AsyncioNetwork:
    """The network of one or more downloads, in the running event loop; to be closed by `close`."""
    return AsyncioNetwork(CertificateTrust(options.ca_file, options.insecure))


def build(
    network: Network,
    urls: Sequence[Url],
    output: Path | int,
    options: Options,
    emit: Emit = _silent,
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
        holder.append(Download(network, urls, target, options, emit, metalink))
        return holder[0]
    target = FileOutput(output, chosen=chosen)
    return Download(network, urls, target, options, emit, metalink)


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
    urls: Sequence[str],
    output: Path | int,
    options: Options | None = None,
    emit: Emit = _silent,
    metalink: Metalink | None = None,
) -> Result:
    """Fetch a file inside a running event loop; raises DownloadFailed."""
    chosen = options or Options()
    network = open_network(chosen)
    try:
        return await finish(build(network, read_urls(urls), output, chosen, emit, metalink))
    finally:
        await network.close()


def fetch_blocking(
    urls: Sequence[str],
    output: Path | int,
    options: Options | None = None,
    emit: Emit = _silent,
    metalink: Metalink | None = None,
) -> Result:
    """The same for a program without an event loop. Ctrl-C raises Interrupted."""
    return run_blocking(lambda: fetch(urls, output, options, emit, metalink))


def fetch_bytes(url: str, options: Options | None = None, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Fetch something small into memory, blocking; raises DownloadFailed."""
    chosen = replace(options or Options(), mirrors=False, checksum=None, strategy="single")

    async def run() -> bytes:
        target = MemoryOutput(limit_bytes)
        network = open_network(chosen)
        try:
            await finish(Download(network, read_urls([url]), target, chosen, _silent))
        finally:
            await network.close()
        return target.data

    return run_blocking(run)
