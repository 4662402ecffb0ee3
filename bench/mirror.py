"""Measures mirroring on a real pair of trees, beside rsync.

    python -m bench.mirror [--folder DIR] [--rounds N]

The pair is two versions of four large wheels, which pip downloads. They are unpacked with the times
and modes in the wheels: reproducible builds have the same time for different contents.

Prints one table. CPU seconds are user + system of all processes of that side.
"""

from __future__ import annotations

import argparse
import calendar
import contextlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.processes import process, wait_for
from bench.shared.subject import require

TIDEGATE = (sys.executable, "-m", "tidegate")


def timed(*command: object) -> tuple[float, str]:
    """CPU seconds of a command with its children, and its output.

    Raises SystemExit with its output when it fails.
    """
    words, before_s = [str(word) for word in command], _children_s()
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}:\n{done.stdout}")
    return _children_s() - before_s, done.stdout


def _children_s() -> float:
    """Of the processes that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def same(one: Path, other: Path) -> str:
    """Compare two trees by rsync, which reads all bytes."""
    differences = timed("rsync", "-aHnic", "--delete", f"{one}/", f"{other}/")[1]
    return "WRONG" if differences.strip() else "identical"


def require_mirrored(verdicts: Mapping[str, str]) -> None:
    """Raise NothingMeasured unless each method made the new tree."""
    for name, verdict in verdicts.items():
        require(verdict == "identical", f"{name} did not make the new tree.")


def copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def rsync(work: Path, old: Path, new: Path) -> tuple[float, float, float, str]:
    """rsync to one mirror: the master's CPU, the mirror's, MB on the wire, the verdict."""
    mirror, out, shell = work / "rsync-mirror", work / "rsync-cpu", work / "rsync-shell"
    copy(old, mirror)
    shell.write_text(f"""#!{sys.executable}
import os, subprocess, sys
status = subprocess.call(["sh", "-c", " ".join(sys.argv[2:])])
with open({str(out)!r}, "w") as out:
    out.write(str(sum(os.times()[2:4])))
