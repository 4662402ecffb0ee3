"""A whole server without sockets, on a clock that tests turn, and a browser for its administration.

Everything is the real thing (service, gate, policy, database) but the reactor and the transfers.
"""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from urllib.parse import parse_qs

import pytest
from argon2 import PasswordHasher
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock

from tests.fakes import FakeConnection, FakeTransfer, representation
from tidegate.server.accounts import stored
from tidegate.server.accounts.hash_process import kept_hash
from tidegate.server.admin.app import Admin
from tidegate.server.admin.web import Answer, Call
from tidegate.server.app.config import LoadedConfig
from tidegate.server.app.listeners import open_admin_early, open_early
from tidegate.server.app.service import Service
from tidegate.server.app.settings import ServerConfig
from tidegate.server.control.server import Server
from tidegate.server.files.transfer import BodyPlan, Transfer, TransferListener
from tidegate.server.http.answers import Header
from tidegate.server.http.request import Request

T = TypeVar("T")
NOW = 1_900_000_000.0
PASSWORD = "correct horse battery"
#: Cheap on purpose: tests check logic, not the cost of a guess.
QUICK = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
_CSRF = re.compile(r'name="csrf" value="([^"]+)"')
_PATIENCE_S = 20.0
_STEP_S = 0.005


class TestReactor(MemoryReactorClock):
    """Time stands still until somebody turns it; threads hand over their results in `finish`."""

    __test__ = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rightNow = NOW
        self._calls: queue.Queue[Callable[[], None]] = queue.Queue()

    def callFromThread(self, call: Any, *args: Any, **named: Any) -> None:
        self._calls.put(lambda: call(*args, **named))

    def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """What a coroutine gives, once the threads it waits for are done."""
        running = Deferred.fromCoroutine(work)
        found: list[Any] = []
        running.addBoth(found.append)
        waited = 0
        while True:
            self.advance(_STEP_S)
            if found and self._calls.empty():
                return cast("T", self._result(found[0]))
            try:
                self._calls.get(timeout=0.0 if found else 0.02)()
            except queue.Empty:
                waited += 1
                assert waited * 0.02 < _PATIENCE_S, "the coroutine waits for nothing that comes"

    @staticmethod
    def _result(found: Any) -> Any:
        if hasattr(found, "raiseException"):
            found.raiseException()
        return found


@dataclass
class Site:
    """One server; `browser` is an operator who has chosen a password."""

    service: Service
    reactor: TestReactor
    transfers: list[FakeTransfer] = field(default_factory=list)
    stopped: bool = False

    @property
    def admin(self) -> Admin:
        return self.service.admin.open_pages()

    @property
    def server(self) -> Server:
        return self.service.admin.server

    @property
    def first_password(self) -> str:
        found = self.service.admin.open_accounts().first_password
        assert found is not None
        return found

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.reactor.finish(work)

    def wait(self, seconds: float) -> None:
        """Let time pass, at most a second at once."""
        while seconds > 0:
            self.reactor.advance(min(1.0, seconds))
            seconds -= 1.0

    def download(self, address: str, file: str = "/big.iso", **fields: str) -> FakeConnection:
        """Somebody asks for a file; the connection tells what they were answered."""
        connection = FakeConnection(address)
        headers = {b"host": b"localhost", b"user-agent": b"tidegate/1"}
        headers |= {b"tidegate-wait": b"ticket"}
        headers |= {n.replace("_", "-").encode(): v.encode() for n, v in fields.items()}
        request = Request(connection, b"GET", file.encode(), headers)  # type: ignore[arg-type]
        size = 50_000_000
        plan = BodyPlan(200, (), ((0, size),), size)

        def begin(listener: TransferListener, headers: Sequence[Header] = ()) -> Transfer:
            transfer = FakeTransfer(listener, size)
            self.transfers.append(transfer)
            return transfer

        self.service.gate.enter(request, representation(file, size), plan, begin)
        self.settle()  # what a client is told waits for the journal
        return connection

    def settle(self) -> None:
        """Let the database have all that was written so far."""
        store = self.service.store
        while store.state.pending or store._flying is not None:
            self.run(_nothing())
            time.sleep(0.001)  # the database's thread is at work

    def land(self) -> None:
        """Let the write that is under way end, well or not."""
        while self.service.store._flying is not None:
            self.run(_nothing())
            time.sleep(0.001)

    def kinds(self) -> list[str]:
        """The log's lines, newest first."""
        self.settle()
        return [event.kind for event in self.run(self.server.events.read(None, 50))]


