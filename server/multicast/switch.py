"""The switch in front of the gate: holds capable requests, and offers sessions.

It implements `transfer.Admission` around another one. Requests without the header, range requests,
HEAD, and requests for files under a rule pass at the cost of one dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from twisted.logger import Logger

from ...protocol.session import (
    HEADER_NAME,
    OFFER_TYPE,
    Capability,
    encode_offer,
)
from ..admission.client_keys import CLIENT_FIELD
from ..files.openfile import OpenFile
from ..files.transfer import Admission, BodyPlan, Representation, StartBody
from ..files.tree import IsDirectory, NotHere, Tree
from ..http.clock import Clock, cancel
from ..http.request import Request
from .blocks import BlockHashes
from .demand import DemandDetector, Hold, Join, Release, StartSession
from .live import LiveSession, SentContent
from .sessions import Sessions

#: The poll interval of a capable client with a ticket: a session starts with its polls.
_POLL_S = 5.0


@dataclass(slots=True)
class _Held:
    request: Request
    rep: Representation
    plan: BodyPlan
    start: StartBody
    capability: Capability


class MulticastSwitch:
    """`inner` is the gate. `eligible` says whether a file may be sent to all members of a group."""

    log = Logger()

    def __init__(
        self,
        reactor: Clock,
        inner: Admission,
        tree: Tree,
        hot: DemandDetector,
        hashes: BlockHashes,
        sessions: Sessions,
        eligible: Callable[[Request, Representation], bool] = lambda request, rep: True,
    ) -> None:
        self._reactor = reactor
        self.inner = inner
        self._tree = tree
        self.hot = hot
        self._hashes = hashes
        self.sessions = sessions
        self._eligible = eligible
        self._held: dict[str, _Held] = {}
        self._numbers = 0
        self._call: Any = None
        self.is_plain = inner.is_plain
        self.admit_small = inner.admit_small
        self.admit_again = inner.admit_again
        self.count_again = inner.count_again
        self.has_lease = inner.has_lease

    # --- Admission ----------------------------------------------------------------------------

    def enter(
        self, request: Request, rep: Representation, plan: BodyPlan, start: StartBody
    ) -> None:
        """See `transfer.Admission`."""
        capability = self.sessions.capability_of(request) if plan.status == 200 else None
        if capability is None or not self._eligible(request, rep):
            self.inner.enter(request, rep, plan, start)
            return
        held = _Held(request, rep, plan, start, capability)
        now = self._reactor.seconds()
        key = object_key(rep)
        self._numbers += 1
        waiter = str(self._numbers)
        name = request.headers.get(CLIENT_FIELD, b"").decode("latin-1")
        client = f"{request.client_address} {name}"
        if b"tidegate-ticket" in request.headers:
            self._prepare(key, rep)
            decision = self.hot.poll(key, client, waiter, now)
        else:
            decision = self.hot.request(key, waiter, rep.size_bytes, now, client if name else "")
        if isinstance(decision, Join):
            self._offer_or_pass(held, decision.session)
        elif isinstance(decision, Hold):
            self._held[waiter] = held
            request.on_gone(lambda: self._gone(key, waiter))
            self._prepare(key, rep)
        else:
            self.inner.enter(request, rep, plan, start)
        self._settle()

    def close(self) -> None:
        """End all sessions, and pass held requests on to the gate."""
        cancel(self._call)
        self.sessions.close()
        for waiter in list(self._held):
            self._pass(self._held.pop(waiter))

    # --- inside -------------------------------------------------------------------------------

    def _gone(self, key: str, waiter: str) -> None:
        if self._held.pop(waiter, None) is not None:
            self.hot.forget(key, waiter)

    def _pass(self, held: _Held) -> None:
        if not held.request.finished:
            self.inner.enter(held.request, held.rep, held.plan, held.start)

    def _offer_or_pass(self, held: _Held, session_id: int | None) -> None:
        session = self.sessions.get(session_id) if session_id is not None else None
        if session is None or not self._fits(session, held.capability):
            self._pass(held)
        elif not held.request.finished:
            offer = session.offer(held.capability.rate_bytes_s, held.request.client_address)
            fields = [
                (b"Content-Type", OFFER_TYPE.encode()),
                (b"Cache-Control", b"no-store"),
                (b"Vary", HEADER_NAME.encode()),
            ]
            held.request.respond(200, fields, encode_offer(offer))

    @staticmethod
    def _fits(session: LiveSession, capability: Capability) -> bool:
        return (
            session.accepts(capability.rate_bytes_s)
            and session.fec.scheme in capability.fec
            and session.place.family in capability.families
        )

    def _prepare(self, key: str, rep: Representation) -> None:
        layout = self.sessions.layout(rep.size_bytes)
        if self._hashes.known(rep.key, layout) is not None:
            self.hot.prepared(key, self._reactor.seconds())
            return
        file = open_again(self._tree, rep)
        if file is None:
            return

        def ready(_: object) -> None:
            self.hot.prepared(key, self._reactor.seconds())
            self._settle()

        # If hashing fails, the requests pass on to the gate when their windows end.
        self._hashes.want(file, layout).addCallbacks(ready, lambda failure: None)

    def _settle(self) -> None:
        if self.sessions.closed:
            return
        now = self._reactor.seconds()
        # After a fault in `decide` all held requests pass on to the gate.
        outcomes: Sequence[StartSession | Release] = [Release("", tuple(self._held))]
        with self.log.failuresHandled("Nothing could be decided on multicast") as decided:
            outcomes = self.hot.decide(now)
        for outcome in outcomes:
            waiting = [self._held.pop(name) for name in outcome.waiters if name in self._held]
            running: int | None = None
            if waiting and isinstance(outcome, StartSession):
                with self.log.failuresHandled(
                    "No multicast session; the requests pass to the gate"
                ):
                    running = self._begin(outcome.key, waiting, outcome.needed)
            for held in waiting:
                with self.log.failuresHandled("A request that was held failed") as work:
                    self._offer_or_pass(held, running)
                if work.failed:
                    held.request.abort()
        cancel(self._call)
        if decided.succeeded and self.hot.wake_at < float("inf"):
            self._call = self._reactor.callLater(max(0.001, self.hot.wake_at - now), self._settle)

    def _begin(self, key: str, waiting: list[_Held], needed: int) -> int | None:
        """The running or a new session for these requests; None if none is possible."""
        running = self.sessions.by_key(key)
        if running is None:
            running = self._open(key, waiting, needed)
        return running.id if running is not None else None

    def _open(self, key: str, waiting: list[_Held], needed: int) -> LiveSession | None:
        rep = waiting[0].rep
        file = open_again(self._tree, rep)
        layout = self.sessions.layout(rep.size_bytes)
        hashes = self._hashes.known(rep.key, layout)
        if file is None or hashes is None:
            return None
        fec = self.sessions.choose_fec([held.capability for held in waiting], layout)
        # If most of the cohort waits with tickets, it polls within `_POLL_S`: the pass waits for
        # it, instead of a second pass for late receivers.
        mostly_queued = not needed and self.hot.queued(key) > len(waiting)
        session = self.sessions.open(
            SentContent(key, file, fec, hashes),
            lead_s=_POLL_S if mostly_queued else None,
            needed=needed,
        )
        if session is not None:
            self.hot.started(key, session.id)
        return session


def hurry(hot: DemandDetector, sessions: Sessions, request: Request) -> float | None:
    """The poll interval of a waiting client that can receive; None: as the queue says.

    It gets its turn in the queue or the next session, whichever comes first.
    """
    if sessions.capability_of(request) is None:
        return None
    # Bounds the polls of all such clients together.
    return max(_POLL_S, hot.waiting / 200.0)


def object_key(rep: Representation) -> str:
    """The name of an object: one content under one URL path."""
    return f"{rep.url_path} {rep.etag}"


def open_again(tree: Tree, rep: Representation) -> OpenFile | None:
    """Open the file of a representation; None if its path has another content now."""
    try:
        file = tree.open(rep.path.split(b"/"))
    except (NotHere, IsDirectory):
        return None
    return file if file.rep.key == rep.key else None
