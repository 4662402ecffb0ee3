"""Puts the administration together: from a running server to what its listener answers with."""

from __future__ import annotations

from pathlib import Path

from ..accounts.hashing import OneAtATime
from ..accounts.oidc import Provider, fetch
from ..accounts.oidc_settings import OidcSettings
from ..accounts.stored import OpenedAccounts
from ..control.report import Reports
from ..control.server import Server
from ..http.clock import Clock
from . import account, files, log, now, passes, policy, queue, report, waiting
from .app import Admin
from .previews import Previews, Simulator
from .render import make_pages
from .router import Router
from .turns import LoopTurns

#: Of two patterns that fit a path, the first one counts.
MODULES = (now, account, queue, policy, files, passes, waiting, log, report)


def make_admin(
    server: Server, opened: OpenedAccounts, state: Path, clock: Clock, oidc: OidcSettings
) -> Admin:
    """The application without a socket."""
    router = Router()
    simulator = Simulator(server.off)
    for module in MODULES:
        router.add(module.pages.routes)
        router.add(module.api.routes)
    admin = Admin(
        server=server,
        accounts=opened.accounts,
        sessions=opened.logins,
        pages=make_pages(),
        previews=Previews(simulator, server.now, server.gate.parts.can_pause),
        reports=Reports(server),
        router=router,
        state=state,
        turns=LoopTurns(clock),
        close=simulator.close,
        provider=Provider(oidc, OneAtATime(server.off), fetch) if oidc.issuer else None,
    )
    admin.take_reset()
    return admin
