"""Generate and apply over trees in memory: whatever was edited, the mirror ends up the same."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mirror_trees import Inode, Tree, apply_update, edited_pairs, make_update, open_update, trees

from tidegate.protocol.batch import FORMAT
from tidegate.protocol.errors import BadManifest

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(edited_pairs(), st.sampled_from([600, 9000, 1 << 20]), st.booleans())
def test_apply_of_generate_is_the_new_tree(
    pair: tuple[Tree, Tree], window_bytes: int, delta: bool
) -> None:
    old, new = pair
    data, _ = make_update(old, new, window_bytes=window_bytes, delta=delta)
    stage = apply_update(data, old)
    assert not stage.missing  # type: ignore[attr-defined]
    stage.finish()  # type: ignore[attr-defined]
    assert stage.new.frozen() == new.frozen()


@quick
@given(edited_pairs())
def test_a_difference_too_large_to_hold_gives_the_same_update(pair: tuple[Tree, Tree]) -> None:
    held, _ = make_update(*pair)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tidegate.protocol.tree_diff._MOST_HELD", 0)
        assert make_update(*pair)[0] == held


@quick
@given(trees())
def test_a_snapshot_needs_nothing_but_itself(tree: Tree) -> None:
    data, _ = make_update(None, tree)
    stage = apply_update(data, Tree())
    stage.finish()  # type: ignore[attr-defined]
    assert stage.new.frozen() == tree.frozen()


@quick
@given(edited_pairs(), st.data())
def test_lost_files_are_reported_and_brought_whole(
    pair: tuple[Tree, Tree], data: st.DataObject
) -> None:
    old, new = pair
    leaders = [entry.path for entry in old.entries() if entry.kind == "f"]
    gone = frozenset(data.draw(st.sets(st.sampled_from(leaders)))) if leaders else frozenset()
    stage = apply_update(make_update(old, new)[0], old, gone)
    for entry in stage.missing:  # type: ignore[attr-defined]
        stage.write(entry.path, 0, new.files[entry.path].content)
    stage.finish()  # type: ignore[attr-defined]
    assert stage.new.frozen() == new.frozen()


@quick
@given(edited_pairs(), st.randoms(use_true_random=False))
def test_a_damaged_update_is_always_noticed(pair: tuple[Tree, Tree], rng: random.Random) -> None:
    data, _ = make_update(*pair)
    damaged = bytearray(data)
    damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    with pytest.raises(BadManifest):
        open_update(bytes(damaged)).verify()
    with pytest.raises(BadManifest):
        open_update(data[: rng.randrange(len(data))]).verify()


def test_an_update_for_another_tree_is_refused() -> None:
    old, new, other = Tree(), Tree(), Tree()
    new.files["a"] = Inode(b"new")
    other.files["b"] = Inode(b"other")
    data, _ = make_update(old, new)
    with pytest.raises(BadManifest, match="another tree"):
        apply_update(data, other)


def test_a_content_nobody_has_is_refused_when_brought_wrong() -> None:
    old, new = Tree(), Tree()
    old.files["a"] = Inode(b"old " * 50)
    new.files["a"] = Inode(b"old " * 50, mode=0o600)
    stage = apply_update(make_update(old, new)[0], old, frozenset({"a"}))
    assert [entry.path for entry in stage.missing] == ["a"]  # type: ignore[attr-defined]
    with pytest.raises(BadManifest, match="is not what was published"):
        stage.finish()  # type: ignore[attr-defined]


def test_a_newer_format_says_what_to_do() -> None:
    data, _ = make_update(Tree(), Tree())
    newer = data.replace(f'"format":{FORMAT}'.encode(), f'"format":{FORMAT + 8}'.encode())
    with pytest.raises(BadManifest, match="newer Tidegate") as caught:
        open_update(newer)
    assert caught.value.code == "too-old"


def test_a_small_edit_in_a_large_file_costs_little_even_beyond_the_window() -> None:
    rng = random.Random(8)
    content = rng.randbytes(400_000)
    old, new = Tree(), Tree()
    old.files["image-1.0.iso"] = Inode(content)
    new.files["image-1.0.iso"] = old.files["image-1.0.iso"]
    new.files["image-1.1.iso"] = Inode(content[:70_000] + b"patched" + content[70_000:])
    data, done = make_update(old, new, window_bytes=200_000)
    assert done.contents == 1
    assert len(data) < 3000
    whole, _ = make_update(old, new, window_bytes=200_000, delta=False)
    assert len(whole) > 400_000


def test_a_large_file_among_small_ones_keeps_its_turn() -> None:
    rng = random.Random(5)
    old, new = Tree(), Tree()
    for name, size in (("a", 300), ("b", 50_000), ("c", 300), ("d", 70_000), ("e", 0)):
        new.files[name] = Inode(rng.randbytes(size))
    stage = apply_update(make_update(old, new, window_bytes=20_000)[0], old)
    stage.finish()  # type: ignore[attr-defined]
    assert stage.new.frozen() == new.frozen()


def test_a_rename_carries_no_content() -> None:
    content = random.Random(1).randbytes(100_000)
    old, new = Tree(), Tree()
    old.files["a"] = Inode(content)
    new.files["moved"] = Inode(content)
    data, done = make_update(old, new)
    assert (done.renames, done.deletions, done.contents) == (1, 1, 0)
    assert len(data) < 700


def test_nothing_changed_is_a_header() -> None:
    tree = Tree()
    tree.files.update({f"f{n}": Inode(bytes([n])) for n in range(200)})
    assert len(make_update(tree, tree)[0]) < 600
