"""A running server as the admin pages see it, of plain values; a browser without a socket."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from argon2 import PasswordHasher

from policies.job import Estimate, LeaseView, Snapshot, TicketRow, TicketState
from policies.settings import PolicySettings
from server.admin.accounts import AccountRows, ApiToken, Session, User
from server.admin.app import Admin
from server.admin.charts import SERIES
from server.admin.context import (
    Arrival,
    Block,
    Event,
    FilePage,
    FileView,
    Health,
    History,
    PassView,
    PrequeueView,
    Revision,
    Row,
    Rule,
    StaleRevision,
    TicketPage,
    TicketView,
    WaitingLook,
)
from server.admin.site import make_admin
from server.admin.web import Answer, Call

T = TypeVar("T")
NOW = 1_900_000_000.0
KEY = b"0123456789abcdef0123456789abcdef"
#: Cheap on purpose: tests check logic, not the cost of a guess.
QUICK = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never really waits."""
    return asyncio.run(work)


@dataclass
class MemoryAccounts:
    """An account store in memory."""

    users: dict[str, User] = field(default_factory=dict)
    tokens: dict[str, ApiToken] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)

    def load(self) -> AccountRows:
        return AccountRows(
            list(self.users.values()), list(self.tokens.values()), list(self.sessions.values())
        )

    def put_user(self, user: User) -> None:
        self.users[user.name] = user

    def drop_user(self, name: str) -> None:
        self.users.pop(name, None)

    def put_token(self, token: ApiToken) -> None:
        self.tokens[token.serial] = token

    def drop_token(self, serial: str) -> None:
        self.tokens.pop(serial, None)

    def put_session(self, session: Session) -> None:
        self.sessions[session.key] = session

    def drop_session(self, key: str) -> None:
        self.sessions.pop(key, None)


def snapshot(**changes: Any) -> Snapshot:
    """A busy server's snapshot."""
    found = Snapshot(
        policy="ticket",
        mode="ticket",
        slots=36,
        large_slots=30,
        small_active=2,
        large_active=30,
        paused=0,
        waiting=212,
        ready=24,
        ready_target=33,
        offers_total=81_244,
        admitted_small_total=52_000,
        admitted_large_total=9_120,
        completed_total=60_950,
        tickets_issued_total=9_400,
        tickets_expired_total=44,
        no_show_fraction=0.05,
        early_polls_total=310,
        refused_total=12,
        last_wait=Estimate(840.0, 1020.0),
        eta_within_p90=0.91,
        eta_median_error=0.11,
    )
    return replace(found, **changes)


