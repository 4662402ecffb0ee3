"""A node's side: an admission that asks the leader, and what is done as it says.

A request is known to the leader by a number. While no leader is there, running bodies go on, small
files are served on its last terms, and new large ones wait; when one comes (the same, or the next),
the node tells it of everything again, running bodies first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from msgspec.structs import replace
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from ...policies.contract import BRIEF_BYTES
from ...protocol.errors import ProtocolError
from ...protocol.manifest import FileDigests
from ..admission.client_keys import TICKET_FIELD, VISITOR_COOKIE
from ..admission.denylist import BlockList
from ..admission.downloads import unsent_most, was_shut
from ..admission.leases import TICK_S
from ..admission.line import LingeringBodies, Outlet
from ..admission.rules import Rule, RuleBook
from ..admission.small_files import admit_small
from ..admission.wait_status import CalledTickets
from ..files.pacer import Share
from ..files.transfer import BodyPlan, FileKey, Representation, StartBody, Transfer
from ..http.clock import Clock, Repeat
from ..http.request import Request
from ..http.unarrived import UnarrivedAnswers
from . import messages
from .degraded import DegradedQueue, MakeGate, no_leader
from .link import Link, Peer

_log = Logger()


@dataclass(frozen=True, slots=True)
class NodePatience:
    """How long a node waits for its leader, seconds; see docs/cluster.md."""

    #: New large downloads wait for a leader.
    leaderless_s: float = 5.0
    #: The last bytes of a body wait for the leader.
    end_s: float = 0.5
    #: A leader says something every second; one that has not for so long is looked for again.
    silent_s: float = 5.0
    #: Probes are not sent to a leader that has said nothing for so long.
    quiet_s: float = 2.0
    #: A request to an admin page waits for a leader that says nothing.
    admin_s: float = 1.5


PATIENCE = NodePatience()


@dataclass(eq=False, slots=True)
class _Asked:
    """One request that the leader decides about; the listener of its body."""

    node: RemoteAdmission
    number: int
    request: Request
    #: The request as it came: a begun answer lets go of its header.
    wired: messages.WireRequest
    rep: Representation | None = None
    plan: BodyPlan | None = None
    start: StartBody | None = None
    judged: str | None = None
    #: Whether it came to an admin page.
    administers: bool = False
    transfer: Transfer | None = None
    #: Whether a leader has heard of it.
    told: bool = False
    begun: bool = False
    ended: bool = False
    share: Share | None = None
    #: For how long it has waited there, by this process's own ticks.
    waited_s: float = 0.0
    seen: tuple[int, int, bool, bool] = (0, 0, False, False)
    #: When its client took nothing more at the last look: for how long its window had been shut by
    #: then, and when that was, seconds.
    shut_seen: tuple[float, float] | None = None
    #: What its client takes, lately.
    rate_bytes_s: float = 0.0
    #: Whether its last bytes may leave, and who waits for that.
    may_leave: bool = True
    go_on: Callable[[], None] | None = None
    #: What proves its ticket, as its answer told it.
    token: bytes = field(default=b"", repr=False)

    def may_end(self, go_on: Callable[[], None]) -> bool:
        asked, self.go_on = self.go_on is not None, go_on
        if not asked and not self.may_leave:
            self.node.body_ends(self)
        return self.may_leave

    def window_shut(self, transfer: Transfer, now: float) -> bool:
        """Whether its client's window was shut nearly all the time since the last call."""
        before = self.shut_seen
        self.shut_seen = here = (transfer.tcp_state().shut_s, now) if transfer.blocked else None
        if before is None or here is None:
            return False
        return was_shut(here[0] - before[0], here[1] - before[1])

    def let_end(self) -> None:
        """The leader has it on record, or says nothing."""
        if not self.may_leave and not self.ended:
            self.may_leave = True
            if self.go_on is not None:
                self.go_on()

    def moves(self) -> None:
        """See `TransferListener`: all are looked at when the leader is told."""

    def transfer_done(self, transfer: Transfer, complete: bool) -> None:
        self.node.body_ended(self, transfer, complete)
        self.go_on = None


