"""The only place that builds objects: from a configuration to a running server, and to its end."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError
from twisted.internet import defer, threads
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool

from policies.registry import POLICIES, make_policy
from policies.settings import PolicySettings
from protocol.errors import ProtocolError
from protocol.manifest import Source
from server.admin.charts import levels_of
from server.admin.listener import AdminRoom
from server.callers import Callers
from server.catalog import Catalog
from server.clock import steady_clock
from server.config import LoadedConfig
from server.descriptors import affordable, raise_limit
from server.desk import Desk
from server.files import Tree
from server.gate import Gate
from server.gateparts import GateParts
from server.generated import Generated
from server.history import Recorder
from server.http.accesslog import AccessLog
from server.http.factory import HttpFactory
from server.http.limits import HttpLimits
from server.http.proxies import TrustedProxies
from server.http.request import Request
from server.keys import KeysUnreadable, load_keys
from server.listeners import Listener, open_listener, tls_options
from server.listing import Listings
from server.mirror.registry import MirrorDirectory
from server.mirror.routes import PREFIX as MIRRORS
from server.mirror.routes import MirrorOrigin
from server.multicast.room import MulticastRoom
from server.numbers import Numbers
from server.pacer import Pacer
from server.pages import STATIC_ROUTE, Pages
from server.passes import PassBook
from server.prequeue import ROUTE as PREQUEUE_ROUTE
from server.prequeue import Prequeue
from server.rules import Rule, RuleBook, openings
from server.settings import ServerConfig
from server.site import Site
from server.statelock import lock_state
from server.store.database import Database, StoreUnavailable, sqlite_url
from server.store.digests import StoredDigests
from server.store.journal import JournalState, read_journal, reserve_numbers
from server.store.ledger import (
    add_revision,
    count_pass_use,
    keep_revision,
    read_passes,
    read_revisions,
    write_events,
)
from server.store.records import EventRecord, PassRecord, RevisionRecord
from server.store.store import Store
from server.survey import Survey
from server.tools import ToolTable
from server.waiting import WaitingRoom

#: Author of revisions that come from the configuration and not from an operator.
CONFIGURATION = "configuration"
_READ_THREADS = 3
_KEYS_LOOK_S = 3600.0


class CannotServe(Exception):
    """The server cannot start; the message names the fault and the remedy."""


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
        self._keys_call: Any = None
        self.rng = random.Random()
        config = self.config
        self.tree = self._open_tree(config)
        self._open_files = raise_limit()
        self._lock = lock_state(config.state)
        self.tree.keep_private(_private(loaded))
        self.keys = load_keys(config.state / "keys.json", self.now(), config.keys_rotate_s)
        self.database, journal, revision, passes = self._open_database(config)
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
        self.passes = PassBook(self.keys, self._keep_pass)
        self.passes.load(passes)
        #: Rules that operators added on the admin page; they come after the configured ones.
        self.extra_rules: list[Rule] = []
        self.prequeue = Prequeue(lambda name, body: self.admin.papers.write(name, body))
        settings = PolicySettings.model_validate(revision.settings)
        parts = GateParts(
            reactor=reactor,
            now=self.now,
            rng=self.rng,
            keys=self.keys,
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
            mirrors=_mirrors(config),
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
        self.site.add_route("/-/live", self._live)
        self.site.add_route("/-/ready", self._ready)
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
        self.mirror_origin = _mirror_origin(config, self)
        self.recorder = Recorder(
            reactor,
            self.now,
            self.store,
            self.gate,
            self.pacer,
            self._extra_samples,
            config.ticket_max_age_s,
        )
        self.factory = HttpFactory(
            self.site,
            reactor,
            limits=self._limits(config),
            proxies=TrustedProxies(config.trusted_proxies),
            access_log=_access_log(config),
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
        self._keys_call = self.reactor.callLater(_KEYS_LOOK_S, self._look_after_keys)
        self.note_event("server", "The server has started.")
        return [listener.url for listener in self.listeners]

    def _limits(self, config: ServerConfig) -> HttpLimits:
        asked = config.limits.http_limits()
        limits = affordable(asked, self._open_files)
        if 2 * limits.max_connections < asked.max_connections:
            self.log.warn(
                "Only {most} connections at once: the limit on open files is {files}; raise it "
                "(ulimit -n, LimitNOFILE=).",
                most=limits.max_connections,
                files=self._open_files,
            )
        return limits

    @staticmethod
    def _open_tree(config: ServerConfig) -> Tree:
        try:
            return Tree(str(config.directory), show_hidden=config.show_hidden)
        except OSError as fault:
            raise CannotServe(
                f"{config.directory} cannot be served: {fault.strerror}; give a directory that "
                "this user can read."
            ) from fault

    def _open_database(
        self, config: ServerConfig
    ) -> tuple[Database, JournalState, RevisionRecord, list[PassRecord]]:
        url = config.database or sqlite_url(config.state / "tidegate.db")
        try:
            database = Database(url)
            database.migrate()
            with database.begin() as session:
                journal = read_journal(session)
                passes = read_passes(session)
                latest = read_revisions(session, 1000)
                configured = next((one for one in latest if one.author == CONFIGURATION), None)
                wanted = _configured_revision(config, self.now())
                # Whoever changed the policy last wins: the configuration does when it is not the
                # one that operators have changed since.
                if configured is None or not _same(configured, wanted) or not _usable(latest[0]):
                    revision = add_revision(session, wanted)
                else:
                    revision = latest[0]
        except (StoreUnavailable, OSError) as fault:
            text = str(fault).splitlines()[0]
            remedy = (
                "Repair it, or move it away to start with an empty queue"
                if url.startswith("sqlite")
                else "Start it, or correct `database`"
            )
            raise CannotServe(f"The database {url} cannot be used: {text}. {remedy}.") from fault
        return database, journal, revision, passes

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
        self.factory.limits = self._limits(new)
        self.site.mirrors = _mirrors(new)
        self.site.forget_all()
        self._use_keys()
        if new.bandwidth != old.bandwidth:
            self.pacer.set_bandwidth(new.bandwidth)
        if not _same(_configured_revision(old, 0), _configured_revision(new, 0)):
            self.apply(new.policy, new.policy_settings(), CONFIGURATION, "configuration read again")
        self.survey.start()
        return [name for name in _FIXED if getattr(old, name) != getattr(new, name)]

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
        self.recorder.stop()
        if self.mirror_origin is not None:
            self.mirror_origin.stop()
        if self._keys_call is not None and self._keys_call.active():
            self._keys_call.cancel()
        self.survey.stop()
        if self.multicast is not None:
            self.multicast.close()
        self.gate.close()
        self.prequeue.save()
        self.factory.abort_all()
        await self.store.close()
        self.catalog.stop()
        self._read_pool.stop()
        self._write_pool.stop()
        self.database.close()
        self.tree.close()
        os.close(self._lock)

    def _use_keys(self) -> None:
        """Read the keys again; the newest is replaced when its time has come."""
        path = self.config.state / "keys.json"
        self.keys = load_keys(path, self.now(), self.config.keys_rotate_s)
        self.gate.parts.keys = self.passes.keys = self.keys

    def _look_after_keys(self) -> None:
        self._keys_call = self.reactor.callLater(_KEYS_LOOK_S, self._look_after_keys)
        try:
            self._use_keys()
        except (KeysUnreadable, OSError) as fault:
            self.log.error("The keys stay as they were: {fault}", fault=fault)

    # -- small duties ------------------------------------------------------------------------

    def _live(self, request: Request) -> None:
        request.respond(200, [(b"Content-Type", b"text/plain"), _NO_STORE], b"live\n")

    def _ready(self, request: Request) -> None:
        if self.draining:
            request.refuse(503, "closed", "The server is about to stop.", [(b"Retry-After", b"5")])
        else:
            now = self.gate.policy.snapshot(self.now())
            free = b"yes" if not now.waiting and now.large_active < now.large_slots else b"no"
            headers = [(b"Content-Type", b"text/plain"), _NO_STORE, (b"Tidegate-Free", free)]
            request.respond(200, headers, b"ready\n")

    def _keep_pass(self, record: PassRecord) -> None:
        self.store.must(lambda session: count_pass_use(session, record))

    def _promise_numbers(self, below: int) -> None:
        # The first promise is made while the objects are built, before the store's threads run.
        self.store.must(lambda session: reserve_numbers(session, below))

    def _extra_samples(self) -> Mapping[str, float]:
        levels = levels_of(self.admin.context.snapshot(), self.admin.context.health())
        faults = self.admin.context.faults_per_s()
        return {**levels, "errors": faults, "store_pending": float(self.store.state.pending)}


#: Settings that a running server cannot change.
_FIXED = (
    "directory",
    "listen",
    "admin",
    "state",
    "database",
    "show_hidden",
    "access_log",
    "tls_cert",
    "tls_key",
    "trusted_proxies",
    "multicast",
    "mirror_publish",
    "mirror_channel",
    "mirror_prefix",
)
_NO_STORE = (b"Cache-Control", b"no-store")


def _private(loaded: LoadedConfig) -> list[str]:
    """What must not be downloaded even if it lies in the served directory."""
    config = loaded.config
    paths = [str(path) for path in (config.state, config.tls_key, loaded.file) if path is not None]
    if config.database is not None and config.database.startswith("sqlite:///"):
        database = config.database.removeprefix("sqlite:///")
        paths += [database + ending for ending in ("", "-wal", "-shm", "-journal")]
    return paths


def _configured_revision(config: ServerConfig, now: float) -> RevisionRecord:
    settings = config.policy_settings().model_dump(mode="json")
    return RevisionRecord(now, CONFIGURATION, config.policy, settings)


def _usable(revision: RevisionRecord) -> bool:
    """Whether this version still knows the policy and all settings of a stored revision."""
    try:
        PolicySettings.model_validate(revision.settings)
    except ValidationError:
        return False
    return revision.policy in POLICIES


def _same(one: RevisionRecord, other: RevisionRecord) -> bool:
    return one.policy == other.policy and dict(one.settings) == dict(other.settings)


def _mirrors(config: ServerConfig) -> tuple[Source, ...]:
    return tuple(
        Source(url if url.endswith("/") else url + "/", priority)
        for priority, url in enumerate(config.mirrors, start=1)
    )


def _mirror_origin(config: ServerConfig, service: Service) -> MirrorOrigin | None:
    """Offer the followers of a channel beside this server."""
    if config.mirror_publish is None:
        return None
    origin = MirrorOrigin(
        config.mirror_publish, service.reactor, service.now, service.site.forget_all
    )
    service.site.add_route(MIRRORS, origin.handle, ("GET", "HEAD", "POST"))
    if config.mirror_channel is not None:
        directory = MirrorDirectory(
            origin.registry,
            config.mirror_channel,
            service.now,
            config.mirror_prefix,
            _url_path_of(config.mirror_publish, config.directory),
        )
        service.site.elsewhere = directory.urls_for
        service.waiting.elsewhere = lambda path: directory.urls_for(path, only_free=True)
    return origin


def _url_path_of(folder: Path, root: Path) -> str | None:
    """The URL path, slashes at both ends, under which a folder of the served tree is seen."""
    inside, outside = folder.resolve(), root.resolve()
    if not inside.is_relative_to(outside):
        return None
    path = inside.relative_to(outside).as_posix()
    return "/" if path == "." else f"/{quote(path)}/"


def _access_log(config: ServerConfig) -> AccessLog | None:
    if config.access_log is None:
        return None
    if config.access_log == "-":
        return AccessLog(sys.stderr)
    path = Path(config.access_log)
    try:
        return AccessLog(
            os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640), "a")
        )
    except OSError as fault:
        raise CannotServe(f"The access log {path} cannot be opened: {fault.strerror}.") from fault