@dataclass
class FakeContext:
    """An `AdminContext` made of lists."""

    now_s: float = NOW
    state: Snapshot = field(default_factory=snapshot)
    body: Health = field(
        default_factory=lambda: Health(
            version="0.1.0",
            started_s=NOW - 5_400,
            goodput_bytes_s=118.4e6,
            capacity_bytes_s=125e6,
            connections=418,
            held=176,
            held_limit=4096,
            connections_total=912_000,
            sent_bytes_total=640 * 10**9,
            multicast_cohorts=1,
            multicast_receivers=38,
            listeners=("http://0.0.0.0:8080", "http://127.0.0.1:8081"),
        )
    )
    running: list[LeaseView] = field(default_factory=list)
    line: list[TicketRow] = field(default_factory=list)
    blocked: list[Block] = field(default_factory=list)
    history_of: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    history_t: tuple[float, ...] = ()
    all_revisions: list[Revision] = field(default_factory=list)
    logged: list[Event] = field(default_factory=list)
    served: list[FileView] = field(default_factory=list)
    held_rules: list[Rule] = field(default_factory=list)
    issued: list[PassView] = field(default_factory=list)
    look: WaitingLook = field(default_factory=WaitingLook)
    recorded: list[Arrival] = field(default_factory=list)
    drawn: list[PrequeueView] = field(default_factory=list)
    mirror_rows: list[Row] = field(default_factory=list)
    multicast_rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.all_revisions:
            settings = PolicySettings().model_dump()
            first = Revision(1, self.now_s - 5_400, "configuration", "", "ticket", settings)
            self.all_revisions.append(first)

    def now(self) -> float:
        return self.now_s

    async def off(self, work: Callable[[], T]) -> T:
        return work()

    def snapshot(self) -> Snapshot:
        return self.state

    def health(self) -> Health:
        return self.body

    def may_scrape(self, peer: str) -> bool:
        return peer == "10.9.8.7"

    def leases(self) -> Sequence[LeaseView]:
        return self.running

    async def history(self, since_s: float, until_s: float, points: int) -> History:
        return History(self.history_t, self.history_of)

    async def tickets(self, search: str, state: str, offset: int, limit: int) -> TicketPage:
        found = [
            TicketView(row, place, 30.0 * place)
            for place, row in enumerate(self.line, 1)
            if search in row.file + row.client + str(row.number) and state in ("", row.state)
        ]
        return TicketPage(tuple(found[offset : offset + limit]), len(found))

    def ticket(self, number: int) -> TicketView | None:
        return next((TicketView(r, 1, 3.0) for r in self.line if r.number == number), None)

    def cancel_lease(self, lease: int) -> bool:
        kept = [view for view in self.running if view.lease != lease]
        found = len(kept) != len(self.running)
        self.running = kept
        return found

    def expire_ticket(self, ticket: int) -> bool:
        kept = [row for row in self.line if row.number != ticket]
        found = len(kept) != len(self.line)
        self.line = kept
        return found

    def promote_ticket(self, ticket: int) -> bool:
        row = next((row for row in self.line if row.number == ticket), None)
        if row is None:
            return False
        self.line.remove(row)
        self.line.insert(0, replace(row, state=TicketState.READY))
        return True

    def blocks(self) -> Sequence[Block]:
        return self.blocked

    def block(self, block: Block) -> None:
        self.unblock(block.network)
        self.blocked.append(block)

    def unblock(self, network: str) -> bool:
        kept = [block for block in self.blocked if block.network != network]
        found = len(kept) != len(self.blocked)
        self.blocked = kept
        return found

    def policies(self) -> Sequence[str]:
        return ("fcfs", "reserve", "ticket", "fair", "adaptive")

    def current(self) -> Revision:
        return self.all_revisions[-1]

    async def revisions(self, before: int | None, limit: int) -> Sequence[Revision]:
        newest = reversed(self.all_revisions)
        return [r for r in newest if before is None or r.number < before][:limit]

    async def revision(self, number: int) -> Revision | None:
        return next((r for r in self.all_revisions if r.number == number), None)

    def apply(
        self,
        policy: str,
        settings: PolicySettings,
        who: str,
        note: str,
        expected: int,
        restored_from: int | None = None,
    ) -> Revision:
        if expected != self.current().number:
            raise StaleRevision
        found = Revision(
            expected + 1, self.now_s, who, note, policy, settings.model_dump(), restored_from
        )
        self.all_revisions.append(found)
        return found

    async def arrivals(self, since_s: float, limit: int) -> Sequence[Arrival]:
        return [a for a in self.recorded if a.t_s >= since_s][:limit]

    def log(self, kind: str, who: str, text: str) -> None:
        self.logged.append(Event(len(self.logged) + 1, self.now_s, kind, who, text))

    async def events(
        self, before: int | None, limit: int, kind: str, search: str
    ) -> Sequence[Event]:
        return [
            e
            for e in reversed(self.logged)
            if (before is None or e.number < before) and kind in ("", e.kind) and search in e.text
        ][:limit]

    async def files(self, search: str, sort: str, offset: int, limit: int) -> FilePage:
        found = [f for f in self.served if search in f.path]
        return FilePage(tuple(found[offset : offset + limit]), len(found))

    def rules(self) -> Sequence[Rule]:
        return self.held_rules

    def set_rules(self, rules: Sequence[Rule]) -> None:
        self.held_rules = list(rules)

    def prequeues(self) -> Sequence[PrequeueView]:
        return self.drawn

    def issue_passes(
        self,
        count: int,
        kind: str,
        path: str,
        not_before_s: float,
        expires_s: float,
        max_uses: int,
        note: str,
        who: str,
    ) -> Sequence[PassView]:
        start = len(self.issued)
        new = [
            PassView(
                *(f"p{start + i}", kind, 4.0, path, not_before_s, expires_s, max_uses, 0, False),
                *(self.now_s, who, note, f"token-{start + i}"),
            )
            for i in range(count)
        ]
        self.issued += [replace(one, token=None) for one in new]
        return new

    async def passes(self, search: str, offset: int, limit: int) -> tuple[Sequence[PassView], int]:
        found = [p for p in self.issued if search in p.serial + p.kind + p.note]
        return found[offset : offset + limit], len(found)

    def revoke_pass(self, serial: str) -> bool:
        for at, one in enumerate(self.issued):
            if one.serial == serial and not one.revoked:
                self.issued[at] = replace(one, revoked=True)
                return True
        return False

    def waiting_look(self) -> WaitingLook:
        return self.look

    def set_waiting_look(self, look: WaitingLook) -> None:
        self.look = look

    def waiting_preview(self, state: str, language: str, look: WaitingLook) -> bytes:
        return f"<!doctype html><html lang={language}><title>{state}</title><p>{state}".encode()

    def mirrors(self) -> Sequence[Row]:
        return self.mirror_rows

    def multicast(self) -> Sequence[Row]:
        return self.multicast_rows

    def metrics(self) -> bytes:
        return b"# metrics\n"