@dataclass(frozen=True, slots=True)
class NodeHome:
    """What a node's own server has and does, beside its admission."""

    outlet: Outlet
    #: The configured bound of small files, and the rules, until a leader has told others.
    small_below_bytes: int = 0
    rules: RuleBook = field(default_factory=RuleBook)
    answers: UnarrivedAnswers = field(default_factory=UnarrivedAnswers)
    #: How many connections are open, and how many were accepted.
    connections: Callable[[], tuple[int, int]] = lambda: (0, 0)
    rules_changed: Callable[[], None] = lambda: None
    #: Begins a request anew that may be answered here.
    again: Callable[[Request], None] = lambda request: None
    #: The epoch of the latest leader that this machine knows of.
    epoch: Callable[[], int] = lambda: 0
    #: Issues tickets while no leader has been here for `PATIENCE.leaderless_s`.
    make_gate: MakeGate | None = None
    #: Answers a request to the admin page that no leader hears.
    unled: Callable[[Request], None] = no_leader


class RemoteAdmission:
    """Implements `transfer.Admission`, `Visibility` and `DigestCache` at a node, by its leader."""

    def __init__(self, reactor: Clock, hello: messages.Hello, home: NodeHome) -> None:
        self._reactor = reactor
        self._hello = hello
        self._home = home
        #: The epoch of the leader that is there.
        self._epoch = 0
        #: For how long there has been no leader, and for how long the one that is there has said
        #: nothing, by this process's own ticks.
        self._unled_s = self._silent_s = 0.0
        self._parting = False
        self._lingering = LingeringBodies()
        self.rules = home.rules
        self.called = CalledTickets(reactor.seconds)
        #: The latest terms of a leader; before the first those of this machine's configuration.
        self._terms = messages.Terms(home.small_below_bytes, True, b"", None)
        #: Whether a leader has told its terms since the start: large downloads cannot start before.
        self.met_leader = False
        self._degraded: DegradedQueue | None = None
        self._asked: dict[int, _Asked] = {}
        #: Bodies that ended, and tickets that were given, while no leader was here; or of which a
        #: leader that stands still may not know. The next one would take the bodies for lost ones,
        #: keep their slots, and put them ahead of all that wait. A leader that has told its terms
        #: twice since knows of them.
        self._unheard: list[tuple[messages.FromNode, ...]] = []
        self._unheard_before: list[tuple[messages.FromNode, ...]] = []
        #: What each download has of the line, as long as a body of it is here.
        self._shares: WeakValueDictionary[int, Share] = WeakValueDictionary()
        #: What has been judged of requests that are not answered yet.
        self._allowed: dict[Request, set[str]] = {}
        #: The blocked networks, as the leader told last.
        self.blocked = BlockList(time.time)
        #: The logins and API tokens that hold, see `Terms`.
        self.proofs: frozenset[str] | None = None
        self._digests: dict[int, Deferred[FileDigests | None]] = {}
        self._numbers = 0
        self._small: dict[str, tuple[int, int, int]] = {}
        self._link: Link[messages.FromLeader] | None = None
        self._welcomed = False
        self._timer = Repeat(reactor, TICK_S, self._tick)
        self.peer: Peer[messages.FromLeader] = Peer(self._opened, self._received, self._closed)

    # -- life --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the clock."""
        self._timer.start()

    def stop(self) -> None:
        """Stop the clocks, and cut the connection to the leader."""
        self._timer.stop()
        if self._link is not None:
            self._link.drop()
        self._close_degraded()

    def part(self) -> None:
        """This node is about to stop: those who wait here come back to another one."""
        self._parting = True
        self._send(messages.Parting())
        self._close_degraded()
        for asked in tuple(self._asked.values()):
            if asked.transfer is None and asked.start is not None:
                self._send(messages.Ended(asked.number))
                self._send_away(asked)

    @property
    def sending(self) -> bool:
        """Whether a body is on its way."""
        return any(asked.transfer is not None for asked in self._asked.values())

    @property
    def unheard_s(self) -> float | None:
        """For how long the leader that is there has said nothing; None where none is there."""
        return self._silent_s if self._welcomed else None

    @property
    def fault(self) -> str:
        """What is wrong with the lead, in a sentence; empty while a leader is heard."""
        if self._degraded is not None:
            return (
                "Nobody leads the queue at present: running downloads and small files go on, new "
                "large downloads get a ticket and start when a leader is back."
            )
        if not self._welcomed:
            return "Nobody leads the queue at present: large downloads wait for a leader."
        if self._silent_s >= PATIENCE.quiet_s:
            return "The leader says nothing: large downloads wait for it."
        return ""

    # -- Admission ---------------------------------------------------------------------------

    def admit_small(self, request: Request, rep: Representation, body_bytes: int) -> bool:
        """See `transfer.Admission`: on the leader's last terms."""
        return admit_small(
            self, self.blocked, self._terms.small_below_bytes, request, rep, body_bytes
        )

    def is_plain(self, url_path: str) -> bool:
        if self._terms.blocked is None:
            return False
        return self.rules.verdict(url_path).is_plain(time.time())

    def admit_again(self, rep: Representation, body_bytes: int) -> bool:
        """See `transfer.Admission`; whether a part may go, only the leader knows."""
        terms = self._terms
        if body_bytes > BRIEF_BYTES:
            return False
        if rep.size_bytes < terms.small_below_bytes:
            return terms.small_free
        return terms.brief_free and body_bytes == rep.size_bytes

    def has_lease(self, rep: Representation, address: str, agent: bytes | None) -> bool:
        """See `transfer.Admission`; here `admit_again` lets no part of a large file go."""
        return False

    def count_again(self, rep: Representation, body_bytes: int, times: int) -> None:
        served, whole, sent_bytes = self._small.get(rep.url_path, (0, 0, 0))
        whole += times if body_bytes == rep.size_bytes else 0
        self._small[rep.url_path] = (served + times, whole, sent_bytes + times * body_bytes)

    def enter(
        self, request: Request, rep: Representation, plan: BodyPlan, start: StartBody
    ) -> None:
        if self._degraded is not None:
            self._degraded.enter(request, rep, plan, start)
        else:
            self._put(self._add(request, rep, plan, start))

    def ask(self, request: Request) -> None:
        """Have the leader answer a request for one of its routes."""
        self._put(self._add(request))

    def administer(self, request: Request) -> None:
        """Have the leader answer a request that came to this machine's admin page."""
        self._put(self._add(request, administers=True))

    def register(self, request: Request, rep: Representation) -> bool:
        """See `transfer.Visibility`: have the leader answer for a file that is hidden as yet."""
        self._put(self._add(request, rep))
        return True

    def hidden(self, url_path: str) -> bool:
        return self.rules.verdict(url_path).hidden(time.time())

    def secret(self, url_path: str) -> bool:
        return self.rules.verdict(url_path).require_class is not None

    def opens_in_s(self, url_path: str) -> float | None:
        return self.rules.verdict(url_path).opens_in_s(time.time())

    def turned_away(self, request: Request, url_path: str) -> bool:
        """See `transfer.Visibility`: have the leader judge it; it begins anew if it may."""
        judged = self._terms.blocked is None or self.blocked.blocks(request.client_address)
        if not judged and not self.secret(url_path):
            return False
        if url_path in self._allowed.get(request, ()):
            return False
        self._put(self._add(request, judged=url_path))
        return True

    # -- DigestCache -------------------------------------------------------------------------

    def find(self, rep: Representation) -> Deferred[FileDigests | None]:
        """What the leader knows, or has computed; None without one."""
        if not self._welcomed:
            return succeed(None)
        self._numbers += 1
        waiting = self._digests[self._numbers] = Deferred()
        self._send(messages.FindDigests(self._numbers, rep))
        return waiting

    def keep(self, key: FileKey, digests: FileDigests) -> None:
        """The catalogue remembers it as long as this process lives."""

    # -- telling the leader ---------------------------------------------------------------------

    def _put(self, asked: _Asked) -> None:
        parts = self._parting and asked.start is not None
        unheard = self._welcomed and self._silent_s >= PATIENCE.admin_s
        if parts or (asked.administers and unheard):
            self._send_away(asked)
        elif self._welcomed:
            self._tell(asked)
        elif self._unled_s >= PATIENCE.leaderless_s:
            self._send_away(asked)

    def _add(
        self,
        request: Request,
        rep: Representation | None = None,
        plan: BodyPlan | None = None,
        start: StartBody | None = None,
        judged: str | None = None,
        administers: bool = False,
    ) -> _Asked:
        self._numbers += 1
        wired = messages.wire_request(request)
        asked = _Asked(self, self._numbers, request, wired, rep, plan, start, judged, administers)
        self._asked[asked.number] = asked
        request.on_gone(lambda: self._gone(asked))
        return asked

    def _tell(self, asked: _Asked) -> None:
        if asked.ended or not self._welcomed:
            return
        asked.told = True
        self._send(self._ask_of(asked))

    def _ask_of(self, asked: _Asked) -> messages.Ask:
        plan, transfer = asked.plan, asked.transfer
        if plan is not None:
            # The header stays here.
            plan = BodyPlan(plan.status, (), plan.ranges, plan.body_bytes)
        wired = replace(asked.wired, dripped=asked.request.dripped)
        running = (False, 0) if transfer is None else (True, transfer.delivered_bytes())
        kind = (asked.judged, asked.administers)
        return messages.Ask(asked.number, wired, asked.rep, plan, *running, *kind)

    def _send(self, message: Any) -> None:
        if self._link is not None:
            self._link.send(message)

    def _gone(self, asked: _Asked) -> None:
        if asked.transfer is None and not asked.ended:
            self._drop(asked)
            self._send(messages.Ended(asked.number))

    def _drop(self, asked: _Asked) -> None:
        asked.ended = True
        self._asked.pop(asked.number, None)

    def body_ends(self, asked: _Asked) -> None:
        """A body with a ticket is about to end: the leader puts that on record first."""
        if self._welcomed:
            self._send(messages.Ending(asked.number))
            self._reactor.callLater(PATIENCE.end_s, asked.let_end)
        else:
            asked.let_end()

    def body_ended(self, asked: _Asked, transfer: Transfer, complete: bool) -> None:
        """A body is over: tell how much of it arrived."""
        if not asked.ended:
            self._drop(asked)
            if asked.token and complete:
                # Without it the next leader would take a used ticket for a newcomer's request.
                asked.wired.headers[TICKET_FIELD] = asked.token
            self._lingering.add(transfer, self._reactor.seconds())
            delivered_bytes = transfer.delivered_bytes() - complete * transfer.flying_bytes()
            ended = messages.Ended(asked.number, delivered_bytes, complete)
            if self._welcomed:
                self._send(ended)
            self._unheard.append((self._ask_of(asked), ended))

    def _tick(self) -> None:
        for request in [one for one in self._allowed if one.finished]:
            del self._allowed[request]
        if self._link is not None:
            self._silent_s += TICK_S
            if self._home.epoch() > self._epoch > 0 or self._silent_s >= PATIENCE.silent_s:
                # It leads no more, or is not to be reached: what it would say comes too late.
                self._link.drop()
        self._answer_unled()
        if not self._welcomed:
            self._wait_for_leader()
        self._tell_progress()

    def _tell_progress(self, *, first: bool = False) -> None:
        """Tell what has moved; `first` follows what this node has told a new leader it runs."""
        outlet, answers, now_s = self._home.outlet, self._home.answers, self._reactor.seconds()
        # Measured without a leader, too: the average is always of the last second.
        goodput = outlet.goodput_bytes_s()
        flying = self._lingering.flying_bytes(now_s) + answers.flying_bytes(now_s, wanted=True)
        moved = []
        for asked in self._asked.values():
            transfer = asked.transfer
            if transfer is not None:
                shut = asked.seen[3] if first else asked.window_shut(transfer, now_s)
                now = (transfer.sent_bytes, transfer.delivered_bytes(), transfer.blocked, shut)
                flying += now[0] - now[1]
                if not first:
                    self._bound(asked, transfer, now[1])
                if first or now != asked.seen:
                    asked.seen = now
                    moved.append(messages.BodyState(asked.number, *now))
        if not self._welcomed:
            # The next leader is told what was served until it came.
            return
        small, self._small = tuple((path, *one) for path, one in self._small.items()), {}
        told = (goodput, outlet.link_busy, small, *self._home.connections())
        sent = (outlet.sent_bytes_total, flying, now_s)
        self._send(messages.ProgressReport(tuple(moved), *told, *sent))

    def _wait_for_leader(self) -> None:
        before, self._unled_s = self._unled_s, self._unled_s + TICK_S
        if not before < PATIENCE.leaderless_s <= self._unled_s:
            return
        self._degrade()
        if self._degraded is None:
            for asked in tuple(self._asked.values()):
                if not asked.told and asked.transfer is None:
                    self._send_away(asked)

    def _answer_unled(self) -> None:
        """Answer requests to the admin page of this machine that no leader answers."""
        answers = self._welcomed and self._silent_s < PATIENCE.admin_s
        for asked in [one for one in self._asked.values() if one.administers and not one.begun]:
            asked.waited_s += TICK_S
            if not answers and asked.waited_s >= PATIENCE.admin_s:
                self._send(messages.Ended(asked.number))
                self._send_away(asked)

    def _bound(self, asked: _Asked, transfer: Transfer, delivered_bytes: int) -> None:
        """Bound the unsent bytes in the kernel by the rate of the client."""
        rate = max(0, delivered_bytes - asked.seen[1]) / TICK_S
        asked.rate_bytes_s += (rate - asked.rate_bytes_s) * 0.5
        if not transfer.blocked or rate > 0.0:
            transfer.limit_unsent(unsent_most(asked.rate_bytes_s))

    # -- the link ----------------------------------------------------------------------------

    def _opened(self, link: Link[messages.FromLeader]) -> None:
        self._link = link
        self._silent_s = 0.0
        link.send(self._hello)
        link.flush()

    def _closed(self, link: Link[messages.FromLeader]) -> None:
        if link is not self._link:
            return
        self._welcomed, self._link, self._epoch = False, None, 0
        for waiting in tuple(self._digests.values()):
            waiting.callback(None)
        self._digests.clear()

    # -- without a leader ------------------------------------------------------------------------

    def _degrade(self) -> None:
        """No leader came: what has begun continues, new large downloads get tickets."""
        if self._parting or not self.met_leader or self._home.make_gate is None:
            return
        try:
            self._degraded = queue = DegradedQueue(self._terms, self._home.make_gate)
        except ProtocolError:
            return
        _log.info("Nobody leads: no large download starts at this node until a leader is back.")
        self._terms = replace(self._terms, small_free=True, brief_free=False)
        for asked in tuple(self._asked.values()):
            if asked.transfer is not None:
                asked.transfer.resume()
            elif asked.begun:
                # The rest of the lost leader's own answer went with it.
                asked.request.abort()
            else:
                self._move(asked, queue)

    def _move(self, asked: _Asked, queue: DegradedQueue) -> None:
        """Let this request wait in the queue, or answer it where only a leader can decide."""
        self._drop(asked)
        if asked.rep is None or asked.plan is None or asked.start is None:
            self._send_away(asked)
            return
        rep, plan, start = asked.rep, asked.plan, asked.start
        asked.request.answer_by(lambda request: queue.enter(request, rep, plan, start))

    def _hand_back(self) -> None:
        """A leader is back: it hears of the tickets first, then of the parked requests."""
        queue, self._degraded = self._degraded, None
        if queue is None:
            return
        _log.info("A leader is there: this node gives its tickets to it.")
        if tickets := queue.tickets():
            self._unheard_before.insert(0, (messages.Handover(tickets),))
        for visit, token in queue.release():
            asked = self._add(visit.request, visit.rep, visit.plan, visit.start)
            if token is not None:
                asked.wired.headers[TICKET_FIELD] = token.encode("ascii")

    def _close_degraded(self) -> None:
        queue, self._degraded = self._degraded, None
        if queue is not None:
            queue.close()

    def _send_away(self, asked: _Asked) -> None:
        self._drop(asked)
        answer = self._home.unled if asked.administers else no_leader
        answer(asked.request)

    def _welcome(self) -> None:
        self._welcomed, self._unled_s = True, 0.0
        if self._parting:
            self._send(messages.Parting())
        self._hand_back()
        self._unheard_before, self._unheard = [], self._unheard_before + self._unheard
        for told in self._unheard:
            for message in told:
                self._send(message)
        everything = list(self._asked.values())
        for asked in sorted(everything, key=lambda one: one.transfer is None):
            if asked.begun:
                # The rest of a leader's own answer went with it.
                asked.request.abort()
            else:
                self._tell(asked)
        self._tell_progress(first=True)

    def _received(
        self, link: Link[messages.FromLeader], received: list[messages.FromLeader]
    ) -> None:
        if link is not self._link:
            return
        self._silent_s = 0.0
        for message in received:
            if isinstance(message, messages.Terms):
                if message.epoch < self._home.epoch():
                    link.drop()
                    return
                self._use(message)
            elif isinstance(message, messages.Called):
                self.called.add(message.token, message.for_s)
            elif isinstance(message, messages.Digests):
                waiting = self._digests.pop(message.number, None)
                if waiting is not None:
                    waiting.callback(message.digests)
            else:
                asked = self._asked.get(message.number)
                if asked is not None:
                    self._do(asked, message)

    def _use(self, terms: messages.Terms) -> None:
        before, self._terms, self.met_leader = self._terms, terms, True
        self.proofs = None if terms.proofs is None else frozenset(terms.proofs)
        self.blocked.become(terms.blocked or ())
        self._home.outlet.set_bandwidth(terms.bandwidth_bytes_s)
        if terms.rules != before.rules:
            rules = [Rule.model_validate(one) for one in json.loads(terms.rules)]
            self.rules = self.rules.replaced(rules)
            self._home.rules_changed()
        if not self._welcomed:
            self._epoch = terms.epoch
            self._welcome()
        else:
            self._unheard_before, self._unheard = self._unheard, []

    # -- what becomes of a request --------------------------------------------------------------

    def _do(self, asked: _Asked, message: messages.OfRequest) -> None:
        if asked.transfer is not None:
            self._do_running(asked, asked.transfer, message)
        elif isinstance(message, messages.Start):
            self._start(asked, message)
        elif isinstance(message, messages.Allow):
            self._drop(asked)
            self._allowed.setdefault(asked.request, set()).add(asked.judged or "")
            self._home.again(asked.request)
        elif isinstance(message, messages.Respond):
            self._drop(asked)
            asked.request.respond(
                message.status, message.headers, message.body, close=message.close
            )
        elif isinstance(message, messages.Drip):
            asked.request.drip(message.status, message.name, message.value)
        elif isinstance(message, messages.Cut):
            asked.request.abort()
        elif isinstance(message, messages.Begin):
            asked.begun = True
            asked.request.begin(message.status, message.headers, message.length, more=message.more)
        elif isinstance(message, messages.Write) and message.data:
            asked.request.write(message.data)
        elif isinstance(message, messages.Write):
            self._drop(asked)
            asked.request.finish()

    def _start(self, asked: _Asked, message: messages.Start) -> None:
        if asked.start is None:
            asked.request.abort()
            return
        if message.share:
            asked.share = self._shares.get(message.share)
            if asked.share is None:
                rep, below = asked.rep, self._terms.small_below_bytes
                small = rep is not None and rep.size_bytes < below
                address = asked.request.client_address if small else ""
                asked.share = Share(counts_body=message.counts_body, address=address)
                self._shares[message.share] = asked.share
        asked.request.waited_s = message.waited_s
        asked.request.priority_class = message.priority_class
        asked.token = dict(message.headers).get(b"Tidegate-Ticket", b"")
        for name, value in message.headers:
            if name == b"Set-Cookie" and value.startswith(VISITOR_COOKIE):
                # The next leader would take its browser for a new visitor, who waits.
                given, headers = value.partition(b";")[0], asked.wired.headers
                headers[b"cookie"] = b"; ".join(filter(None, (given, headers.get(b"cookie"))))
        asked.may_leave = not asked.token
        asked.transfer = asked.start(asked, message.headers)

    def _do_running(self, asked: _Asked, transfer: Transfer, message: messages.OfRequest) -> None:
        if isinstance(message, messages.Start | messages.Resume):
            # Start: it ran under an earlier leader, and this one knows of it.
            if isinstance(message, messages.Resume) and asked.share is not None:
                asked.share.background = message.background
            transfer.resume()
        elif isinstance(message, messages.MayEnd):
            asked.let_end()
        elif isinstance(message, messages.Cut):
            transfer.abort(message.reason or "the queue ended it")
        elif isinstance(message, messages.Respond):
            # An older leader asks a body to wait whose start is not on record.
            if message.status != 503:
                transfer.abort("the queue refused it")
        else:
            # Held until its turn: its header went out long ago, so nothing can be said.
            transfer.pause()
