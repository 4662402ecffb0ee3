"""A bench fails where its subject did not take place, and counts each error that it ignores."""

from __future__ import annotations

import atexit
import errno
import sys
from collections import Counter
from types import TracebackType


class NothingMeasured(SystemExit):
    """The subject of a measurement did not take place. The message is one sentence.

    As a SystemExit it ends a program with that sentence and exit status 1.
    """


def require(took_place: object, sentence: str) -> None:
    """Raise NothingMeasured with `sentence` unless the subject took place."""
    if not took_place:
        raise NothingMeasured(sentence)


class Suppressed:
    """Ignores errors of some kinds, counts them, and prints the counts when the program ends.

    One instance serves any number of `with` statements, also of tasks and threads at a time.
    """

    def __init__(self, where: str, *kinds: type[BaseException]) -> None:
        self._where = where
        self._kinds = kinds
        #: By the error's class and, for an error of the system, its code.
        self.counts: Counter[str] = Counter()
        atexit.register(self.tell)

    def __enter__(self) -> Suppressed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if fault is None or not isinstance(fault, self._kinds):
            return False
        code = errno.errorcode.get(fault.errno or 0, "") if isinstance(fault, OSError) else ""
        self.counts[f"{type(fault).__name__} {code}".strip()] += 1
        return True

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in self.counts.most_common()) or "none"

    def tell(self) -> None:
        """Print the counts to stderr, unless there are none."""
        if self.counts:
            sys.stderr.write(f"Suppressed, {self._where}: {self}\n")
