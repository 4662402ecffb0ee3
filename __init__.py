"""The package `tidegate`: its command, and its library.

The command is in `commands`. The library is `tidegate.fetch` and the other names of `client.api`.
Both are imported at first use.

A checkout and an installation have the same modules (docs/decisions/packaging.md). A checkout is
the package: `tidegate.py` is a link to this file, and `__path__` is the folder that holds it.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.client.api import (
        AccessRefused,
        Corrupt,
        DownloadFailed,
        Interrupted,
        LocalProblem,
        Metalink,
        NetworkProblem,
        NoRoom,
        NotFound,
        Options,
        Progress,
        Result,
        SourceReport,
        UsageProblem,
        WaitedTooLong,
        fetch,
        fetch_blocking,
        fetch_bytes,
        read_metalink,
    )
    from tidegate.protocol.version import __version__

__all__ = [
    "AccessRefused",
    "Corrupt",
    "DownloadFailed",
    "Interrupted",
    "LocalProblem",
    "Metalink",
    "NetworkProblem",
    "NoRoom",
    "NotFound",
    "Options",
    "Progress",
    "Result",
    "SourceReport",
    "UsageProblem",
    "WaitedTooLong",
    "__version__",
    "fetch",
    "fetch_blocking",
    "fetch_bytes",
    "main",
    "read_metalink",
]
__path__ = [os.path.dirname(os.path.abspath(__file__))]


def __getattr__(name: str) -> Any:
    """Import the library when one of its names is first used (PEP 562)."""
    if name == "__version__":
        return importlib.import_module("tidegate.protocol.version").__version__
    if name in __all__:
        return getattr(importlib.import_module("tidegate.client.api"), name)
    raise AttributeError(f"module 'tidegate' has no attribute {name!r}")


def _open_closed_streams() -> None:
    """Give the standard streams that the caller has closed something to be.

    A file or a connection would get their numbers, and a line for people would end in it. What is
    meant for standard output must fail there, so its number can only be read.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR if number == 2 else os.O_RDONLY)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the program


def main() -> None:
    """Run the command line; exit with the subcommand's status."""
    try:
        _open_closed_streams()
        from tidegate.commands import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
    except (ImportError, MemoryError) as fault:
        # An import that finds no memory for its library says so in these words.
        if isinstance(fault, ImportError) and "failed to map segment" not in str(fault):
            raise
        sys.exit("tidegate: There is too little memory; raise the limit (ulimit -v, MemoryMax=).")
    finally:
        # While the interpreter is taken apart Ctrl-C would end in a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