def make_fake(
    context: FakeContext | None = None, store: MemoryAccounts | None = None, runner: Any = None
) -> tuple[Admin, FakeContext, str | None]:
    """An application around a fake server, with cheap passwords."""
    found = context or FakeContext()

    async def nobody(_request: bytes) -> bytes:
        return json.dumps({"sides": []}).encode()

    admin, first = make_admin(found, store or MemoryAccounts(), KEY, runner or nobody, QUICK)
    return admin, found, first


_CSRF = re.compile(r'name="csrf" value="([^"]+)"')


@dataclass
class Browser:
    """Keeps cookies and form tokens like a browser without scripts."""

    admin: Admin
    context: FakeContext
    peer: str = "192.0.2.9"
    cookies: dict[str, str] = field(default_factory=dict)
    token: str = ""
    host: str = "admin.example"

    def ask(
        self,
        method: str,
        target: str,
        form: Mapping[str, str | bytes] | None = None,
        body: bytes = b"",
        **headers: str,
    ) -> Answer:
        path, _, rest = target.partition("?")
        query: dict[str, list[str]] = {}
        for pair in filter(None, rest.split("&")):
            name, _, value = pair.partition("=")
            query.setdefault(name, []).append(value)
        fields = {
            name: [value if isinstance(value, bytes) else value.encode()]
            for name, value in (form or {}).items()
        }
        sent = {"host": self.host, **{n.replace("_", "-"): v for n, v in headers.items()}}
        if self.cookies:
            sent["cookie"] = "; ".join(f"{n}={v}" for n, v in self.cookies.items())
        answer = run(
            self.admin.answer(
                Call(method, path, self.context.now_s, query, sent, fields, body, self.peer)
            )
        )
        for name, value in answer.headers:
            if name == "set-cookie":
                pair, _, rest = value.partition(";")
                key, _, content = pair.partition("=")
                if "Max-Age=0" in rest:
                    self.cookies.pop(key, None)
                else:
                    self.cookies[key] = content
        found = _CSRF.search(answer.body.decode("utf-8", "replace"))
        if found:
            self.token = found.group(1)
        return answer

    def get(self, target: str, **headers: str) -> Answer:
        return self.ask("GET", target, **headers)

    def post(
        self, target: str, form: Mapping[str, str | bytes] | None = None, **headers: str
    ) -> Answer:
        return self.ask("POST", target, {"csrf": self.token, **(form or {})}, **headers)

    def login(self, name: str, password: str, code: str = "") -> Answer:
        self.get("/login")
        return self.post("/login", {"name": name, "password": password, "code": code})


PASSWORD = "correct horse battery"


def logged_in(context: FakeContext | None = None, runner: Any = None) -> Browser:
    """A browser of an operator who has chosen a password."""
    admin, found, first = make_fake(context, runner=runner)
    assert first is not None
    browser = Browser(admin, found)
    browser.login("admin", first)
    browser.get("/account")
    browser.post("/account/password", {"old": first, "password": PASSWORD, "again": PASSWORD})
    browser.get("/account")
    return browser


