"""Makes one torrent for each content, and keeps them in the state folder by info-hash.

libtorrent is loaded at the first request for a torrent.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from urllib.parse import quote

from twisted.internet import defer
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from ...protocol.bounded_table import BoundedTable
from ...protocol.disk.durable import write_whole
from ..files.disk import disk_pool, let_go
from ..files.openfile import OpenFile
from ..files.transfer import FileKey
from ..http.clock import Threads, Waiters, in_pool

_log = Logger()


class CannotMake(Exception):
    """No torrent now: the file changed meanwhile, or too many files wait to be hashed."""


@functools.cache
def library() -> ModuleType:
    """libtorrent. Raises ImportError where it is missing, or older than 2.1.1."""
    import libtorrent

    if not hasattr(libtorrent, "create_file_entry"):
        raise ImportError(f"libtorrent {libtorrent.__version__} is too old")
    return libtorrent


@dataclass(frozen=True, slots=True)
class Metainfo:
    """The torrent of one content.

    `v1` and `v2` are its info-hashes, `path` its file in the state folder.
    """

    url_path: str
    key: FileKey
    v1: bytes
    v2: bytes
    path: Path

    @property
    def hashes(self) -> tuple[bytes, bytes]:
        """The info-hashes that programs announce: 20 bytes for each version."""
        return self.v1, self.v2[:20]

    def document(self, tracker: str, seeds: Sequence[str]) -> bytes:
        """The torrent file with this tracker and these URLs as web seeds (BEP 19)."""
        kept = library().bdecode(self.path.read_bytes())
        made: bytes = library().bencode(
            {
                b"announce": tracker.encode("utf-8"),
                b"url-list": [seed.encode("utf-8") for seed in seeds],
                b"info": kept[b"info"],
                b"piece layers": kept[b"layers"],
            }
        )
        return made

    def magnet(self, name: str, tracker: str, seeds: Sequence[str]) -> str:
        """The magnet link with the hashes of both versions (BEP 9, BEP 52)."""
        parts = [
            f"xt=urn:btih:{self.v1.hex()}",
            f"xt=urn:btmh:1220{self.v2.hex()}",
            f"dn={quote(name, safe='')}",
            f"xl={self.key.size_bytes}",
            f"tr={quote(tracker, safe='')}",
            *(f"ws={quote(seed, safe='')}" for seed in seeds),
        ]
        return "magnet:?" + "&".join(parts)


@dataclass(slots=True)
class _TorrentWish:
    file: OpenFile
    waiters: Waiters[Metainfo] = field(default_factory=Waiters)


class MetainfoStore:
    """Makes torrents one at a time. Keeps those that were used last in `folder`."""

    def __init__(self, reactor: Threads, folder: Path) -> None:
        self._reactor = reactor
        self._folder = folder
        #: By file and URL path: several names may have one file.
        self._known: BoundedTable[tuple[FileKey, str], Metainfo] = BoundedTable(2048, self._forget)
        self._by_hash: dict[bytes, Metainfo] = {}
        self._wishes: dict[tuple[FileKey, str], _TorrentWish] = {}
        self._making: _Making | None = None
        self._pool: ThreadPool | None = None
        self._stopped = False

    def load(self) -> None:
        """Find the torrents of earlier processes. Files that cannot be read are skipped."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for path in sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime_ns):
            # FILE KEY-SHA1-SHA256.info, see `_made`.
            match = re.fullmatch(r"([0-9a-f.]+)-([0-9a-f]{40})-([0-9a-f]{64})\.info", path.name)
            if match is None:
                continue
            try:
                numbers = [int(part, 16) for part in match[1].split(".")]
                url_path = os.fsdecode(path.with_suffix(".path").read_bytes())
                key = FileKey(*numbers)
            except (ValueError, TypeError, OSError):
                continue
            self._keep(
                Metainfo(url_path, key, bytes.fromhex(match[2]), bytes.fromhex(match[3]), path)
            )

    def by_hash(self, info_hash: bytes) -> Metainfo | None:
        """The torrent with this info-hash of either version (20 bytes)."""
        return self._by_hash.get(info_hash)

    def want(self, file: OpenFile) -> defer.Deferred[Metainfo]:
        """The file's torrent, made now unless it is kept. Fails with CannotMake."""
        name = file.rep.key, file.rep.url_path
        known = self._known.use(name)
        if known is not None:
            return defer.succeed(known)
        # Files that wait to be hashed. A request for one more is told to come back.
        if self._stopped or (len(self._wishes) >= 64 and name not in self._wishes):
            return defer.fail(CannotMake())
        result = self._wishes.setdefault(name, _TorrentWish(file)).waiters.wait()
        self._next()
        return result

    def stop(self) -> None:
        """Make no more torrents. All waiting requests fail with CannotMake."""
        self._stopped = True
        if self._making is not None:
            self._making.kill()
        for wish in self._wishes.values():
            wish.waiters.fail(CannotMake())
        self._wishes.clear()
        if self._pool is not None:
            # A killed process that waits for a dead disk ends only when the disk answers.
            let_go(self._pool)
            self._pool = None

    def _next(self) -> None:
        if self._making is None and self._wishes and not self._stopped:
            wish = next(iter(self._wishes.values()))
            self._making = _Making(wish.file)
            self._pool = self._pool or disk_pool(1, "torrents")
            work = in_pool(self._reactor, self._pool, self._making.run)
            made = work.addCallback(self._made, wish.file)
            made.addBoth(self._over, (wish.file.rep.key, wish.file.rep.url_path))

    def _made(self, kept: bytes, file: OpenFile) -> Metainfo:
        if not file.unchanged():
            raise CannotMake
        info = library().bencode(library().bdecode(kept)[b"info"])
        v1, v2 = hashlib.sha1(info).digest(), hashlib.sha256(info).digest()
        key = file.rep.key
        numbers = ".".join(f"{number:x}" for number in key)
        path = self._folder / f"{numbers}-{v1.hex()}-{v2.hex()}.info"
        write_whole(path.with_suffix(".path"), os.fsencode(file.rep.url_path), mode=0o600)
        write_whole(path, kept, mode=0o600)
        made = Metainfo(file.rep.url_path, key, v1, v2, path)
        self._keep(made)
        return made

    def _keep(self, made: Metainfo) -> None:
        self._by_hash.update(dict.fromkeys(made.hashes, made))
        self._known[made.key, made.url_path] = made

    def _forget(self, old: Metainfo) -> None:
        twin = next((one for one in self._known.values() if one.path == old.path), None)
        if twin is not None:
            # Another name of the file, which has the same torrent.
            self._by_hash.update(dict.fromkeys(twin.hashes, twin))
            return
        for info_hash in old.hashes:
            self._by_hash.pop(info_hash, None)
        for path in (old.path, old.path.with_suffix(".path")):
            path.unlink(missing_ok=True)

    def _over(self, found: Metainfo | Failure, name: tuple[FileKey, str]) -> None:
        self._making = None
        wish = self._wishes.pop(name, None)
        if isinstance(found, Failure) and not isinstance(found.value, CannotMake | OSError):
            _log.failure("a torrent could not be made", found)
        if wish is not None:
            wish.waiters.tell(found)
        self._next()


class _Making:
    """The process that hashes one file."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def run(self) -> bytes:
        """The output of the process; blocks. Raises CannotMake."""
        rep = self._file.rep
        name = os.fsdecode(rep.path.rpartition(b"/")[2])
        words = [
            sys.executable,
            "-P",
            "-m",
            "tidegate.server.torrent.making",
            str(self._file.fd),
            name,
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with subprocess.Popen(
            [*words, str(rep.size_bytes)],
            env=environment,
            pass_fds=(self._file.fd,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as self._process:
            if self._killed:
                self._process.kill()
            out, err = self._process.communicate()
        if self._process.returncode == 0:
            return out
        text = err.decode("utf-8", "replace").strip()
        if not self._killed:
            _log.warn("No torrent of {path}: {text}", path=rep.url_path, text=text[-300:])
        raise CannotMake(text)

    def kill(self) -> None:
        """Kill the process; `run` then raises CannotMake."""
        self._killed = True
        if self._process is not None:
            self._process.kill()
