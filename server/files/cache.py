"""Small files in memory with their answers ready, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ..http.ready import Ready
from .transfer import FileKey, Representation

#: What each holds beside its body and target: measured with twenty thousand.
_OVERHEAD_BYTES = 2560


@dataclass(slots=True)
class SmallFile:
    """One file: what it is, and the answer that has it whole."""

    rep: Representation
    ready: Ready


class SmallFiles:
    """Answers by request target. `answer` makes one anew, of a file's bytes or of None for a body
    that is read when it is needed.

    Bodies make room before answers do: what is read again costs less than what is found again. The
    oldest go first. A caller compares one with the file first: nothing here notices a
    change.
    """

    def __init__(
        self, most_bytes: int, answer: Callable[[Representation, bytes | None], Ready]
    ) -> None:
        self._most_bytes = most_bytes
        self._answer = answer
        self._ready: OrderedDict[bytes, SmallFile] = OrderedDict()
        #: Those that have their body here, by age.
        self._bodies: OrderedDict[bytes, int] = OrderedDict()
        self._bytes = 0
        self._targets: dict[FileKey, set[bytes]] = {}
        #: The way to look a target up, without a call of ours in between.
        self.get: Callable[[bytes], SmallFile | None] = self._ready.get

    def keep(self, target: bytes, rep: Representation, ready: Ready) -> None:
        """Have this answer, whose body is here, ready from now on."""
        self.forget(target)
        self._ready[target] = SmallFile(rep, ready)
        self._targets.setdefault(rep.key, set()).add(target)
        self._bodies[target] = ready.body_bytes
        self._bytes += ready.body_bytes + len(target) + _OVERHEAD_BYTES
        while self._bytes > self._most_bytes:
            if self._bodies:
                self._drop_body(next(iter(self._bodies)))
            else:
                self.forget(next(iter(self._ready)))

    def _drop_body(self, target: bytes) -> None:
        self._bytes -= self._bodies.pop(target)
        self._ready[target].ready.drop_body()

    def forget(self, target: bytes) -> None:
        """The file has changed."""
        small = self._ready.pop(target, None)
        if small is None:
            return
        self._bytes -= self._bodies.pop(target, 0) + len(target) + _OVERHEAD_BYTES
        targets = self._targets[small.rep.key]
        targets.discard(target)
        if not targets:
            del self._targets[small.rep.key]

    def forget_all(self) -> None:
        """What is said of files has changed."""
        self._ready.clear()
        self._bodies.clear()
        self._targets.clear()
        self._bytes = 0

    def write_anew(self, key: FileKey) -> None:
        """What is said of one content has changed (its digest became known)."""
        for target in self._targets.get(key, ()):
            small = self._ready[target]
            body = small.ready.body if target in self._bodies else None
            small.ready = self._answer(small.rep, body)
