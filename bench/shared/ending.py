"""A bench that is ended from outside takes down what it has started."""

from __future__ import annotations

import signal
import sys
from types import FrameType

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_cleanly() -> None:
    """Leave by way of `finally` on Ctrl-C, SIGTERM and SIGHUP; a second one does not cut it short.

    For programs, from their main thread. The exit status is a shell's: 128 and the signal's number.
    """
    for number in _ENDS:
        signal.signal(number, _leave)


def _leave(number: int, _: FrameType | None) -> None:
    for one in _ENDS:
        signal.signal(one, _already_leaving)
    sys.exit(128 + number)


def _already_leaving(number: int, _: FrameType | None) -> None:
    """What is being taken down is taken down to its end."""
