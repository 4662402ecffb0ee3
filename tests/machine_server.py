"""The server of `tests.machine_faults`: it says with each told place which tickets it counted.

    python -m tests.machine_server serve DIR ...

It is the installed server, whose waiting answers have the field `Tidegate-Before` beside, and whose
bodies have `Tidegate-Epoch`. Without them nobody could say why a place grew, or which leader
started a body too many. The keys of tickets are renewed every minute, else no run would see it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from tidegate import main
from tidegate.policies.admission import AdmissionPolicy
from tidegate.policies.contract import Wait
from tidegate.server.admission import responses
from tidegate.server.admission.responses import Notice
from tidegate.server.app import keys, shared
from tidegate.server.app.keys import Entries
from tidegate.server.cluster import identity, node
from tidegate.server.http.answers import Header

#: A key is renewed at this age, and signs from this age on, in seconds.
_RENEWED_S = 60.0
_SIGNS_S = 30.0
#: Answers that wait for their commit.
_MOST = 1_000
_before: OrderedDict[int | None, bytes] = OrderedDict()
_answer = AdmissionPolicy._answer
_wait_fields = responses.wait_fields
_start = node.RemoteAdmission._start


def _counted(policy: AdmissionPolicy, row: int) -> bytes:
    """The tickets before this one: `+` had its start, `-` too but is not counted as yet."""
    queue, table, found = policy.queue, policy.queue.table, []
    own = table.number[row]
    for number in queue.in_order():
        if number == own:
            break
        first = queue.goes_first(table.rows[number])
        word = "-" if number in queue._returned else "+" if first else ""
        if table.given_back[table.rows[number]]:
            word = "+"
        found.append(f"{number}{word}")
    return " ".join(found).encode("ascii")


def answer(policy: AdmissionPolicy, row: int, *rest: Any) -> Wait:
    """What is told to this ticket's client."""
    _before[policy.queue.table.number[row]] = _counted(policy, row)
    if len(_before) > _MOST:
        _before.popitem(last=False)
    return _answer(policy, row, *rest)


def wait_fields(notice: Notice) -> list[Header]:
    """The fields of a waiting answer, and which tickets it counted."""
    before = _before.pop(notice.wait.ticket, b"")
    return [*_wait_fields(notice), (b"Tidegate-Before", before)]


def start(admission: node.RemoteAdmission, asked: Any, message: Any) -> None:
    """Begin a body, and say which leader has started it."""
    epoch = (b"Tidegate-Epoch", b"%d" % admission._epoch)
    _start(admission, asked, replace(message, headers=(*message.headers, epoch)))


def renewed(entries: Entries, now: float, _rotate_after_s: float | None) -> Entries:
    """These keys, and a new one soon."""
    return keys.renewed(entries, now, _RENEWED_S)


def settled(made_s: Collection[float], now: float) -> float:
    """The key that signs, soon after it was made."""
    return identity.settled(made_s, now + identity.SETTLED_S - _SIGNS_S)


if __name__ == "__main__":
    for name, value in (("renewed", renewed), ("settled", settled), ("SETTLED_S", _SIGNS_S)):
        setattr(shared, name, value)
    setattr(AdmissionPolicy, "_answer", answer)  # noqa: B010 - mypy knows no other method
    setattr(node.RemoteAdmission, "_start", start)  # noqa: B010
    responses.wait_fields = wait_fields
    main()
