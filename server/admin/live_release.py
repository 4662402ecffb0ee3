"""The admin pages' context on a running `Service`: files and rules, passes, the waiting page."""

from __future__ import annotations

import base64
import datetime
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from twisted.internet.task import deferLater

from policies.job import Estimate, Wait
from server.admin.context import (
    FilePage,
    FileView,
    PassView,
    PrequeueView,
    Rule,
    WaitingLook,
)
from server.admin.papers import Papers
from server.files import NotHere
from server.paths import url_of
from server.phrases import LANGUAGES, Phrases
from server.rules import Rule as ServedRule
from server.rules import RuleBook
from server.store.ledger import revoke_pass, write_passes
from server.store.records import PassRecord
from server.store.usage import read_usage
from server.waiting import Notice

if TYPE_CHECKING:
    from server.service import Service

LOGO_ROUTE = "/-/logo"
_FRESH_S = 20.0
_MOST_FILES = 200_000


class LiveRelease:
    """What is served and how it is handed out, as `AdminContext` has it."""

    def __init__(self, service: Service, papers: Papers) -> None:
        self.service = service
        self._papers = papers
        self._rules = [Rule(**row) for row in papers.read_list("rules")]
        look = papers.read("waiting")
        self._look = WaitingLook(
            look.get("title", ""),
            look.get("text", ""),
            base64.b64decode(look.get("logo", "")),
            look.get("logo_type", ""),
        )
        self._index: list[FileView] = []
        self._indexed_s = -1e9
        self._usage: dict[str, tuple[int, int]] = {}

    def open(self) -> None:
        """Put rules and waiting page in force."""
        self.service.extra_rules = [_served(rule) for rule in self._rules]
        self.service.use_rules()
        self._hang_up()
        self.service.site.add_route(LOGO_ROUTE, self._answer_logo)

    # -- files -------------------------------------------------------------------------------

    async def files(self, search: str, sort: str, offset: int, limit: int) -> FilePage:
        if self.service.now() - self._indexed_s > _FRESH_S:
            await self._walk()
        found = [view for view in self._index if search in view.path] if search else self._index
        if sort == "popular":
            found = sorted(found, key=lambda view: (-view.downloads, view.path))
        elif sort == "bytes":
            found = sorted(found, key=lambda view: (-view.sent_bytes, view.path))
        elif sort == "size":
            found = sorted(found, key=lambda view: (-view.size_bytes, view.path))
        pending = self.service.catalog.pending
        return FilePage(tuple(found[offset : offset + limit]), len(found), pending)

    async def _walk(self) -> None:
        """Look through the tree anew, a little in each turn of the reactor."""
        self._indexed_s = self.service.now()
        try:
            self._usage = await self.service.store.read(read_usage)
        except Exception:  # noqa: BLE001 - with a dead database popularity is what it was
            self.service.log.warn("The popularity of files cannot be read now.")
        found: list[FileView] = []
        folders: list[list[bytes]] = [[]]
        entered: set[int] = set()
        began = time.monotonic()
        while folders and len(found) < _MOST_FILES:
            folder = folders.pop()
            try:
                entries = self.service.tree.entries(folder)
            except NotHere:
                continue
            for entry in entries:
                parts = [*folder, entry.name]
                if entry.is_directory:
                    if entry.key.inode not in entered:
                        entered.add(entry.key.inode)
                        folders.append(parts)
                    continue
                found.append(self._file(b"/".join(parts), entry))
            if time.monotonic() - began > 0.01:
                await deferLater(self.service.reactor, 0, lambda: None)
                began = time.monotonic()
        found.sort(key=lambda view: view.path)
        self._index = found

    def _file(self, path: bytes, entry: Any) -> FileView:
        url = url_of(path)
        known = self.service.catalog.known(entry.key)
        pending = self.service.catalog.pending
        downloads, sent_bytes = self._usage.get(url, (0, 0))
        fresh, fresh_bytes = self.service.gate.parts.popularity.pending(url)
        return FileView(
            path=unquote(url, errors="replace"),
            size_bytes=entry.size_bytes,
            modified_s=entry.mtime_s,
            sha256=known.sha256.hex() if known is not None else None,
            digest_state="known" if known is not None else "computing" if pending else "none",
            downloads=downloads + fresh,
            sent_bytes=sent_bytes + fresh_bytes,
        )

    # -- rules -------------------------------------------------------------------------------

    def rules(self) -> Sequence[Rule]:
        return self._rules

    def set_rules(self, rules: Sequence[Rule]) -> None:
        served = [_served(rule) for rule in rules]
        RuleBook(served)  # a pattern that cannot be compiled must not be kept
        self._rules = list(rules)
        self._papers.write_list("rules", self._rules)
        self.service.extra_rules = served
        self.service.use_rules()

    def prequeues(self) -> Sequence[PrequeueView]:
        return [
            PrequeueView(
                path=draw.path,
                opens_s=draw.opens_s,
                entered=len(draw.entries),
                commitment=draw.commitment,
                seed=draw.published_seed(self.service.now()),
                audit_url=draw.audit_url,
            )
            for draw in self.service.prequeue.draws()
        ]

    # -- preference tickets ------------------------------------------------------------------

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
        weight = self.service.gate.settings.weight_of(kind)
        book, now = self.service.passes, self.service.now()
        made = [
            book.issue(
                class_name=kind,
                weight=weight,
                path=path,
                not_before_s=not_before_s,
                expires_s=expires_s,
                max_uses=max_uses,
                now=now,
                note=note,
            )
            for _ in range(count)
        ]
        records = [record for _, record in made]
        self.service.store.must(lambda session: write_passes(session, records))
        return [_pass(record, who, token) for token, record in made]

    async def passes(self, search: str, offset: int, limit: int) -> tuple[Sequence[PassView], int]:
        found = [
            record
            for record in self.service.passes.records()
            if not search
            or search in record.serial
            or search in record.class_name
            or search in record.note
        ]
        return [_pass(record) for record in found[offset : offset + limit]], len(found)

    def revoke_pass(self, serial: str) -> bool:
        known = [r for r in self.service.passes.records() if r.serial == serial and not r.revoked]
        if not known or not self.service.passes.revoke(serial):
            return False

        def write(session: Any) -> None:
            revoke_pass(session, serial)

        self.service.store.must(write)
        return True

    # -- the waiting page --------------------------------------------------------------------

    def waiting_look(self) -> WaitingLook:
        return self._look

    def set_waiting_look(self, look: WaitingLook) -> None:
        self._look = look
        body = {**asdict(look), "logo": base64.b64encode(look.logo).decode()}
        self._papers.write("waiting", body)
        self._hang_up()

    def _hang_up(self) -> None:
        room = self.service.waiting
        room.heading, room.text = self._look.title, self._look.text
        tag = f"{hash(self._look.logo) & 0xFFFFFFFF:08x}"
        room.logo_url = f"{LOGO_ROUTE}?v={tag}" if self._look.logo else ""

    def _answer_logo(self, request: Any) -> None:
        if not self._look.logo:
            request.refuse(404, "not-found", "There is no logo.")
            return
        fields = [
            (b"Content-Type", self._look.logo_type.encode("ascii")),
            (b"Cache-Control", b"public, max-age=3600"),
            (b"X-Content-Type-Options", b"nosniff"),
        ]
        request.respond(200, fields, self._look.logo)

    def waiting_preview(self, state: str, language: str, look: WaitingLook) -> bytes:
        waits = {
            "waiting": Wait(30.0, 4711, 212, False, Estimate(840.0, 1020.0)),
            "ready": Wait(3.0, 4711, 1, True, Estimate(1.0, 5.0)),
            "closed": Wait(10.0, 4711, 212, False, Estimate(840.0, 1020.0)),
            "pre-queue": Wait(600.0),
        }
        notice = Notice(
            file="/release-42.0-x86_64.iso",
            size_bytes=4_100_000_000,
            wait=waits[state],
            token=None if state == "pre-queue" else "preview",
            waited_s=300.0,
            closed=state == "closed",
            opens_s=5400.0 if state == "pre-queue" else None,
        )
        return self.service.waiting.page(notice, Phrases(LANGUAGES[language]))


def _served(rule: Rule) -> ServedRule:
    def moment(at_s: float | None) -> datetime.datetime | None:
        return None if at_s is None else datetime.datetime.fromtimestamp(at_s, datetime.UTC)

    treat_as: Any = rule.treat_as or None
    return ServedRule(
        path=rule.path,
        require_class=rule.require_class or None,
        treat_as=treat_as,
        multicast=rule.multicast,
        hidden_until=moment(rule.hidden_until_s),
        prequeue_from=moment(rule.prequeue_from_s),
    )


def _pass(record: PassRecord, who: str = "", token: str | None = None) -> PassView:
    return PassView(
        serial=record.serial,
        kind=record.class_name,
        weight=record.weight,
        path=record.path,
        not_before_s=record.not_before_s,
        expires_s=record.expires_s,
        max_uses=record.max_uses,
        used=record.uses,
        revoked=record.revoked,
        issued_s=record.issued_s,
        who=who,
        note=record.note,
        token=token,
    )