def busy_context() -> FakeContext:
    """A server in the middle of a release day, for looking at the pages."""
    t = tuple(NOW - 3600 + 15 * i for i in range(241))
    wave = [min(1.0, i / 60) for i in range(241)]
    series: dict[str, tuple[float | None, ...]] = dict.fromkeys(SERIES, (None,) * 241)
    series["large_active"] = tuple(30 * w for w in wave)
    series["small_active"] = tuple(2 + 2 * math.sin(i / 5) for i in range(241))
    series["waiting"] = tuple(max(0.0, 212 * (i - 50) / 190) for i in range(241))
    series["ready"] = tuple(24.0 if i > 50 else 0.0 for i in range(241))
    series["held"] = tuple(0.8 * (v or 0) for v in series["waiting"])
    series["connections"] = tuple(200.0 + i for i in range(241))
    series["goodput_bytes_s"] = tuple(
        118e6 * w * (1 + 0.02 * math.sin(i)) for i, w in enumerate(wave)
    )
    for name, rate in (("offers", 25), ("admitted", 17), ("completed", 16.5)):
        series[name] = tuple(rate * (1 + 0.2 * math.sin(i / 9)) for i in range(241))
    series["refused"] = tuple(0.1 if i % 20 == 0 else 0.0 for i in range(241))
    series["errors"] = (0.0,) * 241
    series["last_wait_s"] = tuple(4.0 * (v or 0) for v in series["waiting"])
    series["last_wait_p90_s"] = tuple(5.0 * (v or 0) for v in series["waiting"])
    series["eta_within_p90"] = tuple(0.9 + 0.03 * math.sin(i / 7) for i in range(241))
    series["eta_median_error"] = tuple(0.12 + 0.02 * math.sin(i / 11) for i in range(241))
    context = FakeContext(history_t=t, history_of=series)
    names = ("release-42.0-x86_64.iso", "release-42.0-arm64.iso", "live-42.0.iso", "netinst.iso")
    for i in range(32):
        size = 10**9 * (1 + i % 4)
        context.running.append(
            LeaseView(
                *(i, 1000 + i, f"198.51.100.{i}#3", f"/42.0/{names[i % 4]}", size),
                *(int(size * (0.95 - 0.028 * i)), True, NOW - 60 * i, 1 + i % 4, i % 9 == 8, 3.4e6),
            )
        )
    for i in range(236):
        context.line.append(
            TicketRow(
                *(5000 + i, f"203.0.113.{i % 250}#{i % 8}", f"/42.0/{names[i % 4]}"),
                *(10**9, 10**9, 4.0 if i % 30 == 0 else 1.0, NOW - 800 + 3 * i),
                TicketState.READY if i < 24 else TicketState.WAITING,
                *(NOW, 1 + i % 5, int(i % 7 == 0)),
            )
        )
    for i, name in enumerate((*names, "SHA256SUMS", "SHA256SUMS.gpg", "README.html")):
        known = "ab" * 32 if i != 2 else None
        context.served.append(
            FileView(
                f"/42.0/{name}",
                10**9 // (1 + 90 * (i // 4)),
                NOW - 86_400,
                known,
                "known" if known else "computing",
                9000 - 1200 * i,
                (9000 - 1200 * i) * 10**8,
            )
        )
    context.held_rules = [
        Rule("/42.1/*", hidden_until_s=NOW + 7200, prequeue_from_s=NOW + 3600, note="42.1 at noon"),
        Rule("/42.0/SHA256SUMS*", treat_as="small"),
    ]
    context.drawn = [PrequeueView("/42.1/*", NOW + 7200, 1834, "9f" * 32, None, "/-/prequeue")]
    context.multicast_rows = [
        Row(
            "/42.0/netinst.iso",
            "sending",
            {"group": "239.1.2.3:5001", "receivers": "38", "rate": "12 MB/s"},
        )
    ]
    context.mirror_rows = [
        Row("https://mirror.example/pub/", "current", {"update": "118", "seen": "12 s ago"}),
        Row("https://slow.example/", "behind", {"update": "115", "seen": "3 min ago"}),
    ]
    for kind, text in (("apply", "revision 2: slots: 30 → 36"), ("block", "blocked 192.0.2.7/32")):
        context.log(kind, "admin", text)
    return context
