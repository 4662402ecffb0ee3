from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.client.net.errors import LocalProblem, NoRoom
from tidegate.client.storage.journal import Identity, Journal, boot_id, part_and_journal
from tidegate.client.storage.output import FileOutput
from tidegate.client.storage.piece_writer import FileStorage, Pieces, PieceWriter, RingStorage
from tidegate.protocol.intervals import IntervalSet

DATA = Random(5).randbytes(1000)


class Memory:
    """A backing in memory."""

    def __init__(self) -> None:
        self.data = bytearray(2000)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self.data[offset : offset + len(data)] = data

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.data[offset : offset + length])

    def close(self) -> None:
        pass


def pieces(length: int) -> Pieces:
    parts = [DATA[at : at + length] for at in range(0, len(DATA), length)]
    return Pieces(length, "sha256", tuple(hashlib.sha256(part).digest() for part in parts))


def writer(length: int = 100) -> PieceWriter:
    digest = ("sha256", hashlib.sha256(DATA).digest())
    made = PieceWriter(Memory(), len(DATA))
    made.use_pieces(pieces(length))
    made.use_digest(digest)
    return made


writes = st.lists(
    st.tuples(st.integers(0, 999), st.integers(1, 400), st.integers(0, 3), st.booleans()),
    max_size=25,
)


@settings(max_examples=100)
@given(writes, st.sampled_from([7, 100, 333, 5000]))
def test_any_order_ends_with_every_byte_right_and_liars_named(
    turns: list[tuple[int, int, int, bool]], length: int
) -> None:
    one = writer(length)
    lied = False
    for offset, count, source, honest in turns:
        data = DATA[offset : offset + count]
        if not honest:
            data, source = bytes(255 - byte for byte in data), 9
        fresh = one.write_at(offset, data, source)
        lied = lied or (not honest and fresh > 0)
        one.check()
    for _ in range(3):
        for start, end in one.missing():
            one.write_at(start, DATA[start:end], 1)
        one.check()
    assert one.complete
    assert one.right()
    assert bytes(one.backing.read(0, 1000)) == DATA
    assert one.culprits <= {9}
    assert bool(one.culprits) == lied


def test_who_spoilt_a_piece_first_is_named_even_if_it_is_spoilt_again() -> None:
    one = writer(100)
    for honest, liar in ((2, 1), (4, 3)):
        one.write_at(0, DATA[:50], honest)
        one.write_at(50, bytes(50), liar)
        assert [bad.sources for bad in one.check()] == [(liar, honest)]
    one.write_at(0, DATA[:100], 2)
    assert one.check() == []
    assert one.culprits == {1}


def test_overlapping_writes_count_once() -> None:
    one = writer()
    assert one.write_at(0, DATA[:50]) == 50
    assert one.write_at(25, DATA[25:75]) == 25
    assert one.missing() == [(75, 1000)]
    assert one.sources(0, 1000) == [(0, 75, 0)]


def test_bytes_outside_the_file_are_refused() -> None:
    with pytest.raises(ValueError, match="outside"):
        writer().write_at(990, b"x" * 11)


def test_a_digest_learnt_late_is_checked_too() -> None:
    one = PieceWriter(Memory(), len(DATA))
    one.write_at(0, DATA)
    assert one.right()
    one.use_digest(("sha256", hashlib.sha256(b"other").digest()))
    assert not one.right()


def test_wrong_bytes_at_the_end_of_what_is_hashed_are_hashed_anew() -> None:
    one = PieceWriter(Memory(), len(DATA))
    one.use_digest(("sha256", hashlib.sha256(DATA).digest()))
    one.write_at(0, DATA[:100] + b"x" * 100)
    one.forget(100, 200)
    one.write_at(100, DATA[100:])
    assert one.right()


def test_a_ring_moves_over_the_file() -> None:
    ring = RingStorage(100)
    ring.write(50, DATA[50:100])
    ring.write(0, DATA[:50])
    assert ring.read(0, 100) == DATA[:100]
    with pytest.raises(ValueError, match="window"):
        ring.write(90, DATA[90:110])
    ring.passed = 60
    ring.write(100, DATA[100:160])
    assert ring.read(60, 500) == DATA[60:160]


