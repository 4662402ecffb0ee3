"""What a mirror's fault means: wait, try again, drop it, or start over. Pure.

Every function changes the state and returns what is to be done.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from ..net.errors import (
    AccessRefused,
    Corrupt,
    DownloadFailed,
    NetworkProblem,
    NotFound,
    WaitedTooLong,
)
from ..net.retry import (
    Answer,
    Failed,
    FailureReason,
    GiveUp,
    Granted,
    HoldOn,
    RetryAfter,
    SendNow,
    WaitUntil,
)
from ..net.urls import BadUrl
from ..schedule.segments import UNKNOWN_SIZE
from . import actions as do
from . import planning
from .actions import Action
from .events import Break, ConnectionLost, FileTooLarge, RangeOutsideFile
from .state import Depth, DownloadPhase, Mirror, MirrorPause, MirrorState, Samples, Serves, State


class Again(NamedTuple):
    """No fault: connect again at once. `single`: with one request at a time from now on.
    `most_bytes`: and ask for no more than this at a time."""

    single: bool = False
    most_bytes: int | None = None


class Fault(NamedTuple):
    """The mirror has failed; how long to leave it alone is for its manners to say."""


def judge_break(one: Break, *, single: bool, cut_before: int | None) -> Again | Fault:
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
    # A connection that brought this much was of use, however it ended.
    if one.brought_bytes >= 32 << 10:
        # Twice in about the same place: it cuts long answers, so they are not asked for.
        usual = cut_before is not None and cut_before / 2 <= one.answer_bytes <= cut_before * 2
        most = min(one.answer_bytes, cut_before or 0) * 9 // 10 if usual else None
        return Again(most_bytes=most)
    return Fault()


#: When mirrors failed for several reasons, the first of these is what the user is told.
_FAILURES: Mapping[FailureReason, type[DownloadFailed]] = {
    FailureReason.WAITED_TOO_LONG: WaitedTooLong,
    FailureReason.REFUSED: AccessRefused,
    FailureReason.NETWORK: NetworkProblem,
    FailureReason.PROTOCOL: NetworkProblem,
    FailureReason.NOT_FOUND: NotFound,
}
Actions = list[Action]


class DropReason(enum.StrEnum):
    """Why a mirror is left out, as users read it."""

    EMPTY = "its copy is empty"
    REFUSES_PART = "it refuses a part of the file that it should have"
    OTHER_SIZE = "its copy has another size"
    DIFFERS = "its copy differs from the others'"
    SAME_PLACE = "it leads to another of the mirrors"


def fail(state: State, problem: DownloadFailed) -> Actions:
    if state.over:
        return []
    state.phase = DownloadPhase.OVER
    return [do.Fail(problem)]


# -- connections and answers -------------------------------------------------------------------


def connection_lost(state: State, event: ConnectionLost, now: float) -> Actions:
    mirror, how = state.mirror_of(event.lane), event.how
    if state.segments is not None and state.segments.done:
        # It was the last answer, without a length. The bytes may still prove to be wrong.
        return [do.Connect(event.lane)]
    if how.announced and how.served <= 1:
        mirror.depth = Depth.ONE
    verdict = judge_break(how, single=mirror.depth is Depth.ONE, cut_before=mirror.cut_bytes)
    in_vain = how.served == 0 and _brought_nothing_new(state, mirror)
    if (
        isinstance(verdict, Fault)
        or in_vain
        or (not how.served and state.options.max_failures <= 1)
    ):
        return failed(state, event.lane, event.text, how.permanent, now)
    actions: Actions = []
    if how.served == 0 and not verdict.single:
        mirror.cut_bytes = how.answer_bytes
        mirror.most_bytes = verdict.most_bytes or mirror.most_bytes
        mirror.counts.retries += 1
        news = {"url": mirror.url.text, "text": event.text, "seconds": 0.0}
        actions.append(do.Emit("retry", news))
    if verdict.single:
        mirror.depth = Depth.ONE
    return [*actions, do.Connect(event.lane)]


def _brought_nothing_new(state: State, mirror: Mirror) -> bool:
    """Whether the mirror brought no missing byte since its last connection was lost.

    Whole answers that are always cut at the same place do so. Asking again at once would never
    end.
    """
    lacked = state.segments.wanted.total if state.segments is not None else None
    before, mirror.missing_at_loss_bytes = mirror.missing_at_loss_bytes, lacked
    if before is None or lacked is None or lacked < before:
        mirror.vain_losses = 0
        return False
    mirror.vain_losses += 1
    return True


def short_answer(state: State, lane: int, now: float) -> Actions:
    """Its answers end before they brought what they should.

    Asked again at once it would be handed the same bytes for ever, and no other mirror would get
    them.
    """
    mirror = state.mirror_of(lane)
    mirror.short_answers += 1
    return status_received(
        state, lane, Failed("it sends less than it was asked for", mirror.short_answers), now, now
    )


def failed(state: State, lane: int, text: str, permanent: bool, now: float) -> Actions:
    """The connection broke, fell silent, or never came."""
    mirror = state.mirror_of(lane)
    if lane not in mirror.lanes[:1]:
        return give_up_connection(state, lane)
    if permanent:
        state.reasons.append((FailureReason.NETWORK, text))
        return drop(state, mirror, text)
    return status_received(state, lane, Failed(text, max(1, mirror.vain_losses)), now, now)


def status_received(state: State, lane: int, answer: Answer, at_s: float, now: float) -> Actions:
    """A mirror refuses, defers, fails, or (Granted) starts a lease."""
    mirror = state.mirror_of(lane)
    if lane not in mirror.lanes[:1] and not isinstance(answer, Granted):
        # It gives no further connection: no reason to disturb the one that works.
        return give_up_connection(state, lane)
    action = mirror.visit.answered(at_s, answer)
    match action:
        case HoldOn(connections):
            return _keep_within(mirror, lane, connections)
        case SendNow():
            return [do.Disconnect(lane), do.Connect(lane)]
        case WaitUntil():
            return _wait(state, mirror, action, now)
        case GiveUp(reason, text):
            state.reasons.append((reason, text))
            return drop(state, mirror, text)


def give_up_connection(state: State, lane: int) -> Actions:
    """A further connection that is not to be had: the first one works on."""
    mirror = state.mirror_of(lane)
    if lane in mirror.lanes:
        mirror.lanes.remove(lane)
    return [do.Disconnect(lane), do.Wake()]


def _keep_within(mirror: Mirror, lane: int, connections: int | None) -> Actions:
    """Keep within the lease's number of connections; others than `lane` go first."""
    if connections is None:
        return []
    others = [other for other in mirror.lanes if other != lane]
    surplus = others[max(1, connections) - (lane in mirror.lanes) :]
    mirror.lanes = [other for other in mirror.lanes if other not in surplus]
    return [do.Disconnect(other) for other in reversed(surplus)]


