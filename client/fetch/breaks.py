"""What a connection that ended by itself says of its mirror. Pure.

A connection may end for reasons that are no fault: the server closes after each answer, takes one
request at a time, or cuts long answers. Each has its remedy, and none of them is a wait.
"""

from __future__ import annotations

from typing import NamedTuple

#: A connection that brought this much was of use, however it ended.
_USEFUL_BYTES = 32 << 10


class Break(NamedTuple):
    """How a connection ended. `served` answers were complete; `brought_bytes` of the file came
    in all, `answer_bytes` of them in the answer it broke off; `crowded`: a request had been sent
    while another was under way; `permanent`: asking again is pointless."""

    served: int
    brought_bytes: int
    answer_bytes: int
    crowded: bool
    permanent: bool


class Again(NamedTuple):
    """No fault: connect again at once. `single`: with one request at a time from now on.
    `most_bytes`: and ask for no more than this at a time."""

    single: bool = False
    most_bytes: int | None = None


class Fault(NamedTuple):
    """The mirror has failed; how long to leave it alone is for its manners to say."""


def judge(one: Break, *, single: bool, cut_before: int | None) -> Again | Fault:
    """What to do. `single`: the mirror is asked one at a time already; `cut_before`: how much an
    answer had brought when one was cut off earlier, None if none was."""
    if one.permanent:
        return Fault()
    if one.crowded and one.served <= 1 and not single:
        # It closes after each answer, and what was sent meanwhile made it a reset; that may have
        # taken the end of the answer with it.
        return Again(single=True)
    if one.served > 0:
        # An idle or limited keep-alive connection ends like this.
        return Again()
    if one.brought_bytes >= _USEFUL_BYTES:
        # Twice in about the same place: it cuts long answers, so they are not asked for.
        usual = cut_before is not None and cut_before / 2 <= one.answer_bytes <= cut_before * 2
        most = min(one.answer_bytes, cut_before or 0) * 9 // 10 if usual else None
        return Again(most_bytes=most)
    return Fault()