def test_a_part_file_of_another_digest_belongs_to_another_file() -> None:
    """Neither an equal validator nor an equal list of pieces outweighs a digest."""
    old = Identity(1000, {"http://a/": '"x"'}, "sha256:00", "pieces")
    same = {"validators": {"http://a/": '"x"'}, "pieces": "pieces"}
    assert not old.vouched_by(Identity(1000, digest="sha256:01", **same))
    assert not old.vouched_by(Identity(1001, digest="sha256:00", **same))
    assert old.vouched_by(Identity(1000, digest="sha256:00"))
    assert old.vouched_by(Identity(1000, pieces="pieces"))
    assert old.vouched_by(Identity(1000, {"http://a/": '"x"'}))
    assert not old.vouched_by(Identity(1000, {"http://b/": '"x"'}, pieces="other"))


def test_a_journal_remembers_what_arrived(tmp_path: Path) -> None:
    path = tmp_path / "f.tidegate-part.journal"
    journal = Journal(path)
    assert journal.identity is None
    journal.start(Identity(1000, {"http://a/": '"x"'}, "sha256:00"), IntervalSet(), set())
    have = IntervalSet([(0, 300), (400, 500)])
    journal.note(have, {0})
    # The same object, as a download has one that changes.
    have.remove(200, 300)
    have.add(500, 600)
    journal.note(have, {0, 1})
    with pytest.raises(LocalProblem, match="another download"):
        Journal(path)
    journal.close()
    with path.open("a") as file:
        # Of a longer number.
        file.write("= 7")
    again = Journal(path)
    assert again.identity is not None
    assert again.identity.validators == {"http://a/": '"x"'}
    assert list(again.have) == [(0, 200), (400, 600)]
    assert again.checked == {0, 1}
    again.remove()
    assert not path.exists()


