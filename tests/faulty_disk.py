"""A disk that is slow or dying, for processes of the tests: `faulty_disk.c` and its rules."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")
_RULES_BYTES = 4096


class FaultyDisk:
    """Start a process with `environ`; then `set` says what its disk does, until it is `heal`ed.

    A rule is `OPERATION FAULT AMOUNT PATH`; the words stand at the head of `faulty_disk.c`.
    """

    def __init__(self, folder: Path) -> None:
        library = folder / "faulty_disk.so"
        compile_ = ["cc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library)]
        subprocess.run([*compile_, str(_SOURCE), "-ldl"], check=True)
        self._rules = os.open(folder / "faulty_disk.rules", os.O_RDWR | os.O_CREAT, 0o600)
        self.environ = {
            "LD_PRELOAD": str(library),
            "FAULTY_DISK": str(folder / "faulty_disk.rules"),
        }
        self.heal()

    def set(self, *rules: str) -> None:
        """These rules hold from now on, and no others."""
        text = "".join(f"{rule}\n" for rule in rules).encode()
        if len(text) > _RULES_BYTES:
            raise ValueError("too many rules")
        os.pwrite(self._rules, text.ljust(_RULES_BYTES, b"\n"), 0)

    def heal(self) -> None:
        """Nothing is wrong with the disk any more."""
        self.set()


@functools.cache
def faulty_disk() -> FaultyDisk:
    """The disk of all tests of this process, so that their servers fork from one that has it."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return FaultyDisk(Path(folder))
