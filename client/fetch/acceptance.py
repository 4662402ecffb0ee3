"""Whether an answer's bytes are of our file, and what else its head tells. Pure."""

from __future__ import annotations

from ..schedule.segments import UNKNOWN_SIZE
from . import faults, planning, whole_answers
from .actions import (
    Accept,
    Action,
    Connect,
    FetchMetalink,
    Settle,
    SetUp,
    Tell,
    UseDigest,
)
from .events import Answered
from .findings import Findings
from .state import Mirror, Serves, State

#: Of such a name, servers often say "packed" and mean the file itself.
_PACKED = (".gz", ".tgz", ".z", ".bz2", ".xz", ".zst", ".br")
#: Below this, other mirrors and piece digests cost more than they save.
_WORTH_BYTES = 1 << 20
_MOST_MIRRORS = 16
Actions = list[Action]


def answered(state: State, event: Answered, now: float) -> Actions:
    """`Accept` is among what is returned if the bytes are ours; else the mirror is dealt with."""
    body, lane = event.body, event.lane
    mirror = state.mirror_of(lane)
    if not body.whole and body.start != event.start:
        return faults.misplaced(state, mirror)
    if mirror.validator is not None and body.validator != mirror.validator:
        when = "during the download" if mirror.answered else "since the download was broken off"
        return faults.changed(state, mirror, f"the file changed on the server {when}")
    if _packed(state, mirror, event.coding):
        # Its size is that of the packed file, and no word against those of the others.
        return faults.drop(state, mirror, f"it sends the file packed ({event.coding})")
    actions: Actions = []
    size = body.size_bytes
    if faults.tells_another_size(mirror, size):
        return faults.fickle(state, mirror)
    if size == 0 and faults.doubts_empty(state, mirror):
        return faults.empty(state, mirror)
    if size is not None and state.board is not None and state.size_bytes >= UNKNOWN_SIZE:
        state.size_bytes = size
        actions.append(Settle(size))
    if size is not None and state.size_bytes not in (UNKNOWN_SIZE, size):
        return [*actions, *faults.disagrees(state, mirror, size)]
    if state.board is None and size is not None and faults.outvoted(state, mirror, size):
        return [*actions, *faults.drop(state, mirror, faults.OTHER_SIZE)]
    first = not mirror.answered
    mirror.answered, mirror.validator = True, body.validator
    mirror.size_bytes, mirror.redirects = size, 0
    actions += faults.told(state, lane, body.granted, event.at_s, now)
    if first:
        actions += _learn(state, mirror, event.findings, size or 0, now)
    if mirror.serves is not Serves.LAST_RESORT and mirror.parts:
        parts = not body.whole or (event.start is None and event.says_parts)
        mirror.serves = Serves.PARTS if parts else Serves.UNKNOWN
    if body.whole and event.start is not None:
        if lane not in mirror.lanes[:1]:
            # Its other connection brings the whole file already.
            return [*actions, *faults.without(state, lane)]
        if len(state.mirrors) > 1 and mirror.serves is not Serves.LAST_RESORT:
            mirror.serves = Serves.WHOLE
            if not whole_answers.welcome(state, mirror):
                return [*actions, *faults.drop(state, mirror, "it sends only the whole file")]
    if state.board is None:
        actions.append(SetUp(size if size is not None else UNKNOWN_SIZE))
    if first and state.digest is not None:
        actions.append(UseDigest(state.digest))
    return [*actions, Accept()]


def _packed(state: State, mirror: Mirror, coding: str) -> bool:
    """Every request asks for the file as it is; some servers send it packed all the same."""
    if coding == "identity" or mirror.answered:
        return False
    if any(name.lower() == "accept-encoding" for name, _ in state.options.headers):
        return False
    if state.others(mirror):
        return True
    if not mirror.url.target.partition("?")[0].lower().endswith(_PACKED):
        state.notes.append(f"the server sent it packed ({coding}), and so it was saved")
    return False


def _learn(state: State, mirror: Mirror, found: Findings, size: int, now: float) -> Actions:
    """The first answer of a mirror; only those that the user named are believed."""
    mirror.modified = found.modified
    if mirror.number == 0 and state.proposed_name is None:
        state.proposed_name = found.name
    if not mirror.listed:
        return []
    actions: Actions = []
    if state.options.mirrors and size >= _WORTH_BYTES:
        actions += mirrors_found(state, found, size, now)
        wanted = len(state.mirrors) > 1 and not state.in_order
        if found.metalink is not None and not state.metalink_asked and wanted:
            state.metalink_asked = True
            actions.append(FetchMetalink(found.metalink))
    if mirror.number == 0 and found.digest is not None:
        state.digest = found.digest
    return actions


def mirrors_found(state: State, found: Findings, size: int, now: float) -> Actions:
    """Mirrors that an answer or a Metalink names."""
    actions: Actions = []
    for url in found.mirrors:
        if len(state.mirrors) >= _MOST_MIRRORS:
            break
        fresh = state.add(url, listed=False)
        if fresh is not None:
            planning.found(state, fresh, size, now)
            news = {"url": url.text, "state": "found"}
            actions += [Tell("mirror", news), Connect(fresh.lanes[0])]
    return actions
