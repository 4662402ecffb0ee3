"""Alignment of a large content with its old one: right whatever was edited, and most is copied."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mirror_trees import Inode, MemoryStage, Tree, apply_update, make_update, open_update

from tidegate.protocol.batch_apply import Application
from tidegate.protocol.batch_generate import Alignment, Piece
from tidegate.protocol.batch_group import FilePart, decode_group, encode_group, encode_same
from tidegate.protocol.compress import pack
from tidegate.protocol.errors import BadManifest

WINDOW = 64 << 10


@st.composite
def edited(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A content of some 300 kB, partly of zeros and repetitions, and what edits made of it."""
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    kinds = (rng.randbytes, bytes, lambda n: (b"again and again, " * n)[:n])
    old = b"".join(rng.choice(kinds)(rng.randrange(40_000)) for _ in range(12))
    new = old
    for _ in range(draw(st.integers(0, 6))):
        at, length = rng.randrange(len(new) + 1), rng.randrange(1, 30_000)
        action = draw(st.sampled_from(["insert", "cut", "write", "move"]))
        if action == "insert":
            new = new[:at] + rng.randbytes(length) + new[at:]
        elif action == "cut":
            new = new[:at] + new[at + length :]
        elif action == "write":
            new = new[:at] + rng.randbytes(min(length, 50)) + new[at + min(length, 50) :]
        else:
            new = new[at : at + length] + new[:at] + new[at + length :]
    return old, new


def pieces_of(old: bytes, new: bytes, step: int = WINDOW // 4) -> list[Piece]:
    def read(at: int, into: memoryview) -> None:
        into[:] = old[at : at + len(into)]

    alignment = Alignment(read, len(old), WINDOW)
    out: list[Piece] = []
    for at in range(0, len(new), step):
        low = min(max(0, at - step), max(0, len(old) - 3 * step))
        out += alignment.pieces(
            at, memoryview(new)[at : at + step], low, min(len(old), low + 3 * step)
        )
    return out


@settings(max_examples=60, deadline=None)
@given(edited())
def test_pieces_cover_the_new_content_and_say_the_truth_of_the_old(
    pair: tuple[bytes, bytes],
) -> None:
    old, new = pair
    at = 0
    for piece in pieces_of(old, new):
        assert piece.start == at < piece.end
        assert 0 <= piece.low <= piece.high <= len(old)
        assert piece.end - piece.start + piece.high - piece.low <= WINDOW
        if piece.same:
            assert new[piece.start : piece.end] == old[piece.low : piece.high]
        at = piece.end
    assert at == len(new)


@settings(max_examples=40, deadline=None)
@given(edited())
def test_a_large_file_arrives_whatever_was_edited(pair: tuple[bytes, bytes]) -> None:
    old, new = Tree(), Tree()
    old.files["image"], new.files["image"] = Inode(pair[0]), Inode(pair[1])
    stage = apply_update(make_update(old, new, window_bytes=WINDOW)[0], old)
    assert not stage.missing  # type: ignore[attr-defined]
    stage.finish()  # type: ignore[attr-defined]
    assert stage.new.files["image"].content == pair[1]


@pytest.mark.parametrize("put_in", [0, 7, 3_001, 14_000])
def test_what_moved_is_copied_behind_what_was_put_in(put_in: int) -> None:
    rng = random.Random(3)
    old = rng.randbytes(1_000_000)
    new = old[:400_000] + rng.randbytes(put_in) + old[400_000:]
    carried = sum(p.end - p.start for p in pieces_of(old, new) if not p.same)
    # The block with the edit and, where the distance is not known yet, the next.
    assert carried <= put_in + 3 * 1024, carried


def test_a_lost_old_file_makes_a_copied_part_missing() -> None:
    content = random.Random(4).randbytes(300_000)
    old, new = Tree(), Tree()
    old.files["image"] = Inode(content)
    new.files["image"] = Inode(content[:1000] + b"edited" + content[1000:])
    stage = apply_update(make_update(old, new, window_bytes=WINDOW)[0], old, frozenset({"image"}))
    assert [entry.path for entry in stage.missing] == ["image"]  # type: ignore[attr-defined]


def test_a_copy_of_another_length_is_refused() -> None:
    data = encode_same(FilePart("new", 0, 100), FilePart("old", 0, 99))
    with pytest.raises(BadManifest, match="wrong length"):
        decode_group(data, WINDOW, lambda part, into: True)
    with pytest.raises(BadManifest, match="wrong length"):
        decode_group(
            encode_same(FilePart("new", 0, 9), FilePart("old", 0, 9)) + b"x",
            WINDOW,
            lambda part, into: True,
        )


def test_an_unknown_codec_asks_for_a_newer_program(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr("tidegate.protocol.batch_group.pack", _pack_as_later)
        data = encode_group((FilePart("a", 0, 4),), (), b"", b"four")
    with pytest.raises(BadManifest, match="newer Tidegate") as caught:
        decode_group(data, WINDOW, lambda part, into: True)
    assert caught.value.code == "too-old"


def _pack_as_later(data: bytes, level: int = 3) -> bytes:
    return pack(data.replace(b'"zstd"', b'"brot"').replace(b'"raw"', b'"new"'), level)


def test_application_hears_of_a_copy_that_is_not_what_was_published() -> None:
    """The old file was edited behind our back: the digest of the whole tells."""
    content = random.Random(5).randbytes(200_000)
    old, new = Tree(), Tree()
    old.files["image"] = Inode(content)
    new.files["image"] = Inode(content + b"more")
    data, _ = make_update(old, new, window_bytes=WINDOW)
    known = old.entries()
    old.files["image"].content = b"?" + content[1:]

    application = Application(open_update(data), lambda: known, MemoryStage(old))
    application.build()
    assert [entry.path for entry in application.missing] == ["image"]
