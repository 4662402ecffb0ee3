"""The worst case, an update that is hostile and signed all the same; and a mirror's own bit rot.

Nothing is ever read or written outside the mirror, nothing outgrows its bounds, and whatever is
damaged here is fetched again or named.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from mirror_site import Site, described, fill, transport_of
from tuf.api.exceptions import DownloadError

from tidegate.client.mirror.follow import Follower
from tidegate.client.mirror.problem import MirrorProblem
from tidegate.client.mirror.stage import DiskStage
from tidegate.client.net.answers import Reply
from tidegate.protocol.batch import Header, Update, UpdateWriter
from tidegate.protocol.batch_apply import Application
from tidegate.protocol.batch_group import FilePart, encode_group
from tidegate.protocol.compress import pack
from tidegate.protocol.errors import BadManifest
from tidegate.protocol.tree import EMPTY_DIGEST, encode_row

SECRET = b"a secret outside of the mirror\n"
SHA = hashlib.sha256(SECRET).hexdigest()
ROOT: list[object] = ["d", "", 0o755, 0]


def update_of(
    rows: list[list[object]], groups: list[bytes] | None = None, window_bytes: int = 1 << 20
) -> bytes:
    """An update from nothing, with its digests right for whatever the rows are."""
    out = bytearray()
    lines = b"".join(encode_row(row[:6] if row[0] == "f" else row) for row in rows)
    after = hashlib.sha256(lines).hexdigest()
    writer = UpdateWriter(out.extend, Header("main", 0, 1, EMPTY_DIGEST, after, window_bytes))
    for row in rows:
        writer.row(row)
    for group in groups or []:
        writer.group(group)
    writer.close()
    return bytes(out)


def applied(base: Path, data: bytes, window_bytes: int | None = None) -> None:
    """Apply to a fresh tree below `base`."""
    update = Update(lambda at, length: data[at : at + length], len(data), window_bytes)
    update.verify()
    stage = DiskStage(base / "trees" / "new", None, set(), set())
    (base / "trees").mkdir()
    application = Application(update, lambda: (), stage)
    application.build()
    application.finish()


def file(path: str, *source: object, size: int = len(SECRET), sha256: str = SHA) -> list[object]:
    return ["f", path, 0o644, 0, size, sha256, *source]


@pytest.mark.parametrize(
    "rows",
    [
        [file("../escaped", "group")],
        [file("/escaped", "group")],
        [file("a/../../escaped", "group")],
        [file("a//escaped", "group")],
        [file("./escaped", "group")],
        [file("nul\0", "group")],
        [["l", "out", 0o777, 0, ".."], file("out/escaped", "group")],
        [["l", "out", 0o777, 0, ".."], ["d", "out/escaped", 0o755, 0]],
        [["l", "out", 0o777, 0, "../.."], ["h", "stolen", "out/secret"]],
        [["l", "out", 0o777, 0, "../.."], file("stolen", "new", "out/secret")],
        [file("stolen", "new", "../../secret")],
        [file("stolen", "old", "../../secret")],
        [["h", "stolen", "../../secret"]],
        [file("stolen", "new", "/dev/zero")],
        [["d", "b", 0o755, 0], ["d", "a", 0o755, 0]],
        [["f", "x", 0o107777, 0, 0, EMPTY_DIGEST, "group"]],
        [["f", "x", 0o644, 1 << 70, 0, EMPTY_DIGEST, "group"]],
        [["f", "x", 0o644, 0, -5, EMPTY_DIGEST, "group"]],
        [["p", "pipe", 0o644, 0]],
        [["-", "nothing"]],
        [file("x", "same")],
    ],
    ids=str,
)
def test_no_name_leads_out_of_the_tree(tmp_path: Path, rows: list[list[object]]) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    group = encode_group((FilePart(str(rows[-1][1]), 0, len(SECRET)),), (), b"", SECRET)
    with pytest.raises((BadManifest, FileNotFoundError)):
        applied(tmp_path, update_of([ROOT, *rows], [group]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "trees"]
    assert [path.name for path in (tmp_path / "trees").iterdir()] in ([], ["new"])
    for path in (tmp_path / "trees").rglob("*"):
        assert path.is_symlink() or not path.is_file() or path.read_bytes() != SECRET


def test_contents_that_were_not_announced_are_refused(tmp_path: Path) -> None:
    rows = [ROOT, file("a", "group")]
    for number, parts in enumerate(
        [
            (FilePart("b", 0, len(SECRET)),),
            (FilePart("a", 5, len(SECRET)),),
            (FilePart("a", 0, len(SECRET)), FilePart("a", 0, len(SECRET))),
            (FilePart("a", 0, 3),),
            (),
        ]
    ):
        content = b"".join(SECRET[: part.length] for part in parts)
        base = tmp_path / str(number)
        base.mkdir()
        with pytest.raises(BadManifest):
            applied(base, update_of(rows, [encode_group(parts, (), b"", content)]))


def test_a_bomb_does_not_go_off(tmp_path: Path) -> None:
    size = 256 << 20
    bomb = pack(bytes(size), 1)
    assert len(bomb) < size / 1000
    head = b'[[["a",%d]],[],"zstd"]' % size
    group = struct.pack(">II", len(pack(head)), len(head)) + pack(head) + bomb
    rows = [ROOT, file("a", "group", size=size, sha256="0" * 64)]
    with pytest.raises(BadManifest, match="larger than its header promised"):
        applied(tmp_path, update_of(rows, [group]))


def test_a_window_larger_than_the_index_promised_is_refused(tmp_path: Path) -> None:
    content = bytes(2 << 20)
    group = encode_group((FilePart("a", 0, len(content)),), (), b"", content)
    sha256 = hashlib.sha256(content).hexdigest()
    data = update_of([ROOT, file("a", "group", size=len(content), sha256=sha256)], [group], 1 << 40)
    with pytest.raises(BadManifest, match="larger than its header promised"):
        applied(tmp_path, data, window_bytes=1 << 20)


def test_a_frame_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    content = bytes(1 << 20)
    head = b'[[["a",10]],[],"zstd"]'
    group = struct.pack(">II", len(pack(head)), len(head)) + pack(head) + pack(content)
    rows = [ROOT, file("a", "group", size=10, sha256=hashlib.sha256(bytes(10)).hexdigest())]
    with pytest.raises(BadManifest, match="wrong length"):
        applied(tmp_path, update_of(rows, [group]))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    fill(site.tree)
    site.publish()
    return site


def spoilt(follower: Follower, name: str, damage: Callable[[bytes], bytes]) -> None:
    (path,) = [p for p in follower.place.home.rglob(name) if p.is_file()]
    path.write_bytes(damage(path.read_bytes()))


DAMAGES: list[Callable[[bytes], bytes]] = [
    lambda data: b"",
    lambda data: data[: len(data) // 2],
    lambda data: bytes(len(data)),
    lambda data: data[:-2] + bytes([data[-2] ^ 1]) + data[-1:],
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name",
    ["cache", "timestamp.json", "timestamp.etag", "snapshot.json", "targets.json", "*.index.json"],
)
def test_what_rots_at_the_mirror_is_fetched_again(
    site: Site, name: str, damage: Callable[[bytes], bytes]
) -> None:
    follower = site.follower()
    follower.once()
    site.now += 60
    follower.once()
    spoilt(follower, name, damage)
    (site.tree / "new").write_bytes(b"new")
    site.publish()
    assert site.follower().once().version == 2
    assert described(follower.place.live) == described(site.tree)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_rotten_manifest_is_replaced_by_a_snapshot(
    site: Site, damage: Callable[[bytes], bytes]
) -> None:
    follower = site.follower()
    follower.once()
    spoilt(follower, follower.place.state.manifest_sha256, damage)
    assert site.follower().once().changed
    assert described(follower.place.live) == described(site.tree)
    assert not site.follower().once().changed


@pytest.mark.parametrize(
    ("name", "code"), [("state.json", "bad-state"), ("root.json", "bad-state")]
)
def test_a_rotten_state_or_root_is_named(site: Site, name: str, code: str) -> None:
    follower = site.follower()
    follower.once()
    before = described(follower.place.live)
    for path in follower.place.home.rglob("*"):
        if path.name.endswith(name) and not path.is_dir():
            path.write_bytes(b"{}")
    with pytest.raises(MirrorProblem) as caught:
        Follower(follower.place, follower.settings, transport_of(follower), lambda: site.now).once()
    assert caught.value.code == code
    assert described(follower.place.live) == before


def test_a_damaged_timestamp_does_not_hide_the_next_version(site: Site) -> None:
    """Its validator must not be believed: the answer to it would be 304 for ever."""
    follower = site.follower()
    follower.once()
    (site.tree / "new").write_bytes(b"new")
    site.publish()
    transport = transport_of(follower)
    plain = transport.request

    def tagged(method: str, url: str, **more: object):  # type: ignore[no-untyped-def]
        answer = plain(method, url, **more)  # type: ignore[arg-type]
        if not url.endswith("timestamp.json"):
            return answer
        true = hashlib.sha256((site.publish_dir / "metadata/timestamp.json").read_bytes())
        tag = f'"{true.hexdigest()}"'
        if (more.get("headers") or {}).get("If-None-Match") == tag:  # type: ignore[union-attr, attr-defined]
            return Reply(304, {}, b"")
        return Reply(answer.status, {"etag": tag}, answer.body)

    transport.request = tagged  # type: ignore[method-assign]
    transport.spoil = lambda path, data: (
        data.replace(b'"sig":"', b'"sig":"00') if path.endswith("timestamp.json") else data
    )
    with pytest.raises(MirrorProblem):
        follower.once()
    transport.spoil = lambda path, data: data
    assert follower.once().version == 2
    assert not follower.once().changed


def test_a_leftover_of_a_download_is_not_believed(site: Site) -> None:
    follower = site.follower()
    transport = transport_of(follower)

    def broken(url: str, path: Path, length_bytes: int, sha256: str) -> None:
        path.write_bytes(b"half of it")
        raise DownloadError("the network went away")

    whole, transport.download = transport.download, broken  # type: ignore[method-assign]
    with pytest.raises(MirrorProblem):
        follower.once()
    transport.download = whole  # type: ignore[method-assign]
    assert follower.once().version == 1
    assert not list(follower.place.downloads.iterdir())