async def _nothing() -> None:
    return None


def make_site(folder: Path, patch: pytest.MonkeyPatch, **settings: Any) -> Site:
    """A server that was started; two slots, one of them for small files, unless told otherwise."""
    patch.setattr(stored, "password_hasher", lambda: QUICK)
    patch.setattr(stored, "kept_hash_apart", kept_hash)
    release = folder / "release"
    if not release.exists():
        release.mkdir()
        (release / "big.iso").write_bytes(b"x" * 60_000)
        (release / "README").write_text("hello")
    admission = {
        "slots": 2,
        "reserve_small": 1,
        "small_below_bytes": 20_000,
        **settings.pop("admission", {}),
    }
    given = {"directory": release, "state": folder / "state", "admin": "127.0.0.1:0"}
    given |= {"listen": ["127.0.0.1:0"]}
    config = ServerConfig.model_validate(
        {"policy": "ticket", "admission": admission, **given, **settings}
    )
    config.state.mkdir(mode=0o700, exist_ok=True)
    reactor = TestReactor()
    patch.setattr("tidegate.server.app.service.time", SimpleNamespace(time=reactor.seconds))
    opened, admin = open_early(config, (), 1), open_admin_early(config, None)
    loaded = LoadedConfig(config, {}, None, ())
    service = Service(loaded, cast(Any, reactor), opened=tuple(opened), admin=admin)
    service.start(lambda urls: None)
    return Site(service, reactor)


def stop(running: Site) -> None:
    """End it in order, once."""
    if not running.stopped:
        running.stopped = True
        running.run(running.service.stop())


@dataclass
class Browser:
    """Keeps cookies and form tokens like a browser without scripts."""

    site: Site
    peer: str = "192.0.2.9"
    cookies: dict[str, str] = field(default_factory=dict)
    token: str = ""
    host: str = "admin.example"
    secure: bool = False

    def call(
        self,
        method: str,
        target: str,
        form: Mapping[str, str | bytes] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Call:
        """What it would send."""
        path, _, rest = target.partition("?")
        query = parse_qs(rest, keep_blank_values=True)
        fields = {
            name: [value if isinstance(value, bytes) else value.encode()]
            for name, value in (form or {}).items()
        }
        sent = {"host": self.host, **{n.replace("_", "-"): v for n, v in (headers or {}).items()}}
        if self.cookies:
            sent["cookie"] = "; ".join(f"{n}={v}" for n, v in self.cookies.items())
        now = self.site.server.now()
        return Call(method, path, now, query, sent, fields, body, self.peer, self.secure)

    def ask(
        self,
        method: str,
        target: str,
        form: Mapping[str, str | bytes] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        call = self.call(method, target, form, body, headers)
        answer = self.site.run(self.site.admin.answer(call))
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
        return self.ask("GET", target, headers=headers)

    def text(self, target: str) -> str:
        answer = self.get(target)
        assert answer.status == 200, (target, answer.status, answer.body[:300])
        return answer.body.decode()

    def post(
        self, target: str, form: Mapping[str, str | bytes] | None = None, **headers: str
    ) -> Answer:
        return self.ask("POST", target, {"csrf": self.token, **(form or {})}, headers=headers)

    def login(self, name: str, password: str, code: str = "") -> Answer:
        self.get("/login")
        return self.post("/login", {"name": name, "password": password, "code": code})


def operator(running: Site) -> Browser:
    """An operator who has chosen a password."""
    browser = Browser(running)
    browser.login("admin", running.first_password)
    browser.get("/account")
    form = {"old": running.first_password, "password": PASSWORD, "again": PASSWORD}
    assert browser.post("/account/password", form).status == 303
    browser.get("/account")
    return browser