def _wait(state: State, mirror: Mirror, action: WaitUntil, now: float) -> Actions:
    told = action.told or RetryAfter()
    mirror.counts.retries += 1
    starts_at, done_at = (None if s is None else now + s for s in (told.expected_s, told.done_s))
    mirror.pause = MirrorPause(action.at, action.text, told.place, starts_at, done_at)
    if mirror.state is MirrorState.READY:
        mirror.state = MirrorState.WAITING
    news = {
        "url": mirror.url.text,
        "text": action.text,
        "seconds": round(action.at - now, 3),
        "place": told.place,
        "expected_s": told.expected_s,
        "p90_s": told.p90_s,
        "done_s": told.done_s,
        "done_p90_s": told.done_p90_s,
        "ready": told.ready,
    }
    return [
        *(do.Disconnect(lane) for lane in mirror.lanes),
        *planning.call_all(state),
        do.Emit("wait" if action.told is not None else "retry", news),
        do.ScheduleRetry(mirror.number, action.at),
        *_open_small_file(state),
        do.Wake(),
    ]


def retry_due(state: State, number: int, until: float) -> Actions:
    mirror = state.mirrors[number]
    if not mirror.pause or mirror.pause.until != until or mirror.state is not MirrorState.WAITING:
        return []
    mirror.state, mirror.pause = MirrorState.READY, None
    mirror.visit.begin()
    return [do.Connect(lane) for lane in _lanes_to_open(state, mirror)]


