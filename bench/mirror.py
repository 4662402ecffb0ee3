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
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.shared import markdown
from bench.shared.ending import end_cleanly
from bench.shared.processes import process, wait_for
from bench.shared.subject import require

TIDEGATE = [sys.executable, "-m", "tidegate"]


@dataclass(frozen=True, slots=True)
class RunCost:
    """CPU and wall-clock seconds of a command, and its output."""

    cpu_s: float
    wall_s: float
    output: str


def timed(command: Sequence[object]) -> RunCost:
    """Run a command, and measure it with its children.

    Raises SystemExit with its output when it fails.
    """
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        words = [str(word) for word in command]
        process = subprocess.Popen(words, stdout=out, stderr=out)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - started
        out.seek(0)
        output = out.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}:\n{output}")
    return RunCost(used.ru_utime + used.ru_stime, wall_s, output)


def row(*cells: object) -> None:
    sys.stdout.write(markdown.row(*cells) + "\n")
    sys.stdout.flush()


def same(one: Path, other: Path) -> str:
    """Compare two trees by rsync, which reads all bytes."""
    command = ["rsync", "-aHnic", "--delete", f"{one}/", f"{other}/"]
    return "identical" if not timed(command).output.strip() else "WRONG"


def require_mirrored(verdicts: Mapping[str, str]) -> None:
    """Raise NothingMeasured unless each method made the new tree."""
    for name, verdict in verdicts.items():
        require(verdict == "identical", f"{name} did not make the new tree.")


def copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def rsync(
    work: Path, old: Path, new: Path, *options: str
) -> tuple[float, float, float, str, RunCost]:
    """rsync to one mirror: (master CPU, MB on the wire, mirror CPU, result, the master's cost)."""
    mirror, out, shell = work / "rsync-mirror", work / "rsync-cpu", work / "rsync-shell"
    copy(old, mirror)
    shell.write_text(f"""#!{sys.executable}
import os, subprocess, sys
before = os.times()
status = subprocess.call(["sh", "-c", " ".join(sys.argv[2:])])
after = os.times()
with open({str(out)!r}, "w") as out:
    out.write(str(sum(after[2:4]) - sum(before[2:4])))
sys.exit(status)
""")
    shell.chmod(0o755)
    os.sync()
    command = ["rsync", *options, "--delete", "--stats", "-e", shell, f"{new}/", f"host:{mirror}/"]
    cost = timed(command)
    remote_s = float(out.read_text())
    numbers = re.findall(r"Total bytes (?:sent|received): ([\d,]+)", cost.output)
    wire = sum(int(number.replace(",", "")) for number in numbers) / 1e6
    return cost.cpu_s - remote_s, wire, remote_s, same(new, mirror), cost


@contextlib.contextmanager
def origin(publish: Path, state: Path) -> Iterator[str]:
    """`tidegate serve` on the publish directory; yields its URL."""
    command = [*TIDEGATE, "serve", publish, "--listen", "127.0.0.1:0", "--admin", "off"]
    command += ["--state", state, "--slots", "64", "--policy", "fcfs"]
    log = state.with_suffix(".log")
    with process(command, log) as running:
        yield wait_for("The origin", log, "ready ", running).split()[1].rstrip("/") + "/"


@dataclass(frozen=True, slots=True)
class MirrorRounds:
    """Rounds of publishing and following."""

    generated: list[RunCost]
    applied: list[RunCost]
    update_mb: float
    verdict: str


def ours(work: Path, old: Path, new: Path, rounds: int) -> MirrorRounds:
    """Publish the new tree over the old one and follow it, `rounds` times."""
    tree, keys = work / "tree", work / "keys"
    copy(old, tree)
    publish = work / "publish"
    timed([*TIDEGATE, "mirror", "init", publish, "--keys", keys])
    publishing = [*TIDEGATE, "mirror", "publish", tree, "--channel", "pair", "--keys", keys, "--to"]
    # `protocol.tree_scan` does not cache stamps younger than 2 s.
    time.sleep(2.5)
    timed([*publishing, publish])
    first = work / "publish-1"
    copy(publish, first)
    timed(["rsync", "-aHc", "--delete", f"{new}/", f"{tree}/"])
    generated, applied, size, verdict = [], [], 0.0, ""
    for number in range(rounds):
        copy(first, publish)
        with origin(publish, work / f"state-{number}") as url:
            mirror = work / f"mirror-{number}"
            root = publish / "metadata" / "1.root.json"
            following = [*TIDEGATE, "mirror", "follow", url, mirror, "--channel", "pair"]
            following += ["--root", root, "--once"]
            timed(following)
            time.sleep(2.5)
            timed(following)
            os.sync()
            generated.append(timed([*publishing, publish]))
            applied.append(timed(following))
            size = next(publish.glob("targets/pair/*.1-2.update")).stat().st_size / 1e6
            verdict = same(tree, mirror)
    return MirrorRounds(generated, applied, size, verdict)


def comparison(work: Path, old: Path, new: Path, rounds: int) -> None:
    files, size = described(new)
    require(
        same(new, old) != "identical", "The two trees do not differ: there is nothing to mirror."
    )
    sys.stdout.write(f"\nThe pair: {size / 1e6:.1f} MB, {files} files\n\n")
    row("method", "master CPU s", "MB per mirror", "CPU s per mirror", "result")
    row("---", "---", "---", "---", "---")
    plain = [rsync(work, old, new, "-aHcz") for _ in range(rounds)]
    master, mirror = (statistics.median(one[i] for one in plain) for i in (0, 2))  # type: ignore[type-var]
    row("rsync -aHcz", f"{master:.2f} each", f"{plain[0][1]:.2f}", f"{mirror:.2f}", plain[0][3])
    mine = ours(work, old, new, rounds)
    update = mine.update_mb
    generate_s = statistics.median(cost.cpu_s for cost in mine.generated)
    apply_s = statistics.median(cost.cpu_s for cost in mine.applied)
    row(
        "tidegate mirror", f"{generate_s:.2f} once", f"{update:.2f}", f"{apply_s:.2f}", mine.verdict
    )
    require_mirrored({"rsync -aHcz": plain[0][3], "tidegate mirror": mine.verdict})
    rsync_s = statistics.median(one[4].cpu_s for one in plain)
    sys.stdout.write(
        f"\nBytes against rsync -aHcz: {update / plain[0][1]:.2f}. "
        "\n"
        f"As a share of one rsync -aHcz run's CPU (paper D: about 100 % and 150-200 %): "
        f"generate {100 * generate_s / rsync_s:.0f} %, apply {100 * apply_s / rsync_s:.0f} %.\n"
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


def described(tree: Path) -> tuple[int, int]:
    """The numbers of files and of bytes in a tree."""
    sizes = [path.stat().st_size for path in tree.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


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
        comparison(work, old, new, given.rounds)


if __name__ == "__main__":
    end_cleanly()
    main()
