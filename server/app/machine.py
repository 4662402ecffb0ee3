"""One machine of a cluster: the process that follows the leader, or leads.

It reads the leader from the database and tells its nodes where to connect. When it leads, it builds
the same server as a single machine, on the shared database. When another machine leads, or the
database does not renew the lease, the process ends, and the next one begins as a follower. So no
state of an earlier epoch survives.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
from twisted.application.internet import ClientService
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from ..cluster.election import Candidacy, Candidate, Standing
from ..cluster.identity import MutualTls
from ..cluster.link import NOBODY, LinkFactory, SilentConnections, keep_connected
from ..cluster.messages import FromNode, Hello, decode_from_leader, decode_from_node
from ..cluster.node import NodeHome, RemoteAdmission
from ..files.pacer import Pacer
from ..http.clock import Reactor, Repeat
from ..http.request import Request
from ..store.cluster import read_nodes
from ..store.database import Database, StoreUnavailable, address_towards
from .admin_service import AdminConnections
from .bootstrap import warn_unverified
from .config import CannotStart, LoadedConfig
from .fleet import ClusterSeat, FleetPlan
from .health import Unled, answer_unled
from .listeners import OpenListener, tls_server
from .meeting import Meeting, MeetingEndpoint, read_meeting, write_meeting
from .settings import ServerConfig, split_address
from .shared import Shared, machine_name, open_shared
from .state_lock import lock_state
from .workers import ExitStatus


class Machine:
    """Follows or leads. `take_over` builds the server of a leader; `introduction` describes it.

    Raises `CannotStart` and OSError.
    """

    log = Logger()

    def __init__(
        self,
        loaded: LoadedConfig,
        reactor: Reactor,
        fleet: FleetPlan,
        take_over: Callable[[FleetPlan], Any],
        introduction: Callable[[Any, list[str]], list[str]],
        *,
        campaigns: bool,
        again: bool,
        admin: OpenListener | None = None,
    ) -> None:
        config = loaded.config
        self._opened_admin = admin
        assert config.cluster is not None
        self._loaded = loaded
        self._reactor = reactor
        self._fleet = fleet
        self._take_over = take_over
        self._introduction = introduction
        self._campaigns = campaigns
        #: Whether an earlier process of this machine has printed the introduction.
        self._introduced = again
        self._lock = lock_state(config.state)
        self.name = machine_name(config.state)
        self._database = Database(config.cluster, clustered=True)
        #: Whether the database was away when this process began.
        self._unasked = False
        try:
            self._database.claim()
            self._database.migrate()
            warn_unverified(config.cluster)
            self._identities = self._open_shared().identities
        except StoreUnavailable as fault:
            known = read_meeting(config.state) if again else None
            if known is None:
                raise CannotStart(
                    f"The cluster's database cannot be used: {fault}. Start it, or correct "
                    "`cluster`."
                ) from fault
            # An earlier process led until the database was away: this one waits for it.
            self._unasked, self._identities = True, known.identities
        self._tls = MutualTls(self._identities, time.time())
        #: Where nodes of other machines connect.
        self._door: LinkFactory[FromNode] = LinkFactory(
            reactor, decode_from_node, NOBODY, door=SilentConnections(reactor)
        )
        self._port: Any = None
        self._candidate: Candidate | None = None
        self._service: Any = None
        self._relay: ClientService | None = None
        self._follower: RemoteAdmission | None = None
        self._admin: AdminConnections | None = None
        self._followed = ""
        #: The leader's place that this machine's nodes were last told.
        self._meeting: Meeting | None = None
        self._stopping = False

    def _open_shared(self) -> Shared:
        config = self._loaded.config
        return open_shared(self._database, config.state, time.time(), config.keys_rotate_s)

    # -- life --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Accept nodes and campaign. Raises `CannotStart`."""
        config = self._loaded.config
        host, number = address_towards(config.cluster or ""), 0
        if config.cluster_address is not None:
            host, number = split_address(config.cluster_address)
        try:
            self._port = self._reactor.listenTCP(
                number, self._tls.around(self._door), interface=host
            )
        except Exception as fault:
            raise CannotStart(
                f"The nodes of other machines cannot be heard at {host}:{number}: {fault}; give "
                "another `cluster_address`."
            ) from fault
        place = f"{host}:{self._port.getHost().port}"
        self._candidate = Candidate(
            self._reactor,
            self._database,
            self.name,
            place,
            config.cluster_lease_s,
            self._changed,
            campaigns=self._campaigns,
        )
        self._candidate.start()
        if self._unasked:
            self._open_relay()
        # Shared keys are read, and renewed if due.
        Repeat(self._reactor, 600.0, self._read_shared).start()

    def terminate(self) -> None:
        """Hand over and end; this machine's nodes finish their downloads."""
        if self._stopping:
            self._end(ExitStatus.RETIRED)
        self._stopping = True
        handed: Deferred[None] = Deferred.fromCoroutine(self._hand_over())
        handed.addErrback(lambda failure: self.log.failure("Handing over", failure=failure))
        handed.addBoth(lambda _: self._end(ExitStatus.RETIRED))

    async def _hand_over(self) -> None:
        if self._candidate is None:
            return
        if self._service is not None:
            # Answers stop first; then everything that was answered is stored.
            await self._service.leader.leave()
            self.log.info("This machine hands over.")
            await self._service.stop()
        self._candidate.release()

    def reload(self, loaded: LoadedConfig) -> None:
        """Follow a new configuration and renewed keys."""
        self._loaded = loaded
        self._read_shared()
        if self._service is not None:
            for name in self._service.reload(loaded.config):
                self.log.warn("{name} has changed: it takes effect at the next start.", name=name)

    # -- the election --------------------------------------------------------------------------

    def _changed(self, candidacy: Candidacy) -> None:
        if self._stopping:
            return
        seat = candidacy.leader
        if candidacy.standing is Standing.RETIRED:
            if seat.holder and seat.holder != self.name:
                why = f"{seat.holder} leads (epoch {seat.epoch})"
            else:
                why = "the database has not renewed its lease"
            self.retire(why)
        elif candidacy.standing is Standing.LEADS:
            if self._service is None:
                self._lead(seat.epoch)
        elif not seat.holder:
            # Released: none of its nodes is lost.
            self._followed = ""
        elif seat.place:
            host, port = split_address(seat.place)
            self._followed = seat.holder
            self._tell_nodes(seat.epoch, host, port)
            self.log.info("{leader} leads.", leader=seat.holder)
            self._open_relay()
            self._introduce(list(self._fleet.urls))

    def _lead(self, epoch: int) -> None:
        self.log.info("This machine leads (epoch {epoch}).", epoch=epoch)
        self._stop_following()
        # 100 000 tickets are created and none is dropped: collecting garbage finds nothing.
        gc.disable()
        try:
            with self._database.begin() as session:
                nodes = read_nodes(session)
            # The nodes of a lost leader's machine will not connect.
            here = {name for name, machine in nodes.items() if machine != self._followed}
            own = {f"{self.name}/{name}" for name in self._fleet.names}
            self._database.claim()
            shared = self._open_shared()
            self._identities = shared.identities
            self._database.lead(epoch)
            seat = ClusterSeat(
                self.name,
                self._database,
                shared,
                frozenset(here | own),
                frozenset(nodes.keys() - here - own),
                self.retire,
            )
            self._service = self._take_over(replace(self._fleet, epoch=epoch, cluster=seat))
            self._service.start(lambda urls: self._introduce(urls))
        except Exception as fault:  # noqa: BLE001 - the lease would be renewed without a server
            if isinstance(fault, CannotStart | StoreUnavailable | OSError):
                self.log.error("This machine cannot lead: {fault}", fault=fault)
            else:
                self.log.failure("This machine cannot lead")
            if self._candidate is not None:
                self._candidate.release()
            self._end(1)
        self._door.peer = self._service.leader.peer
        self._tell_nodes(epoch, "", 0)
        gc.freeze()
        gc.enable()

    def retire(self, why: str) -> None:
        """End at once, before any further answer: another machine leads."""
        self.log.error("This machine leads no more: {why}.", why=why)
        self._end(ExitStatus.RETIRED)

    def _end(self, status: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def _tell_nodes(self, epoch: int, host: str, port: int) -> None:
        self._meeting = Meeting(epoch, host, port, self._identities)
        write_meeting(self._loaded.config.state, self._meeting)

    def _read_shared(self) -> None:
        """Use the present shared keys, here and at this machine's nodes."""
        try:
            shared = self._open_shared()
        except (StoreUnavailable, CannotStart) as fault:
            self.log.error("The shared keys stay as they were: {fault}", fault=fault)
            return
        self._identities = shared.identities
        self._tls.use(shared.identities, time.time())
        if self._meeting is not None and self._meeting.identities != shared.identities:
            # A node that knows only the old ones could not connect again.
            self._tell_nodes(self._meeting.epoch, self._meeting.host, self._meeting.port)
        if self._service is not None:
            self._service.gate.use_keys(shared.keys)

    # -- following -----------------------------------------------------------------------------

    def _open_relay(self) -> None:
        """Relay requests to this machine's admin page."""
        if self._relay is None:
            config = self._loaded.config
            endpoint = MeetingEndpoint(self._reactor, config.state, self._fleet.socket, time.time)
            hello = Hello(f"{self.name}/admin", pid=os.getpid(), machine=self.name, serves=False)
            outlet, unled = Pacer(self._reactor, None), self._answer_unled
            home = NodeHome(outlet, epoch=lambda: endpoint.epoch, unled=unled)
            relay = RemoteAdmission(self._reactor, hello, home)
            relay.begin()
            self._follower = relay
            links = LinkFactory(
                self._reactor, decode_from_leader, relay.peer, unread=endpoint.leave_leader
            )
            self._relay = keep_connected(self._reactor, endpoint, links)
            self._relay.startService()
            if self._opened_admin is not None:
                self._listen_for_admin(config, relay, self._opened_admin)

    def _listen_for_admin(
        self, config: ServerConfig, relay: RemoteAdmission, opened: OpenListener
    ) -> None:
        try:
            self._admin = AdminConnections(
                config,
                self._reactor,
                relay.administer,
                lambda: relay.proofs,
                tls_server(config),
                # If this machine leads later, it listens again.
                replace(opened, sockets=[opened.sockets[0].dup()]),
            )
        except CannotStart as fault:
            self.log.error("This machine has no admin page: {fault}", fault=fault)

    def _answer_unled(self, request: Request) -> None:
        assert self._candidate is not None
        seat = self._candidate.state.leader
        follower = self._follower
        unheard_s = follower.unheard_s if follower is not None else None
        met = follower is not None and follower.met_leader
        seen = Unled(self.name, seat.holder, seat.epoch, unheard_s, self._candidate.silence, met)
        answer_unled(request, seen)

    def _stop_following(self) -> None:
        if self._admin is not None:
            Deferred.fromCoroutine(self._admin.close())
            self._admin = None
        if self._relay is not None and self._follower is not None:
            self._relay.stopService()
            self._follower.stop()
            self._relay = self._follower = None

    def _introduce(self, urls: list[str]) -> None:
        if self._introduced:
            return
        self._introduced = True
        if self._service is not None:
            lines = [*self._introduction(self._service, urls), *self._service.admin.introduction()]
        else:
            lines = [f"Cluster   {self.name} follows {self._followed}"]
            if self._admin is not None:
                lines.append(f"Admin     {self._admin.url}/")
        for line in lines:
            click.echo(line)
        for url in urls:
            click.echo(f"ready {url}")
        sys.stdout.flush()