def wrong_range(state: State, mirror: Mirror) -> Actions:
    """It sends another part than was asked for. That may be the answer to a later request, where an
    earlier one was thrown away because it came while another was under way."""
    if mirror.depth is Depth.ONE:
        return drop(state, mirror, "it sends another part than was asked for")
    mirror.depth = Depth.ONE
    mirror.counts.retries += 1
    return _connect_anew(state, mirror)


def _connect_anew(state: State, mirror: Mirror) -> Actions:
    lanes = _lanes_to_open(state, mirror)
    return [act for lane in lanes for act in (do.Disconnect(lane), do.Connect(lane))]


def _lanes_to_open(state: State, mirror: Mirror) -> list[int]:
    """One until an answer is taken: several whole answers would be compared, and one stays."""
    return mirror.lanes if state.segments is not None else mirror.lanes[:1]


def redirected(state: State, lane: int, location: str) -> Actions:
    mirror = state.mirror_of(lane)
    mirror.redirects += 1
    try:
        mirror.at = mirror.at.redirected(location, mirror.redirects, state.options.max_redirects)
    except BadUrl as error:
        state.reasons.append((FailureReason.PROTOCOL, str(error)))
        return drop(state, mirror, str(error))
    if any(other.at == mirror.at for other in state.alive if other is not mirror):
        # Its server would take this download for two.
        return drop(state, mirror, DropReason.SAME_PLACE)
    return _connect_anew(state, mirror)


def range_outside_file(state: State, event: RangeOutsideFile) -> Actions:
    """What was asked for lies outside the mirror's copy."""
    mirror = state.mirror_of(event.lane)
    if tells_another_size(mirror, event.size_bytes):
        return size_changes(state, mirror)
    if event.size_bytes == 0 and doubts_empty(state, mirror):
        return drop_empty(state, mirror)
    if state.segments is None:
        # Asked in the dark for a part of a small file.
        mirror.beyond = True
        mirror.size_bytes = event.size_bytes
        return _open_small_file(state)
    inside = event.start is not None and event.start < state.size_bytes
    another = event.start is not None and event.size_bytes not in (None, state.size_bytes)
    if inside and event.size_bytes == state.size_bytes:
        state.reasons.append((FailureReason.PROTOCOL, DropReason.REFUSES_PART))
        return drop(state, mirror, DropReason.REFUSES_PART)
    return size_differs(state, mirror, event.size_bytes) if inside or another else []


def outvoted(state: State, mirror: Mirror, size: int) -> bool:
    """Whether most mirrors, asked past the end, have told another size than this one."""
    sizes = [other.size_bytes for other in state.mirrors if other.beyond]
    common = max(sizes, key=sizes.count, default=None)
    return common not in (None, size) and sizes.count(common) > sizes.count(size) + 1


def _open_small_file(state: State) -> Actions:
    """Mirrors were asked for parts past the end: the first one will tell more. But if it has
    not answered and will not now, those that did must do."""
    if state.segments is not None or state.over:
        return []
    usable = [mirror for mirror in state.mirrors if state.usable(mirror)]
    beyond = [mirror for mirror in usable if mirror.beyond]
    if not beyond or len(beyond) < len(usable):
        return []
    sizes = [mirror.size_bytes for mirror in beyond if mirror.size_bytes is not None]
    if sizes:
        return [do.OpenOutput(max(sizes, key=sizes.count))]
    for mirror in beyond:
        mirror.beyond = False
    return [do.RequestWholeFile(beyond[0].lanes[0])]


# -- mirrors that are dropped ------------------------------------------------------------------


def drop(state: State, mirror: Mirror, text: str) -> Actions:
    if not mirror.alive or state.over:
        return []
    mirror.state, mirror.dropped, mirror.pause = MirrorState.DROPPED, text, None
    news = {"url": mirror.url.text, "state": "dropped", "text": text}
    actions: Actions = [*(do.Disconnect(lane) for lane in mirror.lanes), do.Emit("mirror", news)]
    if not any(state.alive):
        return [*actions, *_no_mirror_left(state, text)]
    return [*actions, *planning.call_all(state), *_open_small_file(state), do.Wake()]


