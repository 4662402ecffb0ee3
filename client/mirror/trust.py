"""What the follower believes: the origin's metadata, verified by python-tuf before any use.

The trust starts from a root the operator pinned, by file or by fingerprint, and from then on
follows the root's own signed successions. Versions seen are remembered, so an origin that shows
an older state, an expired one, or parts of two states is found out.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

from tuf.api.exceptions import DownloadHTTPError, RepositoryError
from tuf.api.metadata import TargetFile
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from ...protocol.channel import Index, decode_index, index_path
from ...protocol.disk.durable import write_whole
from .problem import MirrorProblem
from .transport import ChannelTransport

_METADATA_LIMIT_BYTES = 16 << 20


class _Fetcher(FetcherInterface):
    """python-tuf's requests over our transport; timestamp.json is asked for conditionally.

    A validator counts only while the bytes it came with are the ones that were believed and kept:
    what failed verification, or was lost before it was kept, is asked for again.
    """

    def __init__(self, transport: ChannelTransport, folder: Path) -> None:
        self._transport = transport
        self._timestamp = folder / "timestamp.json"
        self._etag_file = folder / "timestamp.etag"

    def _fetch(self, url: str) -> Iterator[bytes]:
        news = url.endswith("/timestamp.json")
        kept = self._kept() if news else None
        headers = {"If-None-Match": kept[0]} if kept is not None else {}
        answer = self._transport.request(
            "GET", url, headers=headers, limit_bytes=_METADATA_LIMIT_BYTES
        )
        if answer.unchanged and kept is not None:
            yield kept[1]
            return
        if not answer.ok:
            raise DownloadHTTPError(f"{url} answered {answer.status}", answer.status)
        if news:
            digest = hashlib.sha256(answer.body).hexdigest()
            write_whole(self._etag_file, f"{digest} {answer.headers.get('etag', '')}".encode())
        yield answer.body

    def _kept(self) -> tuple[str, bytes] | None:
        """The validator of the timestamp kept here, and its bytes."""
        try:
            digest, _, etag = self._etag_file.read_bytes().decode("latin-1").partition(" ")
            body = self._timestamp.read_bytes()
        except FileNotFoundError:
            return None
        right = hashlib.sha256(body).hexdigest() == digest
        return (etag, body) if right and etag.isprintable() and etag else None


class Trust:
    """The verified state of one publish directory, kept in `folder`."""

    def __init__(self, folder: Path, url: str, transport: ChannelTransport) -> None:
        self._folder = folder
        self._url = url.rstrip("/") + "/"
        self._transport = transport
        # It logs what it then raises; the follower says it once.
        logging.getLogger("tuf").setLevel(logging.ERROR)

    @property
    def pinned(self) -> bool:
        return (self._folder / "root.json").exists()

    def check_pinned(self) -> None:
        if not self.pinned:
            raise MirrorProblem(
                "no-root",
                "Nothing says which publisher to trust: give --root FILE or --fingerprint HEX.",
            )

    def pin(self, root: bytes) -> None:
        """Trust this root from now on (it must be valid by itself)."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._updater(root)

    def pin_fingerprint(self, sha256: str) -> None:
        """Fetch the root with this SHA-256 from the origin and pin it."""
        for version in range(1, 256):
            answer = self._transport.request(
                "GET", f"{self._url}metadata/{version}.root.json", limit_bytes=1 << 20
            )
            if not answer.ok:
                break
            if hashlib.sha256(answer.body).hexdigest() == sha256.lower():
                self.pin(answer.body)
                return
        raise MirrorProblem(
            "wrong-root",
            "No root of the origin has that fingerprint: check the fingerprint and the URL.",
        )

    def _updater(self, root: bytes | None) -> Updater:
        config = UpdaterConfig(
            targets_max_length=_METADATA_LIMIT_BYTES, snapshot_max_length=_METADATA_LIMIT_BYTES
        )
        try:
            return Updater(
                str(self._folder),
                self._url + "metadata/",
                fetcher=_Fetcher(self._transport, self._folder),
                config=config,
                bootstrap=root,
            )
        except RepositoryError as fault:
            if root is not None:
                raise
            raise MirrorProblem(
                "bad-state",
                f"The trusted root in {self._folder} is damaged; remove that folder and give "
                "--root or --fingerprint again.",
            ) from fault

    def refresh(self, channel: str) -> Verified:
        """Fetch and verify what is newest; the channel's index and its files from one state."""
        updater = self._updater(None)
        updater.refresh()
        target = updater.get_targetinfo(index_path(channel))
        if target is None:
            raise MirrorProblem("no-channel", f"The origin has no channel named {channel!r}.")
        url = self._url + _served_path(target)
        cached = self._folder / f"{channel}.index.json"
        data = cached.read_bytes() if cached.exists() else b""
        if hashlib.sha256(data).hexdigest() != target.hashes.get("sha256"):
            answer = self._transport.request("GET", url, limit_bytes=target.length + 1)
            if not answer.ok:
                raise DownloadHTTPError(f"{url} answered {answer.status}", answer.status)
            target.verify_length_and_hashes(answer.body)
            write_whole(cached, data := answer.body)
        return Verified(decode_index(data), updater, self._url)


class Verified:
    """One verified state of the origin."""

    def __init__(self, index: Index, updater: Updater, url: str) -> None:
        self.index = index
        self._updater = updater
        self._url = url

    def locate(self, path: str) -> tuple[str, int, str]:
        """URL, length in bytes and SHA-256 of a target of this state."""
        target = self._updater.get_targetinfo(path)
        if target is None or "sha256" not in target.hashes:
            raise MirrorProblem("mixed", f"The origin's index names {path!r}, its metadata not.")
        return self._url + _served_path(target), target.length, target.hashes["sha256"]


def _served_path(target: TargetFile) -> str:
    folder, _, name = target.path.rpartition("/")
    return f"targets/{folder}/{target.hashes['sha256']}.{name}"
