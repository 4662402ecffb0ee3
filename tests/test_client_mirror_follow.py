"""A follower beside its publisher: it ends with the same tree, or keeps the old and says why."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from mirror_site import Site, described, edit, fill, transport_of

from tidegate.client.mirror import drift as drift_module
from tidegate.client.mirror import follow as following
from tidegate.client.mirror.cli import status
from tidegate.client.mirror.follow import Follower
from tidegate.client.mirror.problem import MirrorProblem
from tidegate.client.mirror.stage import DiskStage, LiveDisk
from tidegate.protocol.tree_scan import Found, Stamp
from tidegate.server.mirror.publish import PublishSettings


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    fill(site.tree)
    site.publish()
    return site


def two_versions(site: Site, **settings: object):  # type: ignore[no-untyped-def]
    """A follower at version 1, the channel at version 2, and what the first tree was."""
    follower = site.follower(**settings)
    follower.once()
    old = described(follower.place.live)
    edit(site.tree)
    site.publish()
    return follower, old


def test_first_round_brings_the_whole_tree(site: Site) -> None:
    follower = site.follower()
    done = follower.once()
    assert (done.version, done.latest, done.changed) == (1, 1, True)
    assert described(follower.place.live) == described(site.tree)
    assert follower.place.live.is_symlink()


def test_an_update_leads_to_the_same_tree_with_every_attribute(site: Site) -> None:
    follower, _ = two_versions(site)
    done = follower.once()
    assert (done.version, done.changed, done.repaired) == (2, True, ())
    assert described(follower.place.live) == described(site.tree)
    assert not any("0-2" in path for path in transport_of(follower).asked)


def test_a_real_directory_is_exchanged_and_readers_keep_theirs(site: Site, tmp_path: Path) -> None:
    live = tmp_path / "mirror"
    live.mkdir()
    follower, old = two_versions(site)
    reader = os.open(live, os.O_RDONLY)
    follower.once()
    assert live.is_dir()
    assert not live.is_symlink()
    assert described(live) == described(site.tree)
    assert described(Path(f"/proc/self/fd/{reader}")) == old
    os.close(reader)


def test_sparse_files_stay_sparse_at_both_ends(site: Site) -> None:
    def occupied(folder: Path) -> int:
        return sum(
            512 * path.lstat().st_blocks
            for path in folder.rglob("*")
            if path.is_file() and not path.is_symlink()
        )

    follower = site.follower()
    follower.once()
    before = occupied(site.publish_dir), occupied(follower.place.live)
    with (site.tree / "disk.img").open("wb") as image:
        image.write(b"begin" * 10_000)
        image.seek(60_000_000)
        image.write(b"end")
        image.truncate(90_000_000)
    site.publish()
    follower.once()
    assert described(follower.place.live) == described(site.tree)
    assert occupied(site.publish_dir) - before[0] < 10_000_000
    assert occupied(follower.place.live) - before[1] < 10_000_000
    # A new version shares it or copies it; whole.
    (site.tree / "disk.img").rename(site.tree / "renamed.img")
    (site.tree / "second.img").write_bytes((site.tree / "renamed.img").read_bytes())
    site.publish()
    follower.once()
    assert described(follower.place.live) == described(site.tree)
    assert occupied(follower.place.live) - before[1] < 20_000_000


def test_without_news_a_round_reads_no_file_and_changes_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = site.follower()
    follower.once()
    site.now += 60
    follower.once()

    def read(*_: object) -> None:
        raise AssertionError("a file was read")

    monkeypatch.setattr(drift_module.LiveDisk, "digest", read)
    done = follower.once()
    assert (done.changed, done.fetched_bytes) == (False, 0)


def test_without_changes_a_publish_costs_a_follower_almost_nothing(site: Site) -> None:
    follower = site.follower()
    follower.once()
    transport = transport_of(follower)
    transport.asked.clear()
    assert not site.publish().changed
    follower.once()
    sizes = [
        path.stat().st_size
        for path in (site.publish_dir / asked for asked in transport.asked)
        if path.exists()
    ]
    assert sum(sizes) < 20_000


def test_a_chain_is_followed_and_only_its_end_goes_live(site: Site) -> None:
    follower, _ = two_versions(site)
    (site.tree / "third").write_bytes(b"3")
    (site.tree / "pkg" / "a.py").write_bytes(b"rewritten")
    site.publish()
    done = follower.once()
    assert done.version == 3
    assert described(follower.place.live) == described(site.tree)


def test_no_delta_channels_carry_whole_contents(tmp_path: Path) -> None:
    site = Site(tmp_path, PublishSettings(delta=False))
    fill(site.tree)
    site.publish()
    follower, _ = two_versions(site)
    follower.once()
    assert described(follower.place.live) == described(site.tree)


def test_drift_is_found_and_repaired_by_whole_files(site: Site) -> None:
    follower = site.follower()
    follower.once()
    live = follower.place.live
    (live / "pkg" / "a.py").write_bytes(b"vandalised")
    (live / "pkg" / "b.py").unlink()
    (live / "stranger").write_bytes(b"not ours")
    (live / "pkg" / "sub" / "data.bin").chmod(0o777)
    transport_of(follower).asked.clear()
    done = follower.once()
    assert {"pkg/a.py", "pkg/b.py", "stranger", "pkg/sub/data.bin"} <= set(done.repaired)
    assert described(live) == described(site.tree)
    brought = [path for path in transport_of(follower).asked if path.startswith("objects/")]
    assert len(brought) == 2
    assert follower.once().repaired == ()


def test_drift_under_an_update_is_repaired_on_the_way(site: Site) -> None:
    follower, _ = two_versions(site)
    (follower.place.live / "pkg" / "a.py").write_bytes(b"vandalised reference")
    (follower.place.live / "pkg" / "sub" / "data.bin").write_bytes(b"vandalised rename")
    follower.once()
    assert described(follower.place.live) == described(site.tree)


def test_a_file_that_rotted_unnoticed_is_not_taken_over_under_a_new_name(tmp_path: Path) -> None:
    for name, content in (("good", b"whole"), ("bad", b"rots")):
        (tmp_path / "old").mkdir(exist_ok=True)
        (tmp_path / "old" / name).write_bytes(content)
    (tmp_path / "new").mkdir()
    stage = DiskStage(tmp_path / "new", tmp_path / "old", set(), set())
    sha256 = hashlib.sha256(b"whole").hexdigest()
    assert stage.copy_old("kept", "good", sha256)
    assert not stage.copy_old("spoilt", "bad", sha256)
    assert described(tmp_path / "new").keys() == {"kept"}
    stage.close()


def test_a_change_hidden_from_size_and_mtime_is_found_paranoidly(site: Site) -> None:
    site.now += 60
    follower = site.follower(paranoid=True)
    follower.once()
    path = follower.place.live / "pkg" / "a.py"
    before = path.stat()
    path.write_bytes(b"X" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert follower.once().repaired == ("pkg/a.py",)


def test_a_file_written_just_now_is_read_again_in_the_next_round(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next write in the same tick of the clock would leave its stamp as it is."""
    digest, looked = LiveDisk.digest, set()

    def watched(disk: LiveDisk, path: str, found: Found) -> tuple[Stamp, str]:
        looked.add(path)
        return digest(disk, path, found)

    monkeypatch.setattr(LiveDisk, "digest", watched)
    written_ns = int((site.now - 1.0) * 1e9)
    os.utime(site.tree / "pkg" / "a.py", ns=(written_ns, written_ns))
    site.publish()
    follower = site.follower()
    follower.once()
    for later_s, reads in ((0.0, True), (60.0, True), (0.0, False)):
        looked.clear()
        site.now += later_s
        follower.once()
        assert ("pkg/a.py" in looked) == reads
        assert "pkg/b.py" not in looked