def _no_mirror_left(state: State, text: str) -> Actions:
    called = revive(state) or _empty_after_all(state)
    if called:
        return called
    if state.no_room is not None:
        return fail(state, state.no_room)
    if state.reasons and len(state.mirrors) == 1:
        reason, text = state.reasons[-1]
    else:
        telling = list(_FAILURES)
        reason, text = min(
            state.reasons,
            key=lambda one: telling.index(one[0]),
            default=(FailureReason.NETWORK, text),
        )
    names = "every mirror failed" if len(state.mirrors) > 1 else state.mirrors[0].url.text
    return fail(state, _FAILURES[reason](f"{names}: {text}"))


def revive(state: State) -> Actions:
    """Call back the fastest of those that only send the whole file; nothing without one."""
    aside = [mirror for mirror in state.mirrors if mirror.resting]
    if not aside:
        return []
    mirror = max(aside, key=lambda one: one.counts.rate_bytes_s)
    mirror.state, mirror.dropped = MirrorState.READY, None
    mirror.serves = Serves.LAST_RESORT
    return [do.Connect(mirror.lanes[0])]


def convict(state: State, mirror: Mirror, text: str) -> Actions:
    """The mirror gave wrong bytes: those that no digest has proved are missing again."""
    if not mirror.alive or state.over:
        return []
    state.notes.append(f"{mirror.url.text} was dropped: {text}")
    state.reasons.append((FailureReason.PROTOCOL, text))
    actions: Actions = [do.Distrust(mirror.number)]
    if all(other is mirror for other in state.alive):
        problem = Corrupt(f"{mirror.url.text} gives wrong bytes, and no other mirror is left")
        return [*actions, *fail(state, problem)]
    return [*actions, *drop(state, mirror, text)]


# -- copies that differ ------------------------------------------------------------------------


def file_changed(state: State, mirror: Mirror, text: str) -> Actions:
    """The mirror has another file now. The first one decides between downloads, without a proof."""
    mirror.size_bytes = None
    settled = mirror.number > 0 or mirror.answered or state.vouched
    return (drop if settled and state.others(mirror) else start_over)(state, mirror, text)


def doubts_empty(state: State, mirror: Mirror) -> bool:
    """Whether the word of this mirror that the file has no bytes is not enough: a copy that was
    only begun looks so, and another mirror has bytes, or may have."""
    digest = state.options.digest
    is_told = digest is not None and hashlib.new(digest[0]).digest() == digest[1]
    if 0 in (state.size_bytes, state.promised_bytes) or is_told:
        return False
    return any(other.size_bytes != 0 for other in state.mirrors if other is not mirror)


def drop_empty(state: State, mirror: Mirror) -> Actions:
    """The mirror's copy has no bytes, which is doubted: ask the others."""
    mirror.size_bytes = 0
    return drop(state, mirror, DropReason.EMPTY)


def _empty_after_all(state: State) -> Actions:
    """No mirror is left, and no copy had bytes: the file is empty, as the answers say."""
    told = [mirror for mirror in state.mirrors if mirror.size_bytes is not None]
    if state.segments is not None or not told or any(mirror.size_bytes for mirror in told):
        return []
    for mirror in told:
        mirror.state, mirror.dropped = MirrorState.READY, None
    if len(told) < len(state.mirrors):
        text = "the file is empty, as far as mirrors answered: the others could not be asked"
        state.notes.append(text)
    return [do.OpenOutput(0)]


def tells_another_size(mirror: Mirror, size: int | None) -> bool:
    """Whether the mirror has told another size before, of a file that it says is the same."""
    return size is not None and mirror.size_bytes not in (None, size)


def size_changes(state: State, mirror: Mirror) -> Actions:
    """The mirror tells another size than before: its word against others' is worth nothing, and
    alone it is asked afresh only once."""
    mirror.resized, mirror.size_bytes = mirror.resized + 1, None
    text = "it tells another size of the file with each answer"
    if _take_back(state, DropReason.OTHER_SIZE):
        return [*drop(state, mirror, text), *start_over(state, mirror, text)]
    if any(other is not mirror for other in state.alive):
        return convict(state, mirror, text)
    if mirror.resized > 1:
        return fail(state, NetworkProblem(f"{mirror.url.text}: {text}"))
    return start_over(state, mirror, "the file has another size than before")


