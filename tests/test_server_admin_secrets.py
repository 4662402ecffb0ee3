"""No fault of the administration shows a password, a hash or a key, wherever it is logged."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import FileLogObserver, globalLogPublisher, textFileLogObserver

from tests.admin_site import PASSWORD, Site, make_site, operator, stop
from tidegate.protocol.ticket import Key
from tidegate.server.accounts.accounts import Scope
from tidegate.server.accounts.hashing import Asker
from tidegate.server.app.run import json_line
from tidegate.server.control.events import FaultCount

ROOT = Path(__file__).parent.parent
#: Fields of dataclasses that prove something, and texts and bytes that are keys.
_PROOF = re.compile(r"(^|_)(secret|password|password_hash|token|pem|cookie|visitor)$")
_KEY = re.compile(r"(^|_)keys?: .*bytes")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    found = make_site(tmp_path, monkeypatch)
    yield found
    stop(found)


def test_a_login_that_fails_inside_logs_one_fault_and_no_secret(
    site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    browser = operator(site)
    accounts = site.admin.accounts
    cookie, hashed = browser.cookies["tidegate-admin"], accounts.users["admin"].password_hash
    secret, _ = accounts.issue_token("ci", [Scope.READ], "admin", 0.0, None)

    async def broken(name: str, password: str, code: str, now: float, asker: Asker) -> None:
        raise RuntimeError("the hasher fell over")

    monkeypatch.setattr(type(accounts), "login", lambda _self, *given: broken(*given))
    text, lines, count = io.StringIO(), io.StringIO(), FaultCount()
    observers: list[Any] = [textFileLogObserver(text), FileLogObserver(lines, json_line), count]
    for observer in observers:
        globalLogPublisher.addObserver(observer)
    try:
        answer = browser.login("admin", PASSWORD)
        browser.ask(
            "POST", "/login", {"csrf": browser.token}, headers={"authorization": f"Bearer {secret}"}
        )
    finally:
        for observer in observers:
            globalLogPublisher.removeObserver(observer)
    assert answer.status == 500
    assert count.total == 2
    out, err = capfd.readouterr()
    assert "the hasher fell over" in text.getvalue()
    assert "the hasher fell over" in lines.getvalue()
    everything = text.getvalue() + lines.getvalue() + out + err + answer.body.decode()
    key = site.admin.sessions.key
    for hidden in (PASSWORD, hashed, cookie, secret, repr(key)[2:14], key.hex()[:16]):
        assert hidden not in everything


def test_secrets_stay_out_of_every_repr(site: Site) -> None:
    operator(site)
    admin = site.admin
    secret, token = admin.accounts.issue_token("ci", [Scope.READ], "admin", 0.0, None)
    key = b"0123456789abcdef"
    shown = repr(admin) + repr(admin.sessions) + repr(admin.accounts) + repr(Key("k", key))
    shown += repr(site.service.admin.open_accounts())
    hidden = (PASSWORD, site.first_password, secret, token.digest, "$argon2", key.decode())
    for word in (*hidden, repr(admin.sessions.key)[2:-1]):
        assert word not in shown


def test_no_dataclass_shows_what_proves_something() -> None:
    """A fault's text may hold the repr of any object that was at hand."""
    seen, bare = 0, []
    for package in ("policies", "protocol", "server", "client"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ClassDef) or not any(
                    ast.unparse(one).startswith("dataclass") for one in node.decorator_list
                ):
                    continue
                for row in node.body:
                    if not isinstance(row, ast.AnnAssign):
                        continue
                    name, kind = ast.unparse(row.target), ast.unparse(row.annotation)
                    if not re.search(r"\b(str|bytes)\b", kind) or "dict" in kind:
                        continue
                    if _PROOF.search(name) or _KEY.search(f"{name}: {kind}"):
                        seen += 1
                        if "repr=False" not in ast.unparse(row):
                            bare.append(f"{path.name}: {node.name}.{name}")
    assert seen >= 20
    assert bare == []
