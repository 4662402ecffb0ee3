"""The only place that builds objects: from a configuration to a running server, and to its end."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet import defer, threads
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool

from policies.registry import make_policy
from policies.settings import PolicySettings
from protocol.errors import ProtocolError
from protocol.ticket import KeyRing
from server import health
from server.admin.charts import RECORDED, levels_of
from server.admin.listener import AdminRoom
from server.callers import Callers
from server.catalog import Catalog
from server.clock import steady_clock
from server.config import LoadedConfig
from server.descriptors import affordable, raise_limit
from server.desk import Desk
from server.gate import Gate
from server.gateparts import GateParts
from server.generated import Generated
from server.history import Recorder
from server.http.factory import HttpFactory
from server.http.proxies import TrustedProxies
from server.keys import KeyKeeper, load_keys
from server.listeners import Listener, open_listener, tls_options
from server.listing import Listings
from server.mirror.offering import configured_mirrors, offer_followers
from server.multicast.room import MulticastRoom
from server.numbers import Numbers
from server.opening import (
    CONFIGURATION,
    CannotServe,
    configured_revision,
    open_access_log,
    open_memory,
    open_tree,
    private_paths,
    same_policy,
)
from server.pacer import Pacer
from server.pages import STATIC_ROUTE, Pages
from server.passes import PassBook
from server.prequeue import ROUTE as PREQUEUE_ROUTE
from server.prequeue import Prequeue
from server.rules import Rule, RuleBook, openings
from server.settings import FIXED, ServerConfig
from server.site import Site
from server.statelock import lock_state
from server.store.digests import StoredDigests
from server.store.journal import reserve_numbers
from server.store.ledger import (
    count_pass_use,
    keep_revision,
    write_events,
)
from server.store.records import EventRecord, PassRecord, RevisionRecord
from server.store.store import Store
from server.survey import Survey
from server.tools import ToolTable
from server.waiting import WaitingRoom

_READ_THREADS = 3
#: A server that stops lets whole answers get out for so long.
_PARTING_S = 1.0


class Service:
    """One running server. Its attributes are what the admin page and the multicast room bind to."""

    log = Logger()

    def __init__(self, loaded: LoadedConfig, reactor: Any) -> None:
        self.loaded = loaded
        self.config: ServerConfig = loaded.config
        self.reactor = reactor
        self.now = steady_clock(reactor)
        self.started_s = self.now()
        self.listeners: list[Listener] = []
        self.draining = False
        self.rng = random.Random()
        config = self.config
        self.tree = open_tree(config)
        self._open_files = raise_limit()
        self._lock = lock_state(config.state)
        self.tree.keep_private(private_paths(loaded))
        self._key_file = config.state / "keys.json"
        keys = load_keys(self._key_file, self.now(), config.keys_rotate_s)
        self.keys = KeyKeeper(reactor, self.now, self._use_keys)
        memory = open_memory(config, self.now())
        self.database, journal, revision = memory.database, memory.journal, memory.revision
        self.revision: RevisionRecord = revision
        self._write_pool = ThreadPool(1, 1, "store-write")
        self._read_pool = ThreadPool(0, _READ_THREADS, "store-read")
        self.store = Store(
            self.database,
            reactor,
            lambda work: threads.deferToThreadPool(reactor, self._write_pool, work),
            lambda work: threads.deferToThreadPool(reactor, self._read_pool, work),
            self.now,
        )
        self.pacer = Pacer(reactor, config.bandwidth)
        self.catalog = Catalog(reactor, StoredDigests(self.store, self.now))
        self.survey = Survey(reactor, self.tree, self.catalog)
        self.pages = Pages()
        self.waiting = WaitingRoom(self.pages)
        self.passes = PassBook(keys, self._keep_pass)
        self.passes.load(memory.passes)
        #: Rules that operators added on the admin page; they come after the configured ones.
        self.extra_rules: list[Rule] = []
        self.prequeue = Prequeue(lambda name, body: self.admin.papers.write(name, body))
        settings = PolicySettings.model_validate(revision.settings)
        parts = GateParts(
            reactor=reactor,
            now=self.now,
            rng=self.rng,
            keys=keys,
            journal=self.store,
            numbers=Numbers(journal.next_number, journal.over, self._promise_numbers),
            passes=self.passes,
            waiting=self.waiting,
            link=self.pacer,
            callers=Callers(config.clients_per_address),
            rules=RuleBook(config.rules),
            prequeue=self.prequeue,
            tools=ToolTable(config.holding.tools, config.holding.unknown),
            arrived=lambda record: self.recorder.arrived(record),
            not_found=lambda request: self.site.not_found(request),
            holds_most=config.holding.most,
            holds_per_client=config.holding.most_per_client,
            ticket_max_age_s=config.ticket_max_age_s,
        )
        self.gate = Gate(parts, make_policy(revision.policy, settings, self.rng), settings)
        self.desk = Desk(self.gate)
        self._restored = journal.live
        self.site = Site(
            self.tree,
            self.catalog,
            self.gate,
            self.pacer,
            mirrors=configured_mirrors(config),
            wall=self.now,
        )
        self.site.hidden = lambda path: self.gate.parts.rules.verdict(path).hidden(self.now())
        self.site.register = lambda request, rep: self.gate.reception.register(
            request, rep, self.now()
        )
        self.site.listing = Listings(self.site, self.pages, reactor).answer
        self.site.generated = Generated(self.site, reactor).answer
        self.site.add_route(STATIC_ROUTE, self.pages.answer_static)
        self.site.add_route(
            PREQUEUE_ROUTE, lambda request: self.prequeue.answer(request, self.now())
        )
        health.add_routes(self.site, self.gate, self.now, lambda: self.draining)
        self.multicast: MulticastRoom | None = None
        if config.multicast.enabled:
            try:
                self.multicast = MulticastRoom(
                    reactor,
                    config.multicast,
                    self.site,
                    self.gate,
                    config.state,
                    self.rng,
                    self._read_pool,
                )
            except ProtocolError as fault:
                raise CannotServe(str(fault)) from fault
        self.mirror_origin = offer_followers(config, reactor, self.now, self.site, self.waiting)
        self.recorder = Recorder(
            reactor,
            self.now,
            self.store,
            self.gate,
            self.pacer,
            self._extra_samples,
            config.ticket_max_age_s,
            RECORDED,
        )
        self.factory = HttpFactory(
            self.site,
            reactor,
            limits=affordable(config.limits.http_limits(), self._open_files),
            proxies=TrustedProxies(config.trusted_proxies),
            access_log=open_access_log(config),
            charge=self.pacer.charge,
        )
        self.admin = AdminRoom(self)

    # -- start -------------------------------------------------------------------------------

    def start(self) -> list[str]:
        """Open everything; the URLs under which files are served. Raises `CannotListen`."""
        self._write_pool.start()
        self._read_pool.start()
        self.gate.open(self._restored)
        self._restored = ()
        tls = None
        if self.config.tls_cert is not None and self.config.tls_key is not None:
            tls = tls_options(self.config.tls_cert, self.config.tls_key)
        for place in self.config.listen:
            secure = None if place.startswith("unix:") else tls
            self.listeners.append(open_listener(self.reactor, place, self.factory, secure))
        self.admin.start(self.config.admin, tls)
        self.survey.start()
        if self.multicast is not None:
            self.multicast.start()
        if self.mirror_origin is not None:
            self.mirror_origin.start()
        self.recorder.start()
        self.keys.start(self._key_file, self.config.keys_rotate_s)
        self.note_event("server", "The server has started.")
        return [listener.url for listener in self.listeners]

    # -- while running -----------------------------------------------------------------------

    def apply(
        self,
        policy: str,
        settings: PolicySettings,
        author: str,
        note: str = "",
        restored_from: int | None = None,
    ) -> RevisionRecord:
        """Switch the policy now and remember who did; works with a dead database, too."""
        self.gate.apply(policy, settings)
        self.revision = record = RevisionRecord(
            self.now(),
            author,
            policy,
            settings.model_dump(mode="json"),
            note,
            self.revision.id + 1,
            restored_from,
        )
        self.note_event("policy", f"{author} applied policy {policy}. {note}".strip())
        self.store.must(lambda session: keep_revision(session, record))
        return record

    def reload(self, loaded: LoadedConfig) -> list[str]:
        """Take over a new configuration; the names of settings that need a restart."""
        old, new = self.config, loaded.config
        self.loaded, self.config = loaded, new
        parts = self.gate.parts
        self.use_rules()
        parts.tools = ToolTable(new.holding.tools, new.holding.unknown)
        parts.callers = Callers(new.clients_per_address)
        parts.ticket_max_age_s = new.ticket_max_age_s
        self.gate.holds.most = new.holding.most
        self.gate.holds.most_per_client = new.holding.most_per_client
        self.factory.limits = affordable(new.limits.http_limits(), self._open_files)
        self.site.said.mirrors = configured_mirrors(new)
        self.site.forget_all()
        self.keys.read(self._key_file, new.keys_rotate_s)
        self.keys.start(self._key_file, new.keys_rotate_s)
        if new.bandwidth != old.bandwidth:
            self.pacer.set_bandwidth(new.bandwidth)
        if not same_policy(configured_revision(old, 0), configured_revision(new, 0)):
            self.apply(new.policy, new.policy_settings(), CONFIGURATION, "configuration read again")
        self.survey.start()
        return [name for name in FIXED if getattr(old, name) != getattr(new, name)]

    def use_rules(self) -> None:
        """Put the rules for files in force, and make the draws they need."""
        rules = [*self.config.rules, *self.extra_rules]
        self.gate.parts.rules = RuleBook(rules)
        self.prequeue.plan(openings(rules), self.now())

    def note_event(self, kind: str, text: str, level: str = "info", **data: Any) -> None:
        """Add a line to the operator's log."""
        record = EventRecord(self.now(), kind, text, level, data)
        self.store.note(lambda session: write_events(session, [record]))

    # -- the end -----------------------------------------------------------------------------

    def drain(self, finished: Callable[[], None]) -> None:
        """Admit nobody any more; call back when all downloads are over or the deadline is."""
        if self.draining:
            return
        self.draining = True
        deadline_s = self.now() + self.config.drain_s
        if self.multicast is not None:
            self.multicast.close()
        self.gate.drain()
        self.note_event("server", "The server is draining.")

        def look() -> None:
            active = any(download.deliveries for download in self.gate.downloads.values())
            if self.now() >= deadline_s or not active:
                finished()
            else:
                self.reactor.callLater(0.1, look)

        self.reactor.callLater(0.1, look)

    async def stop(self) -> None:
        """Close everything; tickets are safe in the store when this returns."""
        for listener in self.listeners:
            await defer.maybeDeferred(listener.port.stopListening)
        await defer.maybeDeferred(self.admin.stop)
        self.factory.drain()
        await self.factory.parted(_PARTING_S)
        if self.mirror_origin is not None:
            self.mirror_origin.stop()
        self.keys.stop()
        self.survey.stop()
        if self.multicast is not None:
            self.multicast.close()
        self.gate.close()
        self.prequeue.save()
        self.factory.abort_all()
        self.recorder.stop()
        await self.store.close()
        self.catalog.stop()
        self._read_pool.stop()
        self._write_pool.stop()
        self.database.close()
        self.tree.close()
        os.close(self._lock)

    # -- small duties ------------------------------------------------------------------------

    def _use_keys(self, keys: KeyRing) -> None:
        self.gate.parts.keys = self.passes.keys = keys

    def _keep_pass(self, record: PassRecord) -> None:
        self.store.must(lambda session: count_pass_use(session, record))

    def _promise_numbers(self, below: int) -> None:
        # The first promise is made while the objects are built, before the store's threads run.
        self.store.must(lambda session: reserve_numbers(session, below))

    def _extra_samples(self) -> Mapping[str, float]:
        levels = levels_of(self.admin.context.snapshot(), self.admin.context.health())
        faults = self.admin.context.faults_per_s()
        return {**levels, "errors": faults, "store_pending": float(self.store.state.pending)}
