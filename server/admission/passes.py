"""Priority passes: issued by the operator, counted and revoked here."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace

from ...protocol.errors import BadToken
from ...protocol.ticket import KeyRing, Pass
from ..http.bounded_table import BoundedTable
from ..store.records import PassRecord


@dataclass(frozen=True, slots=True)
class Grant:
    """What a good pass gives; `PassBook.begin` counts it."""

    permit: Pass
    priority_class: str
    weight: float


class PassBook:
    """Knows every pass that was used or revoked. `keep` is told of each change of a count.

    Where that is known elsewhere and cannot be asked, it does not `judge`: a pass then neither
    helps nor hurts, and is counted later.
    """

    def __init__(
        self, keys: KeyRing, keep: Callable[[PassRecord], None], *, judges: bool = True
    ) -> None:
        self.keys = keys
        self._keep = keep
        self._judges = judges
        self._records: dict[str, PassRecord] = {}
        #: The pass of each download, while it waits and runs.
        self._begun: BoundedTable[tuple[str, str], str] = BoundedTable(200_000)

    def load(self, records: Iterable[PassRecord]) -> None:
        for record in records:
            self._records[record.serial] = record

    def records(self) -> list[PassRecord]:
        """All known passes, newest first."""
        return sorted(self._records.values(), key=lambda record: -record.issued_s)

    def issue(self, terms: Pass, now: float, note: str = "") -> tuple[str, PassRecord]:
        """Make a pass of these terms, with a new serial: the holder's token, the store's record."""
        permit = replace(terms, serial=secrets.token_hex(8))
        token = self.keys.write_pass(permit)
        record = PassRecord(**asdict(permit), issued_s=now, note=note)
        self._records[record.serial] = record
        return token, record

    def read(self, token: str, path: str, now: float) -> Grant:
        """What a token is good for here and now. Raises `BadToken` with the reason."""
        permit = self.keys.read_pass(token)
        if not self._judges:
            return Grant(permit, "", 1.0)
        record = self._records.get(permit.serial)
        if record is not None and record.revoked:
            raise BadToken("This pass was revoked by the operator.", code="pass-revoked")
        # Uses are checked apart: a client that began with the last one must be able to resume.
        permit.check(path, now, 0)
        return Grant(permit, permit.priority_class, permit.weight)

    def check_use(self, grant: Grant, client: str, file: str) -> None:
        """Raise `BadToken` when a new download would be one use too many."""
        record = self._records.get(grant.permit.serial)
        if (
            record is not None
            and record.uses >= grant.permit.max_uses
            and self._begun.get((client, file)) != grant.permit.serial
        ):
            raise BadToken("This pass has been used as often as it allows.", code="pass-used")

    def begin(self, grant: Grant, client: str, file: str, now: float) -> None:
        """Count a download that began (or got its place); polls and resumes count only once."""
        permit = grant.permit
        if self._begun.get((client, file)) == permit.serial:
            return
        self._begun[client, file] = permit.serial
        record = self._records.get(permit.serial) or PassRecord(**asdict(permit), issued_s=now)
        record = replace(record, uses=record.uses + 1)
        self._records[permit.serial] = record
        self._keep(record)

    def end(self, client: str, file: str) -> None:
        """The download is over: the next one of the same file is another use."""
        self._begun.pop((client, file), None)

    def revoke(self, serial: str) -> bool:
        """Make a pass worthless at once; False when it is unknown here."""
        record = self._records.get(serial)
        if record is None:
            return False
        self._records[serial] = replace(record, revoked=True)
        return True
