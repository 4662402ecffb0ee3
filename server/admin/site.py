"""Puts the administration together: from a running server to a twisted.web site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from argon2 import PasswordHasher
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
from server.admin.preview import Previews, Runner
from server.admin.render import Assets, make_environment
from server.admin.resource import make_site
from server.admin.sessions import Sessions
from server.admin.simulator import Simulator


@dataclass(frozen=True, slots=True)
class AdminSite:
    """The site to listen with; `first_password` is to be shown once, on the terminal."""

    site: Site
    admin: Admin
    first_password: str | None
    simulator: Simulator


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
    simulator = Simulator(context.off)
    admin, first = make_admin(context, store, key, simulator)
    return AdminSite(make_site(admin, reactor), admin, first, simulator)
