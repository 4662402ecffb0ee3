"""Measure mirroring a directory of 50 000 small files and one of 2 GB, beside its peers.

    python -m bench.mirror_large [--folder DIR] [--files 50000] [--image-mb 2000]

Three rounds: everything is new; a thousand files edited, some removed, moved and added, forty
places of the large file rewritten and 700 001 bytes put into its middle; nothing changed. One row a
round and program: the wall clock, CPU (user + system) and the highest memory of each end by itself,
where a program has two. Peers that are not installed are left out: rsync, zsync (the large file
alone: it knows no folders) and casync (over HTTP, with the old tree as its seed).
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.mirror import TIDEGATE, NotDone, Origin, RunCost, copy, row, same, timed
from bench.shared.ending import end_cleanly

#: How a round is called, and whether the tree was edited before it.
ROUNDS = ("first", "update", "nothing changed")


def make_tree(tree: Path, files: int, image_mb: int) -> None:
    """Text files of 5 kB in the mean, and an image of text, noise and zeros by turns."""
    rng = random.Random(1)
    letters = b"abcdefghijklmnopqrstuvwxyz"
    words = [bytes(rng.choices(letters, k=rng.randrange(2, 10))) for _ in range(3000)]

    def text(length: int) -> bytes:
        return b" ".join(rng.choices(words, k=length // 6 + 1))[:length]

    for number in range(files):
        path = tree / f"package{number // 500:04}" / f"part{number % 500 // 50}" / f"{number}.py"
        if number % 50 == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(text(min(60_000, int(rng.lognormvariate(8, 1)))))
        os.utime(path, (1.7e9 + number, 1.7e9 + number))
    kinds: tuple[Callable[[int], bytes], ...] = (bytes, text, rng.randbytes, rng.randbytes)
    with (tree / "image.iso").open("wb") as image:
        for number in range(image_mb):
            image.write(kinds[number % 4](1_000_000))
    os.utime(tree / "image.iso", (1.7e9, 1.7e9))


def edit_tree(tree: Path) -> None:
    """What a release does to a tree."""
    rng = random.Random(2)
    files = sorted(tree.glob("package*/part*/*.py"))
    chosen = rng.sample(files, len(files) // 40)
    edited, rest = chosen[: len(chosen) * 4 // 5], chosen[len(chosen) * 4 // 5 :]
    for path in edited:
        content = bytearray(path.read_bytes())
        at = rng.randrange(len(content) or 1)
        content[at : at + 20] = b"edited here and there"
        path.write_bytes(content)
    for number, path in enumerate(rest):
        if number % 3 == 0:
            path.unlink()
        elif number % 3 == 1:
            path.rename(path.with_name(f"moved{number}.py"))
        else:
            path.with_name(f"new{number}.py").write_bytes(path.read_bytes()[::-1])
    with (tree / "image.iso").open("r+b") as image:
        size = image.seek(0, os.SEEK_END)
        for _ in range(40):
            image.seek(rng.randrange(max(1, size - 100_000)))
            image.write(rng.randbytes(100_000))
        image.seek(size * 3 // 5)
        after = image.read()
        image.seek(size * 3 // 5)
        image.write(rng.randbytes(700_001) + after)


def make_trees(old: Path, new: Path, files: int, image_mb: int) -> None:
    make_tree(old, files, image_mb)
    copy(old, new)
    edit_tree(new)


def tell(
    program: str, what: str, origin: RunCost | None, mirror: RunCost | None, mb: float | None
) -> None:
    def cells(cost: RunCost | None) -> tuple[str, str, str]:
        if cost is None:
            return "", "", ""
        return f"{cost.wall_s:.1f}", f"{cost.cpu_s:.1f}", f"{cost.peak_bytes / 1e6:.0f}"

    walls = sum(cost.wall_s for cost in (origin, mirror) if cost is not None)
    row(
        program,
        what,
        *cells(origin),
        *cells(mirror),
        f"{walls:.1f}",
        "" if mb is None else f"{mb:.1f}",
    )


def ours(work: Path, old: Path, new: Path) -> str:
    tree, keys, publish, mirror = (work / n for n in ("tree", "keys", "publish", "mirror"))
    copy(old, tree)
    timed([*TIDEGATE, "mirror", "init", publish, "--keys", keys])
    publishing = [*TIDEGATE, "mirror", "publish", tree, "--channel", "big", "--keys", keys]
    publishing += ["--to", publish]
    origin: Origin | None = None
    try:
        for number, what in enumerate(ROUNDS):
            if what == "update":
                timed(["rsync", "-aHc", "--delete", f"{new}/", f"{tree}/"])
            time.sleep(2.5)  # Older than the clock's grain, as a release is.
            os.sync()
            published = timed([*publishing])
            origin = origin or Origin(publish, work / "state")
            origin.settle()
            following = [*TIDEGATE, "mirror", "follow", origin.url, mirror, "--channel", "big"]
            following += ["--root", publish / "metadata" / "1.root.json", "--once"]
            followed = timed(following)
            made = [*publish.glob(f"targets/big/*.{number}-{number + 1}.update")]
            size = made[0].stat().st_size / 1e6 if what != ROUNDS[2] else 0.0
            tell("tidegate mirror", what, published, followed, size)
    finally:
        if origin is not None:
            origin.stop()
    return same(tree, mirror)


def rsync(work: Path, old: Path, new: Path, options: str) -> str:
    mirror, shell = work / "rsync-mirror", work / "rsync-shell"
    shell.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    shell.chmod(0o755)
    shutil.rmtree(mirror, ignore_errors=True)
    for what, source in zip(ROUNDS, (old, new, new), strict=True):
        os.sync()
        command = ["rsync", options, "--delete", "--stats", "-e", shell]
        cost = timed([*command, f"{source}/", f"host:{mirror}/"])
        sent = sum(
            int(line.rpartition(":")[2].replace(",", ""))
            for line in cost.output.splitlines()
            if line.startswith("Total bytes")
        )
        tell(f"rsync {options}", what, cost, None, sent / 1e6)
    return same(new, mirror)


@contextlib.contextmanager
def http_server(folder: Path) -> Iterator[str]:
    """Our own server, which knows ranges, for peers that fetch by HTTP."""
    with tempfile.TemporaryDirectory() as state:
        origin = Origin(folder, Path(state))
        try:
            origin.settle()
            yield origin.url
        finally:
            origin.stop()


def zsync(work: Path, old: Path, new: Path) -> str:
    """The large file alone."""
    folder = work / "zsync"
    folder.mkdir()
    os.link(new / "image.iso", folder / "image.iso")
    made = timed(
        ["zsyncmake", "-o", folder / "image.zsync", "-u", "image.iso", folder / "image.iso"]
    )
    with http_server(folder) as url:
        out = work / "zsync-mirror.iso"
        seed = old / "image.iso"
        taken = timed(["timeout", "120", "zsync", "-q", "-i", seed, "-o", out, f"{url}image.zsync"])
    tell("zsync, the image", "update", made, taken, None)
    return "identical" if not subprocess.call(["cmp", new / "image.iso", out]) else "WRONG"


def casync(work: Path, old: Path, new: Path) -> str:
    store, mirror = work / "casync", work / "casync-mirror"
    store.mkdir()
    shutil.rmtree(mirror, ignore_errors=True)
    make = ["casync", "make", f"--store={store / 'chunks.castr'}"]
    with http_server(store) as url:
        for what, source in zip(ROUNDS, (old, new, new), strict=True):
            index = f"{what.split()[0]}.caidx"
            made = timed([*make, store / index, source])
            take = ["casync", "extract", f"--store={url}chunks.castr"]
            seeds = [] if what == "first" else [f"--seed={mirror}"]
            target = work / f"casync-{what.split()[0]}"
            taken = timed([*take, *seeds, f"{url}{index}", target])
            shutil.rmtree(mirror, ignore_errors=True)
            target.rename(mirror)
            tell("casync", what, made, taken, None)
    return "identical" if not subprocess.call(["diff", "-rq", new, mirror]) else "WRONG"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="Keep the two trees here.")
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--image-mb", type=int, default=2_000)
    parser.add_argument("--only", help="Of tidegate, rsync, zsync, casync: some.", nargs="+")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        work = Path(scratch)
        folder = given.folder or work
        old, new = folder / "old", folder / "new"
        if not new.exists():
            # In a process of its own: what a program took at most is not told below what its
            # parent had when it was started.
            maker = multiprocessing.Process(
                target=make_trees, args=(old, new, given.files, given.image_mb)
            )
            maker.start()
            maker.join()
            if maker.exitcode:
                raise SystemExit("the two trees could not be made")
        ends = [
            f"{end} {what}" for end in ("origin", "mirror") for what in ("s", "CPU s", "MB RSS")
        ]
        row("program", "round", *ends, "s in all", "MB")
        row(*["---"] * (len(ends) + 4))
        verdicts = {}
        runs: dict[str, tuple[str, Callable[[], str]]] = {
            "rsync -aH": ("rsync", lambda: rsync(work, old, new, "-aH")),
            "rsync -aHcz": ("rsync", lambda: rsync(work, old, new, "-aHcz")),
            "tidegate": ("rsync", lambda: ours(work, old, new)),
            "zsync": ("zsync", lambda: zsync(work, old, new)),
            "casync": ("casync", lambda: casync(work, old, new)),
        }
        for name, (needs, run) in runs.items():
            if shutil.which(needs) and (not given.only or name.startswith(tuple(given.only))):
                try:
                    verdicts[name] = run()
                except NotDone as late:
                    verdicts[name] = str(late)
        sys.stdout.write(
            f"\n{', '.join(f'{name}: {verdict}' for name, verdict in verdicts.items())}\n"
        )


if __name__ == "__main__":
    end_cleanly()
    main()