def test_drift_in_what_the_origin_forgot_is_cured_by_a_snapshot(site: Site) -> None:
    follower = site.follower()
    follower.once()
    # Three versions on, the origin no longer has the content that was vandalised here.
    for number in range(3):
        (site.tree / "pkg" / "a.py").write_bytes(b"number %d\n" % number * 400)
        site.publish()
    (follower.place.live / "pkg" / "a.py").write_bytes(b"vandalised")
    done = follower.once()
    assert done.version == 4
    assert described(follower.place.live) == described(site.tree)


@pytest.mark.parametrize(("lost", "one_by_one"), [(2, 2), (60, 0)])
def test_many_small_lost_files_come_in_a_snapshot_and_few_one_by_one(
    site: Site, lost: int, one_by_one: int
) -> None:
    """The 60 have 6 kB together: fewer than the rest of the tree, which the snapshot has too."""
    for number in range(60):
        (site.tree / "pkg" / f"small{number}").write_bytes(b"%100d" % number)
    site.publish()
    follower = site.follower()
    follower.once()
    for number in range(lost):
        (follower.place.live / "pkg" / f"small{number}").write_bytes(b"vandalised")
    transport_of(follower).asked.clear()
    follower.once()
    assert described(follower.place.live) == described(site.tree)
    asked = transport_of(follower).asked
    assert sum(path.startswith("objects/") for path in asked) == one_by_one


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "disk-full"),
        (errno.EDQUOT, "disk-full"),
        (errno.EACCES, "wrong-owner"),
        (errno.EPERM, "wrong-owner"),
        (errno.EROFS, "read-only"),
        (errno.EXDEV, "other-filesystem"),
        (errno.EBUSY, "mount-point"),
        (errno.ENAMETOOLONG, "bad-name"),
    ],
)
def test_what_the_file_system_refuses_has_a_name(
    site: Site, number: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, old = two_versions(site)

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/some/where")

    with monkeypatch.context() as patched:
        patched.setattr(DiskStage, "make_dir", refused)
        with pytest.raises(MirrorProblem) as caught:
            follower.once()
    assert caught.value.code == code
    assert described(follower.place.live) == old
    assert follower.once().version == 2


def test_a_lost_tree_is_brought_again(site: Site) -> None:
    follower = site.follower()
    follower.once()
    follower.place.live.unlink()
    follower.once()
    assert described(follower.place.live) == described(site.tree)


def test_fetched_updates_are_kept_for_other_mirrors(site: Site, tmp_path: Path) -> None:
    relay = tmp_path / "relay"
    follower, _ = two_versions(site, relay=relay)
    follower.once()
    kept = {path.name for path in (relay / "targets" / "main").iterdir()}
    published = {path.name for path in (site.publish_dir / "targets" / "main").iterdir()}
    assert any(name.endswith(".1-2.update") for name in kept)
    assert kept <= published
    for name in kept:
        offered = site.publish_dir / "targets" / "main" / name
        assert (relay / "targets" / "main" / name).read_bytes() == offered.read_bytes()


def shown_of(follower: Follower) -> str:
    return CliRunner().invoke(status, [str(follower.place.live)]).output


def test_the_previous_version_can_be_gone_back_to(site: Site) -> None:
    follower, old = two_versions(site)
    follower.once()
    assert follower.rollback() == 1
    assert described(follower.place.live) == old
    assert "waits for a version after 2" in shown_of(follower)
    assert follower.once().version == 1
    (site.tree / "third").write_bytes(b"3")
    site.publish()
    assert follower.once().version == 3
    assert described(follower.place.live) == described(site.tree)
    assert "waits" not in shown_of(follower)


@pytest.mark.parametrize("real", [False, True])
def test_old_trees_are_removed_beyond_those_kept(site: Site, tmp_path: Path, real: bool) -> None:
    if real:
        (tmp_path / "mirror").mkdir()
    follower, _ = two_versions(site)
    for number in range(4):
        (site.tree / "count").write_bytes(b"%d" % number)
        site.publish()
        follower.once()
    kept = len(list(follower.place.trees.iterdir()))
    assert kept == (1 if real else 2)
    assert described(follower.place.live) == described(site.tree)


def refuses(site: Site, follower, old: object, code: str) -> None:  # type: ignore[no-untyped-def]
    """The round fails by this name, the tree stays, and once the fault is gone all is well."""
    with pytest.raises(MirrorProblem) as caught:
        follower.once()
    assert caught.value.code == code, str(caught.value)
    assert described(follower.place.live) == old
    transport_of(follower).spoil = lambda path, data: data
    assert follower.once().version == 2
    assert described(follower.place.live) == described(site.tree)


@pytest.mark.parametrize(
    ("suffix", "damage", "code"),
    [
        (".update", lambda data: data[: len(data) // 2], "corrupt-update"),
        (".update", lambda data: data[:-1] + bytes([data[-1] ^ 1]), "corrupt-update"),
        (".update", lambda data: b"", "corrupt-update"),
        ("timestamp.json", lambda data: data[: len(data) // 2], "bad-metadata"),
        ("timestamp.json", lambda data: data.replace(b'"sig":"', b'"sig":"00'), "bad-signature"),
        (".snapshot.json", lambda data: data.replace(b"1", b"2"), "mixed"),
        (".index.json", lambda data: data.replace(b"main", b"evil"), "mixed"),
    ],
)
def test_damage_on_the_way_is_named_and_changes_nothing(site: Site, suffix, damage, code) -> None:  # type: ignore[no-untyped-def]
    follower, old = two_versions(site)
    transport_of(follower).spoil = lambda path, data: (
        damage(data) if path.endswith(suffix) else data
    )
    refuses(site, follower, old, code)


def test_an_older_state_is_refused_once_a_newer_was_seen(site: Site) -> None:
    older = {p: p.read_bytes() for p in site.publish_dir.rglob("*.json")}
    follower, _ = two_versions(site)
    follower.once()
    new = described(follower.place.live)
    transport_of(follower).spoil = lambda path, data: older.get(site.publish_dir / path, data)
    with pytest.raises(MirrorProblem) as caught:
        follower.once()
    assert caught.value.code == "rolled-back"
    assert described(follower.place.live) == new


def test_expired_metadata_is_a_freeze(tmp_path: Path) -> None:
    site = Site(tmp_path)
    fill(site.tree)
    now = site.now
    site.now -= timedelta(days=30).total_seconds()
    site.publish()
    follower = site.follower()
    with pytest.raises(MirrorProblem) as caught:
        follower.once()
    assert caught.value.code == "frozen"
    site.now = now
    site.publish()
    assert follower.once().version == 1


def test_another_publishers_signature_is_refused(site: Site, tmp_path: Path) -> None:
    follower, old = two_versions(site)
    stranger = Site(tmp_path / "stranger", now=site.now)
    fill(stranger.tree)
    for _ in range(4):
        stranger.publish()

    def swapped(path: str, data: bytes) -> bytes:
        other = stranger.publish_dir / path
        return other.read_bytes() if path.startswith("metadata") and other.exists() else data

    transport_of(follower).spoil = swapped
    refuses(site, follower, old, "bad-signature")


def test_a_full_disk_keeps_the_old_version(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    follower, old = two_versions(site)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    with monkeypatch.context() as patched:
        patched.setattr(DiskStage, "write", full)
        with pytest.raises(MirrorProblem) as caught:
            follower.once()
    assert caught.value.code == "disk-full"
    refuses_not = follower.once()
    assert refuses_not.version == 2
    assert old != described(follower.place.live) == described(site.tree)


def test_names_that_differ_in_case_only_need_a_file_system_that_tells(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, old = two_versions(site)
    (site.tree / "PKG").mkdir()
    site.publish()
    monkeypatch.setattr(following, "ignores_case", lambda folder: True)
    with pytest.raises(MirrorProblem, match="'PKG' and 'pkg'") as caught:
        follower.once()
    assert caught.value.code == "case-clash"
    assert described(follower.place.live) == old


def test_somebodys_files_are_not_replaced_unasked(site: Site, tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "thesis.tex").write_bytes(b"years of work")
    with pytest.raises(MirrorProblem) as caught:
        site.follower().once()
    assert caught.value.code == "not-empty"
    site.follower(replace_existing=True).once()
    assert described(tmp_path / "mirror") == described(site.tree)


def test_too_little_memory_is_said(site: Site) -> None:
    with pytest.raises(MirrorProblem) as caught:
        site.follower(memory_bytes=1000).once()
    assert caught.value.code == "too-little-memory"


def test_a_newer_format_asks_for_a_newer_program(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, old = two_versions(site)
    index = next((site.publish_dir / "targets" / "main").glob("*.index.json"))
    assert json.loads(index.read_bytes())["format"] == 1
    monkeypatch.setattr("tidegate.protocol.channel.FORMAT", 2)
    with pytest.raises(MirrorProblem, match="newer Tidegate") as caught:
        follower.once()
    assert caught.value.code == "too-old"
    assert described(follower.place.live) == old


def test_without_a_root_nothing_is_trusted(site: Site, tmp_path: Path) -> None:
    follower = site.follower()
    for path in follower.place.trust.iterdir():
        if not path.is_dir():
            path.unlink()
    with pytest.raises(MirrorProblem) as caught:
        follower.once()
    assert caught.value.code == "no-root"


def test_a_fingerprint_pins_the_root(site: Site) -> None:
    import hashlib

    follower = site.follower("other")
    follower.trust.pin_fingerprint(hashlib.sha256(site.root).hexdigest())
    assert follower.once().version == 1
    with pytest.raises(MirrorProblem) as caught:
        follower.trust.pin_fingerprint("0" * 64)
    assert caught.value.code == "wrong-root"


def test_attributes_travel_when_asked_for(tmp_path: Path) -> None:
    site = Site(tmp_path, PublishSettings(attributes=True))
    (site.tree / "folder").mkdir()
    (site.tree / "folder" / "file").write_bytes(b"content")
    try:
        os.setxattr(site.tree / "folder" / "file", "user.origin", b"\0built here\xff")
        os.setxattr(site.tree / "folder", "user.kind", b"")
    except OSError:
        pytest.skip("this file system knows no attributes")
    (site.tree / "folder" / "file").chmod(0o444)
    assert site.publish().bared == []
    follower = site.follower()
    follower.once()
    live = follower.place.live / "folder"
    assert os.getxattr(live / "file", "user.origin") == b"\0built here\xff"
    assert os.getxattr(live, "user.kind") == b""
    # Another value is another version; the content does not travel for it.
    os.setxattr(site.tree / "folder" / "file", "user.origin", b"elsewhere")
    assert site.publish().updates[0][1].contents == 0
    follower.once()
    assert os.getxattr(live / "file", "user.origin") == b"elsewhere"
    # Drift of them is found and repaired; what the mirror's admin adds of his own is left.
    (live / "file").chmod(0o644)
    os.setxattr(live / "file", "user.origin", b"edited")
    os.setxattr(live.parent, "user.note", b"mine")
    assert follower.once().repaired == ("folder/file",)
    assert os.getxattr(live / "file", "user.origin") == b"elsewhere"
    os.removexattr(site.tree / "folder" / "file", "user.origin")
    site.publish()
    follower.once()
    assert os.listxattr(live / "file") == []


def test_a_file_system_without_attributes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, PublishSettings(attributes=True))
    (site.tree / "file").write_bytes(b"content")
    try:
        os.setxattr(site.tree / "file", "user.origin", b"x")
    except OSError:
        pytest.skip("this file system knows no attributes")
    site.publish()

    def refused(path: str, *_: object, **__: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), path)

    monkeypatch.setattr(os, "setxattr", refused)
    with pytest.raises(MirrorProblem) as caught:
        site.follower().once()
    assert caught.value.code == "no-attributes"
