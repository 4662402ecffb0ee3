"""Runs what the command line asked for: one file, a Metalink, or a folder."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..api import Options, Result, build, finish, open_network, read_urls
from ..fetch.metalink import Metalink
from ..net.errors import DownloadFailed, LocalProblem, UsageProblem
from ..net.identity import data_folder, forget
from ..net.sockets import run_blocking
from ..storage.output import followed, is_outlet
from .show import Json, Plain, Quiet, Show

_META = (".meta4", ".metalink")
#: Either ends a download so that the same command can go on.
STOPPED_BY = (signal.SIGINT, signal.SIGTERM)


def options_from(given: Mapping[str, Any]) -> Options:
    """The command line's wishes as library options."""
    limit = given["max_wait"]
    max_wait_s = 0.0 if not given["wait"] else math.inf if limit is None else float(limit)
    return Options(
        checksum=given["checksum"],
        strategy=given["strategy"],
        connections=given["connections"],
        block_bytes=given["block_size"],
        limit_bytes_s=given["limit_rate"],
        headers=given["headers"],
        pass_token=given["pass_token"],
        mirrors=not given["no_mirrors"],
        multicast=given["multicast"],
        peers=given["peers"],
        upload_bytes_s=given["upload_rate"],
        multicast_interface=given["multicast_interface"],
        timeout_s=float(given["timeout"]),
        ca_file=given["ca"],
        insecure=given["insecure"],
        max_wait_s=max_wait_s,
    )


def run_get(given: Mapping[str, Any]) -> int:
    """Fetch; returns the exit status. Everything that goes wrong is one sentence."""
    show = _show(given)
    try:
        options = options_from(given)
        if given["forget"]:
            _forget(show)
            if not given["urls"]:
                return 0
        if given["recursive"]:
            from .folder import fetch_folder

            return fetch_folder(given["urls"], given["output"], options, show, STOPPED_BY)
        for result in _files(given, options, show):
            show.done(result)
        return 0
    except DownloadFailed as problem:
        show.failed(problem)
        return problem.code
    except KeyboardInterrupt:
        return 130


def _forget(show: Show) -> None:
    try:
        gone = forget(data_folder())
    except OSError as error:
        raise LocalProblem.of(error, error.filename or data_folder()) from None
    text = ", ".join(map(str, gone)) + " removed" if gone else "there was nothing to forget"
    show.event("forget", {"text": text})


def _show(given: Mapping[str, Any]) -> Show:
    explain = bool(given["explain"])
    if given["as_json"]:
        return Json(explain)
    if given["quiet"]:
        return Quiet(explain)
    if sys.stderr.isatty():
        from .progress import Rich

        return Rich(explain)
    return Plain(explain)


def _files(given: Mapping[str, Any], options: Options, show: Show) -> list[Result]:
    words = list(given["urls"])
    output = given["output"]
    found = []
    for word in words:
        if word.lower().endswith(_META):
            if len(words) > 1:
                raise UsageProblem("give a Metalink alone: it names its mirrors itself")
            documents = _read_meta(word, options)
            if output is not None and len(documents) > 1:
                raise UsageProblem("this Metalink names several files; leave -o away")
            for one in documents:
                if not one.urls:
                    raise UsageProblem(f"the Metalink names no http or https URL for {one.name}")
                found.append(_one([u.text for u in one.urls], output, one, options, show))
            return found
    return [_one(words, output, None, options, show)]


def _read_meta(word: str, options: Options) -> list[Metalink]:
    from ..api import fetch_bytes, read_metalink
    from ..net.urls import parse

    if "://" in word:
        return read_metalink(fetch_bytes(word, options), parse(word))
    try:
        return read_metalink(Path(word).read_bytes())
    except OSError as error:
        raise LocalProblem(f"cannot read {word}: {error.strerror}") from None


def _one(
    words: list[str],
    output: str | None,
    metalink: Metalink | None,
    options: Options,
    show: Show,
) -> Result:
    urls = read_urls(words)
    place: Path | int
    named = chosen = output is not None
    outlet = -1
    if output == "-":
        sys.stdout.flush()
        place = 1
    elif output is not None and is_outlet(Path(output)):
        place = outlet = _open_outlet(output)
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
        ready = _already(place, options, metalink)
        if ready is not None:
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
        return run_blocking(fetch, STOPPED_BY)
    finally:
        if outlet >= 0:
            os.close(outlet)


def _open_outlet(name: str) -> int:
    try:
        return os.open(name, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    except OSError as error:
        raise LocalProblem.of(error, name) from None


def _already(path: Path, options: Options, metalink: Metalink | None) -> Result | None:
    """The finished file, when it is there with the right digest."""
    digest = options.checksum or (metalink.digest if metalink is not None else None)
    if digest is None or not path.is_file():
        return None
    import hashlib

    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if metalink is not None and metalink.size_bytes not in (None, size):
                return None
            if hashlib.file_digest(file, digest[0]).digest() != digest[1]:
                return None
    except OSError:
        return None
    return Result(path, size, 0, size, 0.0, "checksum", notes=("it was there already",))