sys.exit(status)
""")
    shell.chmod(0o755)
    os.sync()
    options = ("-aHcz", "--delete", "--stats", "-e", shell)
    cpu_s, output = timed("rsync", *options, f"{new}/", f"host:{mirror}/")
    mirror_s = float(out.read_text())
    numbers = re.findall(r"Total bytes (?:sent|received): ([\d,]+)", output)
    wire = sum(int(number.replace(",", "")) for number in numbers) / 1e6
    return cpu_s - mirror_s, mirror_s, wire, same(new, mirror)


@contextlib.contextmanager
def origin(publish: Path, state: Path) -> Iterator[str]:
    """`tidegate serve` on the publish directory; yields its URL."""
    command = [*TIDEGATE, "serve", publish, "--listen", "127.0.0.1:0", "--admin", "off"]
    command += ["--state", state, "--slots", "64", "--policy", "fcfs"]
    log = state.with_suffix(".log")
    with process(command, log) as running:
        yield wait_for("The origin", log, "ready ", running).split()[1].rstrip("/") + "/"


def ours(
    work: Path, old: Path, new: Path, rounds: int
) -> Iterator[tuple[float, float, float, str]]:
    """The same of publishing the new tree over the old one and following it, `rounds` times."""
    tree, keys, publish, first = (work / name for name in ("tree", "keys", "publish", "publish-1"))
    copy(old, tree)
    timed(*TIDEGATE, "mirror", "init", publish, "--keys", keys)
    publishing = [*TIDEGATE, "mirror", "publish", tree, "--channel", "pair", "--keys", keys]
    publishing += ["--to", publish]
    # `protocol.tree_scan` does not cache stamps younger than 2 s.
    time.sleep(2.5)
    timed(*publishing)
    copy(publish, first)
    timed("rsync", "-aHc", "--delete", f"{new}/", f"{tree}/")
    for number in range(rounds):
        copy(first, publish)
        with origin(publish, work / f"state-{number}") as url:
            mirror = work / f"mirror-{number}"
            root = publish / "metadata" / "1.root.json"
            following = [*TIDEGATE, "mirror", "follow", url, mirror, "--channel", "pair"]
            following += ["--root", root, "--once"]
            timed(*following)
            time.sleep(2.5)
            timed(*following)
            os.sync()
            generated_s, applied_s = timed(*publishing)[0], timed(*following)[0]
            size = next(publish.glob("targets/pair/*.1-2.update")).stat().st_size / 1e6
            yield generated_s, applied_s, size, same(tree, mirror)


def comparison(work: Path, old: Path, new: Path, rounds: int) -> str:
    """The table, and what ours takes of rsync's."""
    sizes = [path.stat().st_size for path in new.rglob("*") if path.is_file()]
    require(
        same(new, old) != "identical", "The two trees do not differ: there is nothing to mirror."
    )
    theirs = [*zip(*(rsync(work, old, new) for _ in range(rounds)), strict=True)]
    mine = [*zip(*ours(work, old, new, rounds), strict=True)]
    rows, of_rsync = [], median(map(sum, zip(*theirs[:2], strict=True)))
    for name, how_often, (master, mirror, wire, verdict) in (
        ("rsync -aHcz", "each", theirs),
        ("tidegate mirror", "once", mine),
    ):
        figures = f"{median(master):.2f} {how_often}", f"{wire[0]:.2f}", f"{median(mirror):.2f}"
        rows.append([name, *figures, verdict[-1]])
    require_mirrored({row[0]: row[-1] for row in rows})
    columns = ("method", "master CPU s", "MB per mirror", "CPU s per mirror", "result")
    return (
        f"The pair: {sum(sizes) / 1e6:.1f} MB, {len(sizes)} files\n\n"
        f"{markdown.table(columns, rows)}\n\n"
        f"Bytes against rsync -aHcz: {mine[2][0] / theirs[2][0]:.2f}. As a share of one such run's "
        "CPU (paper D: about 100 % and 150-200 %): "
        f"generate {100 * median(mine[0]) / of_rsync:.0f} %, "
        f"apply {100 * median(mine[1]) / of_rsync:.0f} %.\n"
    )


def fetch_pair(folder: Path) -> tuple[Path, Path]:
    """The old and the new tree below `folder`; existing ones are not fetched again."""
    packages = {
        "old": ("numpy==2.4.5", "sqlalchemy==2.1.8", "twisted==26.4.0", "botocore==1.44.4"),
        "new": ("numpy==2.4.6", "sqlalchemy==2.1.9", "twisted==26.10.0", "botocore==1.44.5"),
    }
    trees = []
    for name, wanted in packages.items():
        tree = folder / name
        if not tree.exists():
            wheels = folder / f"wheels-{name}"
            pip = "-m pip download -q --no-deps --only-binary :all: --python-version 3.11"
            pip += " --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64"
            pip += " --platform manylinux2014_x86_64 --platform any"
            subprocess.run([sys.executable, *pip.split(), "-d", str(wheels), *wanted], check=True)
            partial = folder / f"{name}.partial"
            for wheel in sorted(wheels.glob("*.whl")):
                unpack(wheel, partial / wheel.name.split("-")[0])
            partial.rename(tree)
        trees.append(tree)
    return trees[0], trees[1]


def unpack(wheel: Path, target: Path) -> None:
    """Unpack a wheel with times and modes, which `zipfile` leaves out."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = Path(archive.extract(info, target))
            if mode := info.external_attr >> 16 & 0o777:
                path.chmod(mode)
            seconds = calendar.timegm(info.date_time)
            os.utime(path, (seconds, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="Keep the fetched pair here.")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        folder = given.folder or work
        folder.mkdir(parents=True, exist_ok=True)
        old, new = fetch_pair(folder)
        sys.stdout.write(comparison(work, old, new, given.rounds))


if __name__ == "__main__":
    end_cleanly()
    main()
