"""The files of a workload, made on disk: the same bytes everywhere, without shipping any.

`python -m loadtest.content exp2 DIR` writes what the server under test has to serve. Content
depends on the name and size alone, does not compress, and is written through a temporary name.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

from .registry import find_workload
from .workloads import WORKLOADS, File, Workload

#: More distinct files than this is no release; such a workload is for the simulator.
MOST_FILES = 2_000


def blocks(file: File) -> Iterator[bytes]:
    """The bytes of `file`, at most 1 MiB at a time."""
    rng = random.Random(f"content/{file.name}/{file.size_bytes}")
    left = file.size_bytes
    while left > 0:
        size = min(left, 1 << 20)
        yield rng.randbytes(size)
        left -= size


def files_of(workload: Workload) -> list[File]:
    """Every distinct file of the population, in the order of names."""
    wanted = {file.name: file for visitor in workload.visitors for file in visitor.files}
    return [wanted[name] for name in sorted(wanted)]


def write(workload: Workload, directory: Path) -> list[File]:
    """Write the workload's files below `directory`; files already there in full size are kept.

    Raises ValueError when the workload has too many distinct files to be a release.
    """
    files = files_of(workload)
    if len(files) > MOST_FILES:
        raise ValueError(
            f"workload {workload.name!r} names {len(files)} different files; more than "
            f"{MOST_FILES} cannot be laid out. Use it with `tidegate simulate`."
        )
    for file in files:
        path = directory / file.name
        if not path.resolve().is_relative_to(directory.resolve()):
            raise ValueError(f"{file.name!r} does not lie in {directory}")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size == file.size_bytes:
            continue
        partial = path.with_name(f".{path.name}.part")
        with partial.open("wb") as out:
            for block in blocks(file):
                out.write(block)
        partial.rename(path)
    return files


def main(arguments: list[str]) -> int:
    """`content WORKLOAD DIR`: write and name what was written; 2 when called wrongly."""
    if len(arguments) != 2:
        sys.stderr.write(f"usage: python -m loadtest.content {{{','.join(WORKLOADS)}}} DIR\n")
        return 2
    try:
        workload = find_workload(arguments[0], 1)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    try:
        files = write(workload, Path(arguments[1]))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    total = sum(file.size_bytes for file in files)
    sys.stdout.write(f"{len(files)} files, {total} bytes, in {arguments[1]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
