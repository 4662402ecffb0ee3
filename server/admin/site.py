"""Puts the administration together: from a running server to what its listener answers with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from argon2 import PasswordHasher

from server.admin import account, files, log, now, passes, policy, queue, waiting
from server.admin.accounts import Accounts, AccountStore, Hashing
from server.admin.app import Admin
from server.admin.previews import Previews, Runner, Simulator
from server.admin.render import Assets, make_environment
from server.admin.router import Router
from server.admin.server import Server
from server.admin.sessions import Logins

#: Of two patterns that fit a path, the first one counts.
MODULES = (now, account, queue, policy, files, passes, waiting, log)


@dataclass(frozen=True, slots=True)
class AdminSite:
    """The application; `first_password` is to be shown once, on the terminal."""

    admin: Admin
    first_password: str | None = field(repr=False)


def make_admin(
    server: Server,
    store: AccountStore,
    key: bytes,
    state: Path,
    *,
    runner: Runner | None = None,
    hasher: PasswordHasher | None = None,
) -> AdminSite:
    """The application without a socket; `key` signs sessions. `store` blocks only while this runs.

    `runner` simulates (by default in a process of its own).
    """
    assets, router = Assets.load(), Router()
    simulator = Simulator(server.off)
    accounts = Accounts(store, Hashing(server.off), hasher or PasswordHasher())
    sessions = Logins(store, key)
    rows = store.load()
    for module in MODULES:
        router.add(module.pages.routes)
        router.add(module.api.routes)
    admin = Admin(
        server=server,
        accounts=accounts,
        sessions=sessions,
        assets=assets,
        templates=make_environment(assets),
        previews=Previews(runner or simulator, server.now),
        router=router,
        state=state,
        close=simulator.close,
    )
    first = accounts.open(rows, server.now())
    sessions.open(rows.sessions, server.now())
    admin.take_reset()
    return AdminSite(admin, first)
