"""A publisher and followers on one disk, joined without a network; faults can be put between."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuf.api.exceptions import DownloadError

from tidegate.client.mirror.follow import Follower, FollowSettings
from tidegate.client.mirror.place import Place
from tidegate.client.net.answers import Reply
from tidegate.server.mirror.publish import Published, Publisher, PublishSettings
from tidegate.server.mirror.repository import initialise, utc

URL = "http://origin.test/mirror/"
#: Far enough ahead for nothing that was signed in a test to be expired, and files to be old.


@dataclass
class FileTransport:
    """A `client.mirror.transport.ChannelTransport` that reads the publish directory itself."""

    publish: Path
    asked: list[str] = field(default_factory=list)
    #: Called with (path in the publish directory, content); what it returns is what arrives.
    spoil: Callable[[str, bytes], bytes] = lambda path, data: data
    posts: list[bytes] = field(default_factory=list)

    def _content(self, url: str) -> bytes | None:
        path = url.removeprefix(URL)
        self.asked.append(path)
        try:
            return self.spoil(path, (self.publish / path).read_bytes())
        except FileNotFoundError:
            return None

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        limit_bytes: int = 1 << 20,
        timeout_s: float = 30.0,
    ) -> Reply:
        if method == "POST":
            self.posts.append(body)
            return Reply(204, {}, b"")
        data = self._content(url)
        return Reply(404, {}, b"") if data is None else Reply(200, {}, data[:limit_bytes])

    def download(self, url: str, path: Path, length_bytes: int, sha256: str) -> None:
        data = self._content(url)
        if data is None:
            raise DownloadError(f"{url} is not there")
        path.write_bytes(data)


@dataclass
class Site:
    """One channel and where it is published."""

    base: Path
    settings: PublishSettings = field(default_factory=PublishSettings)
    now: float = 0.0

    def __post_init__(self) -> None:
        import time

        self.now = self.now or time.time() + 60
        self.tree = self.base / "tree"
        self.publish_dir = self.base / "publish"
        self.keys = self.base / "keys"
        self.tree.mkdir(parents=True)
        self.root = initialise(self.publish_dir, self.keys, utc(self.now))

    def publish(self, channel: str = "main") -> Published:
        publisher = Publisher(self.publish_dir, self.keys, channel, self.settings)
        return publisher.publish(self.tree, self.now)

    def follower(self, name: str = "mirror", **settings: object) -> Follower:
        chosen = FollowSettings("main", URL, **settings)  # type: ignore[arg-type]
        transport = FileTransport(self.publish_dir)
        place = Place(self.base / name)
        follower = Follower(place, chosen, transport, lambda: self.now)
        if not follower.trust.pinned:
            follower.trust.pin(self.root)
        return follower


def transport_of(follower: Follower) -> FileTransport:
    transport = follower._bringer._transport
    assert isinstance(transport, FileTransport)
    return transport


def described(root: Path) -> dict[str, object]:
    """Everything the mirror must have equal: contents, kinds, modes, times, links."""
    out: dict[str, object] = {}
    inodes: dict[int, str] = {}
    for folder, dirs, files in os.walk(root):
        for name in sorted([*dirs, *files]):
            path = Path(folder, name)
            key = str(path.relative_to(root))
            seen = path.lstat()
            if path.is_symlink():
                out[key] = ("l", os.readlink(path), seen.st_mtime_ns)
            elif path.is_dir():
                out[key] = ("d", seen.st_mode, seen.st_mtime_ns)
            else:
                leader = inodes.setdefault(seen.st_ino, key)
                out[key] = ("f", seen.st_mode, seen.st_mtime_ns, path.read_bytes(), leader)
    return out


def fill(tree: Path) -> None:
    """A small tree with everything in it."""
    (tree / "pkg" / "sub").mkdir(parents=True)
    (tree / "pkg" / "a.py").write_bytes(b"print('a')\n" * 500)
    (tree / "pkg" / "b.py").write_bytes(b"print('b')\n" * 500)
    (tree / "pkg" / "sub" / "data.bin").write_bytes(os.urandom(50_000))
    (tree / "pkg" / "run").write_bytes(b"#!/bin/sh\n")
    (tree / "pkg" / "run").chmod(0o755)
    os.link(tree / "pkg" / "run", tree / "pkg" / "run-too")
    (tree / "latest").symlink_to("pkg/sub")
    (tree / "empty").touch()
    (tree / "locked").mkdir()
    (tree / "locked" / "file").write_bytes(b"in a read-only directory")
    (tree / "locked").chmod(0o555)
    Path(os.fsdecode(os.fsencode(tree) + b"/caf\xe9")).write_bytes(b"not UTF-8")


def edit(tree: Path) -> None:
    """Every kind of change at once, one of them invisible to size and mtime."""
    before = (tree / "pkg" / "b.py").stat()
    text = (tree / "pkg" / "b.py").read_bytes().replace(b"'b'", b"'c'")
    (tree / "pkg" / "b.py").write_bytes(text)
    os.utime(tree / "pkg" / "b.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    with (tree / "pkg" / "a.py").open("ab") as out:
        out.write(b"print('more')\n")
    (tree / "pkg" / "sub" / "data.bin").rename(tree / "pkg" / "moved.bin")
    (tree / "empty").unlink()
    (tree / "latest").unlink()
    (tree / "latest").mkdir()
    (tree / "latest" / "new").write_bytes(b"new")
    (tree / "pkg" / "run-too").unlink()
    (tree / "pkg" / "run-too").write_bytes(b"#!/bin/sh\n")
    (tree / "pkg" / "run").chmod(0o700)
    os.link(tree / "pkg" / "a.py", tree / "pkg" / "a-linked.py")
