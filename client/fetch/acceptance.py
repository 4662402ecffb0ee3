"""What an answer's head tells: whether its bytes are of our file, and what else is known of it.

Mirrors that send only the whole file: such an answer begins at the start of the file and cannot be
steered. One of them is worth keeping, the fastest: mirrors that serve parts work from the far end
towards it. While several run side by side, each writes what the others have not. Pure.
"""

from __future__ import annotations

from ...protocol.units import whole_number
from ..net.answers import Fields
from ..net.urls import BadUrl, Url, disposition_name
from ..schedule.segments import UNKNOWN_SIZE, Lane
from . import actions as do
from . import faults, planning
from .actions import Action
from .events import AnswerReceived, Findings
from .state import Mirror, Serves, State, WholeAnswer


def _is_whole_answer_useful(state: State, mirror: Mirror) -> bool:
    """Whether a whole answer from this mirror could be of use now."""
    segments = state.segments
    if segments is None or not state.others(mirror):
        return True
    # Those that may turn out alike are not counted; they are compared, and the fastest stays.
    lanes = [
        lane
        for lane in segments.lanes.values()
        if state.mirrors[lane.mirror].serves is Serves.PARTS
    ]
    size = state.size_bytes
    # A tenth may come twice.
    return size - segments.wanted.total + sum(map(Lane.left, lanes)) <= size / 10


def whole_answer_began(state: State, lane: int, now: float) -> list[Action]:
    """The body of a whole answer follows; it has the block if none runs yet."""
    steering = not state.whole
    state.whole[lane] = WholeAnswer(lane, now, steering)
    return [do.AssignFrom(lane, 0)] if steering else []


def keep_fastest_whole_answer(state: State, now: float) -> list[Action]:
    """Keep the fastest, once it is known; without any mirror at work, begin another answer."""
    running = list(state.whole.values())
    if not running:
        idle = not any(state.helps(mirror) and not mirror.resting for mirror in state.mirrors)
        return faults.revive(state) if idle else []
    actions: list[Action] = []
    if len(running) > 1:
        youngest_s = now - max(answer.began_s for answer in running)
        most_bytes = max(answer.position for answer in running)
        # They run side by side for a moment, or until one has brought this much.
        if youngest_s < 0.25 and most_bytes < 2 << 20:
            return []
        best = max(running, key=lambda answer: answer.rate(now))
        for answer in running:
            if answer is not best:
                mirror = state.mirror_of(answer.lane)
                actions += faults.drop(state, mirror, "another one sends the whole file faster")
        running = [best]
    for answer in running:
        if not answer.steering and not state.over:
            # It ran beside the one that had the block, which is gone.
            answer.steering = True
            actions.append(do.AssignFrom(answer.lane, answer.position))
    return actions


def read_findings(base: Url, fields: Fields) -> Findings:
    """Read Link and Repr-Digest; whatever cannot be read is not there."""
    links, digests = fields.all("link"), fields.all("repr-digest")
    name = disposition_name(fields.get("content-disposition"))
    modified = fields.get("last-modified")
    if not links and not digests:
        return Findings(name=name, modified=modified)
    from ...protocol.headers import parse_links, parse_repr_digest

    ranked: list[tuple[int, Url]] = []
    metalink: Url | None = None
    for link in parse_links(", ".join(links)):
        try:
            url = base.join(link.target)
        except BadUrl:
            continue
        if "duplicate" in link.relations:
            priority = whole_number(link.parameters.get("pri", ""))
            ranked.append((999_999 if priority is None else priority, url))
            continue
        kind = link.parameters.get("type", "").lower()
        if "describedby" in link.relations and kind == "application/metalink4+xml":
            metalink = metalink or url
    digest = None
    found = parse_repr_digest(", ".join(digests))
    for told, ours in (("sha-512", "sha512"), ("sha-256", "sha256")):
        if told in found and len(found[told]) == int(told[4:]) // 8:
            digest = (ours, found[told])
            break
    ranked.sort(key=lambda pair: pair[0])
    return Findings(tuple(url for _, url in ranked), metalink, digest, name, modified)


Actions = list[Action]