@pytest.mark.parametrize("junk", [b"", b"{}", b"\xff\xfe\n+ 1 2\n", b'{"size": "x"}\n', b"[1]\n"])
def test_a_spoilt_journal_is_no_journal(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(junk)
    journal = Journal(path)
    assert journal.identity is None
    journal.close()


def test_a_folder_that_is_not_there_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(LocalProblem, match="the folder does not exist"):
        FileStorage(tmp_path / "no" / "file")


def test_a_folder_that_takes_no_files_is_not_said_to_be_missing() -> None:
    with pytest.raises(LocalProblem, match="takes no new files"):
        FileStorage(Path("/proc/x"))


@pytest.mark.parametrize("name", ["x" * 234, "x" * 255, "ü" * 127])
def test_a_file_may_have_as_long_a_name_as_any(tmp_path: Path, name: str) -> None:
    """What stands beside it while it is fetched has a longer one."""
    output = FileOutput(tmp_path / name)
    writer = output.open(Identity(3))
    writer.write_at(0, b"abc")
    other = part_and_journal(tmp_path / (name[:-1] + "y"))
    assert not set(other) & set(part_and_journal(tmp_path / name))
    output.finish(None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {name: b"abc"}


def test_a_name_that_is_too_long_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(LocalProblem, match="the name is too long"):
        FileOutput(tmp_path / ("x" * 256)).resumable()


def test_a_folder_that_is_not_there_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(LocalProblem, match=r"cannot write \S+/no/x: the folder does not exist"):
        FileOutput(tmp_path / "no" / "x").resumable()


def test_a_folder_that_may_not_be_written_is_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The suite may run as root, who may write everywhere.
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(LocalProblem, match="no permission to write there"):
        FileOutput(tmp_path / "x").resumable()


def test_a_part_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("/etc/passwd")
    with pytest.raises(LocalProblem, match="symbolic link"):
        FileStorage(tmp_path / "x")


def left_behind(folder: Path, boot: str, digest: str | None) -> FileOutput:
    """A part file of an earlier download, with a journal that says when it was written."""
    (folder / "f.tidegate-part").write_bytes(DATA)
    head = {"size": 1000, "validators": {"u": '"v"'}, "digest": digest, "pieces": None}
    journal = json.dumps({**head, "boot": boot}) + "\n+ 0 500\n"
    (folder / "f.tidegate-part.journal").write_text(journal)
    return FileOutput(folder / "f")


def test_a_part_file_that_lacks_bytes_of_its_journal_is_begun_anew(tmp_path: Path) -> None:
    left = left_behind(tmp_path, boot_id(), "sha256:00")
    os.truncate(tmp_path / "f.tidegate-part", 499)
    assert left.resumable() is None
    left.close(discard=True)


def test_only_the_missing_bytes_need_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileStorage, "room_bytes", lambda self: 600)
    left = left_behind(tmp_path, boot_id(), "sha256:00")
    assert left.open(Identity(1000, digest="sha256:00")).have.total == 500
    left.close(discard=True)
    with pytest.raises(NoRoom, match=r"1\.0 kB are needed and 600 B are free"):
        FileOutput(tmp_path / "f").open(Identity(1000))


@pytest.mark.parametrize("digest", [None, "sha256:00"])
def test_after_a_reboot_only_a_digest_vouches_for_a_part_file(
    tmp_path: Path, digest: str | None
) -> None:
    """The journal may have reached the disk and the bytes not."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    ours = left_behind(tmp_path / "a", boot_id(), digest)
    assert ours.resumable() is not None
    theirs = left_behind(tmp_path / "b", "another-boot", digest)
    assert (theirs.resumable() is not None) == (digest is not None)
    writer = theirs.open(Identity(1000, {"u": '"v"'}, digest))
    assert writer.have.total == (500 if digest is not None else 0)
    ours.close(discard=True)
    theirs.close(discard=True)


def finished(path: Path, chosen: bool, name: str | None = None) -> tuple[FileOutput, str | None]:
    target = FileOutput(path, chosen=chosen)
    target.open(Identity(3)).write_at(0, b"new")
    return target, target.finish(name)


@pytest.mark.parametrize("links", [True, False])
def test_a_name_the_user_did_not_give_replaces_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", refuse_links)
    mine = tmp_path / "Makefile"
    mine.write_text("mine")
    for name in ("Makefile.1", "Makefile.2"):
        target, note = finished(tmp_path / "x.iso", True, "Makefile")
        assert target.path == tmp_path / name
        assert note is not None
        assert name in note
    assert mine.read_text() == "mine"
    assert (tmp_path / "Makefile.2").read_bytes() == b"new"
    target, note = finished(tmp_path / "x.iso", False)
    assert (target.path, note) == (tmp_path / "x.iso", None)
    target, _ = finished(tmp_path / "x.iso", False)
    assert target.path == tmp_path / "x.1.iso"
    assert not list(tmp_path.glob("*part*"))


def refuse_links(*_: object, **__: object) -> None:
    raise PermissionError("this file system knows no links")


def test_a_name_the_user_gave_replaces_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.iso").write_text("old")
    target, note = finished(tmp_path / "x.iso", True, "x.iso")
    assert (target.path, note) == (tmp_path / "x.iso", None)
    assert (tmp_path / "x.iso").read_bytes() == b"new"


@pytest.mark.parametrize(("boot", "trusted"), [(boot_id(), {0}), ("another-boot", set())])
def test_after_a_reboot_checked_pieces_are_checked_again(
    tmp_path: Path, boot: str, trusted: set[int]
) -> None:
    """The journal may say of a piece that it was right, and its bytes may not have reached the
    disk."""
    output = left_behind(tmp_path, boot, "sha256:00")
    with (tmp_path / "f.tidegate-part.journal").open("a") as journal:
        journal.write("= 0\n")
    writer = output.open(Identity(1000, {"u": '"v"'}, "sha256:00"))
    assert writer.have.total == 500
    assert writer.checked == trusted
    output.close(discard=True)
