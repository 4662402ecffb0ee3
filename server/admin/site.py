"""Puts the administration together: from a running server to a twisted.web site."""

# mypy: disallow-untyped-calls=False
from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure
from twisted.web.server import Site

from server.admin import (
    api,
    pages_door,
    pages_network,
    pages_policy,
    pages_queue,
    pages_release,
    pages_state,
)
from server.admin.accounts import Accounts, AccountStore
from server.admin.app import Admin
from server.admin.context import AdminContext
from server.admin.preview import PreviewFailed, Previews, Runner
from server.admin.render import Assets, make_environment
from server.admin.resource import make_site
from server.admin.sessions import Sessions

PREVIEW_LIMIT_S = 120.0
_NICE = 10


@dataclass(frozen=True, slots=True)
class AdminSite:
    """The site to listen with; `first_password` is to be shown once, on the terminal."""

    site: Site
    admin: Admin
    first_password: str | None


def make_admin(
    context: AdminContext,
    store: AccountStore,
    key: bytes,
    runner: Runner,
    hasher: PasswordHasher | None = None,
) -> tuple[Admin, str | None]:
    """The application without a socket; also the first password if nobody had one yet."""
    assets = Assets.load()
    now = context.now()
    accounts, sessions = (
        Accounts(store, context.off, hasher or PasswordHasher()),
        Sessions(store, key),
    )
    rows = store.load()
    first = accounts.open(rows, now)
    sessions.open(rows.sessions, now)
    admin = Admin(
        context=context,
        accounts=accounts,
        sessions=sessions,
        templates=make_environment(assets),
        previews=Previews(runner, context.now),
    )
    for pages in (
        pages_state.pages(assets),
        pages_door.pages(),
        pages_queue.pages(),
        pages_policy.pages(),
        pages_release.pages(),
        pages_network.pages(),
    ):
        admin.pages.add(pages)
    admin.api.add(api.operations(admin))
    return admin, first


def make_admin_site(
    context: AdminContext, store: AccountStore, key: bytes, reactor: Any
) -> AdminSite:
    """The admin listener's site. `key` signs sessions; `store` may block only while this runs."""
    admin, first = make_admin(context, store, key, simulator(reactor))
    return AdminSite(make_site(admin, reactor), admin, first)


class _Simulation(ProcessProtocol):
    """Feeds one request to the simulator and collects its answer."""

    def __init__(self, request: bytes, done: Deferred[bytes]) -> None:
        self._request = request
        self._done = done
        self._out: list[bytes] = []
        self._err = b""
        self.timeout: Any = None
        self.late = False

    def connectionMade(self) -> None:
        transport: Any = self.transport
        transport.write(self._request)
        transport.closeStdin()

    def outReceived(self, data: bytes) -> None:
        self._out.append(data)

    def errReceived(self, data: bytes) -> None:
        self._err = (self._err + data)[-4000:]

    def kill(self) -> None:
        self.late = True
        transport: Any = self.transport
        transport.signalProcess("KILL")

    def processEnded(self, reason: Failure) -> None:
        if self.timeout is not None and self.timeout.active():
            self.timeout.cancel()
        if reason.check(ProcessDone):
            self._done.callback(b"".join(self._out))
            return
        last = self._err.decode("utf-8", "replace").strip().splitlines()
        text = last[-1] if last else "the simulator ended without a word"
        if self.late:
            text = f"the simulation took longer than {PREVIEW_LIMIT_S:.0f} s"
        self._done.errback(Failure(PreviewFailed(text)))


def simulator(reactor: Any) -> Callable[[bytes], Any]:
    """A runner that gives each request to a fresh process of low priority."""
    root = str(Path(__file__).resolve().parents[2])

    async def run(request: bytes) -> bytes:
        done: Deferred[bytes] = Deferred()
        protocol = _Simulation(request, done)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "TIDEGATE_NICE": str(_NICE),
        }
        arguments = [sys.executable, "-m", "loadtest.sim.preview"]
        reactor.spawnProcess(protocol, sys.executable, arguments, env=environment)
        protocol.timeout = reactor.callLater(PREVIEW_LIMIT_S, protocol.kill)
        return await done

    return run