def answer_received(state: State, event: AnswerReceived, now: float) -> Actions:
    """Returns `AcceptBody` among others if the bytes are of our file."""
    body, lane = event.body, event.lane
    mirror = state.mirror_of(lane)
    if not body.whole and body.start != event.start:
        return faults.wrong_range(state, mirror)
    if mirror.validator is not None and body.validator != mirror.validator:
        when = "during the download" if mirror.answered else "since the download was broken off"
        return faults.file_changed(state, mirror, f"the file changed on the server {when}")
    if _packed(state, mirror, event.coding):
        # Its size is that of the packed file, and no word against those of the others.
        return faults.drop(state, mirror, f"it sends the file packed ({event.coding})")
    actions: Actions = []
    size = body.size_bytes
    if faults.tells_another_size(mirror, size):
        return faults.size_changes(state, mirror)
    if size == 0 and faults.doubts_empty(state, mirror):
        return faults.drop_empty(state, mirror)
    if size is not None and state.segments is not None and state.size_bytes >= UNKNOWN_SIZE:
        state.size_bytes = size
        actions.append(do.SetSize(size))
    if size is not None and state.size_bytes not in (UNKNOWN_SIZE, size):
        return [*actions, *faults.size_differs(state, mirror, size)]
    if state.segments is None and size is not None and faults.outvoted(state, mirror, size):
        return [*actions, *faults.drop(state, mirror, faults.DropReason.OTHER_SIZE)]
    first = not mirror.answered
    mirror.answered, mirror.validator = True, body.validator
    mirror.size_bytes, mirror.redirects = size, 0
    actions += faults.status_received(state, lane, body.granted, event.at_s, now)
    if first:
        actions += _learn(state, mirror, event.findings, size or 0, now)
    if mirror.serves is not Serves.LAST_RESORT and mirror.parts:
        parts = not body.whole or (event.start is None and event.says_parts)
        mirror.serves = Serves.PARTS if parts else Serves.UNKNOWN
    if body.whole and event.start is not None:
        if lane not in mirror.lanes[:1]:
            # Its other connection brings the whole file already.
            return [*actions, *faults.give_up_connection(state, lane)]
        if len(state.mirrors) > 1 and mirror.serves is not Serves.LAST_RESORT:
            mirror.serves = Serves.WHOLE
            if not _is_whole_answer_useful(state, mirror):
                return [*actions, *faults.drop(state, mirror, "it sends only the whole file")]
    if state.segments is None:
        actions.append(do.OpenOutput(size if size is not None else UNKNOWN_SIZE))
    if first and state.digest is not None:
        actions.append(do.UseDigest(state.digest))
    return [*actions, do.AcceptBody()]


def _packed(state: State, mirror: Mirror, coding: str) -> bool:
    """Every request asks for the file as it is; some servers send it packed all the same."""
    if coding == "identity" or mirror.answered:
        return False
    if any(name.lower() == "accept-encoding" for name, _ in state.options.headers):
        return False
    if state.others(mirror):
        return True
    # Of such a name, servers often say "packed" and mean the file itself.
    packed = (".gz", ".tgz", ".z", ".bz2", ".xz", ".zst", ".br")
    if not mirror.url.target.partition("?")[0].lower().endswith(packed):
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
    # Below this, other mirrors and piece digests cost more than they save.
    if state.options.mirrors and size >= 1 << 20:
        actions += mirrors_found(state, found, size, now)
        wanted = len(state.mirrors) > 1 and not state.in_order
        if found.metalink is not None and not state.metalink_asked and wanted:
            state.metalink_asked = True
            actions.append(do.FetchMetalink(found.metalink, mirror.number))
    if mirror.number == 0 and found.digest is not None:
        state.digest = found.digest
    return actions


def mirrors_found(state: State, found: Findings, size: int, now: float) -> Actions:
    """Mirrors that an answer or a Metalink names."""
    actions: Actions = []
    for url in found.mirrors:
        if len(state.mirrors) >= 16:
            break
        fresh = state.add(url, listed=False)
        if fresh is not None:
            planning.mirror_found(state, fresh, size, now)
            news = {"url": url.text, "state": "found"}
            actions += [do.Emit("mirror", news), do.Connect(fresh.lanes[0])]
    return actions
