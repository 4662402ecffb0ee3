"""Runs what the command line asked for: one file, a Metalink, or a folder."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..api import Options, Result, already_there, build, finish, open_network, read_urls
from ..fetch.metalink import Metalink
from ..net.errors import DownloadFailed, Interrupted, LocalProblem, UsageProblem
from ..net.identity import data_folder, forget
from ..net.sockets import run_blocking
from ..storage.output import followed, is_outlet
from .show import Json, Plain, Quiet

#: Either ends a download so that the same command can go on.
STOPPED_BY = (signal.SIGINT, signal.SIGTERM)


def options_from(given: Mapping[str, Any]) -> Options:
    """The command line's wishes as library options."""
    limit = given["max_wait"]
    max_wait_s = 0.0 if not given["wait"] else math.inf if limit is None else float(limit)
    # An option that has the name of a field is that field.
    wishes = {one.name: given[one.name] for one in fields(Options) if one.name in given}
    return Options(**wishes, mirrors=not given["no_mirrors"], max_wait_s=max_wait_s)


def run_get(given: Mapping[str, Any]) -> int:
    """Fetch; returns the exit status. Everything that goes wrong is one sentence."""
    show = _show(given)
    try:
        options = options_from(given)
        if given["forget"]:
            try:
                gone = forget(data_folder())
            except OSError as error:
                raise LocalProblem.of(error, error.filename or data_folder()) from None
            text = ", ".join(map(str, gone)) + " removed" if gone else "there was nothing to forget"
            show.event("forget", {"text": text})
            if not given["urls"]:
                return 0
        if given["recursive"]:
            from .folder import fetch_folder

            return fetch_folder(given["urls"], given["output"], options, show, STOPPED_BY)
        return max(_fetch(job, options, show) for job in _jobs(given, options))
    except DownloadFailed as problem:
        show.failed(problem)
        return problem.code


def _show(given: Mapping[str, Any]) -> Quiet:
    explain = bool(given["explain"])
    if given["as_json"]:
        return Json(explain)
    if given["quiet"]:
        return Quiet(explain)
    if sys.stderr.isatty() and not given["recursive"]:
        # It shows one download at a time. `rich` is an extra of tidegate-get.
        with contextlib.suppress(ModuleNotFoundError):
            from .progress import Rich

            return Rich(explain)
    return Plain(explain)


@dataclass(frozen=True, slots=True)
class _Job:
    """One file: the URLs of its mirrors, and where it goes; None: the current folder."""

    urls: list[str]
    output: str | None
    metalink: Metalink | None = None


def _jobs(given: Mapping[str, Any], options: Options) -> list[_Job]:
    """The files that the command line names, one after the other."""
    words: list[str] = list(given["urls"])
    output = given["output"]
    metalinks = [word for word in words if word.lower().endswith((".meta4", ".metalink"))]
    if not metalinks:
        # One name or one digest for all URLs says that they are mirrors of one file.
        to_file = output is not None and not output.endswith("/") and not os.path.isdir(output)
        is_one_file = options.digest is not None or to_file
        groups = {"": words} if is_one_file else _by_file_name(words)
        return [_Job(urls, output) for urls in groups.values()]
    if len(words) > 1:
        raise UsageProblem("give a Metalink alone: it names its mirrors itself")
    documents = _read_meta(words[0], options)
    if output is not None and len(documents) > 1:
        raise UsageProblem("this Metalink names several files; leave -o away")
    for one in documents:
        if not one.urls:
            raise UsageProblem(f"the Metalink names no http or https URL for {one.name}")
    return [_Job([url.text for url in one.urls], output, one) for one in documents]


def _by_file_name(words: list[str]) -> dict[str, list[str]]:
    """URLs whose last parts are the same are mirrors of one file."""
    groups: dict[str, list[str]] = {}
    for word in words:
        (url,) = read_urls([word])
        groups.setdefault(url.file_name(), []).append(word)
    return groups


def _fetch(job: _Job, options: Options, show: Quiet) -> int:
    """Fetch one file; a file that fails does not stop those after it. Returns the exit status."""
    try:
        show.done(_one(job, options, show))
    except Interrupted:
        raise
    except DownloadFailed as problem:
        show.failed(problem)
        return problem.code
    return 0


def _read_meta(word: str, options: Options) -> list[Metalink]:
    from ..api import fetch_bytes, read_metalink
    from ..net.urls import parse

    if "://" in word:
        return read_metalink(fetch_bytes(word, options), parse(word))
    try:
        return read_metalink(Path(word).read_bytes())
    except OSError as error:
        raise LocalProblem(f"cannot read {word}: {error.strerror}") from None


def _one(job: _Job, options: Options, show: Quiet) -> Result:
    urls, output, metalink = read_urls(job.urls), job.output, job.metalink
    place: Path | int
    named = chosen = output is not None
    outlet = -1
    if output == "-":
        sys.stdout.flush()
        place = 1
    elif output is not None and is_outlet(Path(output)):
        try:
            place = outlet = os.open(output, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        except OSError as error:
            raise LocalProblem.of(error, output) from None
    else:
        folder, own = Path(), metalink.name if metalink is not None else urls[0].file_name()
        if output is not None:
            folder = Path(output)
            if output.endswith("/") and not folder.is_dir():
                raise LocalProblem(f"cannot write into {output}: the folder does not exist")
            named = not os.path.isdir(folder)
            if named:
                folder = followed(folder)
        # The end of a URL that the user typed is a name the user gave; a Metalink's name is not.
        chosen = named or (metalink is None and own != "")
        place = folder if named else folder / (own or "download")
        digest = options.digest or (metalink.digest if metalink is not None else None)
        size = metalink.size_bytes if metalink is not None else None
        ready = digest and already_there(place, digest[0], digest[1].hex(), size)
        if ready:
            return ready

    async def fetch() -> Result:
        network = open_network(options)
        download = build(network, urls, place, options, show.event, metalink, chosen=chosen)
        download.rename_freely = not named and metalink is None
        show.begin(download)
        try:
            return await finish(download)
        finally:
            show.end()
            await network.close()

    try:
        result = run_blocking(fetch, STOPPED_BY)
    finally:
        if outlet >= 0:
            os.close(outlet)
    return replace(result, path=Path(output)) if output and outlet >= 0 else result
