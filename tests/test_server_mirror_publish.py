"""What publishing promises: nothing half done, nothing left behind, nothing read in vain."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path

import pytest
from mirror_site import Site, described, edit, fill

from tidegate.protocol.channel import index_path
from tidegate.protocol.tree import Entry
from tidegate.server.mirror.objects import ObjectError, ObjectStore
from tidegate.server.mirror.publish import PublishSettings, schedule_updates
from tidegate.server.mirror.repository import Repository, RepositoryProblem, initialise, utc


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    fill(site.tree)
    return site


def stored(site: Site) -> set[str]:
    return {path.name for path in (site.publish_dir / "objects").rglob("*") if path.is_file()}


def test_the_first_version_is_a_snapshot_and_the_next_an_update(site: Site) -> None:
    first = site.publish()
    assert [(edge.from_version, edge.to_version) for edge, _ in first.updates] == [(0, 1)]
    edit(site.tree)
    second = site.publish()
    assert (1, 2) in [(edge.from_version, edge.to_version) for edge, _ in second.updates]
    made = dict(second.updates)[next(e for e, _ in second.updates if e.from_version == 1)]
    assert made.renames >= 1
    assert made.deletions >= 2


def test_unchanged_files_are_not_read_again(site: Site) -> None:
    site.publish()
    (site.tree / "one").write_bytes(b"more")
    site.now += 60
    again = site.publish()
    assert again.seen.read_files == 1
    site.settings = PublishSettings(paranoid=True)
    assert site.publish().seen.read_files == again.seen.files


def test_an_edit_that_keeps_size_and_mtime_is_published(site: Site) -> None:
    site.publish()
    path = site.tree / "pkg" / "a.py"
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"'a'", b"'z'"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    site.now += 60
    assert site.publish().changed


def test_only_contents_of_the_last_two_versions_are_kept(site: Site) -> None:
    for number in range(4):
        (site.tree / "count").write_bytes(b"number %d" % number)
        site.publish()
    contents = {entry[3] for entry in described(site.tree).values() if entry[0] == "f"}  # type: ignore[index]
    assert len(stored(site)) == len(contents) + 1


def test_channels_share_a_directory_without_harm(site: Site) -> None:
    site.publish()
    tree = site.tree
    site.tree = site.base / "other"
    site.tree.mkdir()
    (site.tree / "file").write_bytes(b"of the other channel")
    shared = (tree / "pkg" / "a.py").read_bytes()
    (site.tree / "file").write_bytes(shared)
    site.publish("other")
    (site.tree / "file").write_bytes(b"changed")
    site.publish("other")
    (site.tree / "file").write_bytes(b"changed again")
    site.publish("other")
    assert hashlib.sha256(shared).hexdigest() in stored(site)
    site.tree = tree
    follower = site.follower()
    follower.once()
    (follower.place.live / "pkg" / "a.py").unlink()
    follower.once()
    assert described(follower.place.live) == described(tree)


def test_what_a_run_that_died_stored_is_removed_with_the_next_version(site: Site) -> None:
    site.publish()
    (site.publish_dir / ".state" / "main" / "unfinished").touch()
    before = stored(site)
    (site.base / "orphan").write_bytes(b"of no manifest")
    ObjectStore(site.publish_dir / "objects").put(str(site.base / "orphan"))
    # Nothing has changed, so nothing is swept yet.
    site.publish()
    assert stored(site) > before
    edit(site.tree)
    site.publish()
    assert hashlib.sha256(b"of no manifest").hexdigest() not in stored(site)


def test_large_updates_make_a_snapshot_due(site: Site) -> None:
    """So a new mirror fetches at most one and a half of them."""
    for seed in range(2):
        (site.tree / "large").write_bytes(random.Random(seed).randbytes(200_000))
        made = site.publish()
    assert [(edge.from_version, edge.to_version) for edge, _ in made.updates] == [(1, 2), (0, 2)]


def test_special_files_are_left_out_and_named(site: Site) -> None:
    os.mkfifo(site.tree / "pipe")
    assert site.publish().skipped == ["pipe"]
    site.follower().once()
    assert not (site.base / "mirror" / "pipe").exists()


def test_extended_attributes_are_left_out_aloud(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attributes(path: str, *, follow_symlinks: bool) -> list[str]:
        assert not follow_symlinks
        return ["security.selinux", *(["user.note"] if path.endswith("/marked") else [])]

    (site.tree / "marked").write_bytes(b"1")
    monkeypatch.setattr(os, "listxattr", attributes)
    assert site.publish().bared == ["marked"]


def test_a_publish_directory_inside_the_tree_is_left_out(tmp_path: Path) -> None:
    site = Site(tmp_path)
    fill(site.tree)
    site.publish_dir = site.tree / "updates"
    site.root = initialise(site.publish_dir, site.keys, utc(site.now))
    site.publish()
    assert not site.publish().changed
    site.follower().once()
    assert not (tmp_path / "mirror" / "updates").exists()


def test_a_lost_reference_costs_a_delta_and_nothing_else(site: Site) -> None:
    site.publish()
    follower = site.follower()
    follower.once()
    for name in stored(site):
        (site.publish_dir / "objects" / name[:2] / name).unlink()
    edit(site.tree)
    site.settings = PublishSettings(paranoid=True)
    site.publish()
    follower.once()
    assert described(follower.place.live) == described(site.tree)


def test_a_damaged_content_is_noticed_and_stored_again(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path / "objects")
    (tmp_path / "file").write_bytes(b"content")
    _, digest = store.put(str(tmp_path / "file"))
    Path(store.path(digest)).write_bytes(b"garbage")
    entry = Entry("f", "file", 0o644, 0, 7, digest)
    with pytest.raises(ObjectError, match="--paranoid"):
        store.read(entry, 0, memoryview(bytearray(7)))
    store.put(str(tmp_path / "file"))
    again = bytearray(7)
    store.read(entry, 0, memoryview(again))
    assert again == b"content"


def test_old_versions_leave_the_index_and_the_disk(site: Site) -> None:
    site.settings = PublishSettings(keep_versions=2)
    for number in range(6):
        (site.tree / "count").write_bytes(os.urandom(200_000) + b"%d" % number)
        site.publish()
    repository = Repository(site.publish_dir, site.keys)
    index = repository.index("main")
    assert index.latest is not None
    assert index.latest.version == 6
    assert len(index.versions) <= 4
    files = list((site.publish_dir / "targets" / "main").iterdir())
    assert len(files) == len(index.edges) + 1
    assert len(repository.targets()) == len(files)
    assert index_path("main") in repository.targets()


def test_signatures_are_renewed_once_half_their_time_is_over(site: Site) -> None:
    """A channel that does not change stays valid, however long."""
    metadata = site.publish_dir / "metadata"

    def signed() -> dict[str, int]:
        found = (path.name.split(".")[:2] for path in metadata.glob("*.*.json"))
        return {role: int(number) for number, role in sorted(found, key=lambda one: int(one[0]))}

    site.publish()
    first = signed()
    for days, more in ((180.0, 0), (5.0, 1), (180.0, 1)):
        site.now += days * 86_400.0
        assert not site.publish().changed
        for role in ("snapshot", "targets"):
            assert signed()[role] == first[role] + more, (role, days)


def test_a_follower_that_reads_metadata_now_still_finds_those_before(site: Site) -> None:
    for number in range(4):
        (site.tree / "count").write_bytes(b"%d" % number)
        site.publish()
    for role in ("snapshot", "targets"):
        found = (site.publish_dir / "metadata").glob(f"*.{role}.json")
        numbers = sorted(int(path.name.split(".")[0]) for path in found)
        assert numbers == [numbers[-1] - 1, numbers[-1]], role


def test_a_second_publish_waits_its_turn(site: Site) -> None:
    from tidegate.server.mirror.publish import Publisher

    publisher = Publisher(site.publish_dir, site.keys, "main")
    with publisher._locked(), pytest.raises(RepositoryProblem, match="Another publish"):
        site.publish()


def test_keys_that_are_not_the_roots_are_refused(site: Site, tmp_path: Path) -> None:
    site.publish()
    initialise(tmp_path / "elsewhere", tmp_path / "other-keys", utc(site.now))
    site.keys = tmp_path / "other-keys"
    (site.tree / "more").touch()
    with pytest.raises(RepositoryProblem, match="not one this repository's root names"):
        site.publish()


def test_new_online_keys_are_taken_over_by_followers(site: Site) -> None:
    site.publish()
    follower = site.follower()
    follower.once()
    initialise(site.publish_dir, site.keys, utc(site.now))
    (site.tree / "more").touch()
    site.publish()
    assert follower.once().version == 2


def test_a_root_key_can_be_locked(tmp_path: Path) -> None:
    made = initialise(tmp_path / "p", tmp_path / "k", utc(1.8e9), "secret words")
    assert json.loads(made)["signed"]["_type"] == "root"
    with pytest.raises(RepositoryProblem, match="passphrase"):
        initialise(tmp_path / "p", tmp_path / "k", utc(1.8e9))
    initialise(tmp_path / "p", tmp_path / "k", utc(1.8e9), "secret words")


def test_a_publish_can_be_put_on_the_multicast_schedule(site: Site, tmp_path: Path) -> None:
    site.publish()
    edit(site.tree)
    done = site.publish()
    (path,) = schedule_updates(tmp_path / "state", "/updates/", "main", done.updates, 2e9)
    assert (site.publish_dir / path.removeprefix("/updates/")).is_file()
    (entry,) = (tmp_path / "state" / "multicast").glob("*.json")
    assert json.loads(entry.read_text())["path"] == path


def test_private_keys_are_never_published(tmp_path: Path) -> None:
    with pytest.raises(RepositoryProblem, match="would be served"):
        initialise(tmp_path / "p", tmp_path / "p" / "keys", utc(0))
    assert not (tmp_path / "p").exists()
    site = Site(tmp_path / "s")
    fill(site.tree)
    site.keys.rename(site.tree / "keys")
    site.keys = site.tree / "keys"
    with pytest.raises(RepositoryProblem, match="would be served"):
        site.publish()


def test_a_tree_is_not_published_into_itself(site: Site) -> None:
    site.tree = site.publish_dir
    with pytest.raises(RepositoryProblem, match="cannot be both"):
        site.publish()
