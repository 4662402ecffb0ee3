"""Nothing outside the directory, nothing hidden, nothing that is no regular file; any file name."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from tidegate.server.control.file_index import FileIndex, FileView
from tidegate.server.files import tree as tree_module
from tidegate.server.files.openfile import OpenFile, shared_tag
from tidegate.server.files.paths import split_path, url_of
from tidegate.server.files.transfer import FileKey
from tidegate.server.files.tree import IsDirectory, NotHere, Overloaded, Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    root = tmp_path / "root"
    (root / "sub" / ".git").mkdir(parents=True)
    (root / "sub" / "a.txt").write_bytes(b"inside")
    (root / "sub" / ".git" / "config").write_bytes(b"hidden")
    (root / ".env").write_bytes(b"hidden")
    (tmp_path / "secret").write_bytes(b"outside")
    (tmp_path / "root-twin").mkdir()
    (tmp_path / "root-twin" / "secret").write_bytes(b"outside")
    return Tree(str(root))


def whole(file: OpenFile) -> bytes | None:
    return file.read_pieces_at_hand([(0, file.rep.size_bytes)])


def read(tree: Tree, path: str | bytes) -> bytes:
    raw = path.encode() if isinstance(path, str) else path
    parts = split_path(raw)
    if parts is None:
        raise NotHere
    content = whole(tree.open(parts))
    assert content is not None
    return content


@pytest.mark.parametrize(
    "path",
    [
        "/../secret",
        "/sub/../../secret",
        "/sub/../sub/a.txt",
        "/%2e%2e/secret",
        "/%2E%2E/secret",
        "/.%2e/secret",
        "/%2e%2e%2fsecret",
        "/..%2fsecret",
        "/sub%2fa.txt",
        "/%252e%252e/secret",
        "/..%5csecret",
        "/..\\secret",
        "/sub/a.txt%00",
        "/sub/a.txt%00.html",
        "/sub/a.txt/",
        "/sub/a.txt/x",
        "/%+1",
        "/% 1",
        "/.env",
        "/%2eenv",
        "/sub/.git/config",
        "/" + "a" * 300,
        "/" + "/".join(["a"] * 3000),
        "/missing",
        "/~root/secret",
        "//etc/passwd",
    ],
)
def test_a_path_that_climbs_or_hides_or_tricks_is_not_there(tree: Tree, path: str) -> None:
    with pytest.raises((NotHere, IsDirectory)):
        read(tree, path + "" if not path.endswith("/") else path + "x")


@pytest.mark.parametrize("path", ["/sub/a.txt", "//sub//a.txt", "/./sub/./a.txt", "/%73ub/a%2Etxt"])
def test_spellings_of_an_honest_path_are_served(tree: Tree, path: str) -> None:
    assert read(tree, path) == b"inside"


def test_links_inside_the_tree_are_followed_and_links_out_of_it_are_not(tree: Tree) -> None:
    root = Path(os.fsdecode(tree.root))
    links = {
        "in": "sub/a.txt",
        "in-absolute": str(root / "sub" / "a.txt"),
        "in-by-dots": "sub/../sub/a.txt",
        "out": "../secret",
        "out-absolute": str(root.parent / "secret"),
        "out-twin": str(root.parent / "root-twin" / "secret"),
        "out-and-in": "../root/sub/a.txt",
        "loop": "loop",
        "dir": "sub",
        "dir-out": "..",
        "dangling": "nothing",
    }
    for name, target in links.items():
        os.symlink(target, root / name)
    for name in ("in", "in-absolute", "in-by-dots"):
        assert read(tree, "/" + name) == b"inside"
    assert read(tree, "/dir/a.txt") == b"inside"
    for name in ("out", "out-absolute", "out-twin", "out-and-in", "loop", "dangling"):
        with pytest.raises(NotHere):
            read(tree, "/" + name)
    with pytest.raises(NotHere):
        read(tree, "/dir-out/secret")
    shown = {entry.name.decode() for entry in tree.entries([])}
    assert shown == {"in", "in-absolute", "in-by-dots", "dir", "sub"}


def test_a_listing_leads_in_no_circle(tree: Tree) -> None:
    """`tidegate get -r` fetched the same files 32 times, once for each level that it may enter."""
    root = Path(os.fsdecode(tree.root))
    (root / "sub" / "below").mkdir()
    links = {"self": ".", "dir": "sub", "sub/below/up": "../.."}
    links["sub/below/over"] = str(root / "sub")
    for name, target in links.items():
        (root / name).symlink_to(target)
    (root / "sub" / "below" / "twin").mkdir()
    (root / "sub" / "below" / "beside").symlink_to("twin")
    assert read(tree, "/self/sub/below/over/a.txt") == b"inside", "asked for by name it is there"
    assert {entry.name for entry in tree.entries([])} == {b"dir", b"sub"}
    for way in ([b"sub"], [b"dir"], [b"self", b"dir"]):
        shown = {entry.name for entry in tree.entries([*way, b"below"])}
        assert shown == {b"twin", b"beside"}


@pytest.mark.parametrize(
    ("asked", "lies"),
    [
        ("/", "/"),
        ("/sub", "/sub"),
        ("/sub/", "/sub/"),
        ("/sub/a.txt", "/sub/a.txt"),
        ("/sub/%61.txt", "/sub/a.txt"),
        ("//sub/./a.txt", "/sub/a.txt"),
        ("/sub/../sub/a.txt", "/sub/a.txt"),
        ("/link", "/sub/a.txt"),
        ("/folder/a.txt", "/sub/a.txt"),
        ("/folder/", "/sub/"),
        ("/folder", "/sub"),
        ("/chain/a.txt", "/sub/a.txt"),
        ("/absent", "/absent"),
        ("/sub/absent", "/sub/absent"),
        ("/absent/deeper", "/absent/deeper"),
        ("/folder/absent", "/sub/absent"),
        ("/dangling", "/sub/gone"),
        ("/dangling/deeper", "/sub/gone/deeper"),
        ("/up", "/"),
        ("/up/sub/a.txt", "/sub/a.txt"),
        # What leads out of the tree, or into a loop, or cannot be, counts as it was asked for.
        ("/out", "/out"),
        ("/outside/secret", "/outside/secret"),
        ("/twin", "/twin"),
        ("/loop", "/loop"),
        ("/loop/deeper", "/loop/deeper"),
        ("/sub/a.txt/deeper", "/sub/a.txt/deeper"),
        ("/sub/%00", "/sub/%00"),
        ("/" + "x" * 300, "/" + "x" * 300),
    ],
)
def test_where_a_path_lies_is_known_through_any_links(tree: Tree, asked: str, lies: str) -> None:
    root = Path(os.fsdecode(tree.root))
    links = {
        "link": "sub/a.txt",
        "folder": "sub",
        "chain": "folder",
        "dangling": "sub/gone",
        "up": ".",
        "out": "../secret",
        "outside": "..",
        "twin": "../root-twin/secret",
        "loop": "loop",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    assert tree.real_url(asked) == lies
    # The same through a root that is a link, and was switched since.
    release = root.parent / "release"
    release.symlink_to(root.parent / "root-twin")
    through = Tree(str(release))
    release.unlink()
    release.symlink_to(root)
    assert through.real_url(asked) == lies


def test_a_link_swapped_in_after_the_first_look_gains_nothing(tree: Tree) -> None:
    root = Path(os.fsdecode(tree.root))
    assert read(tree, "/sub/a.txt") == b"inside"
    os.unlink(root / "sub" / "a.txt")
    os.symlink("../../secret", root / "sub" / "a.txt")
    with pytest.raises(NotHere):
        read(tree, "/sub/a.txt")


def test_only_regular_files_are_served_and_a_fifo_blocks_nobody(tree: Tree) -> None:
    root = Path(os.fsdecode(tree.root))
    os.mkfifo(root / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(root / "socket"))
    for name in ("fifo", "socket"):
        with pytest.raises(NotHere):
            read(tree, "/" + name)
    assert {entry.name for entry in tree.entries([])} == {b"sub"}
    listener.close()


def test_hidden_names_are_served_when_asked_for(tree: Tree) -> None:
    shown = Tree(tree.root, show_hidden=True)
    assert read(shown, "/.env") == b"hidden"
    with pytest.raises(NotHere):
        read(shown, "/../secret")
    shown.close()


@pytest.mark.parametrize("parts", [[], [b"sub"]], ids=["root", "folder"])
def test_readers_of_one_folder_each_see_all_of_it(tree: Tree, parts: list[bytes]) -> None:
    """The walk for digests reads it in pieces while a request lists it."""
    whole = [entry.name for entry in tree.entries(parts)]
    walk = tree.folder(parts)
    with contextlib.closing(walk):
        names = iter(walk)
        seen = [next(names)[0]]
        other = tree.folder(parts)
        with contextlib.closing(other):
            assert [entry.name for entry in tree.entries(parts)] == whole
            seen += [name for name, _ in names]
            assert len(seen) == len([name for name, _ in other]) >= len(whole) > 0


def test_an_unreadable_or_vanished_file_is_not_there(tree: Tree) -> None:
    with pytest.raises(IsDirectory) as caught:
        tree.open([b"sub"])
    assert caught.value.path == b"sub"
    with pytest.raises(NotHere):
        tree.entries([b"sub", b"a.txt"])
    with pytest.raises(NotADirectoryError):
        Tree(os.path.join(tree.root, b"sub", b"a.txt"))


@pytest.mark.parametrize("fault", [errno.ESTALE, errno.ENOTCONN, errno.EIO, errno.EMFILE])
def test_a_disk_or_file_server_that_fails_is_no_missing_file(
    tree: Tree, fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*words: object, **named: object) -> int:
        raise OSError(fault, os.strerror(fault))

    with monkeypatch.context() as ill:
        ill.setattr(os, "open", fails)
        ill.setattr("tidegate.server.files.tree.open_beneath", lambda *_: None)
        with pytest.raises(Overloaded):
            tree.open([b"sub", b"a.txt"])
    assert read(tree, "/sub/a.txt") == b"inside"


def test_a_root_that_was_unmounted_is_served_on_until_it_is_there_again(tree: Tree) -> None:
    root = Path(os.fsdecode(tree.root))
    held = root.rename(root.with_name("held"))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as bare:
        assert os.stat(bare).st_dev != os.stat(held).st_dev
        root.symlink_to(bare)
        assert read(tree, "/sub/a.txt") == b"inside"
        (Path(bare) / "sub").mkdir()
        (Path(bare) / "sub" / "a.txt").write_bytes(b"back")
        assert read(tree, "/sub/a.txt") == b"back"


def test_a_root_that_was_deleted_is_no_missing_file_and_said_once(tree: Tree) -> None:
    root = Path(os.fsdecode(tree.root))
    shutil.rmtree(root)
    with capturedLogs() as said:
        for _ in range(2):
            with pytest.raises(Overloaded):
                tree.open([b"sub", b"a.txt"])
            with pytest.raises(Overloaded):
                tree.entries([])
    assert [event["name"] for event in said] == [str(root)]
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a.txt").write_bytes(b"new")
    assert read(tree, "/sub/a.txt") == b"new"


@given(
    st.binary(min_size=1, max_size=40).filter(
        lambda n: b"\0" not in n and b"/" not in n and not n.startswith(b".")
    )
)
@settings(max_examples=60)
def test_any_file_name_has_an_address_that_leads_back_to_it(name: bytes) -> None:
    url = url_of(b"dir/" + name)
    assert url.isascii()
    assert not set(url) & set(' "<>\\^`{|}\n\r\t#?')
    assert split_path(url.encode()) == [b"dir", name]


def test_names_that_are_no_text_are_served_by_their_bytes(tree: Tree) -> None:
    Path(os.fsdecode(os.path.join(tree.root, b"\xff\xfe<x>"))).write_bytes(b"odd")
    assert read(tree, "/%FF%FE%3Cx%3E") == b"odd"


def test_an_open_file_outlives_its_name_and_notices_being_written_to(tree: Tree) -> None:
    root = Path(os.fsdecode(tree.root))
    file: OpenFile = tree.open([b"sub", b"a.txt"])
    (root / "new").write_bytes(b"new content")
    os.rename(root / "new", root / "sub" / "a.txt")
    assert file.unchanged()
    assert whole(file) == b"inside"
    newer = tree.open([b"sub", b"a.txt"])
    assert whole(newer) == b"new content"
    assert newer.rep.etag != file.rep.etag
    with open(root / "sub" / "a.txt", "r+b") as stream:
        stream.truncate(3)
    assert not newer.unchanged()
    assert whole(newer) is None


def test_the_same_size_and_time_do_not_make_the_same_content(tree: Tree) -> None:
    path = Path(os.fsdecode(tree.root)) / "sub" / "a.txt"
    os.utime(path, (1e9, 1e9))
    before = tree.open([b"sub", b"a.txt"]).rep
    again = tree.open([b"sub", b"a.txt"]).rep
    path.write_bytes(b"INSIDE")
    os.utime(path, (1e9, 1e9))
    # The kernel's clock for files ticks every few milliseconds.
    while os.stat(path).st_ctime_ns == before.key.ctime_ns:
        os.utime(path, (1e9, 1e9))
    after = tree.open([b"sub", b"a.txt"]).rep
    assert before == again
    assert (before.size_bytes, before.mtime_s) == (after.size_bytes, after.mtime_s)
    assert before.etag != after.etag


@pytest.mark.parametrize("size", [0, 1, 4096, 32_768, 32_769, 100_000])
def test_copies_on_several_machines_have_the_same_tag_and_other_contents_do_not(
    tmp_path: Path, size: int
) -> None:
    (tmp_path / "one").mkdir()
    file = tmp_path / "one" / "a.bin"
    file.write_bytes(random.Random(size).randbytes(size))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    times = os.stat(file).st_atime_ns, os.stat(file).st_mtime_ns
    trees = [Tree(str(tmp_path / name), tag_of=shared_tag) for name in ("one", "two")]
    first, second = (tree.open([b"a.bin"]) for tree in trees)
    assert first.rep.key != second.rep.key
    assert first.rep.etag == second.rep.etag
    # What a build leaves: the same size and time, and nearly all bytes are others.
    file.write_bytes(bytes(255 - byte for byte in file.read_bytes()))
    os.utime(file, ns=times)
    other = trees[0].open([b"a.bin"])
    assert (other.rep.etag == second.rep.etag) is (size == 0)
    # `touch` makes another tag.
    os.utime(file, (1e9, 1e9))
    touched = other.as_it_is()
    assert touched is not None
    assert touched.rep.etag not in (other.rep.etag, second.rep.etag)
    assert touched.rep.etag == trees[0].open([b"a.bin"]).rep.etag


def open_below(root: Path) -> int:
    """Descriptors of this folder and of what is in it; the others may be closed at any time."""
    held = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            held += os.readlink(f"/proc/self/fd/{name}").startswith(str(root))
    return held


def test_descriptors_are_closed_when_nobody_needs_them(tree: Tree) -> None:
    root = Path(os.fsdecode(tree.root))
    small = Tree(tree.root, most_open=2)
    for number in range(10):
        (root / f"f{number}").write_bytes(b"x")
    before = open_below(root)
    held = [small.open([b"f%d" % number]) for number in range(10)]
    assert open_below(root) == before + 10
    held.clear()
    assert open_below(root) == before + 2
    small.close()
    assert open_below(root) == before - 1


NAMES = st.sampled_from(
    ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "d/e/f", "d/e/f/a", "e", "e/a", ".h", ".h/a"]
)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(
            ["write", "mkdir", "rename", "link", "hard", "drop", "fifo", "shut", "root"]
        ),
        NAMES,
        NAMES,
    ),
    max_size=12,
)


def found(tree: Tree, path: str) -> tuple[object, ...]:
    try:
        file = tree.open(path.encode().split(b"/"))
    except (NotHere, IsDirectory, Overloaded) as error:
        return (type(error),)
    return whole(file), file.rep, file.by_link, tree.place_of(file)


def change(root: Path, what: str, one: Path, other: Path, content: bytes) -> None:
    if what == "write":
        # A FIFO would wait for its reader.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
        with open(os.open(one, flags, 0o644), "wb") as file:
            file.write(content)
    elif what == "mkdir":
        one.mkdir()
    elif what == "rename":
        one.rename(other)
    elif what == "link":
        other.symlink_to(os.path.relpath(one, other.parent))
    elif what == "hard":
        other.hardlink_to(one)
    elif what == "drop":
        shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
    elif what == "fifo":
        os.mkfifo(one)
    elif what == "shut":
        one.chmod(0)
    else:
        shutil.copytree(root.resolve(), root.with_name(content.hex()), symlinks=True)
        root.unlink()
        root.symlink_to(content.hex())


@given(CHANGES)
@example([("rename", "d", "e"), ("link", "e", "d")])
@example([("rename", "d", "e"), ("mkdir", "d", "d"), ("hard", "e/a", "d/a")])
@example([("root", "a", "a"), ("write", "d/a", "a")])
@example([("rename", "d/e/f", "e"), ("link", "e", "d/e/f")])
@example([("rename", "d/e", "e"), ("link", "e", "d/e")])
@example([("drop", "a", "a"), ("fifo", "a", "a"), ("write", "a", "a"), ("link", "a", "b")])
@settings(max_examples=150, deadline=None)
def test_a_tree_that_has_opened_much_finds_what_a_new_one_finds(
    changes: list[tuple[str, str, str]],
) -> None:
    paths = ["a", "b", "d/a", "d/b", "d/e/a", "d/e/f/a", "e/a", ".h", ".h/a", "key", "state/a"]
    with tempfile.TemporaryDirectory() as place:
        root, first = Path(place) / "root", Path(place) / "first"
        root.symlink_to("first")
        for name in ("d/e/f", "state"):
            (first / name).mkdir(parents=True)
        for name in ("a", "d/a", "d/b", "d/e/a", "d/e/f/a", "key", "state/a", ".h"):
            (first / name).write_bytes(name.encode())
        old = Tree(str(root), most_open=2)
        old.keep_private([first / "state", first / "key"])
        for path in paths:
            found(old, path)
        for number, (what, one, other) in enumerate(changes):
            with contextlib.suppress(OSError):
                change(root, what, root / one, root / other, b"%d" % number)
            new = Tree(str(root))
            if root.samefile(first):
                new.keep_private([root / "state", root / "key"])
            for path in paths:
                assert found(old, path) == found(new, path), path
            new.close()
        old.close()


def test_what_is_private_is_not_there_by_any_way(tmp_path: Path) -> None:
    root = tmp_path / "served"
    state = root / "state"
    state.mkdir(parents=True)
    (state / "keys.json").write_text("secret")
    (root / "tls.key").write_text("secret")
    (root / "file").write_text("public")
    (root / "sub").mkdir()
    (root / "sub" / "link").symlink_to(state)
    (root / "sub" / "key").symlink_to("../tls.key")
    (root / "sub" / "state").mkdir()
    (root / "sub" / "state" / "file").write_text("public")
    tree = Tree(str(root))
    tree.open([b"tls.key"])
    tree.keep_private([str(state), str(root / "tls.key"), "/elsewhere/entirely"])
    ways = [
        [b"state", b"keys.json"],
        [b"tls.key"],
        [b"sub", b"link", b"keys.json"],
        [b"sub", b"key"],
        [b"state"],
    ]
    for parts in ways:
        with pytest.raises(NotHere):
            tree.open(parts)
    # A key that is renewed stays private.
    (root / "new").write_text("secret")
    (root / "new").rename(root / "tls.key")
    with pytest.raises(NotHere):
        tree.open([b"tls.key"])
    assert [entry.name for entry in tree.entries([])] == [b"file", b"sub"]
    assert [entry.name for entry in tree.entries([b"sub"])] == [b"state"]
    assert tree.open([b"sub", b"state", b"file"]).rep.size_bytes == 6
    tree.close()


def test_the_index_of_files_has_each_folder_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of two file systems had one inode, so one of them was missing."""
    for name in ("a/x", ".9.0/x", "z/x"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("x")
    for link, target in (("latest", ".9.0"), ("b", "z"), ("z/up", "../a"), ("zz", "a")):
        (tmp_path / link).symlink_to(target)
    monkeypatch.setattr(tree_module, "key_of", lambda _: FileKey(2, 1, 0, 0))
    site = cast(Any, SimpleNamespace(tree=Tree(str(tmp_path)), catalog=SimpleNamespace(pending=0)))
    site.catalog.known = lambda key: None
    popularity = SimpleNamespace(pending=lambda url: (0, 0, 0))
    gate = cast(Any, SimpleNamespace(downloads={}, parts=SimpleNamespace(popularity=popularity)))
    store = cast(Any, SimpleNamespace(read=lambda ask: succeed({})))
    clock = Clock()
    index = FileIndex(clock, site, gate, store, lambda: 0.0)
    pages: list[tuple[list[FileView], int]] = []
    Deferred.fromCoroutine(index.read("", "path", 0, 100)).addCallback(pages.append)
    clock.pump([0.1] * 10)
    [(files, count)] = pages
    assert [file.path for file in files] == ["/a/x", "/latest/x", "/z/x"]
    assert count == 3
