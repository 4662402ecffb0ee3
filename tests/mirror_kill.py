"""Kill `follow` or `publish` at a random point, again and again, and look at what is left.

    python -m tests.mirror_kill follow 200 [seed]
    python -m tests.mirror_kill publish 50 [seed]

A point is an operation on the file system: a child process counts its audit events and kills
itself with SIGKILL at the n-th. So every open, rename, link and unlink is equally likely to be
the last, which kills by the clock would not give.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.mirror_site import Site, described, edit, fill
from tidegate.client.mirror.place import Place

_EVENTS = ("open", "os.", "shutil.", "fcntl.", "ctypes.")


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Run `work` in a child that dies at its `number`-th operation; whether it died of that."""
    child = os.fork()
    if child == 0:
        left = number

        def count(event: str, args: tuple[object, ...]) -> None:
            nonlocal left
            if event.startswith(_EVENTS):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed by itself"
    return False


def operations_of(work: Callable[[], object]) -> int:
    """How many operations the whole work takes (counted in a child)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        total = 0

        def count(event: str, args: tuple[object, ...]) -> None:
            nonlocal total
            total += event.startswith(_EVENTS)

        sys.addaudithook(count)
        try:
            work()
        finally:
            os.write(writing, str(total).encode())
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as answer:
        return int(answer.read())


def _point(rng: random.Random, total: int) -> int:
    """Anywhere, but every other time near the end, where the new version becomes the live one."""
    first = 1 if rng.random() < 0.5 else max(1, total - 60)
    return rng.randrange(first, total + 1)


def kill_follow(base: Path, kills: int, rng: random.Random, *, real: bool) -> dict[str, int]:
    """Die `kills` times while an update is applied; the live tree is the old or the new one."""
    site = Site(base)
    fill(site.tree)
    site.publish()
    if real:
        (base / "mirror").mkdir()
    site.follower().once()
    # A version in between, so that there is an older tree to remove, too.
    (site.tree / "between").write_bytes(b"soon gone")
    site.publish()
    site.follower().once()
    (site.tree / "between").unlink()
    edit(site.tree)
    old = described(base / "mirror")
    site.publish()
    new = described(site.tree)
    saved = base / "saved"
    _copy(base, saved)
    total = operations_of(lambda: site.follower().once())
    _restore(base, saved)
    found = {"old": 0, "new": 0, "finished": 0}
    for _ in range(kills):
        died = killed_at(_point(rng, total), lambda: site.follower().once())
        live = described(base / "mirror")
        assert live in (old, new), "a tree that is neither the old nor the new one"
        found["old" if live == old else "new"] += 1
        found["finished"] += not died
        if rng.random() < 0.5:
            # Sometimes the next run goes on from the wreck and dies as well.
            killed_at(_point(rng, total), lambda: site.follower().once())
            assert described(base / "mirror") in (old, new)
        assert killed_at(0, lambda: site.follower().once()) is False
        assert described(base / "mirror") == new, "it did not recover"
        _tidy(Place(base / "mirror"), real=real)
        _restore(base, saved)
    return found


def _tidy(place: Place, *, real: bool) -> None:
    """Nothing of the wreck may stay behind."""
    trees = list(place.trees.iterdir())
    assert len(trees) == (1 if real else 2), trees


def kill_publish(base: Path, kills: int, rng: random.Random) -> dict[str, int]:
    """Die `kills` times while publishing; followers see the old version or the new one."""
    site = Site(base)
    fill(site.tree)
    site.publish()
    old = described(site.tree)
    site.follower().once()
    edit(site.tree)
    new = described(site.tree)
    saved = base / "saved"
    _copy(base, saved)
    total = operations_of(site.publish)
    _restore(base, saved)
    found = {"old": 0, "new": 0, "finished": 0}
    for number in range(kills):
        died = killed_at(_point(rng, total), site.publish)
        found["finished"] += not died
        follower = site.follower()
        follower.once()
        live = described(base / "mirror")
        assert live in (old, new), "followers got a tree that was never published"
        found["old" if live == old else "new"] += 1
        # One that starts from nothing must get it whole, too.
        site.follower(f"late-{number}").once()
        assert described(base / f"late-{number}") == live
        site.publish()
        follower.once()
        assert described(base / "mirror") == new, "it did not recover"
        stored = sum(1 for path in (site.publish_dir / "objects").rglob("*") if path.is_file())
        contents = {
            c[3] for c in (*old.values(), *new.values()) if isinstance(c, tuple) and c[0] == "f"
        }
        assert stored <= len(contents), "contents that nothing names were left behind"
        _restore(base, saved)
    return found


def _copy(base: Path, saved: Path) -> None:
    saved.mkdir()
    for name in ("mirror", ".mirror.tidegate", "publish", "tree"):
        if (base / name).exists():
            os.system(f"cp -a '{base}/{name}' '{saved}/'")


def _restore(base: Path, saved: Path) -> None:
    for path in base.iterdir():
        if path.name not in ("saved", "keys"):
            if path.is_symlink() or path.is_file():
                path.unlink()
            else:
                os.system(f"chmod -R u+rwX '{path}'")
                shutil.rmtree(path)
    os.system(f"cp -a '{saved}/.' '{base}/'")


def _say(what: str, found: dict[str, int]) -> None:
    sys.stdout.write(f"{what}: {found}\n")
    sys.stdout.flush()


def main() -> None:
    what, kills = sys.argv[1], int(sys.argv[2])
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 8)
    with tempfile.TemporaryDirectory() as folder:
        if what == "follow":
            for real in (False, True):
                base = Path(folder) / f"real-{real}"
                found = kill_follow(base, kills // 2, rng, real=real)
                _say("directory" if real else "symlink", found)
        else:
            _say("publish", kill_publish(Path(folder) / "publish-kill", kills, rng))


if __name__ == "__main__":
    main()