def ask_outvoted(state: State) -> Actions:
    """No copy in use has the expected digest: ask those that were left out because theirs differ.

    Nothing where there are none, or where a reader has had the beginning.
    """
    wrong, text = list(state.alive), "its copy does not have the expected digest"
    sizes = [DropReason.OTHER_SIZE] if state.promised_bytes is None else []
    if state.in_order or not _take_back(state, DropReason.DIFFERS, *sizes):
        return []
    actions = [act for mirror in wrong for act in convict(state, mirror, text)]
    return [*actions, *start_over(state, wrong[0], text)]


def _take_back(state: State, *reasons: DropReason) -> bool:
    """Ask mirrors again that were left out for one of these reasons; False without any."""
    back = [mirror for mirror in state.mirrors if mirror.dropped in reasons]
    for mirror in back:
        mirror.state, mirror.dropped = MirrorState.READY, None
    return bool(back)


def size_differs(state: State, mirror: Mirror, size: int | None) -> Actions:
    """A mirror has a copy of another size: the majority of those asked decides.

    At a tie the mirror that the user named first is right, not the first one to answer.
    """
    mirror.size_bytes = size
    sizes = [other.size_bytes for other in state.mirrors if other.size_bytes is not None]
    certain = state.promised_bytes is not None
    more = 0 if size is None else sizes.count(size) - sizes.count(state.size_bytes)
    if not certain and size is not None and more >= (mirror.number > 0):
        actions: Actions = []
        for other in state.mirrors:
            if other.size_bytes == size and not other.alive:
                other.state, other.dropped = MirrorState.READY, None
            elif other.size_bytes not in (size, None):
                actions += drop(state, other, DropReason.OTHER_SIZE)
        whose = "most mirrors have" if more > 0 else "the first mirror has"
        return [*actions, *start_over(state, mirror, f"{whose} a copy of another size")]
    if any(other is not mirror for other in state.alive):
        return drop(state, mirror, DropReason.OTHER_SIZE)
    if certain:
        promised = f"where {state.size_bytes} are promised"
        return fail(state, Corrupt(f"{mirror.url.text} has {size} bytes {promised}"))
    return start_over(state, mirror, "the file has another size than before")


def file_too_large(state: State, event: FileTooLarge) -> Actions:
    """One mirror's word must not end the download where another's file would find its place.

    The first mirror's counts before the others', but not where no disk of this size could hold it.
    """
    tellers = [mirror for mirror in state.mirrors if mirror.size_bytes == event.size_bytes]
    first = any(mirror.number == 0 for mirror in tellers) and not event.problem.ever
    others = [mirror for mirror in state.alive if mirror not in tellers]
    if first or not tellers or not others or state.promised_bytes is not None:
        return fail(state, event.problem)
    state.no_room = event.problem
    text = f"it tells a size of {event.size_bytes} bytes, for which there is no room here"
    return [action for mirror in tellers for action in drop(state, mirror, text)]


def start_over(state: State, mirror: Mirror, text: str) -> Actions:
    """Nothing of what arrived can be trusted."""
    state.restarts += 1
    if state.restarts > 3:
        return fail(state, NetworkProblem(f"{mirror.url.text}: {text}, again and again"))
    state.phase, state.segments, state.size_bytes = DownloadPhase.OPENING, None, UNKNOWN_SIZE
    state.samples, state.digest, state.metalink_asked = Samples(), None, False
    state.vouched, state.suspect, state.end_marked = False, None, True
    state.whole.clear()
    state.overhead_bytes += state.received_bytes()
    for other in state.mirrors:
        other.counts.received_bytes = 0
        other.validator, other.answered, other.beyond = None, False, False
        # Another file may be served in another way; one that had sent the old one whole, and
        # rests, would not be asked for this one.
        other.serves = Serves.UNKNOWN
        other.missing_at_loss_bytes, other.vain_losses = None, 0
    news = {"url": mirror.url.text, "text": f"{text}; starting over"}
    lanes = [lane for other in state.mirrors for lane in _lanes_to_open(state, other)]
    return [do.Emit("retry", news), do.StartOver(), *(do.Connect(lane) for lane in lanes)]
